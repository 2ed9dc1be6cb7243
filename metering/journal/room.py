"""How much a journal may still take: of the bytes that all writers together may have, and of the disk.

the cap      16 KiB are kept free for the record of each open call, and as much again for an admission under way
the disk     the same by a ballast (journal/ballast.py), which is grown ahead of need and shrunk when most is idle
full         from a write that found no room on, until a step beyond the ballast can be had
"""

import asyncio
import functools
import logging
from collections.abc import Callable

from metering.journal.ballast import BASE_BYTES, START_BYTES, bytes_for
from metering.journal.journal import Journal, tree_bytes
from metering.logs import log
from metering.record import RECORD_BYTES_MAX

ADMISSION_BYTES = 2 * RECORD_BYTES_MAX
"""What an admission may still write: its `admitted` line and its record."""
CALLS_START = (START_BYTES - BASE_BYTES) // RECORD_BYTES_MAX
IDLE_SHARE = 16
"""A ballast beyond its start's size is lowered when it holds room for so many times the calls that are open."""
CALLS_MORE_MIN = 16
"""A disk has room again once the ballast would hold so many calls more than are open."""

InThread = Callable[[Callable[[], bool], Callable[["asyncio.Future[bool]"], None]], "asyncio.Future[bool]"]

logger = logging.getLogger("weighbridge.recorder")


class Room:
    """One writer's. All methods on the loop's thread but `count_others`.

    open_calls: how many there are now; in_thread: does a piece of work, then calls back on the loop.
    """

    def __init__(
        self, journal: Journal, bytes_max: int, open_calls: Callable[[], int], in_thread: InThread
    ) -> None:
        self.full = False
        self._journal = journal
        self._ballast = journal.ballast
        self._bytes_max = bytes_max
        self._open_calls = open_calls
        self._in_thread = in_thread
        self._small = False  # the ballast is as large as the disk affords, and not as large as wanted
        self._growing: asyncio.Future[bool] | None = None
        self._others_bytes = 0  # less what of ours was freed since it was written

    def admits(self, open_calls: int, under_way: int) -> bool:
        """May one more call be admitted? under_way: entries whose lines are still to be written."""
        if self.full:
            return False
        calls = open_calls + under_way + 1
        if 2 * calls > self._ballast.calls:
            if not self._small:
                self.size_ballast()
            if calls > self._ballast.calls:
                return False
        kept_bytes = RECORD_BYTES_MAX * open_calls + ADMISSION_BYTES * (under_way + 1)
        return self._journal.bytes + self._others_bytes + kept_bytes <= self._bytes_max

    def fits(self, open_calls: int, more_bytes: int) -> bool:
        """Refused requests are unbounded; their lines must not use what open calls need."""
        held_bytes = self._journal.bytes + self._others_bytes
        return held_bytes + more_bytes + RECORD_BYTES_MAX * open_calls <= self._bytes_max

    def found_full(self, error: OSError) -> None:
        """A write has found no room."""
        if not self.full:
            self.full = True
            log(logger, logging.ERROR, "disk full, no call is admitted", error=error.strerror)

    def give_back(self, needed_bytes: int) -> bool:
        """Of the ballast, for a write. False: there is none left. Raises OSError."""
        return self._ballast.release(needed_bytes)

    def size_ballast(self) -> "asyncio.Future[bool]":
        """Grow it ahead of need, or shrink it when most of it is idle: to four times what is open now."""
        if self._growing is None:
            wanted = max(START_BYTES, bytes_for(4 * self._open_calls()))
            resize = self._ballast.regain if self.full else self._ballast.resize
            work = functools.partial(resize, min(wanted, BASE_BYTES + self._bytes_max))
            self._growing = self._in_thread(work, self._sized)
        return self._growing

    def _sized(self, done: "asyncio.Future[bool]") -> None:
        self._growing = None
        error = done.exception()
        assert error is None or isinstance(error, OSError), error
        self._small = error is not None or not done.result()
        if self.full and error is None and self._ballast.calls >= self._open_calls() + CALLS_MORE_MIN:
            self.full = False
            log(logger, logging.INFO, "disk has room again")

    def look(self) -> None:
        """Once a second: has a full disk room again? Is most of the ballast idle?"""
        idle = self._ballast.calls > max(CALLS_START, IDLE_SHARE * self._open_calls())
        if self.full or self._small or idle:
            self.size_ballast()

    def count_others(self) -> int:
        """The bytes of all other writers, less what was freed of ours; in a thread. Raises OSError."""
        return tree_bytes(self._journal.path.parent, but=self._journal.writer) - self._journal.freed_bytes()

    def counted(self, others_bytes: int) -> None:
        """So many there were."""
        self._others_bytes = others_bytes
