"""What a call will cost once all that is planned is built: the budget of what a run did not do. Pure.

A feature that is planned and was off in the run adds its budget to our figure, so that it is compared with
the peers' as if it were there. Whether it was on is read from the run: from what the product's
configuration can say and what the run's said, from a record of the journal, and from the metrics.

Metrics and tracing have 7 µs together. Tracing as it is planned costs a check of the sampled flag for each
call (0.09 µs) and a span for those that are sampled (28 µs, at one call in ten): 2.9 µs. The rest is metrics'.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

METRICS_AND_TRACING_US = 7.0
FLAG_CHECK_US = 0.09
SPAN_US = 28.0
SAMPLED = 0.1
TRACING_US = round(FLAG_CHECK_US + SAMPLED * SPAN_US, 1)

BUDGET_US = {
    "record, journal, chain, fold": 14.0,
    "limits": 8.0,
    "plan": 6.0,
    "metrics": METRICS_AND_TRACING_US - TRACING_US,
    "tracing": TRACING_US,
}
"""Feature → µs of CPU a call."""

SWITCHES = {
    "limits": re.compile(r"(^|[.\]])(limits?|budgets?|quotas?)($|[.\[])"),
    "tracing": re.compile(r"(^|[.\]])(tracing|traces|otlp|opentelemetry)($|[.\[])"),
}
"""Features that are configured: what a configuration key that switches one on looks like."""


class Seen(NamedTuple):
    """What a run showed. keys_known: paths of all configuration keys of the product; keys_used: of the run's.

    record: the last one of the journal. records, counted, lag: in the journal; in the metrics; not in the ledger.
    """

    keys_known: frozenset[str]
    keys_used: frozenset[str]
    record: dict[str, object]
    records: int
    counted: int
    lag: int


def on(seen: Seen) -> dict[str, bool]:
    """Feature → was it on in the run?"""
    chained = bool(re.fullmatch(r"[0-9a-f]{64}", str(seen.record.get("prev"))))
    return {
        "record, journal, chain, fold": seen.records > 0 and chained and seen.lag == 0,
        "plan": seen.record.get("plan") is not None,
        "metrics": seen.records > 0 and seen.counted == seen.records,
        **{feature: any(map(switch.search, seen.keys_used)) for feature, switch in SWITCHES.items()},
    }


def missing(seen: Seen) -> dict[str, float]:
    """Feature → µs a call, of those that were off."""
    return {feature: BUDGET_US[feature] for feature, is_on in on(seen).items() if not is_on}


def left_off(seen: Seen) -> list[str]:
    """Features that the product has by now, and that the benchmark's configuration does not switch on."""
    return [
        feature
        for feature, switch in SWITCHES.items()
        if any(map(switch.search, seen.keys_known)) and not any(map(switch.search, seen.keys_used))
    ]


def paths(value: object, path: str = "") -> Iterator[str]:
    """Paths of all keys in a configuration, with [] for the items of a list."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from paths(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for item in value:
            yield from paths(item, f"{path}[]")
    elif path:
        yield path


def total_us(features: Iterable[float]) -> float:
    """Their sum, without the noise of floats."""
    return round(sum(features), 3)
