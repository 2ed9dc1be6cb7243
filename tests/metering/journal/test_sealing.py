"""Sealing: the same bytes in less room, whatever happens on the way."""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import threading
from collections.abc import Callable

import pytest
import zstandard

from metering.journal import sealing, segments
from metering.journal.journal import SALVAGE, Directory, Journal, salvage_dead
from metering.journal.sealing import SealError, seal
from metering.journal.segments import segment_name
from metering.units import NS_PER_S
from tests.support.journals import WRITER, admitted, call, encoded, start, stop, write_directory

LATER_NS = 1 << 62
MAKES = [start(), *[make for n in range(1, 5) for make in (admitted(f"w-{n}"), call(f"w-{n}"))]]


def all_bytes(directory: Directory) -> bytes:
    return b"".join(block for one in directory.segments() for block in one.blocks)


@pytest.fixture
def closed(tmp_path: pathlib.Path) -> Directory:
    """A complete directory of ten lines in segments of three."""
    return Directory(write_directory(tmp_path, [*MAKES, stop()], per_segment=3))


def test_a_sealed_segment_holds_the_very_bytes(closed: Directory) -> None:
    path = closed.path / segment_name(4)
    data, touched_ns = path.read_bytes(), path.stat().st_mtime_ns
    sealed = seal(path)
    assert not path.exists()
    assert sealed.name == "0000000000000004.jsonl.zst"
    assert zstandard.ZstdDecompressor().decompress(sealed.read_bytes()) == data
    assert zstandard.get_frame_parameters(sealed.read_bytes()).has_checksum
    assert sealed.stat().st_mtime_ns == touched_ns


@pytest.mark.skipif(
    shutil.which("zstd") is None, reason="needs the program zstd; the library is tested above"
)
def test_the_usual_program_unpacks_it(closed: Directory) -> None:
    path = closed.path / segment_name(4)
    data = path.read_bytes()
    unpacked = subprocess.run(["zstd", "-dc", seal(path)], check=True, capture_output=True)
    assert unpacked.stdout == data


def test_all_of_a_complete_directory_is_due_and_reads_as_before(closed: Directory) -> None:
    lines, tail = list(closed.chained()), closed.tail()
    paths = sealing.due(closed, LATER_NS)
    assert [path.name for path in paths] == [segment_name(first) for first in (1, 4, 7, 10)]
    for path in paths:
        seal(path)
        assert list(closed.chained()) == lines
        assert list(closed.chained(5)) == lines[5:]
        assert closed.tail() == tail
        assert closed.complete
    assert sealing.due(closed, LATER_NS) == []
    assert closed.file_of(5).name == "0000000000000004.jsonl.zst"


def test_the_last_segment_of_a_live_writer_grows_on(tmp_path: pathlib.Path) -> None:
    live = Directory(write_directory(tmp_path, MAKES, per_segment=3))
    paths = sealing.due(live, LATER_NS)
    assert [path.name for path in paths] == [segment_name(1), segment_name(4)]
    for path in paths:
        seal(path)
    assert not live.complete
    assert len(list(live.chained())) == 9


def test_a_dead_writer_is_salvaged_after_its_segments_were_sealed(tmp_path: pathlib.Path) -> None:
    dead = Directory(write_directory(tmp_path, [*MAKES, admitted("w-5")], per_segment=3))
    for path in sealing.due(dead, LATER_NS):
        seal(path)
    (salvaged,) = salvage_dead(tmp_path)
    assert salvaged.lost == 1
    for path in sealing.due(dead, LATER_NS):
        seal(path)
    assert [line.seq for line in dead.chained()] == list(range(1, 13))
    assert (dead.path / SALVAGE).exists(), "it stays plain"


def test_what_was_written_to_just_now_is_left_alone(closed: Directory) -> None:
    touched_ns = (closed.path / segment_name(1)).stat().st_mtime_ns
    assert sealing.due(closed, touched_ns + 59 * NS_PER_S) == []


