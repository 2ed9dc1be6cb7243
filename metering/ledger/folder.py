"""Dead writers' directories into the store: those that no shipper serves any more.

A directory is read and folded in one go the first time. From then on the folder remembers its tenants and
their last marks, so that looking again costs one look-up a tenant, and it is read again only where the
store is behind. Any number of folders, on any number of hosts, may fold one directory: the marks make
them one stream.
"""

import asyncio
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from metering.journal.replay import Replay, Stopped, Trimmed, after_seq
from metering.ledger.ledger import Mark, Refused, mark
from metering.ledger.store import EVICTION_WANTED, Store
from metering.logs import log
from metering.record import Billed, Line
from metering.units import NS_PER_HOUR

CHUNK_RECORDS = 4_000
"""Records that are read and posted in one go, and held in memory; so a batch has at most as many."""
PASSES_MAX = 3
"""Readings of a directory in one go; a second is needed only where a mark was moved meanwhile."""

logger = logging.getLogger("weighbridge.ledger")

Records = Iterator[tuple[Billed, int, str]]


class Directory(Protocol):
    """What is needed of a writer's directory (metering/journal/journal.py)."""

    @property
    def writer(self) -> str:
        """The writer's name."""

    @property
    def complete(self) -> bool:
        """Will no line be added any more?"""

    @property
    def trimmed(self) -> Trimmed:
        """What of it is in the archive alone."""

    def records(self, after_seq: int = 0) -> Iterator[tuple[Line, int, str]]:
        """Lines above `after_seq`, each with its seq and leaf."""

    def billed(self, after_seq: int = 0) -> Records:
        """Records above `after_seq`, each with its seq and leaf."""


class Learnt(NamedTuple):
    """A complete directory's tenants with the marks of their last records; the last seq of all, and the last hour.

    last_hour: hours since 1970 (UTC) of the latest end of a call; 0 if there are no records.
    """

    lasts: Mapping[str, Mark]
    last_seq: int
    last_hour: int


