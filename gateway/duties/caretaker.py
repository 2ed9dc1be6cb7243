"""Who looks after the journals of dead writers: closed, counted, and folded into the ledger.

    a directory whose writer died ─▶ salvaged ─▶ signed ─▶ in the `gone` page ─▶ in the store

In a thread of the supervisor, never on a worker's loop. It goes round each 30 s, at once when it is
poked (a worker died, or saw a mark fall behind), when it has a new connection to the store, which
may be another store, or one that lost its last seconds, and when the store has begun a new epoch.
It registers the writers of this gateway, and says which tenants are ready (metering/ledger/upkeep.py).
"""

import asyncio
import collections
import functools
import logging
import pathlib
import threading
import time
from collections.abc import Collection

from metering.archive.archive import Archive
from metering.archive.objects import ArchiveError
from metering.archive.retention import NS_PER_DAY
from metering.audit.anchors import StoredAnchors, log_checkpoint
from metering.audit.endnotes import Ends
from metering.audit.keys import Keys, KeysError
from metering.audit.notary import SigningKey
from metering.journal import journal
from metering.journal.chain import Broken
from metering.ledger import directory
from metering.ledger.believed import BelievedClock
from metering.ledger.directory_file import DirectoryFile, Stamp
from metering.ledger.ledger import hour_text
from metering.ledger.store import Store, StoreUnavailable
from metering.ledger.upkeep import Upkeep
from metering.logs import log
from metering.pages import gone
from metering.units import NS_PER_HOUR

ROUND_S = 30.0
PING_S = 1.0
CLOCK = "clock-supervisor.json"
ARCHIVE_RETRY_S = 300.0
"""How long an archive that could not give what was asked for is left alone: it may take a minute to say so."""

logger = logging.getLogger("weighbridge.caretaker")


