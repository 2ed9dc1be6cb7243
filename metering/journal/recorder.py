"""The way into the journal: one write a turn of the event loop, then the release of those who wait.

    append ─┐                        ┌─ folds, each line in order
    append ─┼─ call_soon ─▶ flush ───┼─ the turn is published
    note   ─┘    lines, ONE write()  └─ written(), each entry in order

A line is made at the flush, so what a call's end depends on (is its client still there?) is
decided then and not before. Between the first append and the release there is no thread and
no await, unless the disk is slow: from a write on that took SLOW_WRITE_NS, or a sync that is not
done after SLOW_SYNC_S, a thread writes, so that the loop goes on with all else, until QUICK_WRITES in
a row were quick again (metering/journal/pace.py). Turns then are longer, and still one at a time. What makes
lines durable runs in a thread, later; `synced_seq` says up to where. With `fsync: always` a thread
writes each turn and syncs it, and only then those who wait are let go; what comes meanwhile is the
next turn: one sync for all of it.

What has been written is signed by a `checkpoint` line, the first one of its turn: after CHECKPOINT_LINES,
at each tick, before a segment ends (it is then the segment's last line), and before the `stop`.

On a full disk records are written into room that was kept for them (metering/journal/ballast.py), and no call is
admitted until the disk has room again.

The law: nobody is told `written()` before the line is in the file; with `always`, before it is durable.
"""

import asyncio
import concurrent.futures
import contextlib
import errno
import functools
import logging
import operator
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeVar

from metering.audit import endnotes
from metering.audit.notary import Notary, Signed, SigningKey
from metering.journal import chain, events, pace, turns
from metering.journal.clocks import Clocks
from metering.journal.journal import DiskFull, Journal
from metering.journal.pace import Pace
from metering.journal.room import Room
from metering.journal.turns import Checkpointing, Entry, Note, Turn
from metering.journal.unwritten import Shown, Unwritable
from metering.logs import log
from metering.record import (
    CallRecord,
    Ended,
    Event,
    Line,
    Refused,
    Start,
    Stop,
    Tick,
)
from metering.units import NS_PER_HOUR, NS_PER_MS, NS_PER_S

T = TypeVar("T")

logger = logging.getLogger("weighbridge.recorder")

TICK_NS = 60 * NS_PER_S
CHECKPOINT_LINES = 1_000
OS_SYNC_INTERVAL_MS = 1_000
"""How often `fsync: os` syncs all the same: the ledger is sent only what is durable."""
SCAN_INTERVAL_S = 1.0
"""How often the bytes of other writers are counted again."""


_LEAF = operator.itemgetter(2)
"""Of a line with its seq and leaf."""


class Fold(Protocol):
    """A state derived from the journal."""

    def fold(self, line: CallRecord | Refused | Event, seq: int, leaf: str) -> None:
        """Take in a written line; called for each call, refusal and passed threshold of a budget, in order."""

    def turn(self, seq: int, leaf: str) -> None:
        """All lines up to the one at `seq` have been folded; called after each flush."""


class _Told(Note):
    """A line that somebody waits for who has nothing else to do."""

    def __init__(self, line: Callable[[int, str], Line], told: "asyncio.Future[None]") -> None:
        super().__init__(line)
        self._told = told

    def written(self) -> None:
        if not self._told.done():  # whoever waited may have been cancelled
            self._told.set_result(None)

    def failed(self, error: OSError) -> None:
        if not self._told.done():
            self._told.set_exception(error)


