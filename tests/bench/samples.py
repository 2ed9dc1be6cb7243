"""One measurement as it is kept, and whether it counts. Pure."""

import msgspec

from tests.bench.scenarios import Scenario

OURS = "ours"
DIRECT = "direct"
"""The mock without a gateway before it: what latencies are added to."""


class Load(msgspec.Struct, frozen=True):
    """What the load generator says (native/load.c)."""

    sent: int
    requests: int
    errors: int
    events: int
    done: int
    usage: int
    seconds: float
    latency_p50_us: float
    latency_p99_us: float
    ttft_p50_us: float
    ttft_p99_us: float


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement, as it is kept. cpu_us: by what a process is. faults: why it does not count; empty if it does.

    pss_*_kib: of the whole tree, before the load and at most during it. records: that ours added to its journal.
    """

    target: str
    scenario: str
    repetition: int
    load: Load
    cpu_us: dict[str, float]
    pss_before_kib: int
    pss_max_kib: int
    records: int | None = None
    faults: tuple[str, ...] = ()


def faults(scenario: Scenario, load: Load, outcomes: dict[str, int] | None) -> tuple[str, ...]:
    """Why a measurement does not count. outcomes: of the journal's new records; None: it is a peer's."""
    found = []
    if load.errors:
        found.append(f"{load.errors} of {load.sent} requests failed")
    if load.usage != load.requests:
        found.append(f"usage in {load.usage} of {load.requests} answers")
    if scenario.streamed and load.done != load.requests:
        found.append(f"[DONE] in {load.done} of {load.requests} streams")
    if load.events != scenario.events * load.requests:
        found.append(f"{load.events} events, not {scenario.events * load.requests}")
    if outcomes is not None and outcomes != {"completed": load.sent}:
        found.append(f"{load.sent} requests, and in the journal {outcomes}")
    return tuple(found)
