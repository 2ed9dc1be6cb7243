"""Dead writers' directories into the store: those that no shipper serves any more.

A folder remembers of each directory its tenants and their last marks, so that looking again costs one
look-up a tenant, and a directory is read again only where the store is behind. Any number of folders,
on any number of hosts, may fold one directory: the marks make them one stream.
"""

import asyncio
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from metering.ledger import Mark, Refused, mark
from metering.logs import log
from metering.record import CallRecord, Line
from metering.replay import Replay, Stopped
from metering.store import EVICTION_WANTED, Store

CHUNK_LINES = 1_000
"""Lines that are read and posted in one go; so a batch has at most as many records."""
PASSES_MAX = 3
"""Readings of a directory in one go; a second is needed only where a mark was moved meanwhile."""

logger = logging.getLogger("weighbridge.ledger")


class Directory(Protocol):
    """What is needed of a writer's directory (metering/journal.py)."""

    @property
    def writer(self) -> str:
        """The writer's name."""

    @property
    def complete(self) -> bool:
        """Will no line be added any more?"""

    def records(self, after_seq: int = 0) -> Iterator[tuple[Line, int, str]]:
        """Lines above `after_seq`, each with its seq and leaf."""


class Folder:
    """Folds complete directories. One caller at a time.

    stopped: streams that can't go on, by (tenant, writer); each `fold` tries them again.
    """

    def __init__(self, store: Store) -> None:
        self.stopped: dict[tuple[str, str], Stopped] = {}
        self._store = store
        self._connections = 0  # of the store, when its eviction policy was asked for
        self._lasts: dict[str, dict[str, Mark]] = {}  # writer → tenant → mark of its last record

    async def fold(self, directories: Iterable[Directory]) -> int:
        """Bring the store up to the end of each directory; those not complete are left alone.

        returns: how many (tenant, directory) streams are behind still: those that are stopped, and
            those that a store which loses its records, or other folders, kept moving.
        Raises StoreUnavailable, and OSError if a directory can't be read; a repeat goes on from there.
        """
        known: dict[str, Directory] = {}
        for directory in directories:
            if directory.writer in self._lasts or await asyncio.to_thread(self._learn, directory):
                known[directory.writer] = directory
        await self._check_eviction()
        stopped: dict[tuple[str, str], Stopped] = {}
        behind = await self._compare(known, stopped)
        passes = 0
        while behind and passes < PASSES_MAX:
            for writer, marks in behind.items():
                replay = await read_again(self._store, known[writer], marks)
                stopped |= {(tenant, writer): stop for tenant, stop in replay.stopped.items()}
            behind = await self._compare(known, stopped)
            passes += 1
        self._name(stopped)
        return len(stopped) + sum(map(len, behind.values()))

    async def _compare(
        self, known: Iterable[str], stopped: dict[tuple[str, str], Stopped]
    ) -> dict[str, dict[str, Mark]]:
        """Where the store is not at the end of these writers' directories: writer → tenant → mark.

        Leaves out what is stopped; adds to that what the store holds there but is no mark.
        """
        asked: dict[str, list[str]] = {}
        for writer in known:
            for tenant in self._lasts[writer]:
                asked.setdefault(tenant, []).append(writer)
        behind: dict[str, dict[str, Mark]] = {}
        for (tenant, writer), found in (await self._store.marks(asked)).items():
            if isinstance(found, Refused):
                stopped[tenant, writer] = Stopped(
                    tenant=tenant, writer=writer, reason=found.reason, where=found.where
                )
            elif found != self._lasts[writer][tenant] and (tenant, writer) not in stopped:
                behind.setdefault(writer, {})[tenant] = found
        return behind

    async def _check_eviction(self) -> None:
        if self._store.connections == self._connections:
            return
        policy = await self._store.eviction()
        if policy not in (None, EVICTION_WANTED):
            log(logger, logging.ERROR, "the store may evict the ledger", maxmemory_policy=policy)
        self._connections = self._store.connections

    def _learn(self, directory: Directory) -> bool:
        """Read a directory for its tenants and their last marks; False if it is not complete."""
        if not directory.complete:
            return False
        lasts = {}
        for line, seq, leaf in directory.records():
            if isinstance(line, CallRecord):
                lasts[line.tenant] = mark(seq, leaf)
        self._lasts[directory.writer] = lasts
        return True

    def _name(self, stopped: dict[tuple[str, str], Stopped]) -> None:
        for stream, stop in stopped.items():
            if self.stopped.get(stream) != stop:
                log_stopped(stop)
        self.stopped = stopped


async def read_again(
    store: Store, directory: Directory, marks: Mapping[str, Mark], *, upto_seq: int | None = None
) -> Replay:
    """Read a directory once for these tenants and post what the store has not got.

    upto_seq: leave out what comes after it. The reading is done in a thread, some lines at a time.
    Raises StoreUnavailable, OSError.
    """
    replay = Replay(directory.writer, marks)
    lines: Iterator[tuple[Line, int, str]] = iter(directory.records(replay.after_seq))
    if upto_seq is not None:
        lines = itertools.takewhile(lambda line: line[1] <= upto_seq, lines)
    while replay.at and (chunk := await asyncio.to_thread(list, itertools.islice(lines, CHUNK_LINES))):
        batches = replay.cut(chunk)
        for batch, reply in zip(batches, await store.post(batches), strict=True):
            replay.answered(batch, reply)
    replay.end()
    return replay


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
