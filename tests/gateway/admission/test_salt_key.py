import pathlib

import pytest

from gateway.admission import salt_key


def test_it_is_made_once_and_is_its_owners_alone(tmp_path: pathlib.Path) -> None:
    salt_key.ensure(tmp_path)
    key = salt_key.load(tmp_path)
    salt_key.ensure(tmp_path)
    assert salt_key.load(tmp_path) == key
    assert len(key) == 32
    assert salt_key.path_of(tmp_path).stat().st_mode & 0o777 == 0o600


def test_what_is_no_key_is_said_at_the_start_and_by_a_worker(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    salt_key.ensure(tmp_path)
    salt_key.path_of(tmp_path).write_bytes(b"short")
    with pytest.raises(OSError, match="no key of cache salts"):
        salt_key.ensure(tmp_path)
    one, other = salt_key.load(tmp_path), salt_key.load(tmp_path)
    assert len(one) == len(other) == 32
    assert one != other
    assert "not readable" in caplog.text
