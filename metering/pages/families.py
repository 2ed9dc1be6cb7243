"""The metric families, and the fold of journal lines into their cells. Pure.

A family is counted in integer cells: a count takes one, an amount (tokens,
picodollars, nanoseconds) two, a histogram one a bucket and two for its sum.
Floats appear only where a number is shown to a person (metering/pages/metrics.py).

Label values are the configuration's names, enumerations and fixed phrases of
ours, never a client's text: the number of series is bounded by the configuration.
"""

import array
import enum
import hashlib
import sys
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from metering.record import CallRecord, Line, Outcome
from metering.units import NS_PER_S, PICO_USD_PER_USD

UNKNOWN = "unknown"
"""Label of what a line does not know: the family of a call that no backend served, the tenant of a 401."""

REFUSED = "refused"
"""Outcome of a request that ended before admission; an admitted call refused by its backend has the same."""

BACKEND_STATES = ("starting", "ready", "down")


class Bound(enum.StrEnum):
    """A bound of the configuration (`bounds.*`) that can be passed; names as in deploy/reference/config.md."""

    CONNECTIONS = "connections"
    HEAD_TIME = "head_time"
    HEAD_BYTES = "head_bytes"
    BODY_TIME = "body_time"
    BODY_BYTES = "body_bytes"
    WRITE_STALL = "write_stall"
    BUFFER = "buffer"
    BACKEND_HEAD = "backend_head"
    EVENT = "event"
    ANSWER = "answer"
    QUEUE_CALLS = "queue_calls"
    QUEUE_WAIT = "queue_wait"
    LOOP_LAG = "loop_lag"


BOUND_OF_REFUSAL = {
    "TooSlow": Bound.BODY_TIME,
    "BodyTooLarge": Bound.BODY_BYTES,
    "QueueFull": Bound.QUEUE_CALLS,
    "NoTurn": Bound.QUEUE_WAIT,
    "Overloaded": Bound.LOOP_LAG,
}
"""By the `reason` of a `refused` line."""

_LIMITS = frozenset({"requests_per_minute", "tokens_per_minute", "concurrency"})


def limit_kind(limit: str) -> str:
    """What kind of limit it is whose words these are: those of `refused` lines."""
    kind = limit.partition(" ")[0]
    return kind if kind in _LIMITS else "budget"


BOUND_OF_FAILURE = {
    "head too large": Bound.BACKEND_HEAD,
    "event too large": Bound.EVENT,
    "answer too large": Bound.ANSWER,
}
"""By the `error` of an attempt."""

LOW_BITS = 62
"""An amount is high × 2**LOW_BITS + low, each in a signed 64-bit cell: no sum of ours can outgrow it.

The low part is carried into the high one when its cell overflows, so it may be larger than 2**LOW_BITS.
"""
_LOW_MASK = (1 << LOW_BITS) - 1

_US, _MS = 1_000, 1_000_000

# Edges from vLLM's own histograms, as far as they go, so that a panel may subtract the engine's
# time from the gateway's. 80 s lies beyond the default first-event deadline of 60 s.
TTFT_EDGES_NS = tuple(
    ms * _MS
    for ms in (
        5,
        10,
        20,
        40,
        60,
        80,
        100,
        250,
        500,
        750,
        1_000,
        2_500,
        5_000,
        7_500,
        10_000,
        20_000,
        40_000,
        80_000,
    )
)
# vLLM's from 10 ms to 2.5 s, and finer below: a small model on a fast chip decodes in 1 to 10 ms.
TPOT_EDGES_NS = tuple(
    us * _US
    for us in (
        *(1_000, 2_500, 5_000, 7_500, 10_000, 15_000, 20_000, 25_000, 35_000, 50_000, 75_000, 100_000),
        *(150_000, 200_000, 300_000, 400_000, 500_000, 750_000, 1_000_000, 2_500_000),
    )
)
# The first edge is «did not wait»; the queue's default deadline is 10 s.
QUEUE_WAIT_EDGES_NS = tuple(
    us * _US
    for us in (
        *(1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000),
        *(1_000_000, 2_500_000, 5_000_000, 7_500_000, 10_000_000, 15_000_000, 30_000_000),
    )
)
# A call costs the gateway 0.1 to 0.5 ms of work; from 1 ms on it waited for the loop or the disk.
OVERHEAD_EDGES_NS = tuple(
    us * _US
    for us in (
        *(50, 100, 150, 200, 300, 500, 750, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000),
        *(250_000, 500_000, 1_000_000),
    )
)


