"""Intervals of time, and sets of them. Pure.

An interval is half-open, in ns since 1970 (UTC). A set is a list of them: sorted, none empty, none touching the next.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    """From a moment to a later one, which is not in it."""

    from_ns: int
    to_ns: int


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """All moments that are in any of these, in whatever order they come and however they overlap; empty ones go."""
    found: list[Interval] = []
    for interval in sorted(interval for interval in intervals if interval.from_ns < interval.to_ns):
        if found and interval.from_ns <= found[-1].to_ns:
            found[-1] = Interval(found[-1].from_ns, max(found[-1].to_ns, interval.to_ns))
        else:
            found.append(interval)
    return found


def intersection(one: Sequence[Interval], other: Sequence[Interval]) -> list[Interval]:
    """All moments that are in both sets."""
    found, at = [], 0
    for interval in one:
        while at < len(other) and other[at].to_ns <= interval.from_ns:
            at += 1
        for another in other[at:]:
            if another.from_ns >= interval.to_ns:
                break
            found.append(Interval(max(interval.from_ns, another.from_ns), min(interval.to_ns, another.to_ns)))
    return found


def difference(one: Sequence[Interval], other: Sequence[Interval]) -> list[Interval]:
    """All moments that are in the first set and not in the second."""
    if not one:
        return []
    gaps, from_ns = [], one[0].from_ns
    for interval in other:
        gaps.append(Interval(from_ns, interval.from_ns))
        from_ns = max(from_ns, interval.to_ns)
    gaps.append(Interval(from_ns, one[-1].to_ns))
    return intersection(one, union(gaps))


def length_ns(intervals: Iterable[Interval]) -> int:
    """How long the intervals of a set are together."""
    return sum(interval.to_ns - interval.from_ns for interval in intervals)
