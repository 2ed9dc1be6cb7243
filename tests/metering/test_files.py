"""Small files that are replaced as a whole."""

import os
import pathlib
import resource
import stat
import time

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


def test_parts_that_nobody_writes_any_more_are_cleared(tmp_path: pathlib.Path) -> None:
    below = tmp_path / "pages"
    below.mkdir()
    old, young = files.part_of(below / "gone"), files.part_of(below / "gone")
    other = below / ".gone.part"
    for path in (old, young, other):
        path.touch()
    ago = time.time() - 2 * files.LEFTOVER_S
    for path in (old, other):
        os.utime(path, (ago, ago))
    files.clear_leftovers(tmp_path)
    assert sorted(path.name for path in below.iterdir()) == sorted([young.name, other.name])
    files.clear_leftovers(tmp_path / "none")