class Kind(enum.Enum):
    """What a family's series hold."""

    COUNT = "count"  # events; a Prometheus counter
    AMOUNT = "amount"  # a sum of non-negative integers; a Prometheus counter
    HISTOGRAM = "histogram"  # observations in buckets, and their sum
    GAUGE_SUM = "gauge_sum"  # a state of each live worker; shown as their sum
    GAUGE_MAX = "gauge_max"  # the same; shown as the largest


GAUGES = frozenset({Kind.GAUGE_SUM, Kind.GAUGE_MAX})


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A metric family.

    name: as scraped. unit: an amount or a histogram's sum is divided by it to be shown.
    edges_ns: upper bounds of a histogram's buckets, inclusive, rising; the last bucket, without
    bound, is not listed.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    unit: int = 1
    edges_ns: tuple[int, ...] = ()

    @property
    def counts(self) -> int:
        """How many cells of a series are plain counts; they stand first."""
        return 0 if self.kind is Kind.AMOUNT else len(self.edges_ns) + 1

    @property
    def has_amount(self) -> bool:
        """Does a series end with an amount, in two cells?"""
        return self.kind is Kind.AMOUNT or self.kind is Kind.HISTOGRAM

    @property
    def cells(self) -> int:
        """How many cells a series takes."""
        return self.counts + 2 * self.has_amount

    def value(self, cells: Sequence[int]) -> tuple[int, ...]:
        """A series' cells as plain integers: its counts, then its amount if it has one."""
        if not self.has_amount:
            return tuple(cells)
        *counts, low, high = cells
        return (*counts, (high << LOW_BITS) + low)


