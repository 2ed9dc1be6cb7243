"""The clerk's keeping of the journals: sealed, made facts of, archived, trimmed, and deleted when they are old.

clock ─▶ retention ─▶ seal ─▶ facts ─▶ prices ─▶ archive ─▶ anchors ─▶ trim

The last four where `journal.archive` is set.
"""

import functools
import logging
import pathlib
import time
from collections.abc import Callable, Iterable
from typing import Literal

from gateway.configuration.archives import archive_of, objects_of
from gateway.configuration.config import Config
from gateway.configuration.price_books import PriceCopies
from gateway.duties.duties import Duty, Task
from metering.archive import facts, retention
from metering.archive.archive import Archive, Archiver
from metering.archive.locked import LockedObjects
from metering.archive.objects import ArchiveError, ArchiveUnavailable
from metering.archive.retention import NS_PER_DAY
from metering.archive.trimming import Trimmer
from metering.audit.anchors import ArchivedAnchors
from metering.audit.keys import Keys
from metering.cost.closes import Closes
from metering.journal import event_journal, events, sealing
from metering.journal.journal import Directory, directories, tree_bytes
from metering.ledger.believed import BelievedClock
from metering.logs import log
from metering.pages import gone
from metering.periods import instant_text
from metering.units import NS_PER_HOUR

RETENTION_S = 3_600.0
"""How often it is looked for journals that are too old."""
LOCK_S = 3_600.0
"""How often a bucket is asked whether it locks."""
CLOCK = "clock-clerk.json"
COMMAND = "clerk"
"""Whose events its journals hold (metering/journal/event_journal.py)."""

logger = logging.getLogger("weighbridge.clerk")

Where = Literal["local", "archive"]
Deletion = Callable[[int, retention.Tell], None]


