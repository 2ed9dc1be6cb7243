"""One or two workers' limiters on a real store that is slow, away, or has forgotten; no gateway."""

import asyncio
import contextlib
import pathlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import msgspec
import pytest

from metering.ledger.store import Store
from metering.limits import desk
from metering.limits import limiter as limiter_module
from metering.limits.asks import Answer, Ask, Granted, Refused, Wish
from metering.limits.desk import Passed
from metering.limits.limiter import CANNOT, Limiter
from metering.limits.terms import BudgetTerms, TenantTerms, Terms
from tests.support import stores
from tests.support.gateway import eventually
from tests.support.stores import Running, answers, process, valkey_binary
from tests.support.valkey import Valkey

pytestmark = pytest.mark.integration

ONE = Terms(concurrency=1)
WA, WB = "w" + "a" * 16, "w" + "b" * 16


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(kind, marks=pytest.mark.debian if kind == "redis" else ())
        for kind in ("valkey", "cluster", "redis")
    ],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("store")
    if request.param == "redis" and stores.redis_binary() is None:
        pytest.skip("no redis-server 7")
    makers = {
        "valkey": lambda: stores.single(stores.valkey_binary(), directory, user=True),
        "cluster": lambda: stores.cluster(stores.valkey_binary(), directory, user=True),
        "redis": lambda: stores.single(stores.redis_binary() or "", directory),
    }
    with makers[request.param]() as running, running:
        yield running


@pytest.fixture
def store(server: Running) -> Running:
    server.everywhere("FLUSHALL")
    be_ready(server)
    return server


def be_ready(store: Running, ready: str = "e1") -> None:
    store.ask("HSET", "wb:1:{acme}:meta", "epoch", "e1", "ready", ready)


@contextlib.asynccontextmanager
async def limiting(
    url: str, writer: str = WA, terms: TenantTerms | None = None, **said: object
) -> AsyncIterator[Limiter]:
    limiter = Limiter(url, loop=asyncio.get_running_loop(), **said)  # type: ignore[arg-type]
    limiter.use({"acme": terms or TenantTerms(own=ONE)})
    limiter.begin(writer)
    await limiter.opened()
    try:
        yield limiter
    finally:
        await limiter.close()


def wish(hold_pusd: int | None = 0, tokens: int = 1) -> Wish:
    return Wish(tenant="acme", project=None, key_id="k1", model="m", tokens=tokens, hold_pusd=hold_pusd)


async def ask(limiter: Limiter, one: Wish | None = None) -> Answer:
    told: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    limiter.ask(one or wish(), told.set_result)
    async with asyncio.timeout(5):
        return await told


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())  # type: ignore[arg-type]


def running(store: Running) -> int:
    packed = store.ask("HGET", "wb:1:{acme}:l", "t", raw=True)
    return 0 if packed is None else int(msgspec.msgpack.decode(packed)[0])