CALLS = Family(
    name="weighbridge_calls_total",
    kind=Kind.COUNT,
    labels=("tenant", "model", "family", "outcome"),
    help="Calls by outcome; refused ones, admitted or not, are among them.",
)
TOKENS = Family(
    name="weighbridge_tokens_total",
    kind=Kind.AMOUNT,
    labels=("tenant", "model", "family", "kind", "source"),
    help="Tokens that are known; prompt includes cached_prompt.",
)
COST = Family(
    name="weighbridge_estimated_cost_usd_total",
    kind=Kind.AMOUNT,
    labels=("tenant", "model", "family"),
    help="Estimated cost of priced calls. A float: for exact sums use the export.",
    unit=PICO_USD_PER_USD,
)
UNPRICED = Family(
    name="weighbridge_unpriced_calls_total",
    kind=Kind.COUNT,
    labels=("model", "reason"),
    help="Calls whose cost is unknown, by reason.",
)
TTFT = Family(
    name="weighbridge_ttft_seconds",
    kind=Kind.HISTOGRAM,
    labels=("model", "family"),
    help="Streams: from the whole request to its first content, reasoning or tool delta.",
    unit=NS_PER_S,
    edges_ns=TTFT_EDGES_NS,
)
TPOT = Family(
    name="weighbridge_tpot_seconds",
    kind=Kind.HISTOGRAM,
    labels=("model", "family"),
    help="Streams: mean time per token after the first.",
    unit=NS_PER_S,
    edges_ns=TPOT_EDGES_NS,
)
QUEUE_WAIT = Family(
    name="weighbridge_queue_wait_seconds",
    kind=Kind.HISTOGRAM,
    labels=("model",),
    help="Time that a call waited for a slot.",
    unit=NS_PER_S,
    edges_ns=QUEUE_WAIT_EDGES_NS,
)
OVERHEAD = Family(
    name="weighbridge_overhead_seconds",
    kind=Kind.HISTOGRAM,
    labels=(),
    help="The gateway's own time in a call: request to dispatch less the queue, and backend's end to seal.",
    unit=NS_PER_S,
    edges_ns=OVERHEAD_EDGES_NS,
)
SPILLS = Family(
    name="weighbridge_spills_total",
    kind=Kind.COUNT,
    labels=("model", "reason"),
    help="Calls that went to a later tier because an earlier one was full.",
)
FALLBACKS = Family(
    name="weighbridge_fallbacks_total",
    kind=Kind.COUNT,
    labels=("model", "reason"),
    help="Calls that went to another backend because one failed or was unable.",
)
ATTEMPTS = Family(
    name="weighbridge_attempts_total",
    kind=Kind.COUNT,
    labels=("backend", "outcome"),
    help="Attempts at backends by outcome.",
)
BACKEND_STATE = Family(
    name="weighbridge_backend_state",
    kind=Kind.GAUGE_MAX,
    labels=("backend", "state"),
    help="1 where at least one live worker sees the backend in this state.",
)
IN_FLIGHT = Family(
    name="weighbridge_in_flight",
    kind=Kind.GAUGE_SUM,
    labels=("backend",),
    help="Attempts under way, over all live workers.",
)
LEDGER_LAG = Family(
    name="weighbridge_ledger_lag_records",
    kind=Kind.GAUGE_SUM,
    labels=(),
    help="Records of live workers that the ledger has not acknowledged.",
)
BOUND_EXCEEDED = Family(
    name="weighbridge_bound_exceeded_total",
    kind=Kind.COUNT,
    labels=("bound",),
    help="How often a bound of the configuration was passed.",
)
CLIENT_CONNECTIONS = Family(
    name="weighbridge_client_connections",
    kind=Kind.GAUGE_SUM,
    labels=(),
    help="Open connections of clients, over all live workers.",
)
LOOP_LAG = Family(
    name="weighbridge_loop_lag_seconds",
    kind=Kind.GAUGE_MAX,
    labels=(),
    help="How late an event loop was within the last second, of the live worker where it was latest.",
    unit=NS_PER_S,
)
JOURNAL_UNWRITTEN = Family(
    name="weighbridge_journal_unwritten_total",
    kind=Kind.COUNT,
    labels=("kind",),
    help="Lines that the journal had no room for, or could not take.",
)
MIRROR_DROPPED = Family(
    name="weighbridge_journal_mirror_dropped_total",
    kind=Kind.COUNT,
    labels=(),
    help="Lines of the journal that were not copied to stdout because its reader was slow, or gone.",
)
CAPTURES = Family(
    name="weighbridge_captures_total",
    kind=Kind.COUNT,
    labels=("outcome",),
    help="What has become of the content of calls whose tenants have it kept.",
)
JOURNAL_FULL = Family(
    name="weighbridge_journal_full",
    kind=Kind.GAUGE_SUM,
    labels=(),
    help="Live workers that admit no call because the disk is full.",
)
JOURNAL_SLOW = Family(
    name="weighbridge_journal_slow",
    kind=Kind.GAUGE_SUM,
    labels=(),
    help="Live workers whose journal is written by a thread because the disk is slow.",
)
LIMITS_UNCHECKED = Family(
    name="weighbridge_limits_unchecked",
    kind=Kind.GAUGE_SUM,
    labels=(),
    help="Live workers that cannot check limits now: the tenants' store_policy decides.",
)
LIMIT_REFUSALS = Family(
    name="weighbridge_limit_refusals_total",
    kind=Kind.COUNT,
    labels=("tenant", "limit"),
    help="Requests that a limit of their tenant's had no room for.",
)
BUDGET_THRESHOLDS = Family(
    name="weighbridge_budget_thresholds_total",
    kind=Kind.COUNT,
    labels=("tenant", "kind", "percent"),
    help="Thresholds of budgets that were passed, each once a window.",
)
JOURNAL_CHECKPOINT = Family(
    name="weighbridge_journal_checkpoint_seq",
    kind=Kind.GAUGE_MAX,
    labels=("writer",),
    help="Last checkpoint of each live writer's journal.",
)

FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        *(CALLS, TOKENS, COST, UNPRICED, TTFT, TPOT, QUEUE_WAIT, OVERHEAD),
        *(SPILLS, FALLBACKS, ATTEMPTS, BACKEND_STATE, IN_FLIGHT, LEDGER_LAG),
        *(BOUND_EXCEEDED, CLIENT_CONNECTIONS, LOOP_LAG),
        *(JOURNAL_UNWRITTEN, MIRROR_DROPPED, CAPTURES, JOURNAL_FULL, JOURNAL_SLOW, JOURNAL_CHECKPOINT),
        *(LIMITS_UNCHECKED, LIMIT_REFUSALS, BUDGET_THRESHOLDS),
    )
}


def shapes() -> str:
    """A digest (16 hex digits) of how every family is laid out in cells.

    Cells kept under another digest cannot be read: their journals are folded again.
    """
    layout = [(f.name, f.kind.value, f.labels, f.edges_ns, LOW_BITS) for f in FAMILIES.values()]
    return hashlib.sha256(msgspec.json.encode(layout)).hexdigest()[:16]


class Series(NamedTuple):
    """One series: the family's name, and a value for each of its labels, in their order."""

    family: str
    labels: tuple[str, ...]


Totals = dict[Series, tuple[int, ...]]
"""The value (`Family.value`) of each series."""


def totals_of(series: Iterable[Series], cells: Sequence[int]) -> Totals:
    """Cut `cells` into the values of `series`, which stand one behind the other.

    Raises KeyError if a family is unknown, ValueError if there are too few cells.
    """
    totals: Totals = {}
    at = 0
    for one in series:
        family = FAMILIES[one.family]
        end = at + family.cells
        if end > len(cells):
            raise ValueError(f"{len(cells)} cells, but {one} would end at {end}")
        totals[one] = family.value(cells[at:end])
        at = end
    return totals


def counters(totals: Totals) -> Totals:
    """The series that outlive their worker: all but the gauges."""
    return {one: value for one, value in totals.items() if FAMILIES[one.family].kind not in GAUGES}


def gauges(totals: Totals) -> Totals:
    """The series that say what a live worker sees now."""
    return {one: value for one, value in totals.items() if FAMILIES[one.family].kind in GAUGES}


def merge(into: Totals, more: Totals) -> None:
    """Add the series of `more` to `into`, each by its family's rule."""
    for one, value in more.items():
        if (held := into.get(one)) is None:
            into[one] = value
        elif FAMILIES[one.family].kind is Kind.GAUGE_MAX:
            into[one] = tuple(map(max, held, value))
        else:
            into[one] = tuple(a + b for a, b in zip(held, value, strict=True))


class Cells:
    """The integer cells of all series of one process, in order of first appearance; both only grow."""

    def __init__(self) -> None:
        self.values = array.array("q")
        self.series: list[Series] = []

    def open(self, family: Family, labels: tuple[str, ...]) -> int:
        """Make a series, all 0. returns: the index of its first cell."""
        assert len(labels) == len(family.labels)
        first = len(self.values)
        self.series.append(Series(family.name, labels))
        self.values.extend([0] * family.cells)
        return first

    def totals(self) -> Totals:
        return totals_of(self.series, self.values)


class _Index(dict[tuple[str, ...], int]):
    """First cell of each series of one family; asking for a new series makes it."""

    def __init__(self, family: Family, cells: Cells) -> None:
        super().__init__()
        self._family = family
        self._cells = cells

    def __missing__(self, labels: tuple[str, ...]) -> int:
        first = self[labels] = self._cells.open(self._family, labels)
        return first


class Count:
    """The series of a family of counts, or of gauges."""

    def __init__(self, family: Family, cells: Cells) -> None:
        assert family.cells == 1
        self._first = _Index(family, cells)
        self._values = cells.values

    def add(self, *labels: str) -> None:
        self._values[self._first[labels]] += 1

    def add_many(self, count: int, *labels: str) -> None:
        self._values[self._first[labels]] += count

    def set(self, value: int, *labels: str) -> None:
        self._values[self._first[labels]] = value

    def first(self, *labels: str) -> int:
        """The cell of a series."""
        return self._first[labels]


_NOWHERE = sys.maxsize
"""The cell of a series that has not appeared: no array has it."""


