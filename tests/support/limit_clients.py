"""A worker of one limited tenant without a gateway: `python -m tests.support.limit_clients`, with a plan on stdin.

Clients ask, hold their place for a moment, and end; some of what they cost is folded, by a script of the test's own, as
a ledger would. Each line on stdout is what one call was told. Nothing here adds up: the test does.
"""

import asyncio
import hashlib
import json
import random
import sys

import msgspec

from metering.limits.asks import Answer, Granted, Refused, Wish
from metering.limits.connection import command
from metering.limits.limiter import Limiter
from metering.limits.terms import BudgetTerms, TenantTerms, Terms

KEY = "0123456789ab"
MODEL = "llama"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is to do. terms: of the tenant; hold, costs: of each call, picodollars, the cost at random.

    calls: of each client. mutant: which law is broken. window: whose budget it is; quiet: nothing ever ends.
    """

    url: str
    writer: str
    clients: int
    calls: int
    concurrency: int | None = None
    budget_pusd: int | None = None
    hold_pusd: int = 0
    cost_pusd_min: int = 0
    cost_pusd_max: int = 0
    seed: int = 0
    mutant: str = ""
    quiet: bool = False


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What one call was told, and what it cost."""

    granted: bool
    judged: bool = True
    cost_pusd: int = 0
    limit: str = ""


async def main(plan: Plan) -> None:
    """Do it."""
    loop = asyncio.get_running_loop()
    limiter = Limiter(plan.url, loop=loop)
    break_it(limiter, plan.mutant)
    budgets = () if plan.budget_pusd is None else (BudgetTerms(pusd=plan.budget_pusd, per="month"),)
    limiter.use(
        {"acme": TenantTerms(own=Terms(concurrency=plan.concurrency, budgets=budgets), policy="closed")}
    )
    limiter.begin(plan.writer)
    await limiter.opened()
    print(json.dumps({"up": not limiter.is_away}), flush=True)
    sys.stdin.readline()  # all at once
    rng, running = random.Random(plan.seed), Worker(limiter, plan)
    await asyncio.gather(
        *(client(limiter, plan, random.Random(rng.random()), running) for _ in range(plan.clients))
    )
    print(json.dumps({"done": True}), flush=True)
    sys.stdin.readline()  # what is held stays held until then
    await limiter.close()


class Worker:
    """Its journal and its ledger: costs by seq, posted as a folder would."""

    def __init__(self, limiter: Limiter, plan: Plan) -> None:
        self._limiter = limiter
        self._plan = plan
        self._seq = 0
        self._unfolded = 0

    def record(self, cost_pusd: int) -> int:
        """A record of this cost. returns: its seq."""
        self._seq += 1
        self._unfolded += cost_pusd
        if self._seq % 5 == 0:
            asyncio.get_running_loop().call_soon(self._fold, self._seq)
        return self._seq

    def _fold(self, seq: int) -> None:
        link = self._limiter._links.of("acme")
        assert link is not None
        cost, self._unfolded = self._unfolded, 0
        for window in self._limiter._desks["acme"].windows:
            words = ("HINCRBY", f"wb:1:{{acme}}:b:{window}", "t", str(cost))
            link.send(command(*words), lambda _reply: self._limiter.folded("acme", seq))
        link.flush()


async def client(limiter: Limiter, plan: Plan, rng: random.Random, worker: Worker) -> None:
    """One client's calls, one after the other."""
    wish = Wish(tenant="acme", project=None, key_id=KEY, model=MODEL, tokens=1, hold_pusd=plan.hold_pusd)
    for _ in range(plan.calls):
        told: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        limiter.ask(wish, told.set_result)
        answer = await told
        cost_pusd = rng.randint(plan.cost_pusd_min, plan.cost_pusd_max)
        if isinstance(answer, Refused):
            print(msgspec.json.encode(Told(granted=False, limit=answer.limit)).decode(), flush=True)
            continue
        assert isinstance(answer, Granted)
        print(
            msgspec.json.encode(Told(granted=True, judged=answer.judged, cost_pusd=cost_pusd)).decode(),
            flush=True,
        )
        if plan.quiet:
            continue
        await asyncio.sleep(rng.random() / 100)
        limiter.settle(answer, cost_pusd=cost_pusd, tokens=1, seq=worker.record(cost_pusd))


def break_it(limiter: Limiter, mutant: str) -> None:
    """Break a law."""
    match mutant:
        case "":
            return
        case "held is left out":
            limiter._script = limiter._script.replace("      if at then\n", "      if false then\n")
        case "a number is taken twice":
            limiter._script = limiter._script.replace("if number <= last then", "if false then")
        case "ended calls hold nothing":
            ending = limiter.settle
            limiter.settle = lambda granted, **said: ending(granted, **(said | {"cost_pusd": 0}))  # type: ignore[method-assign]
        case _:
            raise AssertionError(mutant)
    limiter._sha = hashlib.sha1(limiter._script.encode()).hexdigest()


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.stdin.readline(), type=Plan)))