class Recorder:
    """One writer's journal as the event loop sees it. All methods on the loop's thread.

    notary: signs for this writer; it has seen no line.
    clock: wall clock in nanoseconds since 1970 (UTC).
    bytes_max: for all files under the journal's root, all writers together.
    unwritten: called with the kind of each line that found no room and was left out.
    mirror: given the lines' bytes of each turn, once they are written.
    parts_told_hours: end a segment with the tick that tells a full hour, so that whoever has only the archive learns
        of it in minutes, and not with the next hour's.
    shown: who is given the lines that come when it has failed; their calls go on. None: they do not.
    on_dead: called once, when a write or a sync has failed; from then on each entry gets
        `failed`. A writer never goes on after an error: what the disk holds is not known any more.
    """

    def __init__(
        self,
        journal: Journal,
        folds: Sequence[Fold],
        notary: Notary,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], int],
        bytes_max: int,
        fsync: Literal["always", "interval", "os"],
        fsync_interval_ms: int,
        on_dead: Callable[[OSError], None],
        unwritten: Callable[[str], None],
        shown: Shown | None = None,
        mirror: Callable[[bytes], None] | None = None,
        parts_told_hours: bool = False,
    ) -> None:
        assert fsync_interval_ms > 0
        self.writer = journal.writer
        self.seq = 0
        self.synced_seq = 0
        self.dead: OSError | None = None
        self._journal = journal
        self._folds = tuple(folds)
        self._notary = notary
        self._to_sign = False  # what is unsigned, in the next turn
        self._on_checkpoint: list[Callable[[Signed], None]] = []
        self._loop = loop
        self._clock = clock
        self._always = fsync == "always"
        self._sync_interval_s = (OS_SYNC_INTERVAL_MS if fsync == "os" else fsync_interval_ms) / 1_000
        self._on_dead = on_dead
        self._unwritten = unwritten
        self._shown = shown
        self._mirror = mirror
        self._told_hour = clock() // NS_PER_HOUR if parts_told_hours else None  # all before it is told
        self._after: Unwritable | None = None  # once it is dead
        self._leaf = chain.ZEROS
        self._entries: list[Entry] = []
        self._open: dict[str, int] = {}  # call id → admitted_ns, in the order of admission
        self._clocks: Clocks | None = None  # from the start to the stop
        self._calls = 0
        self._on_synced: list[Callable[[int], None]] = []
        # Four threads, so that counting a large tree, a sync, a slow write and the ballast do not wait for each other.
        self._threads = concurrent.futures.ThreadPoolExecutor(4, "journal")
        self._threads_work: set[asyncio.Future[Any]] = set()
        self._sync: asyncio.Future[None] | None = None
        self._pace = Pace()
        self._room = Room(journal, bytes_max, self._unfinished, self._in_thread)
        self._turn: Turn | None = None  # that a thread writes
        self._write: asyncio.Future[int] | None = None  # … and when it has
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def ended(self) -> bool:
        """Can no call end well any more?"""
        return self._after is not None and self._after.ended

    @property
    def full(self) -> bool:
        """Is the disk full? Nothing is admitted until it has room again."""
        return self._room.full

    @property
    def slow(self) -> bool:
        """Does a thread write, since the disk is slow?"""
        return self._pace.slow

    @property
    def open_calls(self) -> int:
        """Calls with an `admitted` line and no record yet."""
        return len(self._open)

    def next_call_id(self) -> str:
        """A new call's id: `<writer>-<n>`, n from 1."""
        self._calls += 1
        return f"{self.writer}-{self._calls}"

    def has_room(self) -> bool:
        """May one more call be admitted? Room for all that is under way is kept free."""
        if self._after is not None:
            return self._after.has_room()
        under_way = len(self._entries) + (len(self._turn.waiting) if self._turn else 0)
        return self._room.admits(len(self._open), under_way)

    def _unfinished(self) -> int:
        """Calls that are open, and entries that may become some."""
        return len(self._open) + len(self._entries)

    def append(self, entry: Entry) -> None:
        """Put a line into this turn. `written` or `failed` follows, never from within this call."""
        if self._after is not None:
            self._after.append(entry)
            return
        if not self._entries:
            self._loop.call_soon(self._flush)
        self._entries.append(entry)

    def note(self, make: Callable[[int, str], Line]) -> None:
        """Put a line into this turn that nobody waits for; make(seq, prev) is called at the flush."""
        self.append(Note(make))

    async def tell(self, make: Callable[[int, str], Line]) -> None:
        """The same, to be waited for: on return the line is in the file. Raises OSError: it never will be."""
        told: asyncio.Future[None] = self._loop.create_future()
        self.append(_Told(make, told))
        await told

    def on_synced(self, callback: Callable[[int], None]) -> None:
        """Have `callback(synced_seq)` called on the loop each time that more lines are durable."""
        self._on_synced.append(callback)

    def on_checkpoint(self, callback: Callable[[Signed], None]) -> None:
        """Have `callback` called on the loop with each checkpoint once its line is written, and with the last note.

        What it signs may not be durable yet.
        """
        self._on_checkpoint.append(callback)

    def change_key(self, key: SigningKey, make: Callable[[int, str], Line], *, at_once: bool) -> None:
        """Sign with another key from now on. make: the line that says so, as for `note`.

        at_once: or else the old key signs one more checkpoint, which holds that line.
        """

        def written() -> None:
            self._notary.succeed(key, at_once=at_once)
            self._to_sign = True
            if not self._entries:
                self._loop.call_soon(self._flush)

        self.append(Note(make, written))

    # One turn

    def _flush(self) -> None:
        if self._turn is not None or self.dead is not None:  # the next turn follows this one, or none does
            return
        if not self._entries and not self._to_sign:  # somebody flushed what this flush was scheduled for
            return
        hour, unsigned = self._clock() // NS_PER_HOUR, self._notary.unsigned
        if unsigned > 0 and self._journal.is_full(hour):
            self._put(self._make_turn([self._checkpoint()], hour=None))
            if self._turn is not None or self.dead is not None:
                return
            unsigned = self._notary.unsigned
        entries, self._entries = self._entries, []
        if unsigned >= CHECKPOINT_LINES or (self._to_sign and unsigned > 0):
            entries.insert(0, self._checkpoint())
        self._to_sign = False
        self._put(self._make_turn(entries, hour))

    def _checkpoint(self) -> Entry:
        return Checkpointing(self._notary, self._clock, self._checkpointed)

    def _checkpointed(self, signed: Signed) -> None:
        for callback in self._on_checkpoint:
            self._call(callback, signed)

    def _put(self, turn: Turn) -> None:
        """Write a turn, or have a thread do it."""
        if self._room.full:
            turn = self._cut_down(turn, OSError(errno.ENOSPC, "the disk is full"))
        if turn.data and (self._pace.slow or self._always):
            self._turn = turn
            self._write = self._in_thread(functools.partial(self._write_turn, turn), self._end_write)
            return
        if turn.data:
            try:
                took_ns = self._write_turn(turn)
            except DiskFull as error:
                self._end_full(turn, error)
                return
            except OSError as error:
                self._die(error, turn)
                return
            self._pace.wrote(took_ns)
        self._end_turn(turn)

    def _make_turn(self, entries: Sequence[Entry], hour: int | None) -> Turn:
        seq, leaf = self.seq, self._leaf
        lines: list[tuple[Line, int, str]] = []
        owners: list[Entry] = []
        turned_away: list[Entry] = []
        chunks: list[bytes] = []
        encode = chain.encode_linked
        for entry in entries:
            at = seq + 1
            try:
                line = entry.line(at, leaf)
                assert line.seq == at and line.prev == leaf  # noqa: PT018
                data, its_leaf = encode(line)
            except Exception as error:  # noqa: BLE001  one call's fault is not the others'
                self._report("a line could not be made", error)
                self._call(entry.failed, OSError(errno.EINVAL, "the line could not be made"))
                continue
            if line.kind == "refused" and not self._fits(chunks, data):
                self._unwritten(line.kind)
                turned_away.append(entry)
                continue
            seq, leaf = at, its_leaf
            chunks.append(data)
            lines.append((line, at, leaf))
            owners.append(entry)
        chunks.append(b"")
        waiting = owners if not turned_away else [*owners, *turned_away]
        return Turn(lines, owners, waiting, b"\n".join(chunks), hour)

    def _fits(self, chunks: Sequence[bytes], line: bytes) -> bool:
        """Is there room for one more line, behind those of this turn and besides the records of all open calls?"""
        size = sum(map(len, chunks)) + len(chunks) + len(line) + 1  # each with its newline
        return self._room.fits(len(self._open), size)

    def _write_turn(self, turn: Turn) -> int:
        """Write it, on the loop or in a thread; returns how long that took, in ns. Raises OSError."""
        began_ns = time.monotonic_ns()
        self._journal.write(turn.data, turn.lines[0][1], turn.hour)
        took_ns = time.monotonic_ns() - began_ns
        if self._always:
            self._journal.sync_work()()
        return took_ns

    def _end_write(self, done: asyncio.Future[int]) -> None:
        """A thread has written the turn, or has failed to."""
        turn, self._turn, self._write = self._turn, None, None
        assert turn is not None
        error = self.dead or done.exception()  # after a failed sync nobody knows what the disk holds
        if isinstance(error, DiskFull):
            self._end_full(turn, error)
            if self._entries or self._to_sign:
                self._loop.call_soon(self._flush)
            return
        if isinstance(error, OSError):
            self._die(error, turn)
            return
        assert error is None, error
        self._pace.wrote(done.result())
        self._end_turn(turn)
        if self._entries or self._to_sign:
            self._loop.call_soon(self._flush)

    def _end_turn(self, turn: Turn) -> None:
        """Its lines are in the file: let go of those who wait, then fold them. No answer waits for what is counted,
        and nothing else comes between: whoever asks this worker next sees all of it.
        """
        if turn.lines:
            _, self.seq, self._leaf = turn.lines[-1]
            self._notary.add(map(_LEAF, turn.lines))
            if self._mirror is not None:
                self._mirror(turn.data)
            if self._always:
                self.synced_seq = self.seq
        for entry in turn.waiting:
            try:
                entry.written()
            except Exception as error:  # noqa: BLE001  as in `_call`; this is on the path of every call
                self._report(f"{entry.written!r} failed", error)
        if turn.lines:
            self._fold(turn.lines)
            if self._always:
                self._tell_synced(self.seq)
            else:
                self._schedule_sync()

    # A full disk

    def _end_full(self, turn: Turn, error: DiskFull) -> None:
        """The disk has no room for this turn: write what must be, into the ballast's."""
        self._room.found_full(error)
        turn = self._cut_down(turn, error)
        try:
            if turn.data:
                self._write_into_ballast(turn, error)
        except OSError as fatal:
            self._die(fatal, turn)
        else:
            self._end_turn(turn)

    def _write_into_ballast(self, turn: Turn, error: DiskFull) -> None:
        """Raises OSError: of the last write, if there was no room left to give back."""
        while self._room.give_back(len(turn.data)):
            try:
                self._write_turn(turn)
            except DiskFull as again:  # somebody else took that room
                error = again
            else:
                return
        raise error

    def _cut_down(self, turn: Turn, error: OSError) -> Turn:
        """Leave out what need not be written."""
        kept = turns.essential(turn, self.seq, self._leaf)
        for kind in kept.left_out:
            self._unwritten(kind)
        for entry in kept.not_admitted:
            self._call(entry.failed, error)
        return kept.turn

    def _fold(self, written: Sequence[tuple[Line, int, str]]) -> None:
        folded: list[tuple[CallRecord | Refused | Event, int, str]] = []
        for line, at, its_leaf in written:
            if line.kind == "admitted":
                self._open[line.call_id] = line.admitted_ns
            elif line.kind == "call":
                self._open.pop(line.call_id, None)
                folded.append((line, at, its_leaf))
            elif line.kind == "refused" or (line.kind == "event" and line.topic == "budget"):
                folded.append((line, at, its_leaf))
        seq, leaf = self.seq, self._leaf
        for fold in self._folds:
            for one, at, its_leaf in folded:
                try:
                    fold.fold(one, at, its_leaf)
                except Exception as error:  # noqa: BLE001  as in `_call`, which would cost as much as most folds
                    self._report(f"{fold!r} failed", error)
            try:
                fold.turn(seq, leaf)
            except Exception as error:  # noqa: BLE001  the same
                self._report(f"{fold.turn!r} failed", error)

    def _call(self, callback: Callable[..., None], *args: object) -> None:
        """Call somebody else's code; its fault is reported and stays its own."""
        try:
            callback(*args)
        except Exception as error:  # noqa: BLE001  the others wait for their release
            self._report(f"{callback!r} failed", error)

    def _report(self, message: str, error: Exception) -> None:
        self._loop.call_exception_handler({"message": f"recorder: {message}", "exception": error})

    def _die(self, error: OSError, turn: Turn | None = None) -> None:
        """A write or a sync has failed; the first failure is the one that is told. turn: as for `_end`."""
        first = self.dead is None
        self._end(self.dead or error, turn)
        if first:
            self._call(self._on_dead, error)

    def _end(self, error: OSError, turn: Turn | None = None) -> None:
        """Take no line any more, nor those that are still to be written. turn: the one that failed."""
        self.dead = error
        after = self._after = self._after or Unwritable(self.writer, error, self._shown, loop=self._loop)
        for timer in self._timers.values():
            timer.cancel()
        entries, self._entries = self._entries, []
        if turn is not None:
            for (line, _, _), entry in zip(turn.lines, turn.entries, strict=True):
                self._call(after.give_up_made, entry, line)
            for entry in turns.without(turn.waiting, turn.entries):  # refusals that found no room
                self._call(entry.written)
        for entry in entries:
            self._call(after.give_up, entry)

    def _in_thread(
        self, work: Callable[[], T], done: Callable[[asyncio.Future[T]], None]
    ) -> asyncio.Future[T]:
        future = self._loop.run_in_executor(self._threads, work)
        self._threads_work.add(future)
        future.add_done_callback(self._threads_work.discard)
        future.add_done_callback(done)
        return future

    # Durability

    def _schedule_sync(self) -> None:
        if self._sync is None and "sync" not in self._timers:
            self._timers["sync"] = self._loop.call_later(self._sync_interval_s, self._start_sync)

    def _start_sync(self) -> None:
        self._timers.pop("sync", None)
        if self._turn is not None:  # the journal is a thread's; what it writes will be synced behind it
            return
        upto = self.seq
        self._sync = self._in_thread(self._journal.sync_work(), lambda done: self._end_sync(done, upto))
        self._timers["late"] = self._loop.call_later(pace.SLOW_SYNC_S, self._pace.sync_late)

    def _end_sync(self, done: asyncio.Future[None], upto: int) -> None:
        self._sync = None
        self._pace.synced()
        self._timers.pop("late").cancel()
        error = done.exception()
        if isinstance(error, OSError):
            self._die(error)
            return
        assert error is None, error
        self.synced_seq = upto
        self._tell_synced(upto)
        if self.dead is None and self.seq > upto:
            self._schedule_sync()

    def _tell_synced(self, upto: int) -> None:
        for callback in self._on_synced:
            self._call(callback, upto)

    async def _sync_all(self) -> None:
        """Make all that is written durable, now. Raises OSError."""
        while self.dead is None and self.synced_seq < self.seq:
            if self._write is not None:
                await asyncio.wait([self._write])
                continue
            if self._sync is None:
                self._timers.pop("sync").cancel()
                self._start_sync()
            assert self._sync is not None
            await asyncio.wait([self._sync])
        if self.dead is not None:
            raise self.dead

    # The other writers' bytes

    def _start_scan(self) -> None:
        self._timers.pop("scan", None)
        self._in_thread(self._room.count_others, self._end_scan)

    def _look_at_clock(self) -> None:
        """Once a second: was it set? Lines, ticks and segments go by the new time."""
        if self._clocks is None:
            return
        step_ns = self._clocks.step_ns(self._clock(), round(self._loop.time() * NS_PER_S))
        if step_ns:
            log(logger, logging.WARNING, "clock jumped", by_ms=step_ns // NS_PER_MS)
            self.note(events.clock_set(by_ms=step_ns // NS_PER_MS).line(self._clock))

    def _end_scan(self, done: asyncio.Future[int]) -> None:
        error = done.exception()
        if isinstance(error, Exception):
            self._report("the journal's files could not be counted", error)
        else:
            self._room.counted(done.result())
        if self.dead is None:
            self._room.look()
            self._look_at_clock()
            self._timers["scan"] = self._loop.call_later(SCAN_INTERVAL_S, self._start_scan)

    # Start, ticks, stop

    async def start(
        self,
        *,
        config_digest: str,
        ended: tuple[Ended, ...],
        pid: int,
        version: str,
        worker: int,
        behind: Sequence[Callable[[int, str], Line]] = (),
    ) -> None:
        """Write the `start` line, and those `behind` it; on return they are durable. Raises OSError."""

        def make(seq: int, prev: str) -> Start:
            return Start(
                at_ns=self._clock(),
                config_digest=config_digest,
                ended=ended,
                pid=pid,
                prev=prev,
                seq=seq,
                version=version,
                worker=worker,
                writer=self.writer,
            )

        assert self.seq == 0
        self._clocks = Clocks(self._clock(), round(self._loop.time() * NS_PER_S))
        for one in (make, *behind):
            self.note(one)
        await self._flush_all()
        await self._sync_all()
        await asyncio.wait([self._room.size_ballast()])
        await asyncio.wait([self._in_thread(self._room.count_others, self._end_scan)])
        self._schedule_tick()

    def _schedule_tick(self) -> None:
        """Ticks are at full minutes, so that one is at each full hour; never before it."""
        now_ns = self._clock()
        due_ns = (now_ns // TICK_NS + 1) * TICK_NS
        self._timers["tick"] = self._loop.call_later((due_ns - now_ns) / NS_PER_S, self._tick, due_ns)

    def _tick(self, due_ns: int) -> None:
        early_ns = due_ns - self._clock()
        if early_ns > TICK_NS:  # the clock was set back: by hours, perhaps
            self._schedule_tick()
            return
        if early_ns > 0:
            self._timers["tick"] = self._loop.call_later(early_ns / NS_PER_S, self._tick, due_ns)
            return
        self._to_sign = True  # within a minute a line is signed; in a new hour the tick begins a segment
        if self._tells_an_hour():
            self.append(Note(self._make_tick, self._journal.end_segment))
        else:
            self.note(self._make_tick)
        self._schedule_tick()

    def _tells_an_hour(self) -> bool:
        """Has every call that began before this full hour ended, for the first time?"""
        hour = self._clock() // NS_PER_HOUR
        if self._told_hour is None or hour <= self._told_hour:
            return False
        if next(iter(self._open.values()), hour * NS_PER_HOUR) < hour * NS_PER_HOUR:
            return False
        self._told_hour = hour
        return True

    def _make_tick(self, seq: int, prev: str) -> Tick:
        return Tick(
            at_ns=self._clock(),
            oldest_admitted_ns=next(iter(self._open.values()), None),
            open_calls=len(self._open),
            prev=prev,
            seq=seq,
        )

    async def stop(self) -> None:
        """Write what is under way, then the `stop` line; sync; sign the whole; let go of the directory.

        With calls still open there is no `stop` line: the directory is then left to the salvage,
        which writes their records. Raises nothing: a failed journal has told `on_dead`.
        """
        self._clocks = None  # nothing may follow the `stop` line while that is synced
        if (tick := self._timers.pop("tick", None)) is not None:
            tick.cancel()
        with contextlib.suppress(OSError):  # it is `self.dead`, and `on_dead` has been told
            # First what is billed, so that a `stop` never stands behind lines that power may take.
            await self._flush_all()
            await self._sync_all()
            await self._flush_all()
            if not self._open:
                self._to_sign = True
                self.note(lambda seq, prev: Stop(at_ns=self._clock(), prev=prev, reason="shutdown", seq=seq))
                await self._flush_all()
            await self._sync_all()
            if not self._open and self._notary.has_key:
                await self._sign_end()
        if self.dead is None:
            self._end(OSError(errno.ESHUTDOWN, "the journal is closed"))
        if self._threads_work:
            await asyncio.wait(self._threads_work)
        self._threads.shutdown()
        self._journal.close()

    async def _sign_end(self) -> None:
        """Leave the note that ends the directory; where that fails, a caretaker leaves one."""
        signed = self._notary.end(self._clock())
        done = self._in_thread(
            functools.partial(endnotes.write, self._journal.path, signed.note), lambda _: None
        )
        await asyncio.wait([done])
        if (error := done.exception()) is not None:
            log(logger, logging.ERROR, "end of the journal not signed", error=str(error))
            return
        self._checkpointed(signed)

    async def _flush_all(self) -> None:
        while self._entries or self._write is not None:
            if self._write is not None:
                await asyncio.wait([self._write])
            else:
                self._flush()