class Sum:
    """One series of amounts; it appears when its first amount comes. at: its low cell, to which amounts may be added
    elsewhere as well; where that raises IndexError or OverflowError, `add` does it.
    """

    __slots__ = ("_index", "_labels", "_values", "at")

    def __init__(self, index: _Index, values: "array.array[int]", labels: tuple[str, ...]) -> None:
        self._index = index
        self._labels = labels
        self._values = values
        self.at = _NOWHERE

    def add(self, amount: int) -> None:
        assert amount >= 0
        if self.at == _NOWHERE:
            self.at = self._index[self._labels]
        try:
            self._values[self.at] += amount
        except OverflowError:
            _carry(self._values, self.at, amount)


class Amount:
    """The series of a family of amounts."""

    def __init__(self, family: Family, cells: Cells) -> None:
        assert family.kind is Kind.AMOUNT
        self._first = _Index(family, cells)
        self._values = cells.values

    def series(self, *labels: str) -> Sum:
        return Sum(self._first, self._values, labels)


class Histogram:
    """The series of a family of histograms."""

    def __init__(self, family: Family, cells: Cells) -> None:
        assert family.kind is Kind.HISTOGRAM
        self._first = _Index(family, cells)
        self._values = cells.values
        self._edges = family.edges_ns

    def series(self, *labels: str) -> "Times":
        return Times(self._first, self._values, labels, self._edges)


class Times:
    """One series of a histogram; it appears when its first time comes. at: the cell of its first bucket; sum_at: the
    low one of its sum. Both may be added to elsewhere, the sum first: where that raises IndexError or OverflowError,
    nothing was added, and `observe` does it.
    """

    __slots__ = ("_edges", "_index", "_labels", "_values", "at", "sum_at")

    def __init__(
        self,
        index: _Index,
        values: "array.array[int]",
        labels: tuple[str, ...],
        edges: tuple[int, ...],
    ) -> None:
        self._index = index
        self._labels = labels
        self._values = values
        self._edges = edges
        self.at = _NOWHERE
        self.sum_at = _NOWHERE  # behind the counts

    def observe(self, ns: int) -> None:
        assert ns >= 0
        if self.at == _NOWHERE:
            self.at = self._index[self._labels]
            self.sum_at = self.at + len(self._edges) + 1
        values = self._values
        try:
            values[self.sum_at] += ns
        except OverflowError:
            _carry(values, self.sum_at, ns)
        values[self.at + bisect_left(self._edges, ns)] += 1


def _carry(values: "array.array[int]", low: int, amount: int) -> None:
    """Add an amount that takes the low part beyond its cell."""
    total = values[low] + amount
    values[low + 1] += total >> LOW_BITS
    values[low] = total & _LOW_MASK


