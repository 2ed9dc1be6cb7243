"""Keyed digests and the keys that make them."""

import hashlib
import hmac
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.journal import digests
from metering.journal.digests import KEY_BYTES, DigestKey, TenantKeys, ensure, forget, load, path_of, shown

KEY = bytes(range(KEY_BYTES))


@given(st.lists(st.binary()), st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES))
def test_a_digest_is_the_hmac_of_all_however_it_was_cut(pieces: list[bytes], key: bytes) -> None:
    running = DigestKey(key).begin()
    for piece in pieces:
        running.update(piece)
    whole = b"".join(pieces)
    expected = f"hmac-sha256:{hmac.digest(key, whole, 'sha256').hex()}"
    assert shown(running) == DigestKey(key).of(whole) == expected


def test_a_keys_id_names_it() -> None:
    assert DigestKey(KEY).id == hashlib.sha256(KEY).hexdigest()[:8]


def test_keys_are_made_once_for_their_owner_only(tmp_path: pathlib.Path) -> None:
    ensure(tmp_path, ["acme", "beta"])
    made = path_of(tmp_path, "acme").read_bytes()
    assert len(made) == KEY_BYTES
    assert made != path_of(tmp_path, "beta").read_bytes()
    assert path_of(tmp_path, "acme").stat().st_mode & 0o777 == 0o600
    assert path_of(tmp_path, "acme").parent.stat().st_mode & 0o777 == 0o700
    ensure(tmp_path, ["acme"])
    assert path_of(tmp_path, "acme").read_bytes() == made


def test_a_key_is_read_or_it_is_said_why_not(tmp_path: pathlib.Path) -> None:
    assert load(tmp_path, "acme") is None
    ensure(tmp_path, ["acme"])
    key = load(tmp_path, "acme")
    assert key is not None
    assert key.of(b"x") == DigestKey(path_of(tmp_path, "acme").read_bytes()).of(b"x")
    path_of(tmp_path, "acme").write_bytes(b"short")
    with pytest.raises(OSError, match=r"no key of digests.*acme\.key"):
        load(tmp_path, "acme")


def test_a_worker_forgets_a_key_that_is_deleted_and_takes_up_a_new_one(tmp_path: pathlib.Path) -> None:
    keys = TenantKeys(tmp_path, ["acme"])
    assert keys.wanted
    assert not TenantKeys(tmp_path, []).wanted
    keys.refresh()
    assert keys.get("acme") is None
    ensure(tmp_path, ["acme", "beta"])
    keys.refresh()
    first = keys.get("acme")
    assert first is not None
    assert keys.get("beta") is None  # it wants none
    keys.refresh()
    assert keys.get("acme") is first
    forget(tmp_path, "acme")
    assert keys.get("acme") is first
    keys.refresh()
    assert keys.get("acme") is None
    ensure(tmp_path, ["acme"])
    keys.refresh()
    second = keys.get("acme")
    assert second is not None
    assert second.id != first.id


def test_a_key_that_cannot_be_read_makes_no_digests_and_is_said_once(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    ensure(tmp_path, ["acme"])
    path_of(tmp_path, "acme").write_bytes(b"")
    keys = TenantKeys(tmp_path, ["acme"])
    for _ in range(3):
        keys.refresh()
    assert keys.get("acme") is None
    assert [record.name for record in caplog.records] == [digests.logger.name]
