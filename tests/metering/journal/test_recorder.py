"""The recorder on a real event loop and real files: one write a turn, then the release."""

import asyncio
import contextlib
import json
import os
import pathlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from metering import record
from metering.journal import chain, journal, pace, recorder, room
from metering.journal.journal import Directory, Journal, salvage_dead
from metering.journal.recorder import Recorder
from metering.journal.unwritten import Shown
from metering.pages.families import BUDGET_THRESHOLDS, Families, Series
from metering.record import Line
from metering.units import NS_PER_HOUR, NS_PER_S
from tests.support import journals, signing
from tests.support.journals import AT_NS, WRITER, Make

DEADLINE_S = 20


class CountingJournal(Journal):
    """A journal that notes each write, and can be made to fail."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.writes: list[tuple[int, int]] = []  # first seq, lines
        self.fails = False
        self.threads: list[str] = []
        self.let_go = threading.Event()
        self.let_go.set()

    def write(self, data: bytes, first_seq: int, hour: int) -> None:
        self.threads.append(threading.current_thread().name.partition("_")[0])
        assert self.let_go.wait(DEADLINE_S)
        if self.fails:
            raise OSError(28, "No space left on device")
        super().write(data, first_seq, hour)
        self.writes.append((first_seq, data.count(b"\n")))


class Waiter:
    """An entry that notes what it is told, and what the file held at that moment."""

    def __init__(self, world: "World", make: Make, then: Callable[[], None] = lambda: None) -> None:
        self.line = make
        self.seen: list[str] = []
        self.world = world
        self.then = then
        self.file_lines = -1

    def written(self) -> None:
        self.seen.append("written")
        self.file_lines = self.world.segment().read_bytes().count(b"\n")
        self.world.order.append(self)
        self.then()

    def failed(self, error: OSError) -> None:
        self.seen.append(f"failed: {error.strerror}")
        self.world.order.append(self)
        self.then()


class NotingFold:
    def __init__(self, order: list[object]) -> None:
        self.order = order
        self.folded: list[tuple[Line, int, str]] = []
        self.turns: list[int] = []

    def fold(self, line: Line, seq: int, leaf: str) -> None:
        self.folded.append((line, seq, leaf))

    def turn(self, seq: int, leaf: str) -> None:
        self.turns.append(seq)
        self.order.append("turn")


class World:
    """A recorder, and all that it tells anybody."""

    def __init__(self, root: pathlib.Path, **options: Any) -> None:
        self.root = root
        self.order: list[object] = []
        self.fold = NotingFold(self.order)
        self.now_ns = AT_NS
        self.clock = lambda: self.now_ns
        self.died: list[OSError] = []
        self.reports: list[str] = []
        self.synced: list[int] = []
        self.unwritten: list[str] = []
        self.journal = CountingJournal.create(root, writer=WRITER, segment_bytes_max=1 << 20)
        assert isinstance(self.journal, CountingJournal)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.reports.append(str(context["message"])))
        arguments: dict[str, Any] = {"bytes_max": 1 << 30, "fsync": "interval", "fsync_interval_ms": 5}
        self.recorder = Recorder(
            self.journal,
            [self.fold],
            signing.notary(WRITER),
            loop=loop,
            clock=lambda: self.clock(),
            on_dead=self._on_dead,
            unwritten=self.unwritten.append,
            **(arguments | options),
        )
        self.recorder.on_synced(self._on_synced)

    def _on_dead(self, error: OSError) -> None:
        self.died.append(error)

    def _on_synced(self, seq: int) -> None:
        self.synced.append(seq)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not holds():
                await asyncio.sleep(0.001)

    async def start(self) -> None:
        await self.recorder.start(config_digest="sha256:0", ended=(), pid=1, version="0", worker=0)

    def segment(self) -> pathlib.Path:
        return self.directory().segment_paths()[-1][1]

    def directory(self) -> Directory:
        return Directory(self.root / WRITER)

    def append(self, make: Make, then: Callable[[], None] = lambda: None) -> Waiter:
        waiter = Waiter(self, make, then)
        self.recorder.append(waiter)
        return waiter

    async def append_all(self, *makes: Make) -> list[Waiter]:
        waiters = [self.append(make) for make in makes]
        await turn()
        return waiters


async def turn() -> None:
    """Let what this turn of the loop scheduled run."""
    await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def world(root: pathlib.Path, **options: Any) -> AsyncIterator[World]:
    made = World(root, **options)
    await made.start()
    try:
        yield made
    finally:
        await made.recorder.stop()


def run(test: Callable[[], Any]) -> None:
    asyncio.run(test())


def test_the_start_line_is_durable_before_the_first_call(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, fsync_interval_ms=3_600_000) as w:
            assert (w.recorder.seq, w.recorder.synced_seq, w.synced) == (1, 1, [1])
            assert [line.kind for line, _, _ in w.directory().records()] == ["start"]
        assert [line.kind for line, _, _ in w.directory().records()] == ["start", "checkpoint", "stop"]
        assert w.directory().complete
        assert salvage_dead(tmp_path) == []
        assert (w.died, w.reports) == ([], [])

    run(scenario)


def test_a_turn_is_one_write_and_its_entries_are_released_in_order_after_it(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            w.order.clear()
            w.journal.writes.clear()
            waiters = [w.append(journals.admitted(f"{WRITER}-{n}")) for n in range(32)]
            assert [waiter.seen for waiter in waiters] == [[]] * 32, "nothing from within append"
            await turn()
            assert w.journal.writes == [(2, 32)]
            assert w.order == [*waiters, "turn"]
            assert all(waiter.seen == ["written"] for waiter in waiters)
            assert all(waiter.file_lines == 33 for waiter in waiters), "the line was in the file"
            assert w.fold.turns == [1, 33]
            assert w.fold.folded == []
            for n in range(32):
                w.append(journals.call(f"{WRITER}-{n}"))
            await turn()
            assert w.fold.turns == [1, 33, 65]
        whole = list(w.directory().records())
        assert w.fold.folded == [one for one in whole if isinstance(one[0], record.CallRecord)]
        assert len(w.fold.folded) == 32

    run(scenario)


def test_what_a_release_appends_is_the_next_turns(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            w.journal.writes.clear()
            second: list[Waiter] = []
            w.append(journals.admitted("c"), lambda: second.append(w.append(journals.call("c"))))
            await turn()
            assert (w.journal.writes, second[0].seen) == ([(2, 1)], [])
            await turn()
            assert (w.journal.writes, second[0].seen) == ([(2, 1), (3, 1)], ["written"])

    run(scenario)


def test_a_line_is_made_at_the_flush_and_not_before(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            outcomes = [record.Outcome.COMPLETED]
            w.append(lambda seq, prev: journals.call("c", outcome=outcomes[-1])(seq, prev))
            outcomes.append(record.Outcome.CLIENT_GONE)  # later in the same turn
            await turn()
            line = w.fold.folded[-1][0]
            assert isinstance(line, record.CallRecord)
            assert line.outcome is record.Outcome.CLIENT_GONE

    run(scenario)


def test_calls_are_numbered_and_those_open_are_known(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            ids = [w.recorder.next_call_id() for _ in range(3)]
            assert ids == [f"{WRITER}-1", f"{WRITER}-2", f"{WRITER}-3"]
            await w.append_all(*[journals.admitted(call_id) for call_id in ids])
            assert w.recorder.open_calls == 3
            await w.append_all(*[journals.call(call_id) for call_id in ids[:2]], journals.call("unknown"))
            assert w.recorder.open_calls == 1
            await w.append_all(journals.call(ids[2]))
            assert w.recorder.open_calls == 0

    run(scenario)


def test_a_line_that_cannot_be_made_fails_alone(tmp_path: pathlib.Path) -> None:
    def faulty(seq: int, prev: str) -> Line:
        raise ValueError("ours")

    async def scenario() -> None:
        async with world(tmp_path) as w:
            makes = [
                journals.admitted("a"),
                faulty,
                journals.tick(),
                lambda seq, prev: journals.tick()(seq + 1, prev),
                lambda seq, prev: journals.tick()(seq, chain.ZEROS),
                journals.admitted("b", request_id="\ud800"),  # cannot be written as UTF-8
                journals.call("a"),
            ]
            seen = [waiter.seen[0].partition(":")[0] for waiter in await w.append_all(*makes)]
            assert seen == ["written", "failed", "written", "failed", "failed", "failed", "written"]
            assert w.reports == ["recorder: a line could not be made"] * 4
            assert [line.kind for line, _, _ in w.directory().records()] == [
                "start",
                "admitted",
                "tick",
                "call",
            ]
            assert await w.append_all(faulty)
            assert w.recorder.seq == 4
            assert w.died == []

    run(scenario)


def test_a_threshold_of_a_budget_is_folded_and_no_other_event(tmp_path: pathlib.Path) -> None:
    """A page that is live counts what it counts when it is made again from the journal."""

    def told(topic: str) -> Callable[[int, str], Line]:
        data = {"tenant": "acme", "kind": "hard", "percent": "80"}
        return lambda seq, prev: record.Event(
            actor=None, at_ns=AT_NS, data=data, prev=prev, seq=seq, topic=topic
        )

    async def scenario() -> None:
        async with world(tmp_path) as w:
            w.recorder.note(told("budget"))
            w.recorder.note(told("prices"))
            await turn()
        assert [line.topic for line, _, _ in w.fold.folded if isinstance(line, record.Event)] == ["budget"]
        live, again = Families(), Families()
        for line, _, _ in w.fold.folded:
            live.observe(line)
        for line, _, _ in w.directory().records():
            again.observe(line)
        assert live.cells.totals() == again.cells.totals()
        assert Series(BUDGET_THRESHOLDS.name, ("acme", "hard", "80")) in live.cells.totals()

    run(scenario)


def test_a_fault_in_a_fold_or_a_release_stops_nobody_else(tmp_path: pathlib.Path) -> None:
    def fault(*_: object) -> None:
        raise ValueError("theirs")

    async def scenario() -> None:
        async with world(tmp_path) as w:
            w.fold.fold = fault  # type: ignore[method-assign]
            first = w.append(journals.admitted("a"), fault)
            second = w.append(journals.call("a"))
            await turn()
            assert (first.seen, second.seen) == (["written"], ["written"])
            assert len(w.reports) == 2
            assert w.fold.turns == [1, 3]

    run(scenario)


# Durability


class SlowSync:
    """Holds each fdatasync until it is let go; then it may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.let_go = threading.Event()
        self.let_go.set()
        self.error: OSError | None = None
        self.count = 0
        monkeypatch.setattr(journal, "_fdatasync", self)

    def __call__(self, fd: int) -> None:
        assert self.let_go.wait(DEADLINE_S)
        self.count += 1
        if self.error is not None:
            raise self.error
        os.fsync(fd)


