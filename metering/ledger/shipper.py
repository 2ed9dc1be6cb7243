"""A live writer's records into the store, in the background: calls never wait for it.

    journal ─fold─▶ window of each tenant ─(durable up to synced_seq)─▶ one batch a tenant ─▶ store
                                 ▲                                                             │
                                 └─── directory on disk ◀── the mark is not where memory begins ┘

Only what has been synced is sent: a mark must never name a record that power may take. One message
per tenant is in flight. A window holds the newest records that the store has not acknowledged; with the
store away it is cut at its front, and what was cut is read from the journal again. So memory is bounded
and the store may lose anything, at any time: its mark says from where to go on.
"""

import asyncio
import collections
import contextlib
import logging
import time
import types
from collections.abc import Awaitable, Callable, Sequence

from metering.audit.notary import Signed
from metering.journal.replay import Stopped
from metering.ledger import ledger
from metering.ledger.epochs import NO_EPOCH, Writer
from metering.ledger.folder import Directory, log_stopped, read_again
from metering.ledger.ledger import START, Batch, Done, Gap, Mark, Posted, Posting, Refused, Reply
from metering.ledger.store import EVICTION_WANTED, Store, StoreUnavailable
from metering.logs import log
from metering.record import Line

BATCH_RECORDS_MAX = 1_000
WINDOW_RECORDS_MAX = 10_000
"""Records held in memory, over all tenants."""
PROBE_S = 30.0
READ_AGAIN_RECORDS = 500
"""Records in one go when the journal is read again: this is a loop that serves calls, and 1,000 are 5 ms."""
EPOCH_S = 1.0
"""How often it is looked whether the store has begun a new epoch."""
BACKOFF_MIN_S = 0.1
BACKOFF_MAX_S = 2.0
STOP_S = 2.0

logger = logging.getLogger("weighbridge.ledger")


class Stream:
    """One tenant's records of one writer, on their way.

    acked: where the store is, as it last said. in_doubt: `acked` has not been found among this
    writer's records yet. before: the record before the window's first; all later ones are in it.
    """

    def __init__(self, tenant: str, on_moved: Callable[[str, int], None]) -> None:
        """on_moved: told the tenant, and up to which seq the store has its records."""
        self.tenant = tenant
        self._on_moved = on_moved
        self.acked = START
        self.in_doubt = False
        self.before = START
        self.window: collections.deque[Posting] = collections.deque()
        self.stopped: Stopped | None = None
        self.resting = False  # stopped, until the next probe
        self._records = 0
        self._acked_records = 0  # at least; exact unless the store is behind the window

    @property
    def lag(self) -> int:
        """Records that the store has not acknowledged; while it is behind the window, at most so many."""
        return self._records - self._acked_records

    @property
    def must_read(self) -> bool:
        """Does the store lack records that are only in the journal?"""
        return self.in_doubt or self.acked.seq < self.before.seq

    def add(self, posting: Posting) -> None:
        """Take in the newest record."""
        self._records += 1
        if self.resting:
            self.before = posting.mark
        else:
            self.window.append(posting)

    def drop_first(self) -> None:
        """Leave the window's oldest record to the journal."""
        self.before = self.window.popleft().mark

    def cut(self, writer: str, synced_seq: int) -> Batch | None:
        """The next batch out of the window; None if nothing in it is durable."""
        assert self.acked == self.before
        window = self.window
        if len(window) <= BATCH_RECORDS_MAX and window and window[-1].mark.seq <= synced_seq:
            return ledger.batch(self.tenant, writer, self.acked, [*window])
        records: list[Posting] = []
        for posting in window:
            if posting[0][0] > synced_seq or len(records) == BATCH_RECORDS_MAX:  # its mark's seq
                break
            records.append(posting)
        return ledger.batch(self.tenant, writer, self.acked, records) if records else None

    def answered(self, batch: Batch, reply: Reply) -> bool:
        """Take in the store's answer. True: it has fallen behind what it had acknowledged."""
        match reply:
            case Posted():
                self.move(batch.last)
            case Done(at) if at == batch.last:
                self.move(at)
            case Done(at) | Gap(at):
                return self.moved_away(at)
            case _:
                self.stop(
                    Stopped(tenant=self.tenant, writer=batch.writer, reason=reply.reason, where=reply.where)
                )
        return False

    def move(self, at: Mark) -> None:
        """The store is at this record, which is this writer's."""
        self.acked, self.in_doubt, self.stopped, self.resting = at, False, None, False
        window, last, seq = self.window, None, at.seq
        while window and window[0][0][0] <= seq:  # its mark's seq
            last = window.popleft()
        if last is not None:
            self.before = last.mark
        if not self.must_read:
            self._acked_records = self._records - len(self.window)
        self._on_moved(self.tenant, at.seq)

    def moved_away(self, at: Mark) -> bool:
        """The store is elsewhere than expected. True: behind what it had acknowledged."""
        fell = at.seq < self.acked.seq
        if any(posting.mark == at for posting in self.window):
            self.move(at)
        else:
            self.acked, self.in_doubt, self._acked_records, self.resting = at, at != START, 0, False
        return fell

    def stop(self, stop: Stopped) -> None:
        """Rest until the next probe; hold nothing meanwhile."""
        if stop != self.stopped:
            log_stopped(stop)
        self.stopped, self.resting = stop, True
        while self.window:
            self.drop_first()