def test_an_end_in_one_worker_makes_room_in_another_at_once(
    store: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second ask comes before the end is told: it is asked once more (later than usual: the machine is slow)."""
    monkeypatch.setattr(limiter_module, "AGAIN_MS", 200)

    async def scenario() -> None:
        async with limiting(store.url) as one, limiting(store.url, WB) as other:
            for _ in range(20):
                first = await ask(one)
                assert isinstance(first, Granted)
                one.settle(first, cost_pusd=0, tokens=1, seq=None)
                second = await ask(other)
                assert isinstance(second, Granted)
                assert isinstance(await ask(one), Refused)
                other.settle(second, cost_pusd=0, tokens=1, seq=None)

    run(scenario)


def test_without_asking_again_it_would_be_refused(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "TRIES_MAX", 1)
    with pytest.raises(AssertionError):
        test_an_end_in_one_worker_makes_room_in_another_at_once(store, monkeypatch)


def test_an_ask_that_is_given_up_holds_nothing(store: Running) -> None:
    async def scenario() -> None:
        async with limiting(store.url) as limiter:
            told: list[Answer] = []
            early = limiter.ask(wish(), told.append)
            limiter.give_up(early)  # before it is sent
            sent = limiter.ask(wish(), told.append)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            limiter.give_up(sent)  # while it is under way
            limiter.give_up(sent)
            granted = await ask(limiter)
            assert isinstance(granted, Granted)
            assert told == []
            limiter.failed(granted)
            late: list[Ask] = []
            came = asyncio.Event()
            late.append(limiter.ask(wish(), lambda _answer: came.set()))
            await came.wait()
            limiter.give_up(late[0])  # once it is granted
            await until(lambda: running(store) == 0)

    run(scenario)


def test_what_a_failed_call_took_is_given_back(store: Running) -> None:
    async def scenario() -> None:
        terms = TenantTerms(own=Terms(requests_per_minute=1, tokens_per_minute=100))
        async with limiting(store.url, terms=terms) as limiter:
            granted = await ask(limiter, wish(tokens=90))
            assert isinstance(granted, Granted)
            assert granted.requests == (1, 0, 60_000)
            assert granted.rate_of_tokens is not None
            assert granted.rate_of_tokens.remaining == 10
            refused = await ask(limiter, wish(tokens=90))
            assert isinstance(refused, Refused)
            assert refused.limit == "requests_per_minute of the tenant: 1"
            assert refused.retry_after_ms is not None
            assert 0 < refused.retry_after_ms <= 60_000
            limiter.failed(granted)
            assert isinstance(await ask(limiter, wish(tokens=90)), Granted)

    run(scenario)


def test_what_can_not_be_priced_is_refused_by_a_hard_budget(store: Running) -> None:
    terms = TenantTerms(own=Terms(budgets=(BudgetTerms(pusd=10, per="day"),)))

    async def scenario() -> None:
        async with limiting(store.url, terms=terms) as limiter:
            refused = await ask(limiter, wish(hold_pusd=None))
            assert isinstance(refused, Refused)
            assert refused.code == "insufficient_quota"
            over = await ask(limiter, wish(hold_pusd=11))
            assert isinstance(over, Refused)
            assert over.retry_after_ms is not None
            assert 0 < over.retry_after_ms <= 86_400_000
        async with limiting(store.url, terms=terms, refuse_unpriced=False) as limiter:
            assert isinstance(await ask(limiter, wish(hold_pusd=None)), Granted)

    run(scenario)


def test_a_threshold_is_told_once_among_all_workers(store: Running) -> None:
    budget = BudgetTerms(pusd=100, per="month", hard=False, thresholds=(50, 80))
    told: list[Passed] = []

    async def scenario() -> None:
        terms = TenantTerms(own=Terms(budgets=(budget,)))
        async with (
            limiting(store.url, WA, terms, on_passed=told.append) as one,
            limiting(store.url, WB, terms, on_passed=told.append) as other,
        ):
            for limiter, cost in ((one, 55), (other, 10), (one, 30), (other, 30)):
                granted = await ask(limiter)
                assert isinstance(granted, Granted)
                limiter.settle(granted, cost_pusd=cost, tokens=1, seq=cost)
                store.ask("HINCRBY", f"wb:1:{{acme}}:b:{one._desks['acme'].windows[0]}", "t", str(cost))
                for each in (one, other):
                    each.folded("acme", 1_000)
                    each._desks["acme"]._folded_seq = 0
                await asyncio.sleep(0.05)
            await until(lambda: len(told) == 2)

    run(scenario)
    assert [(one.percent, one.spent_pusd) for one in told] == [(50, 55), (80, 95)]


def test_a_store_that_forgot_all_is_told_again(store: Running) -> None:
    """Calls under way count again, before anybody is admitted; until then the policy decides."""

    async def scenario() -> None:
        async with limiting(store.url, terms=TenantTerms(own=ONE, policy="closed")) as limiter:
            first = await ask(limiter)
            assert isinstance(first, Granted)
            store.everywhere("FLUSHALL")
            refused = await ask(limiter)
            assert isinstance(refused, Refused)
            assert refused.limit == CANNOT
            assert limiter.is_away
            await until(lambda: running(store) == 1)  # it was said all again
            be_ready(store)
            await until(lambda: not limiter.is_away)
            refused = await ask(limiter)
            assert isinstance(refused, Refused)
            assert refused.limit == "concurrency of the tenant: 1"
            limiter.settle(first, cost_pusd=0, tokens=1, seq=None)
            assert isinstance(await ask(limiter), Granted)

    run(scenario)


def test_what_dead_workers_had_is_let_go_of(store: Running) -> None:
    async def scenario() -> None:
        terms = TenantTerms(own=Terms(concurrency=2, budgets=(BudgetTerms(pusd=100, per="month"),)))
        limiter = Limiter(store.url, loop=asyncio.get_running_loop())
        limiter.use({"acme": terms})
        limiter.begin(WA)
        await limiter.opened()
        assert isinstance(await ask(limiter, wish(hold_pusd=60)), Granted)
        assert limiter._task is not None
        limiter._task.cancel()
        await limiter._links.close()  # it takes no leave
        async with Store(store.url) as client, limiting(store.url, WB, terms) as other:
            assert await client.limit_workers(["acme", "globex"]) == {"acme": [WA]}
            await client.clear_limits([("acme", WA)], with_held=False)
            assert running(store) == 0
            refused = await ask(other, wish(hold_pusd=60))
            assert isinstance(refused, Refused)
            assert refused.code == "insufficient_quota"
            await client.clear_limits([("acme", WA)], with_held=True)
            assert isinstance(await ask(other, wish(hold_pusd=60)), Granted)
            assert await client.limit_workers(["acme"]) == {"acme": [WB]}

    run(scenario)


# A store of its own, which is stopped and killed


@pytest.fixture
def own(tmp_path: pathlib.Path) -> Iterator["Own"]:
    with Own(tmp_path) as one:
        yield one


class Own:
    """A store that can be stopped, killed and started again, empty."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._path = directory / "sock"
        self._stack = contextlib.ExitStack()
        self.url = f"unix://{self._path}"

    def __enter__(self) -> "Own":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self) -> None:
        """A new life, ready."""
        self.child = self._stack.enter_context(
            process(valkey_binary(), self._directory, {"port": "0", "unixsocket": str(self._path)})
        )
        eventually(lambda: answers(self.url))
        with Valkey(self.url) as raw:
            raw.ask("HSET", "wb:1:{acme}:meta", "epoch", "e1", "ready", "e1")

    def signal(self, number: int) -> None:
        self.child.send_signal(number)

    def kill(self) -> None:
        self.child.kill()
        self.child.wait(timeout=10)


