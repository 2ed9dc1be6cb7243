"""A worker's copy of the directory, kept the same as the store's and as the gateway's own on disk.

    each POLL_S   the copy on disk   has it another stamp? read what is new in it
                  the store          has it another revision? read what has changed
                  time               keys that have expired; a store that is away for too long

What is newer here than in the store is put there: by the first worker of a gateway, which also keeps the copy on
disk; so a store that was emptied, or is another one, gets all of it again. Without the store the workers of a gateway
hear of each other by the copy on disk.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from gateway.directory.directory import Directory
from metering.ledger.directory import Copy
from metering.ledger.directory_file import DirectoryFile, Stamp
from metering.ledger.directory_store import NO_REVISION, DirectoryStore
from metering.ledger.servers import StoreUnavailable
from metering.logs import log
from metering.record import Entry
from metering.units import NS_PER_S

POLL_S = 0.25
FIRST_S = 1.0
"""How long a worker that starts waits for the store to say what has been revoked meanwhile."""
CONFIRM_NS = 5 * NS_PER_S
"""How often it is put down until when the copy on disk is known to be right."""

logger = logging.getLogger("weighbridge.directory")


class Watcher:
    """Of one worker. copy: what it knows; compiled: what follows from that; keeps: is it this one that puts things into
    the store, and keeps the copy on disk?"""

    def __init__(
        self,
        compiled: Directory,
        file: DirectoryFile,
        store: DirectoryStore,
        *,
        keeps: bool,
        stale_max_s: int,
    ) -> None:
        self.copy = Copy()
        self._compiled = compiled
        self._file = file
        self._store = store
        self._keeps = keeps
        self._stale_ns_max = stale_max_s * NS_PER_S
        self._one_at_a_time = asyncio.Lock()  # who asks the store
        self._stamp: Stamp | None = None
        self._revision = NO_REVISION
        self._newer: set[str] = set()  # fields whose entries the store may lack
        self._unsaved: dict[str, Entry] = {}  # by field: not in the copy on disk yet
        self._confirmed_ns = 0  # monotonic: when the store was last asked, and answered
        self._noted_ns = 0  # … as the disk has it
        self._reachable = True

    async def begin(self) -> None:
        """Take in what the disk has, and the store if it answers soon. Raises OSError: the copy cannot be read."""
        age_ns = max(0, time.time_ns() - self._file.confirmed_ns())
        self._confirmed_ns = time.monotonic_ns() - age_ns
        await self._look_at_file()
        try:
            async with asyncio.timeout(FIRST_S):
                await self._ask()
        except TimeoutError:
            log(logger, logging.WARNING, "directory not compared with the store", reason="no answer in time")
        self._pass_time()

    def warnings(self) -> list[str]:
        """What somebody should see to."""
        found = [
            f"tenant {name}: the directory has it too; the configuration counts"
            for name in self._compiled.twice()
        ]
        if not self._reachable:
            found.append("the directory cannot be compared with the store")
        return found

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self._round()
            except Exception as error:  # noqa: BLE001  our own mistake in one round must not be the last round
                log(logger, logging.ERROR, "fault in a round of the directory", error=repr(error))

    async def newest(self) -> None:
        """What is known elsewhere is known here. Raises OSError."""
        await self._look_at_file()
        await self._ask()

    async def publish(self, entries: Iterable[Entry]) -> None:
        """These were told in the journal: have them everywhere. Where they can't be put now they are put later."""
        self._take(entries)
        try:
            await self._save()
        except OSError as error:
            self._unkept(error)
        try:
            async with self._one_at_a_time:
                await self._put()
        except StoreUnavailable as error:
            self._unavailable(error)

    @asynccontextmanager
    async def locked(self, holder: str) -> AsyncIterator[bool]:
        """The store's lock of changes, if it can be asked. False: another gateway holds it."""
        try:
            async with self._one_at_a_time:
                free = await self._store.lock(holder)
        except StoreUnavailable as error:  # then nobody else can change anything there either
            self._unavailable(error)
            yield True
            return
        try:
            yield free
        finally:
            if free:
                try:
                    async with self._one_at_a_time:
                        await self._store.unlock(holder)
                except StoreUnavailable as error:  # it expires
                    self._unavailable(error)

    async def _round(self) -> None:
        self._pass_time()
        try:
            await self._look_at_file()
            await self._ask()
            if self._keeps:
                await self._save()
        except OSError as error:
            self._unkept(error)
        self._pass_time()

    def _pass_time(self) -> None:
        now_ns = time.time_ns()
        self._compiled.pass_time(now_ns)
        is_stale = time.monotonic_ns() - self._confirmed_ns > self._stale_ns_max
        self._compiled.set_stale(is_stale, now_ns)

    async def _look_at_file(self) -> None:
        stamp = self._file.stamp()
        if stamp == self._stamp:
            return
        texts = await asyncio.to_thread(self._file.read)
        self._stamp = stamp
        changed = self._take(list(self.copy.unread(texts)))
        for entry in changed:
            self._unsaved.pop(entry.field, None)

    async def _ask(self) -> None:
        """What the store has, and what it lacks."""
        try:
            async with self._one_at_a_time:
                await self._hear()
                if self._keeps:
                    await self._put()
        except StoreUnavailable as error:
            self._unavailable(error)
            return
        if not self._reachable:
            log(logger, logging.INFO, "directory is compared with the store again")
        self._reachable = True
        self._confirmed_ns = time.monotonic_ns()
        if self._keeps and self._confirmed_ns - self._noted_ns >= CONFIRM_NS and not self._unsaved:
            self._noted_ns = self._confirmed_ns
            self._file.confirm(time.time_ns())

    async def _hear(self) -> None:
        found = await self._store.changed(self._revision)
        self._take(list(self.copy.unread(found.texts.values())), heard=True)
        compared = self.copy.texts if found.whole else found.texts
        self._newer |= {field for field in compared if found.texts.get(field) != self.copy.text(field)}
        self._revision = found.revision

    async def _put(self) -> None:
        """Put there what is newer here."""
        while self._newer:
            fields = sorted(self._newer)
            there = await self._store.get(fields)
            self._take(list(self.copy.unread(there.values())), heard=True)
            lacking = {
                field: (there.get(field, ""), self.copy.text(field))
                for field in fields
                if there.get(field) != self.copy.text(field)
            }
            now = await self._store.put(lacking) if lacking else {}
            self._newer -= {
                field for field in fields if now.get(field, self.copy.text(field)) == self.copy.text(field)
            }

    def _take(self, entries: Iterable[Entry], *, heard: bool = False) -> list[Entry]:
        """Join entries with what is known. heard: of the store, which so has them."""
        changed = self.copy.take(entries)
        if changed:
            self._unsaved |= {entry.field: entry for entry in changed}
            if not heard:
                self._newer |= {entry.field for entry in changed}
            self._compiled.take(changed, time.time_ns())
        return changed

    async def _save(self) -> None:
        """Have the copy on disk hold what is known. Raises OSError."""
        if not self._unsaved:
            return
        saved = list(self._unsaved.values())
        await asyncio.to_thread(self._file.join, saved)
        for entry in saved:
            if self._unsaved.get(entry.field) is entry:
                del self._unsaved[entry.field]

    def _unkept(self, error: OSError) -> None:
        log(logger, logging.ERROR, "copy of the directory cannot be kept", error=str(error))

    def _unavailable(self, error: StoreUnavailable) -> None:
        if self._reachable:
            log(logger, logging.WARNING, "directory not compared with the store", reason=error.reason)
        self._reachable = False