class Shipper:
    """Ships one writer's records: a fold of its journal, and a task. All on the loop's thread.

    directory: the writer's own, to read again what is no longer in memory. host: named with the writer in the store.
    on_behind: called when the store has fallen behind what it had acknowledged, and again when this writer's
        records are back: what it lost once more in between, nobody has seen. The directories of dead writers
        must then be looked at as well.
    on_folded: told the tenant, and up to which seq its records are in the store, each time there are more.
    before_stating: awaited before the store is told that all of this writer is in it: what it must know besides.
    """

    def __init__(
        self,
        store: Store,
        directory: Directory,
        *,
        host: str,
        on_behind: Callable[[], None],
        clock: Callable[[], int] = time.time_ns,
        on_folded: Callable[[str, int], None] = lambda _tenant, _seq: None,
        before_stating: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._on_folded = on_folded
        self._before_stating = before_stating
        self.store_gone = False
        self._eviction: str | None = None  # the store's policy, as of this connection
        self._host = host
        self._clock = clock
        self._epoch = NO_EPOCH  # in which all marks were compared last
        self._unstated = False  # … and the store has not been told
        self._epoch_at_s = 0.0  # of the loop's clock: when to look whether it is still that one
        self._store = store
        self._directory = directory
        self._on_behind = on_behind
        self._streams: dict[str, Stream] = {}
        self._held = 0  # records in all windows
        self._synced_seq = 0
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._mending = False  # the store has lost records of this writer, and lacks some of them still
        self._connections = 0  # of the store, when it was last probed
        self._probe_at_s = 0.0  # of the loop's clock
        self._task: asyncio.Task[None] | None = None
        self._note: str | None = None  # the newest checkpoint
        self._noted: str | None = None  # … and the one that the store has

    @property
    def stopped(self) -> list[Stopped]:
        """Streams that can't go on by themselves; each probe tries them again."""
        return [stream.stopped for stream in self._streams.values() if stream.stopped]

    def warnings(self) -> list[str]:
        """What an operator should see to, though calls are served; the same words each time, with no address."""
        found = []
        if self.store_gone:
            found.append(
                "the ledger's store cannot be reached: calls are journalled, and sent when it is back"
            )
        if self._eviction not in (None, EVICTION_WANTED):
            found.append(f"the ledger's store may evict: its maxmemory-policy is {self._eviction}")
        return found + [
            f"the ledger's stream of {stop.tenant} is stopped: {stop.reason}" for stop in self.stopped
        ]

    def lag(self) -> int:
        """Records in the journal, durable or not, that the store has not acknowledged."""
        return sum(stream.lag for stream in self._streams.values())

    # The journal's side

    def fold(self, line: Line, seq: int, leaf: str) -> None:
        """Take in a written line."""
        if line.kind != "call":
            return
        tenant = line.tenant
        stream = self._streams.get(tenant)
        if stream is None:
            stream = self._streams[tenant] = Stream(tenant, self._on_folded)
        stream.add(ledger.posting(line, seq, leaf))
        self._held += 1
        if self._held > WINDOW_RECORDS_MAX and stream.window:
            stream.drop_first()
            self._held -= 1

    def turn(self, seq: int, leaf: str) -> None:
        """Nothing to do: what is written is not shipped before it is durable."""

    def synced(self, seq: int) -> None:
        """Lines up to `seq` are durable."""
        self._synced_seq = seq
        self._wake.set()

    def compare(self) -> None:
        """Ask for all marks at once: the store has lost records of somebody else."""
        self._probe_at_s = 0.0
        self._wake.set()

    def anchor(self, signed: Signed) -> None:
        """Have the store keep this checkpoint, the newest; it is durable."""
        self._note = signed.note
        self._wake.set()

    # The store's side

    async def __aenter__(self) -> "Shipper":
        self._task = asyncio.create_task(self._run(), name="shipper")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        """Send what is durable, if the store takes it in time; else it is left to a folder."""
        assert self._task is not None
        self._closing.set()
        self._wake.set()
        await asyncio.wait([self._task], timeout=STOP_S)
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        backoff_s = BACKOFF_MIN_S
        while True:
            self._wake.clear()
            try:
                await self._round_or_part()
            except Exception as error:  # noqa: BLE001  a fault of ours must not end the task
                self._failed(error)
                woken_by, delay_s = self._closing, backoff_s
                backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)
            else:
                self._succeeded()
                due_s = min(self._probe_at_s, self._epoch_at_s)
                woken_by, delay_s = self._wake, max(0.0, due_s - loop.time())
                backoff_s = BACKOFF_MIN_S
            if self._closing.is_set():
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await woken_by.wait()

    async def _round_or_part(self) -> None:
        """Raises as `_round`."""
        try:
            await self._round()
        except StoreUnavailable:
            if self._store.is_cluster:
                with contextlib.suppress(StoreUnavailable):  # then it is all of it that is away
                    await self._ship_where_it_goes()
            raise

    async def _round(self) -> None:
        """Bring the store up to what is durable now. Raises StoreUnavailable, OSError."""
        await self._look_for_a_new_epoch()
        moved = True
        while moved:
            if self._is_probe_due():
                await self._probe()
            moved = await self._read_again() or await self._ship() or self._is_probe_due()
        if self._mending:
            self._mending = False
            self._on_behind()
        if self._unstated:
            await self._state()
        if self._note is not None and (note := self._note) != self._noted:
            await self._store.put_anchors({self._directory.writer: note})
            self._noted = note

    async def _look_for_a_new_epoch(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._epoch_at_s:
            self._epoch_at_s = now_s + EPOCH_S
            if await self._store.epoch() != self._epoch:
                self._probe_at_s = 0.0

    async def _state(self) -> None:
        """Say in which epoch all that is durable was compared and folded, but for the streams that rest."""
        if self._before_stating is not None:
            await self._before_stating()
        behind = tuple(sorted(stream.tenant for stream in self._streams.values() if stream.resting))
        entry = Writer(
            behind=behind,
            epoch=self._epoch,
            host=self._host,
            seen_ns=self._clock(),
            seq=self._synced_seq,
            state="open",
        )
        await self._store.put_writers({self._directory.writer: entry})
        self._unstated = False

    def _is_probe_due(self) -> bool:
        # A new connection may be one to another store, or to one that has lost its last seconds.
        return (
            self._store.connections != self._connections
            or asyncio.get_running_loop().time() >= self._probe_at_s
        )

    async def _probe(self) -> None:
        """Ask for all marks."""
        self._probe_at_s = asyncio.get_running_loop().time() + PROBE_S
        await self._store.ping()
        if self._store.connections != self._connections:
            self._eviction = await self._store.eviction()
        self._connections = self._store.connections
        await self._enter_epoch()
        writer = self._directory.writer
        asked = {stream.tenant: [writer] for stream in self._streams.values() if stream.resting}
        for (tenant, _), found in (await self._store.marks(asked)).items():
            stream = self._streams[tenant]
            if isinstance(found, Refused):
                stream.stop(Stopped(tenant=tenant, writer=writer, reason=found.reason, where=found.where))
            else:
                stream.moved_away(found)
        probed = [stream for stream in self._streams.values() if not stream.stopped]
        await self._post([ledger.probe(stream.tenant, writer, stream.acked) for stream in probed])

    async def _enter_epoch(self) -> None:
        """Before anything is compared. While a tenant is not in it yet, nobody may state an epoch."""
        epoch = await self._store.epoch()
        metas = await self._store.metas(self._streams)
        entered = all(meta.epoch == epoch for meta in metas.values())
        if epoch != self._epoch:
            self._noted = None  # another life of the store
        self._epoch = epoch if entered else NO_EPOCH
        self._unstated = True

    async def _read_again(self) -> bool:
        """Fold from the journal on disk what is not in memory. False: there was nothing to be done."""
        marks = {
            stream.tenant: stream.acked
            for stream in self._streams.values()
            if stream.must_read and not stream.resting
        }
        if not marks:
            return False
        replay = await read_again(
            self._store,
            self._directory,
            marks,
            upto_seq=self._synced_seq,
            chunk_records=READ_AGAIN_RECORDS,
        )
        for tenant, stop in replay.stopped.items():
            self._streams[tenant].stop(stop)
        for tenant, at in replay.at.items():
            self._streams[tenant].move(at)
        for tenant, at in replay.again.items():
            self._streams[tenant].moved_away(at)
        self._settle(replay.fell)
        return replay.at != marks

    async def _ship(self) -> bool:
        """Send what is in memory and durable. False: there was nothing."""
        writer, synced_seq = self._directory.writer, self._synced_seq
        ready = [stream for stream in self._streams.values() if not (stream.must_read or stream.resting)]
        return await self._post([batch for stream in ready if (batch := stream.cut(writer, synced_seq))])

    async def _ship_where_it_goes(self) -> None:
        """Send what is in memory to the shards that answer: their tenants need not wait for another one.

        What the others' tenants have is left to the journal, so that it takes no room from these.
        """
        writer, synced_seq = self._directory.writer, self._synced_seq
        going = [stream for stream in self._streams.values() if not (stream.must_read or stream.resting)]
        fell = False
        while batches := [batch for stream in going if (batch := stream.cut(writer, synced_seq))]:
            for batch, reply in zip(batches, await self._store.post_each(batches), strict=True):
                stream = self._streams[batch.tenant]
                if reply is None:
                    while stream.window:
                        stream.drop_first()
                else:
                    fell |= stream.answered(batch, reply)
            going = [stream for stream in going if not (stream.must_read or stream.resting)]
        self._settle(fell)

    async def _post(self, batches: Sequence[Batch]) -> bool:
        fell = False
        for batch, reply in zip(batches, await self._store.post(batches), strict=True):
            fell |= self._streams[batch.tenant].answered(batch, reply)
        self._settle(fell)
        return bool(batches)

    def _settle(self, fell_behind: bool) -> None:
        """After an exchange. A store that lost records of one tenant has lost others' as well."""
        self._held = sum(len(stream.window) for stream in self._streams.values())
        if fell_behind:
            log(logger, logging.WARNING, "ledger store has lost records", writer=self._directory.writer)
            self._probe_at_s = 0.0
            self._mending = True
            self._on_behind()

    def _failed(self, error: Exception) -> None:
        self._probe_at_s = 0.0  # with nothing to send, only an answer shows that the store is back
        if self.store_gone:
            return
        self.store_gone = True
        match error:
            case StoreUnavailable():
                log(logger, logging.WARNING, "ledger store is gone", reason=error.reason)
            case OSError():
                log(logger, logging.ERROR, "journal cannot be read again", error=error.strerror)
            case _:
                context = {"message": "shipper: failed, will try again", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)

    def _succeeded(self) -> None:
        if self.store_gone:
            log(logger, logging.INFO, "ledger store is back")
        self.store_gone = False