class Keeping:
    """Of the journals under one state directory. clock: wall clock in nanoseconds since 1970 (UTC)."""

    def __init__(self, config: Config, clock: Callable[[], int] = time.time_ns) -> None:
        """Raises OSError, ArchiveError."""
        state_dir = self._state_dir = pathlib.Path(config.state_dir)
        self._journals = state_dir / "journal"
        self._pages = state_dir / "pages"
        self._keys = Keys(config.state_dir, config.journal.signing_key_file)
        self._clock = clock
        self._believed = BelievedClock(state_dir / CLOCK, clock)
        self._retention_ns = config.retention_days * NS_PER_DAY
        self._due_s: dict[Where, float] = {}
        self._lock_s = 0.0
        self._told: set[tuple[Where, str]] = set()  # journals that were said to be deleted
        self._maker = facts.Maker(state_dir / "facts")
        self._bytes_kept = config.journal.bytes_max // 2
        self._archive = archive_of(config.journal)
        self._closes = Closes(objects_of(state_dir, config.journal))

    def believed_ns(self) -> int:
        """The time that deletions go by, in nanoseconds since 1970 (UTC)."""
        return self._believed.look()

    def duties(self) -> list[Duty]:
        """All of it, in the order of a round."""
        found = [
            Duty("clock", lambda: [Task("", self._believed.check)]),
            Duty("retention", self._retention_tasks),
            Duty("seal", self._seal_tasks),
            Duty("facts", self._facts_tasks),
        ]
        if self._archive is not None:
            archiver = Archiver(self._archive, self._maker, self._clock)
            anchors = ArchivedAnchors(self._archive.objects, self._journals, time.monotonic)
            trimmer = Trimmer(self._archive, archiver, self._maker)
            copies = PriceCopies(self._archive.objects, self._state_dir)
            lock = self._archive.objects
            if isinstance(lock, LockedObjects):
                found.append(Duty("lock", functools.partial(self._lock_tasks, lock)))
            found += [
                Duty("prices", lambda: [Task("", copies.bring_level_if_due)]),
                Duty("archive", lambda: [Task("", functools.partial(self._archive_all, archiver))]),
                Duty("anchors", lambda: (Task(writer, put) for writer, put in anchors.due())),
                Duty("trim", lambda: [Task("", functools.partial(self._trim, trimmer))]),
            ]
        return found

    def _lock_tasks(self, objects: LockedObjects) -> Iterable[Task]:
        """At the start, and now and then: is the bucket still set up to lock what is put there?"""
        if time.monotonic() >= self._lock_s:
            yield Task("bucket", functools.partial(self._check_lock, objects))

    def _check_lock(self, objects: LockedObjects) -> None:
        objects.check()
        self._lock_s = time.monotonic() + LOCK_S

    def _seal_tasks(self) -> Iterable[Task]:
        """One for each directory."""
        for directory in directories(self._journals):
            yield Task(directory.writer, functools.partial(self._seal, directory))

    def _seal(self, directory: Directory) -> None:
        for path in sealing.due(directory, self._clock()):
            sealing.seal(path)

    def _facts_tasks(self) -> Iterable[Task]:
        """One for each segment that is sealed and has no facts yet."""
        for directory in directories(self._journals):
            for first_seq in self._maker.missing(directory):
                about = facts.name(directory.writer, first_seq)
                yield Task(about, functools.partial(self._maker.make, directory, first_seq))

    def _archive_all(self, archiver: Archiver) -> None:
        """Raises ArchiveError of all directories that can't be archived; at once, if the archive is away."""
        wrong = []
        for directory in directories(self._journals):
            try:
                archiver.archive(directory)
            except ArchiveUnavailable:
                raise
            except (ArchiveError, OSError) as error:
                wrong.append(str(error))
        if wrong:
            more = f"; and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise ArchiveError(wrong[0] + more)

    def _trim(self, trimmer: Trimmer) -> None:
        over_bytes = tree_bytes(self._journals, but="") - self._bytes_kept
        if over_bytes > 0:
            counted = gone.load(self._pages).writers
            freed_bytes = trimmer.trim(directories(self._journals), over_bytes, counted)
            if freed_bytes:
                log(logger, logging.INFO, "archived segments deleted here", freed_bytes=freed_bytes)

    def _retention_tasks(self) -> Iterable[Task]:
        """Where it is time to look."""
        deletions: dict[Where, Deletion] = {"local": self._delete_local}
        if self._archive is not None:
            deletions["archive"] = functools.partial(self._delete_archived, self._archive)
        for where, delete in deletions.items():
            if time.monotonic() >= self._due_s.get(where, 0.0):
                yield Task(where, functools.partial(self._delete, where, delete))

    def _delete(self, where: Where, delete: Deletion) -> None:
        if where == "archive" and self._archive is not None:
            self._archive.objects.clear_leftovers()
        older_than_ns = min(self._believed.look() - self._retention_ns, self._closed_until_ns())
        delete(older_than_ns, functools.partial(self._tell, where, older_than_ns))
        self._due_s[where] = time.monotonic() + RETENTION_S

    def _closed_until_ns(self) -> int:
        """Up to when hours are closed: what one needs to be closed is kept. Where none ever was, nothing waits."""
        this_hour = self._clock() // NS_PER_HOUR
        closed = self._closes.numbers(range(this_hour))
        if not closed:
            return self._clock()
        open_hours = (hour for hour in range(min(closed), this_hour) if hour not in closed)
        return next(open_hours, this_hour) * NS_PER_HOUR

    def _delete_local(self, older_than_ns: int, tell: retention.Tell) -> None:
        if not self._journals.is_dir():
            return
        counted = gone.load(self._pages).writers
        retention.delete_local(retention.Local(self._journals, self._maker), older_than_ns, counted, tell)

    def _delete_archived(self, archive: Archive, older_than_ns: int, tell: retention.Tell) -> None:
        held = retention.delete_archived(archive, older_than_ns, tell, self._believed.look())
        if held.journals or held.anchors:
            log(
                logger,
                logging.INFO,
                "old journals stay in the archive under object lock",
                journals=held.journals,
                anchors=held.anchors,
                until=instant_text(held.until_ns),
            )

    def _tell(self, where: Where, older_than_ns: int, writers: list[str]) -> None:
        """Told once, however often the deletion has to be tried again."""
        untold = [writer for writer in writers if (where, writer) not in self._told]
        if untold:
            log(logger, logging.INFO, "old journals are deleted", where=where, writers=len(untold))
            happenings = events.retired(where=where, writers=untold, older_than_ns=older_than_ns)
            key = self._keys.ensure(self._clock())
            event_journal.tell(self._journals, COMMAND, happenings, key, clock=self._clock)
            self._told.update((where, writer) for writer in untold)
