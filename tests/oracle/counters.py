"""What every counter must be, counted from the journal's lines, and the comparison with a scrape."""

import collections
from collections.abc import Iterable, Iterator

from tests.oracle.exposition import Page, Sample, show
from tests.oracle.faults import Fault, Kind
from tests.oracle.journal import Line, Writer

NS_PER_S = 1_000_000_000
PUSD_PER_USD = 1_000_000_000_000

NOT_OF_LINES = {
    "weighbridge_bound_exceeded_total",
    "weighbridge_captures_total",
    "weighbridge_journal_unwritten_total",
}
"""They count what has no line in the journal."""

Labels = dict[str, str]
Counted = tuple[str, Labels, int]
"""A family's name without prefix, the labels, and by how much it goes up."""
Observed = tuple[str, Labels, int]
"""A histogram's name without prefix, the labels, and the nanoseconds observed."""


def check(writers: Iterable[Writer], page: Page) -> list[Fault]:
    """Every counter of the scrape that is not the journal's, and the other way round."""
    want = _expected([line for writer in writers for line in writer.lines], _edges(page))
    return [
        Fault(
            Kind.COUNTER_WRONG,
            show(sample),
            f"{page.counters.get(sample)} shown, {want.get(sample)} by the journal",
        )
        for sample in sorted(want.keys() | page.counters.keys())
        if want.get(sample) != page.counters.get(sample) and sample[0] not in NOT_OF_LINES
    ]


class Ceiling:
    """How far counters may have come by journals that grow; histograms are left out."""

    def __init__(self) -> None:
        self._sums: collections.Counter[Sample] = collections.Counter()

    def add(self, lines: Iterable[Line]) -> None:
        """Take in more lines."""
        for line in lines:
            for name, labels, amount in _counted(line):
                self._sums[_sample(f"weighbridge_{name}", labels)] += amount

    def above(self, page: Page) -> list[Fault]:
        """Counters of a scrape that came before the lines were read, and that show more than those."""
        names = {name for name, _ in self._sums}
        faults = []
        for sample, shown in page.counters.items():
            journalled: float = self._sums[sample]
            if sample[0] == "weighbridge_estimated_cost_usd_total":
                journalled /= PUSD_PER_USD
            if sample[0] in names and shown > journalled:
                faults.append(Fault(Kind.ABOVE, show(sample), f"{shown} shown, {journalled} by the journals"))
        return faults


def _edges(page: Page) -> dict[str, set[str]]:
    """The bounds of each histogram's buckets, as the scrape words them."""
    edges: dict[str, set[str]] = {}
    for name, labels in page.counters:
        if name.endswith("_bucket"):
            edges.setdefault(name.removesuffix("_bucket"), set()).add(dict(labels)["le"])
    return edges


def _expected(lines: list[Line], edges: dict[str, set[str]]) -> dict[Sample, float]:
    sums: collections.Counter[Sample] = collections.Counter()
    spans: dict[Sample, list[int]] = {}
    for line in lines:
        for name, labels, amount in _counted(line):
            sums[_sample(f"weighbridge_{name}", labels)] += amount
        if line["kind"] == "call":
            for name, labels, span_ns in _observed(line):
                spans.setdefault(_sample(f"weighbridge_{name}", labels), []).append(span_ns)
    want: dict[Sample, float] = {
        sample: amount / PUSD_PER_USD if sample[0] == "weighbridge_estimated_cost_usd_total" else amount
        for sample, amount in sums.items()
    }
    for (name, labels), observed in spans.items():
        want[f"{name}_count", labels] = len(observed)
        want[f"{name}_sum", labels] = sum(observed) / NS_PER_S
        for edge in edges.get(name, {"+Inf"}):
            within = sum(span <= float(edge) * NS_PER_S for span in observed)
            want[_sample(f"{name}_bucket", dict(labels) | {"le": edge})] = within
    return want


def _sample(name: str, labels: Labels) -> Sample:
    return name, tuple(sorted(labels.items()))


def _counted(line: Line) -> Iterator[Counted]:
    if line["kind"] == "refused":
        tenant, model = line["tenant"] or "unknown", line["model"] or "unknown"
        labels = {"tenant": tenant, "model": model, "family": "unknown", "outcome": "refused"}
        yield "calls_total", labels, line.get("count", 1)
        if line.get("limit") is not None:
            kind = line["limit"].split(" ")[0]
            kind = kind if kind in ("requests_per_minute", "tokens_per_minute", "concurrency") else "budget"
            yield "limit_refusals_total", {"tenant": tenant, "limit": kind}, line["count"]
    if line["kind"] == "event" and line["topic"] == "budget":
        told = line["data"]
        yield "budget_thresholds_total", {name: told[name] for name in ("tenant", "kind", "percent")}, 1
    if line["kind"] != "call":
        return
    model, usage = line["model"], line["usage"]
    account = {"tenant": line["tenant"], "model": model, "family": line["instance_family"] or "unknown"}
    yield "calls_total", account | {"outcome": line["outcome"]}, 1
    for kind in ("prompt", "cached_prompt", "completion"):
        if usage[f"{kind}_tokens"] is not None:
            yield "tokens_total", account | {"kind": kind, "source": usage["source"]}, usage[f"{kind}_tokens"]
    if line["cost_pusd"] is None:
        yield "unpriced_calls_total", {"model": model, "reason": line["unpriced_reason"] or "unknown"}, 1
    else:
        yield "estimated_cost_usd_total", account, line["cost_pusd"]
    for what in ("spill", "fallback"):
        if line[f"{what}_reason"] is not None:
            yield f"{what}s_total", {"model": model, "reason": line[f"{what}_reason"]}, 1
    for attempt in line["attempts"]:
        yield "attempts_total", {"backend": attempt["backend"], "outcome": attempt["outcome"]}, 1


def _observed(call: Line) -> Iterator[Observed]:
    where = {"model": call["model"], "family": call["instance_family"] or "unknown"}
    for name in ("ttft", "tpot"):
        if call[f"{name}_ns"] is not None:
            yield f"{name}_seconds", where, call[f"{name}_ns"]
    wait_ns, dispatched_ns, ended_ns = (
        call[name] for name in ("queue_wait_ns", "dispatched_ns", "backend_ended_ns")
    )
    if wait_ns is None:
        return
    yield "queue_wait_seconds", {"model": call["model"]}, wait_ns
    if dispatched_ns is not None and ended_ns is not None:
        before_ns = max(0, dispatched_ns - call["received_ns"] - wait_ns)
        yield "overhead_seconds", {}, before_ns + max(0, call["finished_ns"] - ended_ns)