class Families:
    """The counters of one writer, and the only place where anything is counted: a fold of its lines.

    Three families have counts beside the fold: bounds that are passed where no line is written, lines that could
    not be written, and lines that were not copied.
    """

    def __init__(self) -> None:
        self.cells = Cells()
        self._calls = Count(CALLS, self.cells)
        self._tokens = Amount(TOKENS, self.cells)
        self._cost = Amount(COST, self.cells)
        self._unpriced = Count(UNPRICED, self.cells)
        self._ttft = Histogram(TTFT, self.cells)
        self._tpot = Histogram(TPOT, self.cells)
        self._queue_wait = Histogram(QUEUE_WAIT, self.cells)
        self._overhead = Histogram(OVERHEAD, self.cells)
        self._spills = Count(SPILLS, self.cells)
        self._fallbacks = Count(FALLBACKS, self.cells)
        self._attempts = _Index(ATTEMPTS, self.cells)
        self._bounds = Count(BOUND_EXCEEDED, self.cells)
        self._limit_refusals = Count(LIMIT_REFUSALS, self.cells)
        self._thresholds = Count(BUDGET_THRESHOLDS, self.cells)
        self._unwritten = Count(JOURNAL_UNWRITTEN, self.cells)
        self._not_mirrored = Count(MIRROR_DROPPED, self.cells)
        self._captures = Count(CAPTURES, self.cells)
        self._bound: dict[tuple[str, str, str | None, Outcome, str], _Bound] = {}

    def exceeded(self, bound: Bound) -> None:
        """A bound was passed, and no line of the journal will say so."""
        self._bounds.add(bound.value)

    def unwritten(self, kind: str) -> None:
        """A line of this kind is not in the journal."""
        self._unwritten.add(kind)

    def not_mirrored(self, lines: int) -> None:
        """So many lines were not copied."""
        self._not_mirrored.add_many(lines)

    def captured(self, outcome: str) -> None:
        """The content of a call was kept, cut, or dropped for this reason."""
        self._captures.add(outcome)

    def observe(self, line: Line) -> None:
        """Count one line: `call`, `refused`, and of events those of budgets; the others do not bear on metrics."""
        if line.kind == "call":
            self.count(line)
        elif line.kind == "refused":
            labels = line.tenant or UNKNOWN, line.model or UNKNOWN, UNKNOWN, REFUSED
            self._calls.add_many(line.count, *labels)
            if (bound := BOUND_OF_REFUSAL.get(line.reason)) is not None:
                self._bounds.add_many(line.count, bound.value)
            if line.limit is not None:
                self._limit_refusals.add_many(line.count, line.tenant or UNKNOWN, limit_kind(line.limit))
        elif line.kind == "event" and line.topic == "budget":
            data = line.data
            self._thresholds.add(data["tenant"], data["kind"], data["percent"])

    def count(self, call: CallRecord) -> None:
        """Count a call: `observe`, for who knows that it is one."""
        usage, outcome, cost_pusd = call.usage, call.outcome, call.cost_pusd
        key = (call.tenant, call.model, call.instance_family, outcome, usage.source)
        bound = self._bound.get(key)
        if bound is None:
            bound = self._bound[key] = _Bound(self, *key)
        values, attempts = self.cells.values, self._attempts
        values[bound.calls] += 1
        # 0 makes a series, unknown does not. What nearly all calls have is added here, at half of what `add` costs.
        if (tokens := usage.prompt_tokens) is not None:
            assert tokens >= 0
            try:
                values[bound.prompt.at] += tokens
            except (IndexError, OverflowError):
                bound.prompt.add(tokens)
        if (tokens := usage.cached_prompt_tokens) is not None:
            assert tokens >= 0
            try:
                values[bound.cached_prompt.at] += tokens
            except (IndexError, OverflowError):
                bound.cached_prompt.add(tokens)
        if (tokens := usage.completion_tokens) is not None:
            assert tokens >= 0
            try:
                values[bound.completion.at] += tokens
            except (IndexError, OverflowError):
                bound.completion.add(tokens)
        if cost_pusd is not None:
            assert cost_pusd >= 0
            try:
                values[bound.cost.at] += cost_pusd
            except (IndexError, OverflowError):
                bound.cost.add(cost_pusd)
        else:
            # A reason of our own may still be a member of its enumeration, whose hash is not its text's.
            self._unpriced.add(call.model, str(call.unpriced_reason or UNKNOWN))
        if call.spill_reason is not None:
            self._spills.add(call.model, str(call.spill_reason))
        if call.fallback_reason is not None:
            self._fallbacks.add(call.model, str(call.fallback_reason))
        if outcome is Outcome.SHED:
            self._bounds.add(Bound.QUEUE_WAIT.value)
        for attempt in call.attempts:
            values[attempts[attempt.backend, attempt.outcome._value_]] += 1
            if attempt.error is not None and (past := BOUND_OF_FAILURE.get(attempt.error)) is not None:
                self._bounds.add(past.value)
        self._observe_times(call, bound, values)

    def _observe_times(self, call: CallRecord, bound: "_Bound", values: "array.array[int]") -> None:
        """Count how long it took. Each time as `Times.observe` does it, whose call would cost as much as it does."""
        if (ns := call.ttft_ns) is not None:
            assert ns >= 0
            try:
                values[bound.ttft.sum_at] += ns
                values[bound.ttft.at + bisect_left(TTFT_EDGES_NS, ns)] += 1
            except (IndexError, OverflowError):
                bound.ttft.observe(ns)
        if (ns := call.tpot_ns) is not None:
            assert ns >= 0
            try:
                values[bound.tpot.sum_at] += ns
                values[bound.tpot.at + bisect_left(TPOT_EDGES_NS, ns)] += 1
            except (IndexError, OverflowError):
                bound.tpot.observe(ns)
        if (wait_ns := call.queue_wait_ns) is None:
            return
        assert wait_ns >= 0
        try:
            values[bound.queue_wait.sum_at] += wait_ns
            values[bound.queue_wait.at + bisect_left(QUEUE_WAIT_EDGES_NS, wait_ns)] += 1
        except (IndexError, OverflowError):
            bound.queue_wait.observe(wait_ns)
        dispatched_ns, backend_ended_ns = call.dispatched_ns, call.backend_ended_ns
        if dispatched_ns is None or backend_ended_ns is None:
            return
        ns = dispatched_ns - call.received_ns - wait_ns
        if ns < 0:  # a call that fell back may have queued again after its first dispatch
            ns = 0  # `max`, twice, would cost 0.3 µs more
        if (after_ns := call.finished_ns - backend_ended_ns) > 0:
            ns += after_ns
        try:
            values[bound.overhead.sum_at] += ns
            values[bound.overhead.at + bisect_left(OVERHEAD_EDGES_NS, ns)] += 1
        except (IndexError, OverflowError):
            bound.overhead.observe(ns)


