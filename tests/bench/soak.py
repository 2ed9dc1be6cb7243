"""The soak: a long mixed load, after which nothing may have grown, been late, or been lost.

    python -m tests.bench.soak                  an hour
    python -m tests.bench.soak --minutes 3

    memory   the worker's RSS over the second half: growth along a regression's line, ≤ 2 % and 1 MiB at least
    loop     lag of the worker's event loop, p99.99 < 5 ms, from the metric that the worker exports
    books    records in the journal = calls sent, `refused` lines = requests that were wrong, both to the one
    gauges   no call in flight at the end, the ledger has all of them

Everything that it saw is in tests/bench/out/raw-soak-<time>.jsonl, a line a second. The exit status is 1 if
one of these does not hold.
"""

import argparse
import asyncio
import collections
import datetime
import json
import pathlib
import sys
import time
from collections.abc import Coroutine
from typing import NamedTuple

from tests.bench import ours, proc, targets, trend
from tests.bench.cache import OUT, build
from tests.bench.mixed import CALLS, Kind, Mixed
from tests.bench.process import BenchError, ask, eventually, prepare
from tests.bench.samples import OURS
from tests.bench.targets import Target

CLIENTS = 64
SEED = 3
EACH_S = 1.0
GROWTH_MAX = 0.02
GROWTH_KIB_MAX = 1024.0
LAG_S_MAX = 0.005
LAG_QUANTILE = 0.9999
ROUNDS_EACH_SAMPLE = 10
"""The worker looks at its loop ten times a second, and shows the latest of the last ten."""
QUIET_S = 15.0


class Seen(NamedTuple):
    """One second. late_ns: that the worker waited for a processor, since its start: others' work, not its own."""

    at_s: float
    rss_kib: int
    lag_s: float
    in_flight: float
    late_ns: int


class Finding(NamedTuple):
    """One thing that must hold."""

    what: str
    holds: bool
    figures: str


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.soak", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    minutes = parser.parse_args().minutes
    return judge("soak", soak(minutes * 60))


def judge(name: str, played: Coroutine[None, None, list[Finding]]) -> int:
    """Play it and say what was found. returns: the exit status."""
    try:
        prepare()
        build()
        findings = asyncio.run(played)
    except BenchError as error:
        played.close()
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    for finding in findings:
        print(f"{'ok  ' if finding.holds else 'FAIL'} {finding.what}: {finding.figures}")
    return 0 if all(finding.holds for finding in findings) else 1


async def soak(seconds: float) -> list[Finding]:
    """Run it. Raises BenchError if it can't."""
    OUT.mkdir(exist_ok=True)
    raw = OUT / f"raw-soak-{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}.jsonl"
    with targets.started([OURS]) as found:
        (target,) = (each for each in found if each.name == OURS)
        assert target.books is not None
        mixed = Mixed(target.port, ours.KEY, clients=CLIENTS, seed=SEED)
        load = asyncio.create_task(mixed.run(seconds))
        seen = await watch(target, load, raw)
        await load
        outcomes = await asyncio.to_thread(settled, target, mixed)
    return [memory(seen), loop(seen), *books(mixed, outcomes)]


async def watch(target: Target, load: "asyncio.Task[None]", raw: pathlib.Path) -> list[Seen]:
    """A look each second until the load has ended."""
    (worker,) = (pid for pid, role in target.processes().items() if role == "worker")
    began = time.monotonic()
    seen: list[Seen] = []
    with raw.open("a") as file:
        while not load.done():
            page = await asyncio.to_thread(metrics, target)
            seen.append(
                Seen(
                    at_s=time.monotonic() - began,
                    rss_kib=proc.rss_kib(worker),
                    lag_s=ours.sample(page, "weighbridge_loop_lag_seconds"),
                    in_flight=ours.sample(page, "weighbridge_in_flight"),
                    late_ns=proc.waited_ns(worker),
                )
            )
            file.write(json.dumps(seen[-1]._asdict()) + "\n")
            await asyncio.wait({load}, timeout=EACH_S)
    return seen


