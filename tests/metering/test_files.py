"""Small files that are replaced as a whole."""

import pathlib
import resource
import stat

import pytest

from metering import files


def test_the_whole_file_is_there_and_its_owners_alone(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    for data in (b"old", b"new"):
        files.put(path, data)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_without_room_is_named(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    files.put(path, b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as told:
            files.put(path, b"new")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert told.value.filename == str(path)
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"old", [path])
