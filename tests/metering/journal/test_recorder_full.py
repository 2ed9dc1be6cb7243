"""The recorder on a disk that is full: records are written into the ballast, and nothing else is."""

import contextlib
import errno
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from metering import record
from metering.journal import ballast, recorder, room, turns
from metering.journal.journal import DiskFull, salvage_dead
from tests.metering.journal.test_recorder import World, run, turn
from tests.support import journals


class SmallDisk:
    """How much room there is, apart from the ballast's. None: as much as anybody likes."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self.taken_by_others = 0  # of what the ballast gives back
        self._write, self._release = world.journal.write, world.journal.ballast.release
        monkeypatch.setattr(world.journal, "write", self.write)
        monkeypatch.setattr(world.journal.ballast, "release", self.release)
        monkeypatch.setattr(world.journal.ballast, "_free_bytes", self.free_bytes)
        monkeypatch.setattr(ballast, "_allocate", self.allocate)

    def free_bytes(self) -> int:
        return 1 << 30 if self.left is None else self.left

    def allocate(self, _fd: int, _at: int, more: int) -> None:
        if more > self.free_bytes():
            raise OSError(errno.ENOSPC, "No space left on device")

    def write(self, data: bytes, first_seq: int, hour: int) -> None:
        if self.left is not None and len(data) > self.left:
            raise DiskFull(errno.ENOSPC, "No space left on device")
        self._write(data, first_seq, hour)
        if self.left is not None:
            self.left -= len(data)

    def release(self, needed: int) -> bool:
        if not self._release(needed):
            return False
        assert self.left is not None
        given = -(-needed // 4096) * 4096
        taken = min(given, self.taken_by_others)
        self.taken_by_others -= taken
        self.left += given - taken
        return True


@contextlib.asynccontextmanager
async def small_world(
    root: pathlib.Path, monkeypatch: pytest.MonkeyPatch, *, scan_s: float = 0.005, **options: Any
) -> AsyncIterator[tuple[World, SmallDisk]]:
    monkeypatch.setattr(recorder, "SCAN_INTERVAL_S", scan_s)
    w = World(root, **options)
    disk = SmallDisk(w, monkeypatch)
    await w.start()
    try:
        yield w, disk
    finally:
        await w.recorder.stop()


ALL = ("written", "failed: No space left on device", "written", "written", "written", "written")


@pytest.mark.parametrize("slow", [False, True], ids=["on the loop", "in a thread"])
def test_a_turn_is_cut_down_to_what_must_be_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    async def scenario() -> None:
        async with small_world(tmp_path, monkeypatch) as (w, disk):
            await w.append_all(journals.admitted("a"), journals.admitted("b"))
            assert w.recorder.has_room()
            w.recorder._pace.slow = slow
            disk.left = 10
            waiters = await w.append_all(
                journals.call("a"), journals.admitted("c"), journals.refused(), journals.tick(),
                journals.stop(), journals.call("b"),
            )  # fmt: skip
            await w.until(lambda: all(waiter.seen for waiter in waiters))
            assert tuple(waiter.seen[0] for waiter in waiters) == ALL
            assert (w.unwritten, w.recorder.full, w.recorder.has_room()) == (["refused", "tick"], True, False)
            lines = list(w.directory().records())
            assert [line.kind for line, _, _ in lines] == [
                "start",
                "admitted",
                "admitted",
                "call",
                "stop",
                "call",
            ]
            assert lines[-1][1:] == (w.recorder.seq, w.recorder._leaf)
            assert [one for one in lines if one[0].kind == "call"] == w.fold.folded
            # What comes while it is full is cut down before it is written.
            (late, tick) = await w.append_all(journals.admitted("d"), journals.tick())
            await w.until(lambda: tick.seen != [])
            assert late.seen == ["failed: the disk is full"]
            assert w.recorder.seq == len(lines)
            disk.left = None
            await w.until(w.recorder.has_room)
            (again,) = await w.append_all(journals.admitted("e"))
            await w.until(lambda: again.seen == ["written"])
            assert w.died == []
            await w.append_all(journals.call("e"))

    run(scenario)


def test_room_that_somebody_else_took_is_given_again_as_long_as_there_is_some(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with small_world(tmp_path, monkeypatch) as (w, disk):
            await w.append_all(*[journals.admitted(f"c-{n}") for n in range(3)])
            disk.left, disk.taken_by_others = 0, 100 * 4096
            (call,) = await w.append_all(journals.call("c-0"))
            assert call.seen == ["written"]
            disk.left, disk.taken_by_others = 0, 1 << 40
            (lost,) = await w.append_all(journals.call("c-1"))
            assert lost.seen == ["failed: No space left on device"]
            assert [error.errno for error in w.died] == [errno.ENOSPC]
            assert not w.recorder.has_room()
        assert [closed.lost for closed in salvage_dead(tmp_path)] == [2]

    run(scenario)


def test_an_error_while_the_ballast_is_used_is_death(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with small_world(tmp_path, monkeypatch) as (w, disk):
            await w.append_all(journals.admitted("a"))
            disk.left = 0

            def fails(_needed: int) -> bool:
                raise OSError(errno.EIO, "Input/output error")

            monkeypatch.setattr(w.journal.ballast, "release", fails)
            (call,) = await w.append_all(journals.call("a"))
            assert call.seen == ["failed: Input/output error"]
            assert [error.errno for error in w.died] == [errno.EIO]

    run(scenario)


def test_calls_are_admitted_only_as_far_as_the_ballast_goes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with small_world(tmp_path, monkeypatch, scan_s=3_600) as (w, disk):
            w.journal.ballast.resize(ballast.bytes_for(8))
            disk.left = 12_000  # lines fit; what is more would not be a block
            admitted = 0
            while w.recorder.has_room():
                admitted += 1
                w.append(journals.admitted(f"c-{admitted}"))
                await turn()
                assert admitted < 100
            assert admitted == 8
            disk.left = 0
            ends = await w.append_all(*[journals.call(f"c-{n + 1}") for n in range(admitted)])
            assert {waiter.seen[0] for waiter in ends} == {"written"}
            assert w.recorder.open_calls == 0

    run(scenario)


def test_the_ballast_grows_ahead_of_need_and_shrinks_when_idle(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "START_BYTES", ballast.bytes_for(16))
    monkeypatch.setattr(room, "CALLS_START", 16)

    async def scenario() -> None:
        async with small_world(tmp_path, monkeypatch) as (w, _):
            held = w.journal.ballast
            assert held.calls == 16
            for n in range(12):
                assert w.recorder.has_room()
                await w.append_all(journals.admitted(f"c-{n}"))
            await w.until(lambda: held.calls >= 32)
            most = held.calls
            await w.append_all(*[journals.call(f"c-{n}") for n in range(12)])
            await w.until(lambda: held.calls == 16)
            assert most >= 32

    run(scenario)


def test_a_disk_with_a_quota_says_by_itself_that_it_is_still_full(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with small_world(tmp_path, monkeypatch) as (w, disk):
            disk.left = 0
            await w.append_all(journals.admitted("a"))
            looks = 0

            def still_full(_fd: int, _at: int, _more: int) -> None:
                nonlocal looks
                looks += 1
                raise OSError(errno.EDQUOT, "Disk quota exceeded")

            monkeypatch.setattr(w.journal.ballast, "_free_bytes", lambda: 1 << 40)
            monkeypatch.setattr(ballast, "_allocate", still_full)
            await w.until(lambda: looks >= 3)
            assert w.recorder.full
            monkeypatch.setattr(ballast, "_allocate", lambda *_: None)
            disk.left = None
            await w.until(w.recorder.has_room)

    run(scenario)


def test_essential_lines_are_chained_anew() -> None:
    made = [journals.admitted("x"), journals.call("a"), journals.refused(), journals.call("b")]
    lines = [(make(seq, "0" * 64), seq, "") for seq, make in enumerate(made, 8)]
    owners: list[Any] = [object() for _ in lines]
    kept = turns.essential(turns.Turn(lines, owners, owners, b"", 0), 7, "f" * 64)
    assert [(line.seq, seq) for line, seq, _ in kept.turn.lines] == [(8, 8), (9, 9)]
    assert kept.turn.lines[0][0].prev == "f" * 64
    assert kept.turn.lines[1][0].prev == kept.turn.lines[0][2]
    assert kept.turn.entries == [owners[1], owners[3]]
    assert kept.turn.waiting == owners[1:]
    assert (kept.not_admitted, kept.left_out) == (owners[:1], ["refused"])
    assert isinstance(kept.turn.lines[0][0], record.CallRecord)


def test_who_waits_for_nothing_is_told_nothing_of_a_failure() -> None:
    error, told = OSError(errno.EIO, "Input/output error"), []
    turns.Note(journals.tick(), lambda: told.append("note")).failed(error)
    notary: Any = None
    turns.Checkpointing(notary, lambda: 0, told.append).failed(error)
    assert told == []
