"""From samples to figures, and from figures to what was promised. Pure.

    measured   median over repetitions of: CPU µs of the whole process tree ÷ units
    total      measured + missing_us ÷ units of an answer       (missing_us: tests/bench/missing.py; 0 for peers)
    ratio      total of ours ÷ total of the peer

The unit is a request, or one event that the backend sent: what a gateway makes of the events on their
way (joins them, leaves one out) does not change what it is measured by.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from tests.bench.samples import DIRECT, OURS, Sample
from tests.bench.scenarios import COMPARED, SCENARIOS, Scenario


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one target in one scenario: medians over its repetitions. by_role: parts of measured_us.

    spread: (most − least) ÷ median of measured_us.
    """

    repetitions: int
    measured_us: float
    missing_us: float
    total_us: float
    by_role: dict[str, float]
    spread: float
    requests_per_s: float
    latency_p50_us: float
    latency_p99_us: float
    ttft_p50_us: float
    ttft_p99_us: float
    pss_before_kib: float
    pss_max_kib: float


class Bound(NamedTuple):
    """A promise about a ratio. goal: None if there is only a must."""

    must: float
    goal: float | None = None


PROMISED: dict[str, dict[str, Bound]] = {
    "nginx": {"json": Bound(7, 4.6), "paced": Bound(2, 1.5), "unpaced": Bound(1.2, 1.05)},
    "envoy": {"json": Bound(1.5, 1.0), "paced": Bound(1.25, 1.0), "unpaced": Bound(1.25, 1.1)},
    "vllm-router": {"json": Bound(1.2, 0.8), "paced": Bound(1.15, 0.95), "unpaced": Bound(0.55)},
    "sglang-router": {"json": Bound(0.85, 0.55), "paced": Bound(1.05, 0.85), "unpaced": Bound(0.4)},
    "portkey": {"json": Bound(1 / 30), "paced": Bound(1 / 5), "unpaced": Bound(1 / 20)},
    "litellm": {"json": Bound(1 / 150), "paced": Bound(1 / 30), "unpaced": Bound(1 / 200)},
}
ADDED_P50_OF_NGINX = 1.5
TTFT_P99_OF_NGINX = 1.5
IDLE_MIB = 60.0
STREAM_KIB = 20.0


class Verdict(msgspec.Struct, frozen=True):
    """One promise and how it stands."""

    promise: str
    bound: float
    value: float

    @property
    def kept(self) -> bool:
        return self.value <= self.bound


def units(scenario: Scenario, requests: int) -> int:
    """How many of its unit these requests are."""
    return requests * max(1, scenario.events)


def figures(samples: Sequence[Sample], missing_us: float) -> Figures:
    """Of the samples of one target in one scenario; there is at least one. missing_us: per request."""
    scenario = SCENARIOS[samples[0].scenario]
    per_unit = [sum(sample.cpu_us.values()) / units(scenario, sample.load.requests) for sample in samples]
    measured_us = statistics.median(per_unit)
    missing = missing_us / units(scenario, 1)
    roles = sorted({role for sample in samples for role in sample.cpu_us})

    def median(of: Iterable[float]) -> float:
        return statistics.median(of)

    return Figures(
        repetitions=len(samples),
        measured_us=measured_us,
        missing_us=missing,
        total_us=measured_us + missing,
        by_role={
            role: median(s.cpu_us.get(role, 0.0) / units(scenario, s.load.requests) for s in samples)
            for role in roles
        },
        spread=(max(per_unit) - min(per_unit)) / measured_us if measured_us else 0.0,
        requests_per_s=median(s.load.requests / s.load.seconds for s in samples),
        latency_p50_us=median(s.load.latency_p50_us for s in samples),
        latency_p99_us=median(s.load.latency_p99_us for s in samples),
        ttft_p50_us=median(s.load.ttft_p50_us for s in samples),
        ttft_p99_us=median(s.load.ttft_p99_us for s in samples),
        pss_before_kib=median(s.pss_before_kib for s in samples),
        pss_max_kib=median(s.pss_max_kib for s in samples),
    )


Table = Mapping[str, Mapping[str, Figures]]
"""scenario → target → figures."""


def table(samples: Iterable[Sample], missing_us: float) -> dict[str, dict[str, Figures]]:
    """Of all samples that count. missing_us: what is added to each request of ours."""
    grouped: dict[str, dict[str, list[Sample]]] = {}
    for sample in samples:
        if not sample.faults:
            grouped.setdefault(sample.scenario, {}).setdefault(sample.target, []).append(sample)
    return {
        scenario: {
            target: figures(group, missing_us if target == OURS else 0.0) for target, group in targets.items()
        }
        for scenario, targets in grouped.items()
    }


def ratios(table: Table, *, measured_only: bool = False) -> dict[str, dict[str, float]]:
    """scenario → peer → ours ÷ theirs, where both were measured."""
    found: dict[str, dict[str, float]] = {}
    for scenario in COMPARED:
        row = table.get(scenario, {})
        if OURS not in row:
            continue
        ours_us = row[OURS].measured_us if measured_only else row[OURS].total_us
        found[scenario] = {
            peer: ours_us / theirs.total_us
            for peer, theirs in row.items()
            if theirs.total_us and peer != OURS
        }
    return found


def stream_kib(opened: Figures) -> float:
    """What one open stream takes, by what the memory has grown with all of them open."""
    return (opened.pss_max_kib - opened.pss_before_kib) / SCENARIOS["open"].connections


def verdicts(table: Table) -> list[Verdict]:
    """How the other promises stand, as far as they were measured."""
    found = []
    hot = table.get("hot", {})
    if {OURS, "nginx", DIRECT} <= hot.keys():
        direct = hot[DIRECT].latency_p50_us
        added = {name: hot[name].latency_p50_us - direct for name in (OURS, "nginx")}
        ratio = added[OURS] / added["nginx"]
        found.append(Verdict("added p50, one hot connection, of nginx's", ADDED_P50_OF_NGINX, ratio))
    paced = table.get("paced", {})
    if {OURS, "nginx"} <= paced.keys():
        ratio = paced[OURS].ttft_p99_us / paced["nginx"].ttft_p99_us
        found.append(Verdict("TTFT p99, 100 paced streams, of nginx's", TTFT_P99_OF_NGINX, ratio))
    if OURS in table.get("open", {}):
        found.append(Verdict("KiB an open stream", STREAM_KIB, stream_kib(table["open"][OURS])))
    return found