@pytest.fixture
def slow_sync(monkeypatch: pytest.MonkeyPatch) -> SlowSync:
    return SlowSync(monkeypatch)


def test_only_what_was_written_when_a_sync_began_is_durable_after_it(
    tmp_path: pathlib.Path, slow_sync: SlowSync
) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            slow_sync.let_go.clear()
            await w.append_all(journals.admitted("a"))
            await w.until(lambda: w.recorder._sync is not None)
            [late] = await w.append_all(journals.call("a"))
            assert (late.seen, w.recorder.synced_seq) == (["written"], 1), "calls do not wait for the disk"
            slow_sync.let_go.set()
            await w.until(lambda: w.recorder.synced_seq == 3)
            assert w.synced == [1, 2, 3]

    run(scenario)


def test_nothing_is_synced_while_all_is_durable(tmp_path: pathlib.Path, slow_sync: SlowSync) -> None:
    async def scenario() -> None:
        async with world(tmp_path, fsync_interval_ms=1) as w:
            count = slow_sync.count
            assert "sync" not in w.recorder._timers
            await w.append_all(journals.admitted("a"), journals.call("a"))
            await w.until(lambda: w.recorder.synced_seq == 3)
            assert slow_sync.count == count + 1
            assert "sync" not in w.recorder._timers

    run(scenario)


