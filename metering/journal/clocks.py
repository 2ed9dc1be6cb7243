"""Seeing that the wall clock was set: it and a monotonic one do not advance alike. Pure.

A clock that is only steered (NTP slews by at most 500 parts per million) never comes near STEP_NS between two looks a
second or a minute apart. A machine that slept is seen too, as a step forward: its monotonic clock stood still.
"""

from metering.units import NS_PER_S

STEP_NS = 2 * NS_PER_S


class Clocks:
    """Two clocks of one machine, looked at together."""

    def __init__(self, wall_ns: int, monotonic_ns: int) -> None:
        self._offset_ns = wall_ns - monotonic_ns

    def step_ns(self, wall_ns: int, monotonic_ns: int) -> int:
        """By how much the wall clock was set since the last look, forward or (negative) back; 0: it was not."""
        before, self._offset_ns = self._offset_ns, wall_ns - monotonic_ns
        step = self._offset_ns - before
        return step if abs(step) >= STEP_NS else 0
