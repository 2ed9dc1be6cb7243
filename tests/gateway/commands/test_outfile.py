"""Files of commands: whole or not there, and nothing said of one that does not come to be."""

import os
import pathlib
import time

import pytest

from gateway.commands import export_command, outfile
from metering.journal.events import Happening
from tests.support.disks import Filler, mounted

MIB = 1024 * 1024


def test_it_has_its_name_once_it_is_whole(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out.csv"
    with outfile.whole(out) as file:
        file.write(b"rows")
        assert not out.exists()
    assert out.read_bytes() == b"rows"
    assert os.listdir(tmp_path) == ["out.csv"]


def test_what_a_killed_one_has_left_is_deleted_and_nothing_else(tmp_path: pathlib.Path) -> None:
    old, young = tmp_path / ".out.csv.0a1b2c3d.part", tmp_path / ".out.csv.11111111.part"
    others = [tmp_path / name for name in ("out.csv.0a1b2c3d.part", ".out.csv.mine.part", ".x.0a1b2c3d.part")]
    for path in (old, young, *others):
        path.touch()
        if path is not young:
            os.utime(path, (time.time() - 3_600, time.time() - 3_600))
    with outfile.whole(tmp_path / "out.csv") as file:
        file.write(b"rows")
    assert not old.exists()
    assert young.exists(), "somebody may be writing it"
    assert all(path.exists() for path in others)


@pytest.mark.parametrize("bad", ["a directory", "nowhere", "a full disk"])
def test_of_a_file_that_cannot_be_nothing_is_told(tmp_path: pathlib.Path, bad: str) -> None:
    told: list[Happening] = []
    with mounted(tmp_path / "disk", MIB) as disk:
        out = {"a directory": tmp_path, "nowhere": tmp_path / "none" / "out", "a full disk": disk / "out"}[
            bad
        ]
        if bad == "a full disk":
            Filler(disk / "filler").fill()
        with pytest.raises(OSError, match=r"Is a directory|No such file|No space") as raised:
            export_command.write([], range(2), out, told.append)
        assert raised.value.filename == str(out)
        assert (told, list(disk.glob("*out*"))) == ([], [])


def test_the_law_sees_one_that_tells_before_it_is_on_the_disk(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: what was written is in memory when it is told."""
    told: list[Happening] = []
    settle = outfile.settle
    calls: list[int] = []

    def later(file) -> None:
        calls.append(1)
        if len(calls) > 1:
            settle(file)

    monkeypatch.setattr(outfile, "settle", later)
    with mounted(tmp_path / "disk", MIB) as disk:
        Filler(disk / "filler").fill()
        with pytest.raises(OSError, match="No space"):
            export_command.write([], range(2), disk / "out", told.append)
        assert len(told) == 1