class Caretaker:
    """Looks after `<state_dir>/journal` and `<state_dir>/pages`; one per state directory.

    tenants: of the configuration; those of the directory and of the journals are looked after as well. host: named
    with each writer. backends: those whose slots are shared in pools.
    retention_days: how long journals are kept, and so the ledger's hours; None: for ever. archive: where the fronts of
    journals may be.
    """

    def __init__(
        self,
        state_dir: pathlib.Path,
        redis_url: str,
        keys: Keys,
        *,
        tenants: Collection[str] = (),
        host: str = "",
        backends: Collection[str] = (),
        retention_days: int | None = None,
        archive: Archive | None = None,
    ) -> None:
        """Raises ValueError if the store can't be at `redis_url`. keys: with one to sign with."""
        self._journals = state_dir / "journal"
        self._keys = keys
        self._ends = Ends(self._journals)
        self._pages = state_dir / "pages"
        self._archive = archive
        self._archive_due_s = 0.0  # when it may be asked
        self._store = Store(redis_url)
        self._backends = backends
        self._retention_days = retention_days
        self._believed = BelievedClock(state_dir / CLOCK)
        floor = None if retention_days is None else functools.partial(self._floor, retention_days)
        self._anchors = StoredAnchors(self._store)
        self._upkeep = Upkeep(self._store, tenants=tenants, host=host, floor=floor)
        self._directory = DirectoryFile(state_dir)
        self._directory_stamp: Stamp | None = None
        self._folded: int | None = None  # the store's connection that all was folded over; None: not all was
        self._reachable = True
        self._gone: collections.deque[str] = collections.deque()  # dead workers whose slots are not free yet
        self._poked = threading.Event()
        self._behind = threading.Event()  # a worker saw that the store has lost records
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="caretaker", daemon=True)

    def tidy(self) -> None:
        """Close directories of dead writers, sign their ends, and take what they counted into the gone page.

        To be called once before the first worker starts, which does not wait for the archive; from `start` on the
        thread does it. Raises OSError.
        """
        self._tidy(None)
        # They may have ended without a store to take leave of.
        self._gone.extend(one.writer for one in journal.directories(self._journals))

    def _tidy(self, archive: Archive | None) -> None:
        for salvaged in journal.salvage_dead(self._journals):
            log(
                logger,
                logging.WARNING,
                "journal of a dead writer closed",
                writer=salvaged.directory.writer,
                calls_lost=salvaged.lost,
                torn_bytes=salvaged.torn_bytes,
            )
        self._sign_ends()
        try:
            gone.retire(self._pages, self._journals, archive)
        except ArchiveError as error:
            if archive is not None:
                self._archive_due_s = time.monotonic() + ARCHIVE_RETRY_S
                log(logger, logging.ERROR, "dead writers not counted yet", reason=str(error))

    def _sign_ends(self) -> None:
        try:
            for signed in self._ends.sign(self._key, time.time_ns()):
                if isinstance(signed, Broken):
                    log(logger, logging.ERROR, "journal not signed", reason=str(signed))
                else:
                    log_checkpoint(signed)
        except KeysError as error:  # what is closed is counted and folded all the same
            log(logger, logging.ERROR, "ended journals not signed", reason=str(error))

    def _key(self) -> SigningKey:
        return self._keys.signing_key(self._keys.load())

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def poke(self) -> None:
        """Go round at once."""
        self._poked.set()

    def gone(self, worker: str) -> None:
        """A worker is dead: free what it holds of backends' slots, and go round at once. worker: its name in pools."""
        self._gone.append(worker)
        self.poke()

    def behind(self) -> None:
        """Go round at once: the store has lost records, so this is another life of it."""
        self._behind.set()
        self.poke()

    def close(self, wait_s: float) -> None:
        """Go round a last time and end. After `wait_s` it is left: the next start does what is missing."""
        self._closing = True
        self.poke()
        self._thread.join(wait_s)
        if self._thread.is_alive():
            log(logger, logging.WARNING, "ledger not caught up at the end")

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            due_s = time.monotonic()
            closing = False
            while not closing:
                self._poked.wait(PING_S)
                poked = self._poked.is_set()  # not what `wait` says: a poke may come just as it gives up
                if poked:
                    self._poked.clear()
                closing = self._closing
                if runner.run(self._is_due()) or poked or time.monotonic() >= due_s:
                    due_s = time.monotonic() + ROUND_S
                    self._round(runner)
            runner.run(self._store.close())

    def _round(self, runner: asyncio.Runner) -> None:
        try:
            runner.run(self._free_slots())
            self._tidy_if_possible()
            runner.run(self._fold())
        except Exception as error:  # noqa: BLE001  our own mistake in one round must not be the end of all care
            log(logger, logging.ERROR, "fault in the caretaker", error=repr(error))

    def _tidy_if_possible(self) -> None:
        try:
            self._tidy(self._archive if time.monotonic() >= self._archive_due_s else None)
        except OSError as error:  # a full disk: the next round tries again
            log(logger, logging.ERROR, "dead journals cannot be closed", error=str(error))

    async def _free_slots(self) -> None:
        """Before all else: calls may wait for them. What can't be told is free 20 s after a worker's last word."""
        names = [self._gone.popleft() for _ in range(len(self._gone))]
        try:
            if names:
                await self._store.drop_members(self._backends, names)
        except StoreUnavailable as error:
            self._unavailable(error)

    async def _is_due(self) -> bool:
        """Has the store a new connection, or a new epoch? In between, see whether others have made tenants ready."""
        register = self._upkeep.register
        try:
            await self._store.ping()
            epoch = await self._store.epoch()
            if register.unready and epoch == register.epoch:
                await self._upkeep.settle()
        except StoreUnavailable as error:
            self._unavailable(error)
            return False
        self._reachable = True
        if self._store.connections != self._folded or epoch != register.epoch:
            return True
        return self._directory.stamp() != self._directory_stamp

    async def _fold(self) -> None:
        self._folded, connection = None, self._store.connections
        if self._behind.is_set():
            self._behind.clear()
            self._upkeep.lost = True
        try:
            self._know_tenants()
            directories = journal.directories(self._journals)
            await self._upkeep.round(directories)
            await self._upkeep.clear_limits()
            older_than_ns = (
                None if self._retention_days is None else self._older_than_ns(self._retention_days)
            )
            await self._anchors.put(directories, self._upkeep.register.epoch, older_than_ns=older_than_ns)
        except StoreUnavailable as error:
            self._unavailable(error)
        except OSError as error:
            log(logger, logging.ERROR, "dead journals cannot be read", error=str(error))
        else:
            self._folded = connection

    def _know_tenants(self) -> None:
        """Those that were made at run time. Raises OSError."""
        stamp = self._directory.stamp()
        if stamp != self._directory_stamp:
            entries = map(directory.decode, self._directory.read())
            self._upkeep.know([one.name for one in entries if one is not None and one.kind == "tenant"])
            self._directory_stamp = stamp

    def _unavailable(self, error: StoreUnavailable) -> None:
        if self._reachable:
            log(logger, logging.WARNING, "ledger store unavailable", reason=error.reason)
        self._reachable = False

    def _older_than_ns(self, retention_days: int) -> int:
        return self._believed.look() - retention_days * NS_PER_DAY

    def _floor(self, retention_days: int) -> str:
        return hour_text(self._older_than_ns(retention_days) // NS_PER_HOUR)
