"""Is the disk slow? By how long writes take, and by syncs that are not done in time.

A slow disk is written by a thread (metering/journal/recorder.py), so that the loop goes on with all else.
"""

import logging

from metering.logs import log
from metering.units import NS_PER_MS, NS_PER_S

SLOW_WRITE_NS = NS_PER_S // 20
"""A write takes 10 to 50 µs. One that takes this long was waiting for the disk, and every stream with it."""
SLOW_SYNC_S = 0.2
"""A sync that takes this long tells of a disk that stands still, before a write is held up by it."""
QUICK_WRITE_NS = NS_PER_S // 200
QUICK_WRITES = 20
"""So many quick writes in a row, and no sync that is late, are the end of it."""

logger = logging.getLogger("weighbridge.recorder")


class Pace:
    """One writer's disk."""

    def __init__(self) -> None:
        self.slow = False
        self._quick_writes = 0  # in a row, while it is slow
        self._sync_is_late = False

    def wrote(self, took_ns: int) -> None:
        """A write took so long."""
        if not self.slow:
            if took_ns >= SLOW_WRITE_NS:
                self._now_slow(write_ms=took_ns // NS_PER_MS)
            return
        quick = took_ns < QUICK_WRITE_NS and not self._sync_is_late
        self._quick_writes = self._quick_writes + 1 if quick else 0
        if self._quick_writes == QUICK_WRITES:
            self.slow = False
            log(logger, logging.INFO, "journal quick again")

    def sync_late(self) -> None:
        """A sync has been under way for SLOW_SYNC_S."""
        self._sync_is_late = True
        if not self.slow:
            self._now_slow(sync_ms=round(SLOW_SYNC_S * 1_000))

    def synced(self) -> None:
        """It is done."""
        self._sync_is_late = False

    def _now_slow(self, **took: int) -> None:
        self.slow, self._quick_writes = True, 0
        log(logger, logging.WARNING, "journal slow, a thread writes it", **took)