def metrics(target: Target) -> str:
    """The page. Raises BenchError if there is none."""
    status, answer = ask(target.port, "GET", "/metrics", headers=target.headers)
    if status != 200:
        raise BenchError(f"/metrics says {status}; the log is beside {target.books}")
    return answer.decode()


def settled(target: Target, mixed: Mixed) -> dict[str, int]:
    """Wait until all calls have ended and are in the ledger. returns: lines of the journal by outcome."""
    assert target.books is not None
    outcomes: collections.Counter[str] = collections.Counter()
    calls = sum(count for kind, count in mixed.sent.items() if kind in CALLS)
    ready = target.books.records  # those that asked whether it is up

    def ended() -> bool:
        assert target.books is not None
        outcomes.update(target.books.count())
        return (
            target.books.records - ready >= calls
            and ours.sample(metrics(target), "weighbridge_in_flight") == 0
        )

    eventually(ended, within_s=QUIET_S, what=f"{calls} records in the journal, and none in flight")
    ours.wait_folded(target.port, target.books)
    return dict(outcomes)


def memory(seen: list[Seen]) -> Finding:
    """Does the worker's memory stay?"""
    half = trend.second_half(range(len(seen)))
    times_s = [seen[int(index)].at_s for index in half]
    rss_kib = [float(seen[int(index)].rss_kib) for index in half]
    grown = trend.growth(times_s, rss_kib)
    allowed = max(GROWTH_KIB_MAX, GROWTH_MAX * rss_kib[0])
    minutes = (times_s[-1] - times_s[0]) / 60
    figures = (
        f"{seen[0].rss_kib} KiB at first, {seen[-1].rss_kib} at the end; "
        f"{grown:+.0f} KiB in the last {minutes:.1f} minutes (at most {allowed:.0f})"
    )
    return Finding("memory of the worker is flat", grown <= allowed, figures)


def loop(seen: list[Seen]) -> Finding:
    """Was the event loop in time?

    On a machine that does other things too, the kernel makes a worker wait, and its loop is late by no fault
    of its own: the figures say what is left without that, and how much of it there was.
    """
    quantile, own = (
        trend.quantile_of_maxima(lags, each_of=ROUNDS_EACH_SAMPLE, q=LAG_QUANTILE)
        for lags in ([each.lag_s for each in seen], own_lags(seen))
    )
    waited = (seen[-1].late_ns - seen[0].late_ns) / 1e9 / (seen[-1].at_s - seen[0].at_s)
    figures = (
        f"{1e3 * quantile:.1f} ms (under {1e3 * LAG_S_MAX:g}); {1e3 * own:.1f} ms less what it waited for its core, "
        f"{100 * waited:.1f} % of the time"
    )
    return Finding("loop lag p99.99", quantile < LAG_S_MAX, figures)


def own_lags(seen: list[Seen]) -> list[float]:
    """Of each second, the lag that waiting for a core within it and the one before can't explain."""
    lags = []
    for index, each in enumerate(seen):
        before = seen[max(0, index - 2)]
        lags.append(max(0.0, each.lag_s - (each.late_ns - before.late_ns) / 1e9))
    return lags


def books(mixed: Mixed, outcomes: dict[str, int]) -> list[Finding]:
    """Is everything that was sent in the journal, as what it was?"""
    calls = sum(count for kind, count in mixed.sent.items() if kind in CALLS)
    refused = sum(mixed.sent.values()) - calls
    failed = mixed.sent[Kind.CUT] + mixed.sent[Kind.FAILED]
    expected = {
        "completed": mixed.sent[Kind.COMPLETED] + mixed.sent[Kind.STREAMED],
        "client_gone": mixed.sent[Kind.LEFT],
        "backend_failed": failed,
        ours.REFUSED: refused,
    }
    told = f"expected {expected}, in it {dict(sorted(outcomes.items()))}"
    faults = "; ".join(f"{count} × {fault}" for fault, count in mixed.faults.most_common(5)) or "none"
    return [
        Finding("journal equals requests", outcomes == expected, told),
        Finding("clients saw what they should", not mixed.faults, f"faults: {faults}"),
    ]


if __name__ == "__main__":
    sys.exit(main())