def test_what_does_not_read_back_replaces_nothing(closed: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    path = closed.path / segment_name(1)
    fsync = os.fsync

    def damage(fd: int) -> None:
        os.pwrite(fd, b"\xff" * 8, 30)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", damage)
    with pytest.raises(SealError, match=segment_name(1)):
        seal(path)
    assert sorted(one.name for one in closed.path.glob("*1.jsonl*")) == [path.name]


class Killed(BaseException):
    """What no code of ours can handle."""


STEPS: list[tuple[object, str]] = [
    (os, "utime"),
    (os, "fsync"),
    (pathlib.Path, "rename"),
    (sealing, "sync_directory"),
    (pathlib.Path, "unlink"),
]


def killing(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, *, after: bool) -> None:
    """Have the process end at this call, or as it returns: not even its clean-up runs."""
    real: Callable[..., object] = getattr(owner, name)

    def killed(*args: object, **options: object) -> None:
        if after:
            real(*args, **options)
        monkeypatch.setattr(pathlib.Path, "unlink", lambda *_args, **_options: None)
        raise Killed

    monkeypatch.setattr(owner, name, killed)


def check_crash(closed: Directory, kill: Callable[[], None], undo: Callable[[], None]) -> None:
    """Sealing that is killed leaves a directory that reads as before; sealing again finishes."""
    lines, path = list(closed.chained()), closed.path / segment_name(4)
    kill()
    with pytest.raises(Killed):
        seal(path)
    undo()
    assert list(closed.chained()) == lines
    if path.exists():
        seal(path)
    assert not path.exists()
    assert list(closed.chained()) == lines


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("owner", "name"), STEPS, ids=[name for _, name in STEPS])
def test_a_crash_at_any_step_leaves_a_readable_directory(
    closed: Directory, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, after: bool
) -> None:
    with monkeypatch.context() as patch:
        check_crash(closed, lambda: killing(patch, owner, name, after=after), patch.undo)


def test_the_plain_file_deleted_before_the_rename_is_found(
    closed: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: with this order a crash takes a segment."""

    def unlink_and_die(_hidden: pathlib.Path, target: pathlib.Path) -> None:
        os.unlink(target.with_name(target.name.removesuffix(".zst")))
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(AssertionError, match=r"\[Chained"):
        check_crash(closed, lambda: patch.setattr(pathlib.Path, "rename", unlink_and_die), patch.undo)


def test_a_leftover_of_a_crash_is_not_trusted(closed: Directory) -> None:
    path = closed.path / segment_name(4)
    data = path.read_bytes()
    segments.sealed_path(path).write_bytes(b"half of it")
    assert segments.read(seal(path)) == data


def test_sealing_frees_room_of_a_live_journal(tmp_path: pathlib.Path) -> None:
    written = encoded([start(), *[call(f"w-{n}") for n in range(40)]])
    made = Journal.create(tmp_path, writer=WRITER, segment_bytes_max=8_000)
    for seq, line in enumerate(written, 1):
        made.write(line, seq, 0)
    assert made.freed_bytes() == 0
    first = Directory(made.path).segment_paths()[0][1]
    size = first.stat().st_size
    sealed = seal(first)
    assert made.freed_bytes() == size - sealed.stat().st_size > 0
    sealed.unlink()
    assert made.freed_bytes() == size
    made.close()


def test_who_reads_while_it_is_sealed_sees_all_of_it(tmp_path: pathlib.Path) -> None:
    """In threads, so that listing, opening and unlinking meet in every order."""
    makes = [make for n in range(400) for make in (admitted(f"w-{n}"), call(f"w-{n}"))]
    directory = Directory(write_directory(tmp_path, [start(), *makes, stop()], per_segment=10))
    lines = list(directory.chained())
    done = threading.Event()

    def read() -> int:
        rounds = 0
        while not done.is_set() or rounds == 0:
            assert list(directory.chained()) == lines
            assert list(directory.chained(395)) == lines[395:]
            assert directory.tail() == lines[-1]
            assert directory.complete
            rounds += 1
        return rounds

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        readers = [threads.submit(read) for _ in range(2)]
        for path in sealing.due(directory, LATER_NS):
            seal(path)
        done.set()
        assert all(reader.result() > 0 for reader in readers)
    assert all(segments.is_sealed(path) for _, path in directory.segment_paths())
