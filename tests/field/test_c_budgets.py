"""Field reports on budgets: what is spent of one is one sum, whoever spends it."""

import collections
import contextlib
import datetime
import json
import pathlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.oracle.resp import Connection
from tests.support import mutants, stores
from tests.support.gateway import Gateway, eventually, running
from tests.support.rawbackend import Scripted, sized
from tests.support.stage import ANSWER, CARD, SIZED, U_10_5_PUSD, R, backend, u

pytestmark = pytest.mark.integration

CHAT = "/v1/chat/completions"
FIVE = R | {"max_tokens": 5}
PROMPT = len(json.dumps(FIVE).encode()) // 4
"""Tokens that its prompt is held at before any call has shown what such prompts take."""
HOLD_PUSD = PROMPT * 1_000_000 + 5 * 2_000_000


def usd(pusd: int) -> str:
    return f"{pusd // 10**12}.{pusd % 10**12:012}"


def budget(pusd: int) -> dict:
    return {"limits": {"budgets": [{"usd": usd(pusd), "per": "month"}]}}


TENANTS: dict[str, dict] = {
    "burst": budget(5 * HOLD_PUSD),
    "over": budget(30_000_000),
    "worst": budget(4 * U_10_5_PUSD) | {"hold": "worst"},
    "paid": budget(10**12) | {"hold": "worst"},
    "free": {},
}


class Pair:
    """Two gateways before one backend and one store, with the same tenants and keys."""

    def __init__(self, gateways: list[Gateway], b1: Scripted, url: str) -> None:
        self.gateways, self.b1, self.url = gateways, b1, url

    def ask(self, number: int, tenant: str, body: dict) -> tuple[int, dict]:
        answer = self.gateways[number % 2].post(CHAT, body, tenant=tenant)
        return answer.status, json.loads(answer.read())

    def at_once(self, tenant: str, times: int, body: dict) -> list[int]:
        with ThreadPoolExecutor(times) as pool:
            return list(pool.map(lambda number: self.ask(number, tenant, body)[0], range(times)))

    def usage(self, tenant: str) -> dict:
        status, body = self.gateways[0].get("/v1/usage", self.gateways[0].keys[tenant])
        assert status == 200
        return json.loads(body)

    def spent(self, tenant: str) -> str:
        """All told of this month."""
        return self.usage(tenant)["spend"]["month"]["tenant_usd"]


@contextlib.contextmanager
def paired(
    place: Callable[[str], pathlib.Path], tenants: dict[str, dict], env: dict[str, str] | None = None
) -> Iterator[Pair]:
    """place: makes a directory. Of the second gateway the keys are the first one's."""
    b1 = Scripted(SIZED)
    with contextlib.ExitStack() as stack:
        stack.callback(b1.stop)
        at = place("store")
        url = f"unix://{at / 'sock'}"
        options = {"port": "0", "unixsocket": str(at / "sock")}
        stack.enter_context(stores.process(stores.valkey_binary(), at, options))
        eventually(lambda: stores.answers(url))

        def begin(name: str) -> Gateway:
            one = [backend("b1", b1.port, slots=400, instance_type="inf2.xlarge")]
            return stack.enter_context(
                running(
                    place(name), one, tenants=tuple(tenants), of_tenants=tenants, rate_cards=[CARD],
                    redis={"url": url}, env=env,
                )
            )  # fmt: skip

        first, second = begin("one"), begin("two")
        second.stop()
        config = json.loads(second.config_file.read_text())
        config["tenants"] = json.loads(first.config_file.read_text())["tenants"]
        second.config_file.write_text(json.dumps(config))
        second.keys = first.keys
        second.restart()
        second.wait_ready()
        for gateway in (first, second):
            gateway.wait_checked()
        yield Pair([first, second], b1, url)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with paired(tmp_path_factory.mktemp, TENANTS) as both:
        yield both


@pytest.fixture
def pair(built: Pair) -> Pair:
    """With its backend as new."""
    built.b1.asked.clear()
    built.b1.default = SIZED
    return built


def test_br_026_all_that_ask_at_once_share_one_budget(pair: Pair) -> None:
    """Each holds what it may cost at most, so five fit: a fraction more may once these are known to have cost less."""
    statuses = pair.at_once("burst", 50, FIVE)
    served = statuses.count(200)
    assert set(statuses) == {200, 429}
    assert len(pair.b1.asked) == served
    assert 5 <= served <= 5 * HOLD_PUSD // U_10_5_PUSD
    spent = eventually(lambda: (found := pair.spent("burst")) == usd(served * U_10_5_PUSD) and found)
    assert spent <= usd(5 * HOLD_PUSD)
    status, body = pair.ask(0, "burst", R | {"max_tokens": 256})
    assert (status, body["error"]["code"]) == (429, "insufficient_quota")


