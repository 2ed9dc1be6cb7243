"""Requests that ended before admission, on their way into the journal: beyond a rate folded by the second. Pure.

    the first LINES_PER_S_MAX of a second, by (tenant, reason)  ─▶  a `refused` line each, `count` 1
    the others, by (tenant, reason, operation, status, error, limit) ─▶  at the second's end one line with their `count`

Whoever sends what must be refused does not fill the journal, and each one is counted all the same: Σ count of the
lines = requests refused. A 401 has no tenant; all of them share its rate. Memory is bounded by what there is of each.
"""

from collections.abc import Callable

import msgspec

from metering.record import Line, Refused

LINES_PER_S_MAX = 10


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A `refused` line before it has a place; fields as there."""

    at_ns: int
    error_code: str | None
    key_id: str | None
    model: str | None
    operation: str
    reason: str
    request_id: str
    status: int
    tenant: str | None
    limit: str | None = None
    count: int = 1

    def line(self, seq: int, prev: str) -> Refused:
        """It at its place."""
        return Refused(**msgspec.structs.asdict(self), prev=prev, seq=seq)

    def folded(self, other: "Refusal") -> "Refusal":
        """Both in one: the first one's request id, the last one's time; a key or model only if it is the same."""
        return msgspec.structs.replace(
            self,
            at_ns=other.at_ns,
            count=self.count + other.count,
            key_id=self.key_id if self.key_id == other.key_id else None,
            model=self.model if self.model == other.model else None,
            limit=self.limit if self.limit == other.limit else _named(self.limit),
        )


def _named(limit: str | None) -> str | None:
    """A limit without what only one request had to do with it, which stands behind a comma."""
    return None if limit is None else limit.partition(",")[0]


_Rate = tuple[str | None, str]
_Kind = tuple[str | None, str, str, int, str | None, str | None]


class Refusals:
    """The refusals of one worker. note: puts a line into its journal."""

    def __init__(self, note: Callable[[Callable[[int, str], Line]], None]) -> None:
        self._note = note
        self._lines: dict[_Rate, int] = {}  # in this second
        self._folded: dict[_Kind, Refusal] = {}

    def refuse(self, one: Refusal) -> None:
        """A request was refused."""
        rate = one.tenant, one.reason
        lines = self._lines.get(rate, 0)
        if lines < LINES_PER_S_MAX:
            self._lines[rate] = lines + 1
            self._note(one.line)
            return
        kind = one.tenant, one.reason, one.operation, one.status, one.error_code, _named(one.limit)
        held = self._folded.get(kind)
        self._folded[kind] = one if held is None else held.folded(one)

    def tell(self) -> None:
        """A second is over, or the worker is: put what was folded into the journal."""
        folded, self._folded = self._folded, {}
        self._lines.clear()
        for one in folded.values():
            self._note(one.line)
