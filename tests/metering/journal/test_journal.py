"""Writers' directories: made whole, rotated, read from anywhere, closed when dead."""

import errno
import fcntl
import os
import pathlib
import re
import threading

import pytest

from metering import record
from metering.journal import chain, journal
from metering.journal.journal import (
    LOCK,
    SALVAGE,
    Directory,
    DiskFull,
    Journal,
    directories,
    new_writer_id,
    salvage_dead,
    segment_name,
    tree_bytes,
)
from tests.support import journals
from tests.support.journals import WRITER

OTHER = "w" + "b" * 16
HOUR = 490_896


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "state" / "journal"


def create(root: pathlib.Path, *, writer: str = WRITER, segment_bytes_max: int = 1 << 20) -> Journal:
    return Journal.create(root, writer=writer, segment_bytes_max=segment_bytes_max)


def names(path: pathlib.Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def test_a_writer_is_w_and_16_characters_of_base32() -> None:
    assert new_writer_id(bytes(10)) == "w" + "a" * 16
    assert re.fullmatch(r"w[a-z2-7]{16}", new_writer_id(os.urandom(10)))
    assert len({new_writer_id(os.urandom(10)) for _ in range(100)}) == 100


def test_a_new_directory_is_locked_and_has_its_first_segment(root: pathlib.Path) -> None:
    made = create(root)
    assert names(root) == [WRITER]
    assert names(root / WRITER) == [segment_name(1), LOCK]
    with open(root / WRITER / LOCK) as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    made.close()
    made.close()
    with open(root / WRITER / LOCK) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_writer_is_never_made_twice(root: pathlib.Path) -> None:
    create(root).close()
    with pytest.raises(FileExistsError):
        create(root)


def test_a_directory_that_cannot_be_made_leaves_no_name_behind(root: pathlib.Path) -> None:
    root.mkdir(parents=True)
    (root / f".{WRITER}").mkdir()  # what a crash while it is made leaves
    with pytest.raises(FileExistsError):
        create(root)
    assert directories(root) == []


def test_a_write_is_one_write_and_lands_at_once(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []

    def counting(fd: int, data: bytes, write=os.write) -> int:
        written.append(write(fd, data))
        return written[-1]

    made = create(root)
    data = b"".join(journals.encoded([journals.start(), journals.admitted("w-1")]))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", counting)
        made.write(data, 1, HOUR)
    assert written == [len(data)]
    assert made.bytes == len(data)
    assert (root / WRITER / segment_name(1)).read_bytes() == data
    made.close()


def test_segments_are_rotated_by_hour_and_by_size(root: pathlib.Path) -> None:
    written = journals.encoded([journals.start(), *[journals.tick() for _ in range(5)]])
    size = len(written[1])
    made = create(root, segment_bytes_max=len(written[0]) + size)
    for seq, hour in ((1, HOUR), (2, HOUR), (3, HOUR), (4, HOUR + 1), (5, HOUR), (6, HOUR)):
        made.write(written[seq - 1], seq, hour)
    # 1–2 fill a segment; at 4 a new hour begins; the clock going back is no new hour; 4–5 are not that long.
    expected = {1: written[:2], 3: written[2:3], 4: written[3:]}
    found = dict(Directory(root / WRITER).segment_paths())
    assert {first: path.read_bytes() for first, path in found.items()} == {
        first: b"".join(part) for first, part in expected.items()
    }
    assert made.bytes == sum(map(len, written))
    made.close()


def test_a_turn_is_never_cut_even_if_it_is_longer_than_a_segment(root: pathlib.Path) -> None:
    made = create(root, segment_bytes_max=10)
    first, *rest = journals.encoded([journals.start(), *[journals.tick() for _ in range(5)]])
    made.write(first, 1, HOUR)
    made.write(b"".join(rest), 2, HOUR)
    assert names(root / WRITER) == [segment_name(1), segment_name(2), LOCK]
    assert [line.seq for line in Directory(root / WRITER).chained()] == [1, 2, 3, 4, 5, 6]
    made.close()


def test_a_short_write_is_an_error_and_is_taken_back(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = create(root)
    start, *rest = journals.encoded([journals.start(), journals.admitted("w-1"), journals.admitted("w-2")])
    made.write(start, 1, HOUR)
    data = b"".join(rest)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data, write=os.write: write(fd, data[:-1]))
        with pytest.raises(DiskFull, match="short write"):
            made.write(data, 2, HOUR)
    assert (root / WRITER / segment_name(1)).read_bytes() == start, "not the first of the two lines either"
    made.write(data, 2, HOUR)
    assert (root / WRITER / segment_name(1)).read_bytes() == start + data
    made.close()


def test_after_another_error_nothing_more_may_be_asked(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (errno.EIO, errno.ENOSPC):
        made = create(root, writer=journal.new_writer_id(os.urandom(10)))
        start, tick = journals.encoded([journals.start(), journals.tick()])
        made.write(start, 1, HOUR)

        def fails(*_: object, number: int = number) -> None:
            raise OSError(number, "no")

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", fails)
            if number == errno.ENOSPC:  # and what was written cannot be taken back
                patch.setattr(os, "ftruncate", fails)
            with pytest.raises(OSError, match="no") as raised:
                made.write(tick, 2, HOUR)
        assert not isinstance(raised.value, DiskFull)
        with pytest.raises(AssertionError):
            made.write(tick, 2, HOUR)
        with pytest.raises(AssertionError):
            made.sync_work()
        made.close()


@pytest.mark.parametrize("hours", [(0, -5, -5, -4), (0, 7, 7, 7), (0, 0, -1, 0, -1, 0)])
def test_a_clock_that_is_set_begins_one_segment_at_most(root: pathlib.Path, hours: tuple[int, ...]) -> None:
    made = create(root)
    lines = journals.encoded([journals.start(), *[journals.tick()] * (len(hours) - 1)])
    for seq, (line, hour) in enumerate(zip(lines, hours, strict=True), 1):
        made.write(line, seq, HOUR + hour)
    made.close()
    begun = len(Directory(root / WRITER).segment_paths())
    # -5: it begins one, and an hour later another; 7: one; around the full hour: none.
    assert begun == {-5: 3, 7: 2, 0: 1}[hours[1]]
    assert len(list(Directory(root / WRITER).chained())) == len(hours)


def test_without_room_for_another_segment_the_last_one_grows_on(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = create(root)
    start, *ticks = journals.encoded([journals.start(), *[journals.tick()] * 3])
    made.write(start, 1, HOUR)

    def fails(*_: object, **__: object) -> int:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with monkeypatch.context() as patch:
        patch.setattr(journal, "_create_segment", fails)
        made.write(ticks[0], 2, HOUR + 1)
        made.write(ticks[1], 3, HOUR + 1)
    made.write(ticks[2], 4, HOUR + 1)
    made.close()
    assert names(root / WRITER) == [segment_name(1), segment_name(4), LOCK]
    assert [line.seq for line in Directory(root / WRITER).chained()] == [1, 2, 3, 4]


def test_a_dead_writers_ballast_goes_before_its_salvage_comes(root: pathlib.Path) -> None:
    path = journals.write_directory(root, MAKES[:4])
    (path / "ballast").write_bytes(b"x" * 4096)
    live = create(root, writer="w" + "b" * 16)
    live.ballast.resize(1 << 20)
    assert len(salvage_dead(root)) == 1
    assert not (path / "ballast").exists()
    assert (live.path / "ballast").exists()
    assert journal.tree_bytes(root, but=WRITER) == 0, "nobody's ballast counts"
    live.close()
    assert not (live.path / "ballast").exists()


def test_a_segment_that_cannot_be_made_is_an_error(root: pathlib.Path) -> None:
    made = create(root)
    start, tick = journals.encoded([journals.start(), journals.tick()])
    made.write(start, 1, HOUR)
    (root / WRITER / segment_name(2)).touch()
    with pytest.raises(FileExistsError):
        made.write(tick, 2, HOUR + 1)
    assert made.dead
    made.close()


class Syncs:
    """Records what is synced, by file name, and may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.fails_at: str | None = None
        monkeypatch.setattr(journal, "_fdatasync", self)
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, fd: int) -> None:
        name = pathlib.Path(os.readlink(f"/proc/self/fd/{fd}")).name
        self.names.append(name)
        if name == self.fails_at:
            raise OSError(5, "Input/output error")


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    return Syncs(monkeypatch)


def test_older_segments_are_synced_first_and_once(root: pathlib.Path, syncs: Syncs) -> None:
    made = create(root)
    written = journals.encoded([journals.start(), *[journals.tick() for _ in range(3)]])
    made.write(written[0], 1, HOUR)
    made.write(written[1], 2, HOUR + 1)
    made.write(written[2], 3, HOUR + 2)
    syncs.names.clear()
    work = made.sync_work()
    made.write(written[3], 4, HOUR + 3)  # while the work is under way
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert syncs.names == [segment_name(1), segment_name(2), WRITER, segment_name(3)]
    syncs.names.clear()
    made.sync_work()()
    made.sync_work()()
    assert syncs.names == [segment_name(3), WRITER, segment_name(4), segment_name(4)]
    made.close()


def test_what_lines_speak_of_is_synced_before_them(root: pathlib.Path, syncs: Syncs) -> None:
    made = create(root)
    made.sync_before = lambda: syncs.names.append("content")
    made.write(journals.encoded([journals.start()])[0], 1, HOUR)
    syncs.names.clear()
    made.sync_work()()
    assert syncs.names == ["content", segment_name(1)]
    made.close()


def test_a_failed_sync_of_an_older_segment_is_an_error(root: pathlib.Path, syncs: Syncs) -> None:
    made = create(root)
    start, tick = journals.encoded([journals.start(), journals.tick()])
    made.write(start, 1, HOUR)
    made.write(tick, 2, HOUR + 1)
    syncs.names.clear()
    syncs.fails_at = segment_name(1)
    with pytest.raises(OSError, match="Input/output"):
        made.sync_work()()
    assert syncs.names == [segment_name(1)]
    made.close()


def test_a_directory_is_made_durable_with_all_above_it(root: pathlib.Path, syncs: Syncs) -> None:
    create(root).close()
    assert syncs.names == [root.parent.parent.name, "state", f".{WRITER}", "journal"]


@pytest.mark.parametrize("fails_at", [f".{WRITER}", "journal"])
def test_a_directory_that_cannot_be_made_durable_is_not_there(
    root: pathlib.Path, syncs: Syncs, fails_at: str
) -> None:
    root.mkdir(parents=True)
    syncs.fails_at = fails_at
    with pytest.raises(OSError, match="Input/output"):
        create(root)
    assert list(root.iterdir()) == []
    syncs.fails_at = ""
    create(root).close()


def test_a_journal_with_nothing_durable_can_be_discarded(root: pathlib.Path) -> None:
    made = create(root)
    made.close()
    made.discard()
    assert list(root.iterdir()) == []


# Reading

MAKES = [journals.start(), *[journals.admitted(f"w-{n}") for n in range(8)], journals.stop()]


@pytest.mark.parametrize("per_segment", [1, 3, 4, 100])
def test_lines_are_read_from_any_seq(root: pathlib.Path, per_segment: int) -> None:
    path = journals.write_directory(root, MAKES, per_segment=per_segment)
    directory = Directory(path)
    whole = list(directory.records())
    assert [seq for _, seq, _ in whole] == list(range(1, 11))
    assert [line.prev for line, _, _ in whole] == [chain.ZEROS, *[leaf for _, _, leaf in whole[:-1]]]
    for after in range(12):
        assert list(directory.records(after)) == whole[after:]
        assert directory.file_of(after).exists()
    assert directory.complete
    tail = directory.tail()
    assert tail is not None
    assert (tail.line, tail.seq, tail.leaf) == whole[-1]


def test_segments_before_the_seq_asked_for_are_not_read(root: pathlib.Path) -> None:
    path = journals.write_directory(root, MAKES, per_segment=3)
    (path / segment_name(1)).unlink()
    (path / segment_name(4)).write_bytes(b"")
    assert [seq for _, seq, _ in Directory(path).records(7)] == [8, 9, 10]
    assert Directory(path).file_of(8).name == segment_name(7)


def test_lines_of_unknown_kinds_are_left_out_and_chained_through(root: pathlib.Path) -> None:
    path = journals.write_directory(root, [journals.start()])
    segment = path / segment_name(1)
    event = (
        b'{"at_ns":1,"kind":"weather","prev":"%s","seq":2,"v":1}'
        % chain.leaf(segment.read_bytes()[:-1]).encode()
    )
    tick = journals.encoded([journals.tick()], 2, chain.leaf(event))[0]
    segment.write_bytes(segment.read_bytes() + event + b"\n" + tick)
    assert [seq for _, seq, _ in Directory(path).records()] == [1, 3]
    assert [line.seq for line in Directory(path).chained()] == [1, 2, 3]


def test_a_live_directory_is_read_up_to_its_last_whole_line(root: pathlib.Path) -> None:
    path = journals.write_directory(root, MAKES[:4])
    whole = list(Directory(path).chained())
    with open(path / segment_name(1), "ab") as file:
        file.write(journals.encoded([journals.tick()], 4, whole[-1].leaf)[0][:-1])
    assert list(Directory(path).chained()) == whole
    assert Directory(path).tail() == whole[-1]
    assert not Directory(path).complete


def test_a_segment_that_was_begun_and_not_written_is_no_end(root: pathlib.Path) -> None:
    path = journals.write_directory(root, MAKES)
    (path / segment_name(11)).touch()
    assert Directory(path).complete
    assert len(list(Directory(path).records())) == 10
    assert list(Directory(path).records(10)) == []


def test_the_tail_is_found_behind_long_lines(root: pathlib.Path) -> None:
    long = journals.admitted("w-1", tags={"t": "x" * 300_000})
    path = journals.write_directory(root, [journals.start(), long])
    tail = Directory(path).tail()
    assert tail is not None
    assert tail.seq == 2
    assert len(list(Directory(path).records())) == 2


@pytest.mark.parametrize("junk", [b"junk\n", b"\n", b"\0" * 100_000 + b"\n"])
def test_the_tail_of_a_damaged_directory_is_its_last_good_line(root: pathlib.Path, junk: bytes) -> None:
    path = journals.write_directory(root, MAKES[:4])
    with open(path / segment_name(1), "ab") as file:
        file.write(junk)
    tail = Directory(path).tail()
    assert tail is not None
    assert tail.seq == 4


def test_an_empty_directory_has_no_tail(root: pathlib.Path) -> None:
    path = journals.write_directory(root, [])
    assert Directory(path).tail() is None
    assert list(Directory(path).records()) == []
    (path / segment_name(1)).write_bytes(b"{")
    assert Directory(path).tail() is None
    (path / segment_name(1)).write_bytes(b"{}\n")
    assert Directory(path).tail() is None
    assert Directory(path).file_of(5).name == segment_name(1)


def test_reading_on_from_an_altered_segment_gives_nothing(root: pathlib.Path) -> None:
    path = journals.write_directory(root, MAKES, per_segment=3)
    (path / segment_name(4)).write_bytes(b"junk\n")
    assert list(Directory(path).records(4)) == []
    assert len(list(Directory(path).records())) == 3


def test_directories_are_found_by_their_names(root: pathlib.Path) -> None:
    assert directories(root) == []
    for writer in (OTHER, WRITER):
        journals.write_directory(root, MAKES, writer=writer)
    (root / "lost+found").mkdir()
    (root / f".{WRITER}").mkdir()
    assert [directory.writer for directory in directories(root)] == [WRITER, OTHER]
    assert repr(directories(root)[0]) == f"Directory({WRITER})"


def test_the_bytes_of_the_tree_are_counted_without_ones_own(root: pathlib.Path) -> None:
    paths = [
        journals.write_directory(root, MAKES, writer=writer, per_segment=4) for writer in (WRITER, OTHER)
    ]
    other = sum(file.stat().st_size for file in paths[1].iterdir())
    assert tree_bytes(root, but=WRITER) == other
    assert tree_bytes(root, but="") == 2 * other
    assert tree_bytes(root / "none", but="") == 0


# Closing dead ones


def test_dead_directories_are_closed_and_others_left_alone(root: pathlib.Path) -> None:
    writers = ["w" + letter * 16 for letter in "abcd"]
    journals.write_directory(root, MAKES[:4], writer=writers[0])  # dead, three calls open
    journals.write_directory(root, MAKES, writer=writers[1])  # stopped
    live = create(root, writer=writers[2])
    live.write(b"".join(journals.encoded(MAKES[:2])), 1, HOUR)
    journals.write_directory(root, [], writer=writers[3])  # died before its first line

    closed = salvage_dead(root)
    assert [(c.directory.writer, c.lost, c.torn_bytes) for c in closed] == [
        (writers[0], 3, 0),
        (writers[3], 0, 0),
    ]
    assert [directory.complete for directory in directories(root)] == [True, True, False, True]
    assert [directory.closed_by_salvage for directory in directories(root)] == [True, False, False, True]
    assert salvage_dead(root) == []
    live.close()
    assert [c.directory.writer for c in salvage_dead(root)] == [writers[2]]


def test_a_closed_directory_is_read_into_its_end(root: pathlib.Path) -> None:
    path = journals.write_directory(root, MAKES[:6], per_segment=2)
    (path / segment_name(5)).write_bytes((path / segment_name(5)).read_bytes()[:-1])
    [closed] = salvage_dead(root)
    assert (closed.lost, closed.torn_bytes > 0) == (4, True)
    directory = closed.directory
    whole = list(directory.records())
    kinds = [line.kind for line, _, _ in whole]
    assert kinds == ["start", *["admitted"] * 4, *["call"] * 4, "stop"]
    for after in range(12):
        assert list(directory.records(after)) == whole[after:]
    assert directory.file_of(5).name == segment_name(5)
    assert directory.file_of(6).name == SALVAGE


def test_lines_that_came_after_the_closing_are_not_read(root: pathlib.Path) -> None:
    path = journals.write_directory(root, MAKES[:4])
    salvage_dead(root)
    whole = list(Directory(path).records())
    with open(path / segment_name(1), "ab") as file:
        file.write(journals.encoded([journals.tick()], 4, whole[3][2])[0])
    assert list(Directory(path).records()) == whole


def test_an_altered_end_is_not_read(root: pathlib.Path) -> None:
    path = journals.write_directory(root, MAKES[:4])
    salvage_dead(root)
    whole = list(Directory(path).records())
    end = (path / SALVAGE).read_bytes()
    (path / SALVAGE).write_bytes(end.replace(b'"lost"', b'"LOST"'))
    assert list(Directory(path).records()) == whole[:4]
    (path / SALVAGE).write_bytes(end[:-1])
    assert list(Directory(path).records()) == whole[:-1]
    assert list(Directory(path).records(5)) == whole[5:-1]


def test_the_end_is_put_there_whole_and_all_before_it_is_durable(root: pathlib.Path, syncs: Syncs) -> None:
    path = journals.write_directory(root, MAKES[:4], per_segment=2)
    (path / "salvage-x.tmp").write_bytes(b"half")
    salvage_dead(root)
    assert names(path) == [segment_name(1), segment_name(3), LOCK, SALVAGE]
    first, second, temporary, directory = syncs.names
    assert (first, second, directory) == (segment_name(1), segment_name(3), WRITER)
    assert re.fullmatch(r"salvage-.*\.tmp", temporary)


def test_a_closing_that_fails_leaves_the_directory_open(root: pathlib.Path, syncs: Syncs) -> None:
    path = journals.write_directory(root, MAKES[:4])
    syncs.fails_at = segment_name(1)
    with pytest.raises(OSError, match="Input/output"):
        salvage_dead(root)
    assert not (path / SALVAGE).exists()
    syncs.fails_at = None
    assert len(salvage_dead(root)) == 1


def test_what_ends_with_a_stop_behind_junk_is_not_closed(root: pathlib.Path) -> None:
    path = journals.write_directory(root, MAKES)
    with open(path / segment_name(1), "ab") as file:
        file.write(b"\0" * 100)
    assert salvage_dead(root) == []
    with open(path / segment_name(1), "ab") as file:
        file.write(b"\n")
    assert salvage_dead(root) == []
    assert Directory(path).complete


def test_a_line_behind_the_stop_that_does_not_continue_it_is_closed_off(root: pathlib.Path) -> None:
    path = journals.write_directory(root, MAKES[:1] + MAKES[-1:])
    stray = journals.encoded([journals.tick()], 7)[0]
    with open(path / segment_name(1), "ab") as file:
        file.write(stray)
    [closed] = salvage_dead(root)
    assert (closed.lost, closed.torn_bytes) == (0, len(stray))
    assert Directory(path).complete
    assert [line.kind for line, _, _ in Directory(path).records()] == ["start", "stop", "stop"]


def test_a_directory_stopped_with_a_call_record_is_whole(root: pathlib.Path) -> None:
    makes = [journals.start(), journals.admitted("w-1"), journals.call("w-1"), journals.stop()]
    path = journals.write_directory(root, makes)
    outcomes = [
        line.outcome for line, _, _ in Directory(path).records() if isinstance(line, record.CallRecord)
    ]
    assert outcomes == [record.Outcome.COMPLETED]