@pytest.mark.parametrize("policy", ["open", "closed", "share"])
def test_while_the_store_is_away_the_policy_decides(own: Own, policy: str) -> None:
    async def scenario() -> None:
        terms = TenantTerms(own=Terms(concurrency=4), policy=policy)  # type: ignore[arg-type]
        async with limiting(own.url, terms=terms) as limiter, limiting(own.url, WB, terms) as other:
            await until(lambda: limiter.workers == 2)
            granted = [await ask(limiter)]
            own.kill()
            await until(lambda: limiter.is_away)
            told = [await ask(limiter) for _ in range(5)]
            admitted = [one for one in told if isinstance(one, Granted)]
            assert (
                len(admitted) == {"open": 5, "closed": 0, "share": 1}[policy]
            )  # its share is 2, and 1 was there
            own.start()
            await until(lambda: not limiter.is_away)
            count = 1 + len(admitted)
            with Valkey(own.url) as raw:

                def counted() -> bool:
                    packed = raw.ask("HGET", "wb:1:{acme}:l", "t", raw=True)
                    return packed is not None and msgspec.msgpack.decode(packed)[0] == count

                await until(counted)
            left = max(0, 4 - count)
            more = [await ask(limiter) for _ in range(left + 1)]
            assert sum(isinstance(one, Granted) for one in more) == left
            for one in granted + admitted + more:
                if isinstance(one, Granted):
                    limiter.settle(one, cost_pusd=0, tokens=1, seq=None)
            assert isinstance(await ask(other), Granted)

    run(scenario)


def test_a_store_that_hangs_keeps_no_call(own: Own) -> None:
    """And what it answers when it goes on is nobody's: its connection is gone."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with limiting(own.url, terms=TenantTerms(own=Terms(concurrency=1))) as limiter:
            own.signal(signal.SIGSTOP)
            began_s = loop.time()
            first = await ask(limiter)
            assert isinstance(first, Granted)
            assert not first.judged
            assert loop.time() - began_s < 2
            own.signal(signal.SIGCONT)
            await until(lambda: not limiter.is_away)
            refused = await ask(limiter)
            assert isinstance(refused, Refused)
            limiter.settle(first, cost_pusd=0, tokens=1, seq=None)
            again = await ask(limiter)
            assert isinstance(again, Granted)
            assert again.judged

    run(scenario)
