"""The ledger's store away for ten minutes under load: no call fails, memory is bounded, all is caught up.

    python -m tests.bench.outage                   ten minutes
    python -m tests.bench.outage --minutes 1

The store's process is stopped where it stands, so that it answers nothing and refuses nothing, and goes on later;
the mixed load of the soak goes on all the while. The exit status is 1 if one of these does not hold:

    clients   saw what they should, before, meanwhile and after
    memory    the worker's RSS at the end of the outage, over that at its start: at most 32 MiB
    catch-up  records a second that the ledger took once the store was back: at least 20,000
    books     records in the journal = calls sent; `weighbridge control` finds no difference
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import time

from tests.bench import ours, proc, soak, targets
from tests.bench.cache import ROOT
from tests.bench.mixed import Mixed
from tests.bench.process import BenchError
from tests.bench.samples import OURS
from tests.bench.soak import Finding
from tests.bench.targets import Target
from tests.support.valkey import Valkey

BEFORE_S = 10.0
AFTER_S = 10.0
GROWTH_KIB_MAX = 32 * 1024
CATCH_UP_MIN = 20_000
LOOK_EACH_S = 0.01
CAUGHT_UP_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.outage", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    minutes = parser.parse_args().minutes
    return soak.judge("outage", outage(minutes * 60))


async def outage(seconds: float) -> list[Finding]:
    """Run it. Raises BenchError if it can't."""
    with targets.started([OURS]) as found:
        (target,) = (each for each in found if each.name == OURS)
        roles = {role: pid for pid, role in target.processes().items()}
        mixed = Mixed(target.port, ours.KEY, clients=soak.CLIENTS, seed=soak.SEED)
        load = asyncio.create_task(mixed.run(BEFORE_S + seconds + AFTER_S))
        await asyncio.sleep(BEFORE_S)
        before_kib = proc.rss_kib(roles["worker"])
        os.kill(roles["store"], signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
            after_kib, behind = proc.rss_kib(roles["worker"]), await lag(target)
        finally:
            os.kill(roles["store"], signal.SIGCONT)
        took_s = await asyncio.to_thread(caught_up, target, behind)
        await load
        outcomes = await asyncio.to_thread(soak.settled, target, mixed)
        difference = await asyncio.to_thread(control, target)
    grown = after_kib - before_kib
    return [
        Finding(
            "memory of the worker is bounded",
            grown <= GROWTH_KIB_MAX,
            f"{before_kib} KiB before, {grown:+d} KiB after {seconds / 60:g} minutes (at most {GROWTH_KIB_MAX:+d})",
        ),
        Finding(
            "catch-up",
            behind / took_s >= CATCH_UP_MIN,
            f"{behind} records in {took_s:.2f} s, {behind / took_s:,.0f} a second (at least {CATCH_UP_MIN:,})",
        ),
        *soak.books(mixed, outcomes),
        Finding("control finds no difference", difference == "nothing differs", difference),
    ]


async def lag(target: Target) -> int:
    """Records that the ledger does not have."""
    page = await asyncio.to_thread(soak.metrics, target)
    return round(ours.sample(page, "weighbridge_ledger_lag_records"))


def caught_up(target: Target, behind: int) -> float:
    """Wait until the ledger has taken so many records. returns: seconds from before the first of them.

    That the shipper tries a store that was away once a second is none of the catching up.
    """
    assert target.books is not None
    url = (target.books.state_dir / "store" / "url").read_text().strip()
    deadline_s = time.monotonic() + CAUGHT_UP_S
    with Valkey(url) as store:
        at_first = now = taken(store)
        began_s = time.monotonic()
        while now < at_first + behind:
            if now == at_first:
                began_s = time.monotonic()
            if time.monotonic() > deadline_s:
                raise BenchError(f"the ledger took {now - at_first} of {behind} records in {CAUGHT_UP_S:g} s")
            time.sleep(LOOK_EACH_S)
            now = taken(store)
    return max(time.monotonic() - began_s, LOOK_EACH_S)


def taken(store: Valkey) -> int:
    """Calls in the ledger."""
    hours = [store.ask("HGETALL", key) for key in store.ask("KEYS", "wb:1:*:h:*")]
    return sum(
        int(value)
        for flat in hours
        for field, value in zip(flat[::2], flat[1::2], strict=True)
        if field.endswith("|calls")
    )


def control(target: Target) -> str:
    """What `weighbridge control` says."""
    assert target.books is not None
    command = [ours.PYTHON, "-m", "gateway.cli", "control", "--state-dir", str(target.books.state_dir)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **ours.ENV}, capture_output=True, text=True, check=False
    )
    return (done.stdout + done.stderr).strip()


if __name__ == "__main__":
    sys.exit(main())
