"""What limits cost: CPU time a call, in a worker and in the store. `python -m tests.bench.limits`

50 tenants with all limits on, of the tenant and of its key, in a real store over TCP. So many calls are under way at
once; each asks, is admitted, is settled, is folded a little later, and asks again. All that the process does is
counted, the turns of the loop too; the same turns with nobody asked are taken off.
"""

import asyncio
import contextlib
import gc
import json
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Iterator

import uvloop

from gateway.processes.worker import GC_THRESHOLDS
from metering.limits.asks import Answer, Granted, Wish
from metering.limits.limiter import Limiter
from metering.limits.terms import BudgetTerms, TenantTerms, Terms
from tests.support.ports import free_port
from tests.support.stores import process, valkey_binary
from tests.support.valkey import Valkey

TENANTS = 50
IN_FLIGHT = (1, 16, 64)
CALLS = 20_000
REPETITIONS = 3
FOLD_CALLS = 500
"""Records are folded some 20 times a second; of a worker that serves 10,000 calls a second, each 500."""
MUST_US, MUST_STORE_US = 8, 50
PUSD = 10**9
TERMS = Terms(
    requests_per_minute=10**9,
    tokens_per_minute=10**10,
    concurrency=10**6,
    budgets=(BudgetTerms(pusd=4 * 10**18, per="day"), BudgetTerms(pusd=4 * 10**18, per="month")),
)


class Load:
    """Calls that follow each other. limiter None: the same turns of the loop with nobody asked."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limiter: Limiter | None, calls: int) -> None:
        self._loop = loop
        self._limiter = limiter
        self._left = calls
        self._seq = 0
        self._open = 0
        self.done = asyncio.Event()
        self._wishes = [
            Wish(tenant=f"t{n}", project=None, key_id=f"k{n}", model="m", tokens=400, hold_pusd=PUSD)
            for n in range(TENANTS)
        ]

    def begin(self, in_flight: int) -> None:
        """Start so many at once."""
        for _ in range(in_flight):
            self._next()

    def _next(self) -> None:
        if not self._left:
            if not self._open:
                self.done.set()
            return
        self._left -= 1
        self._open += 1
        wish = self._wishes[self._left % TENANTS]
        if self._limiter is None:
            self._loop.call_soon(self._answered, None)
        elif self._limiter.applies(wish, wish.model):
            self._limiter.ask(wish, self._answered)

    def _answered(self, answer: Answer | None) -> None:
        self._open -= 1
        self._seq += 1
        if self._limiter is not None:
            assert isinstance(answer, Granted), answer
            assert answer.judged
            self._limiter.settle(answer, cost_pusd=PUSD // 2, tokens=300, seq=self._seq)
            if self._seq % FOLD_CALLS == 0:
                for wish in self._wishes:
                    self._limiter.folded(wish.tenant, self._seq - FOLD_CALLS)
        self._next()


async def _measure(url: str, pid: int, in_flight: int) -> tuple[float, float]:
    """µs of CPU a call: here, and in the store."""
    loop = asyncio.get_running_loop()
    limiter = Limiter(url, loop=loop)
    limiter.use({f"t{n}": TenantTerms(own=TERMS, keys={f"k{n}": TERMS}) for n in range(TENANTS)})
    limiter.begin("w" + "a" * 16)
    await limiter.opened()
    await _run(loop, limiter, in_flight, CALLS // 10)  # warm
    store_s = _cpu_s(pid)
    here_ns = await _run(loop, limiter, in_flight, CALLS)
    store_s = _cpu_s(pid) - store_s
    await limiter.close()
    empty_ns = await _run(loop, None, in_flight, CALLS)
    return (here_ns - empty_ns) / CALLS / 1_000, store_s / CALLS * 1e6


async def _run(loop: asyncio.AbstractEventLoop, limiter: Limiter | None, in_flight: int, calls: int) -> int:
    load = Load(loop, limiter, calls)
    began_ns = time.process_time_ns()
    load.begin(in_flight)
    await load.done.wait()
    return time.process_time_ns() - began_ns


def _cpu_s(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def _store() -> Iterator[tuple[str, int]]:
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        options = {"port": str(port), "bind": "127.0.0.1"}
        with process(valkey_binary(), pathlib.Path(directory), options) as child:
            url = f"redis://127.0.0.1:{port}"
            deadline_s = time.monotonic() + 10
            while time.monotonic() < deadline_s:
                with contextlib.suppress(OSError), Valkey(url) as store:
                    for n in range(TENANTS):
                        store.ask("HSET", f"wb:1:{{t{n}}}:meta", "epoch", "e", "ready", "e")
                    break
            yield url, child.pid


def main() -> int:
    """Print the figures as JSON."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    found: dict[str, dict[str, float]] = {}
    with _store() as (url, pid):
        for in_flight in IN_FLIGHT:
            figures = []
            for _ in range(REPETITIONS):
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    figures.append(runner.run(_measure(url, pid, in_flight)))
            here, store = (round(statistics.median(column), 2) for column in zip(*figures, strict=True))
            found[f"{in_flight} in flight"] = {"worker_us": here, "store_us": store}
    print(json.dumps({"limits": found, "must_us": MUST_US, "must_store_us": MUST_STORE_US, "calls": CALLS}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