def test_br_027_a_new_day_begins_at_nothing_and_the_old_one_stays(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Neither gateway sets anything to 0 at the turn: a window is part of the name of what was spent in it."""
    off = tmp_path_factory.mktemp("clock") / "off"
    now = datetime.datetime.now(datetime.UTC)
    turn = (now + datetime.timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    before_s = 300
    set_clock(off, int((turn - now).total_seconds()) - before_s)
    env = mutants.environment("clock_set") | {"KILL_TEST_CLOCK": str(off)}
    limits = {"limits": {"budgets": [{"usd": usd(5 * U_10_5_PUSD), "per": "day"}]}}
    with paired(tmp_path_factory.mktemp, {"turning": limits}, env) as pair:

        def spent(day: datetime.datetime) -> int:
            with Connection(pair.url) as store:
                return int(store.hash(f"wb:1:{{turning}}:b:{day:%Y%m%d}").get("t", 0))

        old = turn - datetime.timedelta(days=1)
        statuses = [pair.ask(number, "turning", FIVE)[0] for number in range(4)]
        assert statuses == [200] * 4
        eventually(lambda: spent(old) == 4 * U_10_5_PUSD)
        assert spent(turn) == 0
        set_clock(off, int((turn - datetime.datetime.now(datetime.UTC)).total_seconds()) + 2)
        statuses = pair.at_once("turning", 20, FIVE)
        served = statuses.count(200)
        assert set(statuses) == {200, 429}
        assert 2 <= served <= 5
        eventually(lambda: spent(turn) == served * U_10_5_PUSD)
        assert spent(old) == 4 * U_10_5_PUSD
        assert pair.usage("turning")["spend"]["day"]["tenant_usd"] == usd(served * U_10_5_PUSD)
        records = [line for gateway in pair.gateways for line in gateway.lines("call")]
        days = [record["admitted_ns"] // (86_400 * 10**9) for record in records]
        assert sorted(collections.Counter(days).items()) == [(min(days), 4), (min(days) + 1, served)]


def set_clock(off: pathlib.Path, seconds: int) -> None:
    """The gateways' wall clock is off by so much from now on."""
    new = off.with_suffix(".new")
    new.write_text(str(seconds))
    new.rename(off)


def test_br_032_who_is_over_the_line_is_refused_at_every_gateway(pair: Pair) -> None:
    pair.b1.default = sized(json.dumps(ANSWER | {"usage": u(10, 20)}).encode())
    assert (
        pair.ask(0, "over", R)[0] == 200
    )  # no bound: it costs more than there is, which is recorded in full
    eventually(lambda: pair.spent("over") == usd(50_000_000))
    pair.b1.asked.clear()
    for number in range(4):
        status, body = pair.ask(number, "over", R)
        assert (status, body["error"]["type"]) == (429, "insufficient_quota")
    assert pair.b1.asked == []
    (limits,) = pair.usage("over")["limits"]
    assert limits["budgets"][0]["remaining_usd"] == "0.000000000000"


def test_br_032_at_worst_nothing_is_over_the_line(pair: Pair) -> None:
    """The longest prompt of a short request alone may cost more than this budget has."""
    status, body = pair.ask(0, "worst", FIVE)
    assert (status, body["error"]["code"]) == (429, "insufficient_quota")
    assert pair.spent("worst") == usd(0)


def test_at_worst_the_bound_that_is_paid_for_is_written(pair: Pair) -> None:
    for body in (R, R | {"max_tokens": None}, R | {"max_tokens": 7}):
        assert pair.ask(0, "paid", body)[0] == 200
    assert [json.loads(asked.body)["max_tokens"] for asked in pair.b1.asked] == [1024, 1024, 7]
    assert all(json.loads(asked.body)["messages"] == R["messages"] for asked in pair.b1.asked)


def test_no_tenant_finds_what_another_has_in_a_servers_cache(pair: Pair) -> None:
    """Whatever a client says, the salt is another for each tenant, and the same one for the same tenant and client."""
    asks = [(tenant, salt) for tenant in ("paid", "free") for salt in (None, "a", "b")] * 2
    for tenant, salt in asks:
        own = {} if salt is None else {"cache_salt": salt}
        assert pair.ask(0, tenant, R | {"max_tokens": 1} | own)[0] == 200
    served = [json.loads(asked.body)["cache_salt"] for asked in pair.b1.asked]
    assert served[:6] == served[6:]
    assert len({*served, "a", "b"}) == 6 + 2
