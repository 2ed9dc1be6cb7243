"""The time by which journals are deleted and hours are closed: the wall clock's, as far as it is believed.

    wall clock      ──────────────┐                    ┌───── set ahead by a year: not believed
    believed        ──────────────┴────────────────────┴───── goes on as time passes (monotonic clock)
                                  └ kept in a file, so that a start does not forget

What is deleted by a clock that was wrong does not come back when it is put right. So a step of more than STEP_NS from
one look to the next is believed only once the clock has kept to it for HOLD_NS of running time. A machine that was off
for longer waits as long: it deletes a week late. The time is never ahead of the wall clock either.
"""

import contextlib
import pathlib
import time
from collections.abc import Callable

import msgspec

from metering import files
from metering.units import NS_PER_HOUR, NS_PER_S

STEP_NS = 48 * NS_PER_HOUR
HOLD_NS = 7 * 24 * NS_PER_HOUR
_KEEP_NS = 60 * NS_PER_S
"""How much of running time may be forgotten by a kill."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """believed_ns: since 1970 (UTC). off_ns: by how much the wall clock was off it; stood_ns: for how long already."""

    believed_ns: int
    off_ns: int = 0
    stood_ns: int = 0

    @property
    def is_doubted(self) -> bool:
        """Is the wall clock not believed?"""
        return abs(self.off_ns) > STEP_NS


def advanced(memory: Memory, wall_ns: int, passed_ns: int) -> Memory:
    """After a look at the wall clock. passed_ns: on a monotonic clock since the last look, 0 at a start. Pure."""
    believed_ns = memory.believed_ns + passed_ns
    off_ns = wall_ns - believed_ns
    if abs(off_ns) <= STEP_NS:
        return Memory(believed_ns=wall_ns)
    stood_ns = memory.stood_ns + passed_ns if abs(off_ns - memory.off_ns) <= STEP_NS else 0
    if stood_ns >= HOLD_NS:
        return Memory(believed_ns=wall_ns)
    return Memory(believed_ns=believed_ns, off_ns=off_ns, stood_ns=stood_ns)


class ClockDoubted(Exception):
    """The wall clock was set by more than is believed; the message says by how much, and what follows."""


class BelievedClock:
    """Of one process. file: keeps what it believes. wall, monotonic: clocks in nanoseconds."""

    def __init__(
        self,
        file: pathlib.Path,
        wall: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._file = file
        self._wall = wall
        self._monotonic = monotonic
        self._memory: Memory | None = None
        self._looked_ns = monotonic()
        self._kept_ns = 0

    def look(self) -> int:
        """Now, in nanoseconds since 1970 (UTC). What can't be kept, on a full disk, is kept later."""
        wall_ns, now_ns = self._wall(), self._monotonic()
        before = self._memory or self._read() or Memory(believed_ns=wall_ns)
        memory = advanced(before, wall_ns, now_ns - self._looked_ns)
        self._looked_ns = now_ns
        if (
            self._memory is None
            or memory.is_doubted != before.is_doubted
            or now_ns - self._kept_ns >= _KEEP_NS
        ):
            with contextlib.suppress(OSError):
                files.put(self._file, msgspec.json.encode(memory, order="sorted") + b"\n", mode=0o644)
                self._kept_ns = now_ns
        self._memory = memory
        return min(wall_ns, memory.believed_ns)

    def check(self) -> None:
        """Raises ClockDoubted, if the wall clock is not believed."""
        self.look()
        memory = self._memory
        assert memory is not None
        if memory.is_doubted:
            hours, days = abs(memory.off_ns) // NS_PER_HOUR, HOLD_NS // (24 * NS_PER_HOUR)
            way = "ahead of" if memory.off_ns > 0 else "behind"
            raise ClockDoubted(
                f"the wall clock is {hours} h {way} what has passed since it was last looked at; nothing is deleted by "
                f"that time until it has stood for {days} days"
            )

    def _read(self) -> Memory | None:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Memory)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