class _Bound:
    """The series that calls of one kind count into, found once."""

    __slots__ = (
        "cached_prompt", "calls", "completion", "cost", "overhead", "prompt", "queue_wait", "tpot", "ttft",
    )  # fmt: skip

    def __init__(
        self, families: Families, tenant: str, model: str, family: str | None, outcome: Outcome, source: str
    ) -> None:
        who, tokens = (tenant, model, family or UNKNOWN), families._tokens
        self.calls = families._calls.first(*who, outcome._value_)
        self.prompt = tokens.series(*who, "prompt", str(source))
        self.cached_prompt = tokens.series(*who, "cached_prompt", str(source))
        self.completion = tokens.series(*who, "completion", str(source))
        self.cost = families._cost.series(*who)
        self.ttft = families._ttft.series(model, family or UNKNOWN)
        self.tpot = families._tpot.series(model, family or UNKNOWN)
        self.queue_wait = families._queue_wait.series(model)
        self.overhead = families._overhead.series()


class Gauges:
    """What one worker sees now; its values go with it."""

    def __init__(self, cells: Cells) -> None:
        self._in_flight = Count(IN_FLIGHT, cells)
        self._backend_state = Count(BACKEND_STATE, cells)
        self._ledger_lag = Count(LEDGER_LAG, cells)
        self._client_connections = Count(CLIENT_CONNECTIONS, cells)
        self._loop_lag = Count(LOOP_LAG, cells)
        self._journal_full = Count(JOURNAL_FULL, cells)
        self._journal_slow = Count(JOURNAL_SLOW, cells)
        self._journal_checkpoint = Count(JOURNAL_CHECKPOINT, cells)
        self._limits_unchecked = Count(LIMITS_UNCHECKED, cells)

    def in_flight(self, backend: str, attempts: int) -> None:
        self._in_flight.set(attempts, backend)

    def backend_state(self, backend: str, state: str) -> None:
        """state: one of BACKEND_STATES."""
        assert state in BACKEND_STATES
        for one in BACKEND_STATES:
            self._backend_state.set(int(one == state), backend, one)

    def ledger_lag(self, records: int) -> None:
        self._ledger_lag.set(records)

    def client_connections(self, connections: int) -> None:
        self._client_connections.set(connections)

    def loop_lag(self, lag_ns: int) -> None:
        self._loop_lag.set(lag_ns)

    def journal(self, *, full: bool, slow: bool) -> None:
        self._journal_full.set(int(full))
        self._journal_slow.set(int(slow))

    def limits_unchecked(self, away: bool) -> None:
        self._limits_unchecked.set(int(away))

    def checkpoint(self, writer: str, seq: int) -> None:
        """writer: this worker's; seq: of its last checkpoint."""
        self._journal_checkpoint.set(seq, writer)