def test_by_os_the_interval_is_the_ledgers(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "OS_SYNC_INTERVAL_MS", 1)

    async def scenario() -> None:
        async with world(tmp_path, fsync="os", fsync_interval_ms=3_600_000) as w:
            await w.append_all(journals.tick())
            await w.until(lambda: w.recorder.synced_seq == 2)

    run(scenario)


def test_lines_in_a_rotated_segment_are_durable_too(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            for _ in range(3):
                w.now_ns += NS_PER_HOUR
                await w.append_all(journals.tick())
            await w.until(lambda: w.recorder.synced_seq == 7)
        assert len(w.directory().segment_paths()) == 4
        assert len(list(w.directory().records())) == 9

    run(scenario)


@pytest.mark.parametrize("parted", [True, False])
def test_a_segment_ends_with_the_tick_that_tells_an_hour(tmp_path: pathlib.Path, parted: bool) -> None:
    """Not with the one at the full hour, by which a call from before it was still open; nor with any after it."""
    hour_ns = AT_NS + NS_PER_HOUR

    async def scenario() -> None:
        made = World(tmp_path, parts_told_hours=parted)
        made.now_ns = hour_ns - 1_000_000  # so that the timer of the tick is due in a moment

        def ticks() -> list[record.Tick]:
            return [line for line, _, _ in made.directory().records() if isinstance(line, record.Tick)]

        async def tick_at(at_ns: int) -> None:
            before = len(ticks())
            made.now_ns = at_ns - 1_000_000
            made.recorder._timers.pop("tick").cancel()
            made.recorder._schedule_tick()
            made.now_ns = at_ns
            await made.until(lambda: len(ticks()) > before)

        await made.start()
        await made.append_all(journals.admitted("a", at_ns=made.now_ns))
        await tick_at(hour_ns)
        await made.append_all(journals.call("a"), journals.admitted("b", at_ns=hour_ns + 1))
        for minute in (1, 2, 3):
            await tick_at(hour_ns + minute * 60 * NS_PER_S)
        await made.append_all(journals.call("b"))
        await made.recorder.stop()
        segments = [[json.loads(line) for line in path.read_bytes().splitlines()]
                    for _, path in made.directory().segment_paths()]  # fmt: skip
        told = [
            [line["at_ns"] for line in lines
             if line["kind"] == "tick" and (line["oldest_admitted_ns"] or hour_ns) >= hour_ns]
            for lines in segments
        ]  # fmt: skip
        if not parted:
            assert len(segments) == 2  # of two hours
            return
        assert [len(one) for one in told] == [0, 1, 2]
        assert [one["kind"] for one in segments[1][-2:]] == ["tick", "checkpoint"]  # and all of it is signed
        assert {line["kind"] for line in segments[2]} >= {"tick", "call", "stop"}

    run(scenario)


def test_with_always_nobody_is_let_go_before_a_sync_and_one_sync_is_for_all_who_came_meanwhile(
    tmp_path: pathlib.Path, slow_sync: SlowSync
) -> None:
    async def scenario() -> None:
        async with world(tmp_path, fsync="always", fsync_interval_ms=3_600_000) as w:
            assert (w.recorder.synced_seq, slow_sync.count) == (w.recorder.seq, 1)
            slow_sync.let_go.clear()
            (first,) = await w.append_all(journals.admitted("a"))
            later = [w.append(journals.admitted(f"b-{n}")) for n in range(20)]
            await w.until(lambda: w.segment().read_bytes().count(b"\n") == w.recorder.seq + 1)
            assert first.seen == later[0].seen == []
            assert w.fold.turns[-1] == w.synced[-1] == w.recorder.seq
            slow_sync.let_go.set()
            await w.until(lambda: all(waiter.seen == ["written"] for waiter in later))
            assert first.seen == ["written"]
            assert slow_sync.count == 3
            assert w.recorder.synced_seq == w.recorder.seq == w.synced[-1] == w.fold.turns[-1]
            slow_sync.error = OSError(5, "Input/output error")
            (failed,) = await w.append_all(journals.call("a"))
            await w.until(lambda: failed.seen != [])
            assert failed.seen == ["failed: Input/output error"]
        assert [error.errno for error in w.died] == [5]

    run(scenario)


def test_with_always_a_disk_may_be_slow_too(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SLOW_WRITE_NS", 0)

    async def scenario() -> None:
        async with world(tmp_path, fsync="always") as w:
            assert w.recorder.slow
            (waiter,) = await w.append_all(journals.tick())
            await w.until(lambda: waiter.seen == ["written"])
        assert w.directory().complete

    run(scenario)


# Death


def test_a_failed_write_fails_the_turn_and_all_after_it(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            await w.append_all(journals.admitted("a"))
            assert w.recorder.has_room()
            w.journal.fails = True
            again: list[Waiter] = []
            turned = [
                w.append(journals.call("a")),
                w.append(journals.admitted("b"), lambda: again.append(w.append(journals.tick()))),
            ]
            w.recorder.note(journals.tick())
            await turn()
            assert [waiter.seen for waiter in turned] == [["failed: No space left on device"]] * 2
            assert not w.recorder.has_room()
            assert [error.errno for error in w.died] == [28]
            later = w.append(journals.tick())
            assert (later.seen, again[0].seen) == ([], [])
            await turn()
            assert later.seen == again[0].seen == ["failed: No space left on device"]
            assert w.fold.turns == [1, 2]
        assert len(w.died) == 1
        assert not w.directory().complete
        assert [closed.lost for closed in salvage_dead(tmp_path)] == [1]

    run(scenario)


def test_a_failed_sync_is_death_and_is_not_tried_again(tmp_path: pathlib.Path, slow_sync: SlowSync) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            slow_sync.error = OSError(5, "Input/output error")
            await w.append_all(journals.admitted("a"))
            # The entry of a turn that the failed sync comes before: appended, and not flushed yet.
            waiters: list[Waiter] = []
            w.recorder._on_dead = lambda error: (
                w._on_dead(error),
                waiters.append(w.append(journals.tick())),
            )[0]
            await w.until(lambda: w.died != [])
            count = slow_sync.count
            await turn()
            assert (w.recorder.synced_seq, w.recorder.has_room()) == (1, False)
            assert waiters[0].seen == ["failed: Input/output error"]
        assert slow_sync.count == count
        assert [error.errno for error in w.died] == [5]

    run(scenario)


def test_a_sync_that_fails_after_the_writing_has_is_one_death(
    tmp_path: pathlib.Path, slow_sync: SlowSync
) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            slow_sync.let_go.clear()
            await w.append_all(journals.tick())
            await w.until(lambda: w.recorder._sync is not None)
            w.journal.fails = True
            await w.append_all(journals.tick())
            pending = w.recorder._sync
            slow_sync.error = OSError(5, "Input/output error")
            slow_sync.let_go.set()
            await asyncio.wait([pending])
        assert [error.errno for error in w.died] == [28]

    run(scenario)


def test_entries_waiting_when_a_sync_fails_are_failed_then(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            waiter = w.append(journals.tick())
            w.recorder._die(OSError(5, "Input/output error"))
            assert waiter.seen == ["failed: Input/output error"]
            await turn()
            assert waiter.seen == ["failed: Input/output error"]
            assert w.recorder.seq == 1

    run(scenario)


# A slow disk


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write counts as slow, and none as quick."""
    monkeypatch.setattr(pace, "SLOW_WRITE_NS", 0)
    monkeypatch.setattr(pace, "QUICK_WRITE_NS", 0)


@pytest.mark.usefixtures("slow_disk")
def test_a_slow_disk_is_written_by_a_thread_one_turn_at_a_time(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            w.journal.let_go.clear()
            first = w.append(journals.admitted("a"))
            await turn()
            later = await w.append_all(journals.admitted("b"), journals.call("a"))
            await w.until(lambda: w.journal.threads == ["MainThread", "journal"])
            assert (first.seen, w.recorder.seq, w.recorder.open_calls) == ([], 1, 0)
            w.journal.let_go.set()
            await w.until(lambda: later[1].seen != [])
            assert [(waiter.seen, waiter.file_lines) for waiter in (first, *later)] == [
                (["written"], 2),
                (["written"], 4),
                (["written"], 4),
            ]
            assert w.journal.writes == [(1, 1), (2, 1), (3, 2)]
            assert w.fold.turns == [1, 2, 4]
            await w.until(lambda: w.recorder.synced_seq == 4)
        assert w.reports == []

    run(scenario)


def test_a_sync_that_stands_still_is_seen_before_a_write_does(
    tmp_path: pathlib.Path, slow_sync: SlowSync, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "QUICK_WRITE_NS", DEADLINE_S * NS_PER_S)
    monkeypatch.setattr(pace, "QUICK_WRITES", 2)

    async def scenario() -> None:
        async with world(tmp_path) as w:
            # Not before: on a busy machine the sync of the start may be late, and then be done.
            await w.until(lambda: w.recorder.synced_seq == w.recorder.seq)
            monkeypatch.setattr(pace, "SLOW_SYNC_S", 0.01)
            slow_sync.let_go.clear()
            await w.append_all(journals.tick())
            await w.until(lambda: w.recorder.slow)
            for _ in range(5):
                waiter = w.append(journals.tick())
                await w.until(lambda waiter=waiter: waiter.seen == ["written"])
            assert w.journal.threads[-5:] == ["journal"] * 5
            assert w.recorder.slow, "as long as the sync is under way"
            slow_sync.let_go.set()
            await w.until(lambda: w.recorder._sync is None)
            monkeypatch.setattr(pace, "SLOW_SYNC_S", DEADLINE_S)
            while w.recorder.slow:
                waiter = w.append(journals.tick())
                await w.until(lambda waiter=waiter: waiter.seen == ["written"])

    run(scenario)


@pytest.mark.usefixtures("slow_disk")
def test_a_turn_without_a_line_needs_no_thread(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, bytes_max=1) as w:
            (refused,) = await w.append_all(journals.refused())
            assert (refused.seen, w.journal.threads) == (["written"], ["MainThread"])

    run(scenario)


def test_a_disk_that_has_recovered_is_written_by_the_loop_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "SLOW_WRITE_NS", 0)
    monkeypatch.setattr(pace, "QUICK_WRITE_NS", DEADLINE_S * NS_PER_S)
    monkeypatch.setattr(pace, "QUICK_WRITES", 3)

    async def scenario() -> None:
        async with world(tmp_path) as w:
            monkeypatch.setattr(pace, "SLOW_WRITE_NS", DEADLINE_S * NS_PER_S)
            for _ in range(6):
                waiter = w.append(journals.tick())
                await w.until(lambda waiter=waiter: waiter.seen != [])
            assert w.journal.threads == ["MainThread", *["journal"] * 3, *["MainThread"] * 3]

    run(scenario)


@pytest.mark.usefixtures("slow_disk")
def test_a_write_that_fails_in_its_thread_fails_the_turn_and_all_after_it(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            w.journal.fails = True
            w.journal.let_go.clear()
            first = w.append(journals.tick())
            await turn()
            (later,) = await w.append_all(journals.tick())
            w.journal.let_go.set()
            await w.until(lambda: later.seen != [])
            assert first.seen == later.seen == ["failed: No space left on device"]
            assert w.order[-2:] == [first, later]
            assert (w.recorder.seq, w.recorder.has_room()) == (1, False)
        assert [error.errno for error in w.died] == [28]

    run(scenario)


@pytest.mark.usefixtures("slow_disk")
def test_a_sync_that_fails_beside_a_slow_write_is_one_death(
    tmp_path: pathlib.Path, slow_sync: SlowSync
) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            slow_sync.let_go.clear()
            slow_sync.error = OSError(5, "Input/output error")
            noted = w.append(journals.tick())
            await w.until(lambda: w.recorder._sync is not None)
            assert noted.seen == ["written"]
            w.journal.let_go.clear()
            (waiter,) = await w.append_all(journals.tick())
            slow_sync.let_go.set()
            await w.until(lambda: w.died != [])
            assert waiter.seen == []
            w.journal.let_go.set()
            await w.until(lambda: waiter.seen != [])
            assert waiter.seen == ["failed: Input/output error"]
        assert [error.errno for error in w.died] == [5]

    run(scenario)


@pytest.mark.usefixtures("slow_disk")
def test_nothing_is_synced_while_a_thread_writes(tmp_path: pathlib.Path, slow_sync: SlowSync) -> None:
    async def scenario() -> None:
        async with world(tmp_path, fsync_interval_ms=1) as w:
            await w.until(lambda: "sync" not in w.recorder._timers)
            w.recorder._schedule_sync()
            w.journal.let_go.clear()
            await w.append_all(journals.tick())
            count = slow_sync.count
            await w.until(lambda: "sync" not in w.recorder._timers)
            assert (w.recorder._sync, slow_sync.count) == (None, count)
            w.journal.let_go.set()
            await w.until(lambda: w.recorder.synced_seq == 2)

    run(scenario)


@pytest.mark.usefixtures("slow_disk")
def test_stop_waits_for_the_thread_that_writes(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            w.journal.let_go.clear()
            waiter = w.append(journals.tick(), lambda: w.recorder.note(journals.tick()))
            await turn()
            stopping = asyncio.create_task(w.recorder.stop())
            await turn()
            assert not stopping.done()
            w.journal.let_go.set()
            await stopping
            assert waiter.seen == ["written"]
        assert w.directory().complete
        assert w.recorder.seq == 5

    run(scenario)


@pytest.mark.usefixtures("slow_disk")
def test_a_write_begun_while_stop_syncs_is_waited_for(tmp_path: pathlib.Path, slow_sync: SlowSync) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            slow_sync.let_go.clear()
            w.append(journals.tick())
            await w.until(lambda: w.recorder._sync is not None)
            stopping = asyncio.create_task(w.recorder.stop())
            await turn()
            early = w.append(journals.tick())
            await w.until(lambda: early.seen == ["written"])
            w.journal.let_go.clear()
            (late,) = await w.append_all(journals.tick())
            slow_sync.let_go.set()
            await w.until(lambda: w.recorder._sync is None)
            await turn()
            w.journal.let_go.set()
            await stopping
            assert late.seen == ["written"]
        assert w.directory().complete

    run(scenario)


@pytest.mark.usefixtures("slow_disk")
def test_room_is_kept_for_what_a_thread_writes(tmp_path: pathlib.Path) -> None:
    room_bytes = 3 * room.ADMISSION_BYTES

    async def scenario() -> None:
        async with world(tmp_path, bytes_max=room_bytes) as w:
            w.journal.let_go.clear()
            await w.append_all(journals.admitted("a"))
            assert w.recorder.has_room()
            await w.append_all(journals.admitted("b"))
            assert not w.recorder.has_room()
            w.journal.let_go.set()

    run(scenario)


# Start


def test_a_start_that_cannot_be_written_is_an_error(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        w = World(tmp_path)
        w.journal.fails = True
        with pytest.raises(OSError, match="No space"):
            await w.start()
        await w.recorder.stop()
        assert len(w.died) == 1

    run(scenario)


# Stop


def test_stop_writes_what_is_under_way_and_what_that_releases(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        w = World(tmp_path, fsync_interval_ms=3_600_000)
        await w.start()
        w.append(journals.admitted("a"), lambda: [w.append(journals.call("a"))][1:])
        await w.recorder.stop()
        kinds = [line.kind for line, _, _ in w.directory().records()]
        assert kinds == ["start", "admitted", "call", "checkpoint", "stop"]
        assert w.recorder.synced_seq == w.recorder.seq == 5
        assert not w.recorder.has_room()
        after = w.append(journals.tick())
        await turn()
        assert after.seen == ["failed: the journal is closed"]
        assert w.died == []

    run(scenario)


def test_with_calls_still_open_there_is_no_stop_line(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path) as w:
            await w.append_all(journals.admitted("a"))
        assert not w.directory().complete
        assert [closed.lost for closed in salvage_dead(tmp_path)] == [1]
        assert [line.kind for line, _, _ in w.directory().records()] == ["start", "admitted", "call", "stop"]

    run(scenario)


def test_stop_waits_for_the_sync_under_way(tmp_path: pathlib.Path, slow_sync: SlowSync) -> None:
    async def scenario() -> None:
        w = World(tmp_path)
        await w.start()
        slow_sync.let_go.clear()
        await w.append_all(journals.tick())
        await w.until(lambda: w.recorder._sync is not None)
        stopping = asyncio.create_task(w.recorder.stop())
        await turn()
        assert not stopping.done()
        slow_sync.let_go.set()
        await stopping
        assert w.directory().complete

    run(scenario)


def test_no_tick_comes_behind_the_stop_line_while_that_is_synced(
    tmp_path: pathlib.Path, slow_sync: SlowSync
) -> None:
    async def scenario() -> None:
        w = World(tmp_path)
        w.now_ns = AT_NS + NS_PER_HOUR - NS_PER_S // 10  # 100 ms to the full hour
        await w.start()
        slow_sync.let_go.clear()
        w.now_ns += NS_PER_S
        stopping = asyncio.create_task(w.recorder.stop())
        await w.until(lambda: w.recorder._sync is not None)
        assert isinstance([*w.directory().records()][-1][0], record.Stop)
        asyncio.get_running_loop().call_later(0.2, slow_sync.let_go.set)
        await stopping
        assert isinstance([*w.directory().records()][-1][0], record.Stop)
        assert w.directory().complete

    run(scenario)


# Size


def test_admissions_stop_where_the_open_calls_records_would_not_fit(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        bytes_max = 10 * record.RECORD_BYTES_MAX
        async with world(tmp_path, bytes_max=bytes_max) as w:
            admitted = 0
            while w.recorder.has_room():
                admitted += 1
                w.append(journals.admitted(f"c-{admitted}", tags={"t": "x" * 15_000}))
                if admitted % 2:
                    await turn()
            await turn()
            assert admitted >= 2
            big = record.Plan(
                left_out=tuple(record.LeftOut(backend=f"b{n}", reason="full") for n in range(999))
            )
            await w.append_all(*[journals.call(f"c-{n + 1}", plan=big) for n in range(admitted)])
            assert w.recorder.open_calls == 0
            assert w.journal.bytes <= bytes_max
            assert w.died == []

    run(scenario)


def test_refusals_stop_at_the_cap_and_are_released_all_the_same(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        async with world(tmp_path, bytes_max=2 * record.RECORD_BYTES_MAX) as w:
            await w.append_all(journals.admitted("a"))
            for _ in range(10):
                await w.append_all(*[journals.refused() for _ in range(10)])
            [last] = await w.append_all(journals.refused())
            assert last.seen == ["written"]
            written = [line for line, _, _ in w.fold.folded if isinstance(line, record.Refused)]
            assert len(w.unwritten) + len(written) == 101
            assert w.journal.bytes <= record.RECORD_BYTES_MAX
            [call] = await w.append_all(journals.call("a"))
            assert call.seen == ["written"]
            assert w.recorder.seq == len(list(w.directory().records()))

    run(scenario)


def test_other_writers_bytes_count_and_are_counted_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "SCAN_INTERVAL_S", 0.001)
    other = (
        journals.write_directory(tmp_path, [journals.start()], writer="w" + "b" * 16)
        / "0000000000000001.jsonl"
    )
    os.truncate(other, 1 << 20)

    async def scenario() -> None:
        async with world(tmp_path, bytes_max=1 << 20) as w:
            assert not w.recorder.has_room(), "counted before the first call"
            os.truncate(other, 0)
            await w.until(w.recorder.has_room)

    run(scenario)


def test_a_tree_that_cannot_be_counted_is_reported_and_tried_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "SCAN_INTERVAL_S", 0.001)

    def fails(*_: object, **__: object) -> int:
        raise OSError(13, "Permission denied")

    async def scenario() -> None:
        async with world(tmp_path) as w:
            monkeypatch.setattr(room, "tree_bytes", fails)
            await w.until(lambda: len(w.reports) >= 2)
            assert w.recorder.has_room()
            assert w.died == []

    run(scenario)


def test_stop_waits_for_the_counting_under_way(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "SCAN_INTERVAL_S", 0.001)
    began, let_go = threading.Event(), threading.Event()

    def slow(*_: object, **__: object) -> int:
        began.set()
        assert let_go.wait(DEADLINE_S)
        return 0

    async def scenario() -> None:
        w = World(tmp_path)
        await w.start()
        monkeypatch.setattr(room, "tree_bytes", slow)
        await w.until(began.is_set)
        stopping = asyncio.create_task(w.recorder.stop())
        await w.until(lambda: w.recorder.dead is not None)
        assert not stopping.done()
        let_go.set()
        await stopping
        assert (w.died, w.reports) == ([], [])

    run(scenario)


# Ticks


def test_a_tick_comes_at_the_full_minute_and_never_before(tmp_path: pathlib.Path) -> None:
    async def scenario() -> None:
        w = World(tmp_path)
        w.now_ns = AT_NS + NS_PER_HOUR - NS_PER_S // 100  # 10 ms to the full hour
        await w.start()
        await w.append_all(journals.admitted("a", at_ns=AT_NS + 5), journals.admitted("b", at_ns=AT_NS + 7))
        due_ns = AT_NS + NS_PER_HOUR

        timer = w.recorder._timers["tick"]
        timer.cancel()
        w.recorder._tick(due_ns)  # the loop's clock ran ahead of the wall's
        await turn()
        assert w.recorder.seq == 3, "it waits for the rest"
        w.now_ns = due_ns + 1
        await w.until(lambda: w.recorder.seq == 5)
        tick = [*w.directory().records()][-1][0]
        assert isinstance(tick, record.Tick)
        assert (tick.at_ns, tick.open_calls, tick.oldest_admitted_ns) == (due_ns + 1, 2, AT_NS + 5)
        assert 59 < w.recorder._timers["tick"].when() - asyncio.get_running_loop().time() < 60.1
        await w.recorder.stop()

    run(scenario)


@pytest.mark.parametrize("step_h", [-5, 5])
def test_ticks_go_on_when_the_clock_is_set(tmp_path: pathlib.Path, step_h: int) -> None:
    async def scenario() -> None:
        w = World(tmp_path)
        w.now_ns = AT_NS + 6 * NS_PER_HOUR - NS_PER_S // 100
        await w.start()
        loop = asyncio.get_running_loop()
        w.now_ns += step_h * NS_PER_HOUR
        w.recorder._timers["tick"].cancel()
        w.recorder._tick(AT_NS + 6 * NS_PER_HOUR)
        assert w.recorder._timers["tick"].when() - loop.time() < 60.1, "the next one is not hours away"
        for _ in range(3):
            before = w.recorder.seq
            w.now_ns += 60 * NS_PER_S
            w.recorder._timers["tick"].cancel()
            w.recorder._tick(w.now_ns)
            await w.until(lambda before=before: w.recorder.seq > before)
        ticks = [line for line, _, _ in w.directory().records() if isinstance(line, record.Tick)]
        assert 3 <= len(ticks) <= 4
        await w.recorder.stop()

    run(scenario)


@pytest.mark.parametrize("step_s", [-7_200, 3 * 7_200])
def test_a_clock_that_was_set_is_told(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    monkeypatch.setattr(recorder, "SCAN_INTERVAL_S", 0.001)

    async def scenario() -> None:
        async with world(tmp_path) as w:
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            began_ns = w.now_ns
            w.clock = lambda: began_ns + round((loop.time() - began_s) * NS_PER_S)
            w.recorder._look_at_clock()
            seq = w.recorder.seq
            for _ in range(50):
                w.recorder._look_at_clock()
            await turn()
            assert w.recorder.seq == seq, "it runs, and nothing is told"
            began_ns += step_s * NS_PER_S
            await w.until(lambda: w.recorder.seq > seq)
            (told,) = [line for line, _, _ in w.directory().records(seq) if isinstance(line, record.Event)]
            assert told.topic == "clock"
            assert abs(int(told.data["by_ms"]) - step_s * 1_000) < 1_000

    run(scenario)


@pytest.mark.parametrize("slow", [False, True], ids=["on the loop", "in a thread"])
def test_with_continue_a_failed_turn_is_shown_and_its_calls_go_on(tmp_path: pathlib.Path, slow: bool) -> None:
    counted: list[str] = []

    async def scenario() -> None:
        async with world(tmp_path, shown=Shown(counted.append), bytes_max=1 << 20) as w:
            await w.append_all(journals.admitted("a"))
            w.recorder._pace.slow = slow
            w.journal.fails = True
            asked: list[int] = []

            def once(seq: int, prev: str) -> Line:
                asked.append(seq)
                return journals.call("a")(seq, prev)

            first, second = w.append(once), w.append(journals.admitted("b"))
            await w.until(lambda: second.seen != [])
            later = w.append(journals.call("b"))
            await w.until(lambda: later.seen != [])
            assert first.seen == second.seen == later.seen == ["written"]
            assert asked == [w.recorder.seq + 1]
            assert counted == ["call", "admitted", "call"]
            assert [error.errno for error in w.died] == [28]
            assert (w.recorder.ended, w.recorder.has_room()) == (False, True)
            assert w.fold.folded == [], "what is not written is not counted as a call"
        assert [closed.lost for closed in salvage_dead(tmp_path)] == [1]

    run(scenario)