class Folder:
    """Folds complete directories. One caller at a time.

    learnt: of each directory that was seen, by writer.
    stopped: streams that can't go on, by (tenant, writer); each `fold` tries them again.
    left: all streams that are behind, those among them.
    fell: did the last `fold` find the store behind what it had acknowledged to this folder?
    """

    def __init__(self, store: Store) -> None:
        self.learnt: dict[str, Learnt] = {}
        self.stopped: dict[tuple[str, str], Stopped] = {}
        self.left: set[tuple[str, str]] = set()
        self.fell = False
        self._store = store
        self._connections = 0  # of the store, when its eviction policy was asked for
        self._folded: set[tuple[str, str]] = set()  # streams that the store had whole

    def begin_epoch(self) -> None:
        """What the store acknowledged in another life does not count: that it is behind that is known."""
        self._folded.clear()

    async def fold(self, directories: Iterable[Directory]) -> int:
        """Bring the store up to the end of each directory; those not complete are left alone.

        returns: how many (tenant, directory) streams are behind still: those that are stopped, and
            those that a store which loses its records, or other folders, kept moving.
        Raises StoreUnavailable, and OSError if a directory can't be read; a repeat goes on from there.
        """
        await self._check_eviction()
        self.fell = False
        stopped: dict[tuple[str, str], Stopped] = {}
        known: dict[str, Directory] = {}
        for directory in directories:
            if directory.writer in self.learnt:
                known[directory.writer] = directory
            elif directory.complete:
                self._take_in(await self._meet(directory), stopped)
                known[directory.writer] = directory
        behind = await self._compare(known, stopped)
        self.fell |= any((tenant, writer) in self._folded for writer in behind for tenant in behind[writer])
        passes = 0
        while behind and passes < PASSES_MAX:
            for writer, marks in behind.items():
                self._take_in(await read_again(self._store, known[writer], marks), stopped)
            behind = await self._compare(known, stopped)
            passes += 1
        self._name(stopped)
        self.left = stopped.keys() | {(tenant, writer) for writer in behind for tenant in behind[writer]}
        seen = {(tenant, writer) for writer in known for tenant in self.learnt[writer].lasts}
        self._folded = seen - self.left
        return len(self.left)

    def _take_in(self, replay: Replay, stopped: dict[tuple[str, str], Stopped]) -> None:
        self.fell |= replay.fell
        stopped |= {(tenant, replay.writer): stop for tenant, stop in replay.stopped.items()}

    async def _meet(self, directory: Directory) -> Replay:
        """Read a complete directory that was never seen, and post what the store has not got of it."""
        writer = directory.writer
        records = directory.billed()
        chunk = await asyncio.to_thread(list, itertools.islice(records, CHUNK_RECORDS))
        trimmed = directory.trimmed
        replay = Replay(writer, {}, trimmed=trimmed)
        lasts: dict[str, Mark] = {}
        last_hour = 0
        new = set(trimmed.marks or {})
        while chunk or new:
            new |= {record.tenant for record, _, _ in chunk if record.tenant is not None} - lasts.keys()
            if new:
                found = await self._store.marks({tenant: [writer] for tenant in sorted(new)})
                for (tenant, _), at in found.items():
                    replay.meet(tenant, at)
                lasts |= {tenant: last for tenant, last in (trimmed.marks or {}).items() if tenant in new}
                new = set()
            for record, seq, leaf in chunk:
                assert record.tenant is not None
                assert record.finished_ns is not None
                lasts[record.tenant] = mark(seq, leaf)
                last_hour = max(last_hour, record.finished_ns // NS_PER_HOUR)
            await _post(self._store, replay, chunk)
            chunk = await asyncio.to_thread(list, itertools.islice(records, CHUNK_RECORDS))
        replay.end()
        last_seq = max((at.seq for at in lasts.values()), default=0)
        self.learnt[writer] = Learnt(lasts, last_seq, last_hour)
        return replay

    async def _compare(
        self, known: Iterable[str], stopped: dict[tuple[str, str], Stopped]
    ) -> dict[str, dict[str, Mark]]:
        """Where the store is not at the end of these writers' directories: writer → tenant → mark.

        Leaves out what is stopped; adds to that what the store holds there but is no mark.
        """
        asked: dict[str, list[str]] = {}
        for writer in known:
            for tenant in self.learnt[writer].lasts:
                asked.setdefault(tenant, []).append(writer)
        behind: dict[str, dict[str, Mark]] = {}
        for (tenant, writer), found in (await self._store.marks(asked)).items():
            if isinstance(found, Refused):
                stopped[tenant, writer] = Stopped(
                    tenant=tenant, writer=writer, reason=found.reason, where=found.where
                )
            elif found != self.learnt[writer].lasts[tenant] and (tenant, writer) not in stopped:
                behind.setdefault(writer, {})[tenant] = found
        return behind

    async def _check_eviction(self) -> None:
        if self._store.connections == self._connections:
            return
        policy = await self._store.eviction()
        if policy not in (None, EVICTION_WANTED):
            log(logger, logging.ERROR, "the store may evict the ledger", maxmemory_policy=policy)
        self._connections = self._store.connections

    def _name(self, stopped: dict[tuple[str, str], Stopped]) -> None:
        for stream, stop in stopped.items():
            if self.stopped.get(stream) != stop:
                log_stopped(stop)
        self.stopped = stopped


async def read_again(
    store: Store,
    directory: Directory,
    marks: Mapping[str, Mark],
    *,
    upto_seq: int | None = None,
    chunk_records: int | None = None,
) -> Replay:
    """Read a directory once for these tenants and post what the store has not got.

    upto_seq: leave out what comes after it. The reading is done in a thread, `chunk_records` at a time (None:
    CHUNK_RECORDS). Raises StoreUnavailable, OSError.
    """
    records: Records = iter(directory.billed(after_seq(marks.values())))
    if upto_seq is not None:
        records = itertools.takewhile(lambda record: record[1] <= upto_seq, records)
    size = chunk_records or CHUNK_RECORDS
    chunk = await asyncio.to_thread(list, itertools.islice(records, size))
    replay = Replay(directory.writer, marks, trimmed=directory.trimmed)
    while replay.at and chunk:
        await _post(store, replay, chunk)
        chunk = await asyncio.to_thread(list, itertools.islice(records, size))
    replay.end()
    return replay


async def _post(store: Store, replay: Replay, chunk: Sequence[tuple[Billed, int, str]]) -> None:
    batches = replay.cut(chunk)
    for batch, reply in zip(batches, await store.post(batches), strict=True):
        replay.answered(batch, reply)


def log_stopped(stop: Stopped) -> None:
    """Name a stream that can't go on by itself, for a person to cure."""
    log(
        logger,
        logging.ERROR,
        "ledger stream stopped",
        tenant=stop.tenant,
        writer=stop.writer,
        reason=stop.reason,
        where=stop.where,
    )
