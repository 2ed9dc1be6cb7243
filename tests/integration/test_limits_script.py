"""The script that judges limits, on real servers of every kind, against its model in Python."""

import random
from collections.abc import Iterator

import pytest

from metering.limits.messages import Limit, Message, ScopeSaid, Status, Verdict, said_ask, said_budgets
from metering.limits.rules import Sums
from tests.support import stores
from tests.support.certificates import Authority
from tests.support.limits import LARGE, TAG, WINDOWS, Scripted, plain, random_message
from tests.support.stores import Running

pytestmark = pytest.mark.integration

KINDS = {
    "valkey": lambda directory: stores.single(stores.valkey_binary(), directory),
    "valkey cluster, least user": lambda directory: stores.cluster(
        stores.valkey_binary(), directory, user=True
    ),
    "redis, TLS, least user": lambda directory: stores.single(
        stores.redis_binary(), directory, user=True, authority=Authority(directory)
    ),
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, marks=pytest.mark.debian if "redis" in kind else ()) for kind in KINDS],
)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    if "redis" in request.param and stores.redis_binary() is None:
        pytest.skip("no redis-server 7")
    with KINDS[request.param](tmp_path_factory.mktemp("store")) as running, running:
        yield running


@pytest.fixture
def scripted(server: Running) -> Scripted:
    server.everywhere("FLUSHALL")
    return Scripted(server)


def as_modelled(scripted: Scripted, seed: int, rounds: int = 60) -> bool:
    """Random messages of three workers at the script and at the model: do they answer, and hold, the same?"""
    rng, model = random.Random(seed), Sums()
    numbers: dict[str, int] = {}
    spent: dict[tuple[int, str], int] = {}
    model.spent = spent
    scripted.be_ready(True)
    for _ in range(rounds):
        scripted.now_ms += rng.choice([0, 1, 17, 900, 25_000, 70_000, -500])
        if rng.random() < 0.1:
            model.ready = not model.ready
            scripted.be_ready(model.ready)
        if rng.random() < 0.3:
            key = (rng.choice(WINDOWS), rng.choice(["t", "k:1"]))
            spent[key] = rng.choice([*LARGE[:-2], rng.randrange(4 * 10**18)])
            scripted.spend(*key, spent[key])
        writer = rng.choice(["wa", "wb", "wc"])
        last = numbers.get(writer, 0)
        number = last + rng.choice([1, 1, 1, 1, 2, 0])
        base = rng.choice([0, last, last, last, max(0, last - 1)])
        message = random_message(rng, number, base)
        reply = model.take(writer, message, scripted.now_ms)
        if scripted.take(writer, message) != reply or scripted.sums() != plain(model):
            return False
        if reply.status in (Status.TAKEN, Status.UNREADY):
            numbers[writer] = number
    return True


@pytest.mark.parametrize("seed", range(25))
def test_the_script_and_the_model_are_one(scripted: Scripted, seed: int) -> None:
    assert as_modelled(scripted, seed)


SPENT = "local high, low = of[place] + ask[2], of[place + 1] + ask[3]"
MUTANTS = {
    "a number is taken twice": ("if number <= last then", "if false then"),
    "any base will do": ("if base > 0 and not (whole and base == last) then", "if false then"),
    "held is left out": ("      if at then\n", "      if false then\n"),
    "spent is left out": (SPENT, "local high, low = ask[2], ask[3]"),
    "the hold is left out": (SPENT, "local high, low = of[place], of[place + 1]"),
    "at the budget is above it": ("low > budgets[j + 2]", "low >= budgets[j + 2]"),
    "the lower half is lost": ("low > budgets[j + 2]", "false"),
    "no carry": ("if low >= HALF_RANGE then", "if false then"),
    "no borrow": ("if low < 0 then", "if false then"),
    "one too many": ("totals[i][1] + 1 > at_once", "totals[i][1] > at_once"),
    "an ask is judged as if it were alone": ("        admit(asks[k])\n", ""),
    "nothing comes back": ("debt = debt - elapsed * limit", ""),
    "what was given back is kept": ("owed(total[2], since(scope[TAKEN_REQUESTS], part[2]))", "total[2]"),
    "counts do not go round": ("return more - ROUND", "return more"),
    "the silent go on": ("now - workers[i + 1] > SILENT_MS", "false"),
    "judged before it is known what was spent": ("= meta[1] and meta[1] == meta[2]", "= true"),
    "sums add up": ("    take_out(total, part, true)\n  end\n  total[1]", "  end\n  total[1]"),
    "who leaves is not forgotten": ("if kind == LEAVE then", "if false then"),
    "what is not named stays": ("if base == 0 and known then", "if false then"),
    "two budgets of a window hold twice": ("if first then", "if true then"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_model_sees_a_wrong_script(scripted: Scripted, name: str) -> None:
    right, wrong = MUTANTS[name]
    assert right in scripted.text
    scripted.text = scripted.text.replace(right, wrong)

    def is_seen(seed: int) -> bool:
        scripted.store.everywhere("FLUSHALL")
        return not as_modelled(scripted, seed)

    assert any(is_seen(seed) for seed in range(25))


def test_what_was_taken_comes_back_to_the_millisecond(scripted: Scripted) -> None:
    scripted.be_ready(True)
    scope = ScopeSaid("t", 0, 0, 0, 2, 0, 0, [], [])
    reply = scripted.take("wa", Message(1, 0, 0, [scope], [said_ask(0, 0, [0])] * 3))
    assert reply.verdicts == [Limit.GRANTED, Limit.GRANTED, Verdict(Limit.REQUESTS, 0, 30_000, 0)]
    scripted.now_ms += 29_999
    again = ScopeSaid("t", 0, 120_000, 0, 2, 0, 0, [], [])
    reply = scripted.take("wa", Message(2, 1, 0, [again], [said_ask(0, 0, [0])] * 2))
    assert reply.verdicts == [Verdict(Limit.REQUESTS, 0, 1, 0)] * 2
    scripted.now_ms += 1
    reply = scripted.take("wa", Message(3, 2, 0, [again], [said_ask(0, 0, [0])] * 2))
    assert reply.verdicts == [Limit.GRANTED, Verdict(Limit.REQUESTS, 0, 30_000, 0)]


@pytest.mark.parametrize(
    ("key", "field", "value"),
    [
        ("l", "t", "x"),
        ("l", "t", b"\x93\x01\x02\x03"),
        ("l", "t", b"\x95\x01\x02\x03\x04\xa1x"),
        ("l:wa", "t", "no numbers here"),
        ("l:wa", "#", "7"),
        ("b:202611", "t", "-1"),
    ],
)
def test_what_is_none_of_ours_is_named_and_left_alone(
    scripted: Scripted, key: str, field: str, value: str | bytes
) -> None:
    scripted.be_ready(True)
    scripted.store.ask("HSET", f"{TAG}:{key}", field, value)
    before = scripted.store.copy("wb:1:*")
    said = ScopeSaid("t", 1, 0, 0, 0, 0, 0, [], said_budgets([(202611, 5, True)]))
    reply = scripted.take("wa", Message(1, 0, 0, [said], [said_ask(0, 1, [0])]))
    assert reply.status == Status.FORM
    assert scripted.store.copy("wb:1:*") == before


def test_many_scopes_at_once(scripted: Scripted) -> None:
    """More than fit into one command of Lua's."""
    scripted.be_ready(True)
    said = [ScopeSaid(f"k:{n}", 1, 0, 0, 0, 0, 5, [], []) for n in range(10_000)]
    reply = scripted.take("wa", Message(1, 0, 0, said, [said_ask(0, 0, [9_999])]))
    assert (reply.status, reply.verdicts, reply.stands[3 * 9_999]) == (Status.TAKEN, [Limit.GRANTED], 2)
    assert scripted.take("wa", Message(2, 0, 0, said[:1], [])).status == Status.TAKEN
    totals, workers = scripted.sums()
    assert sum(total.running for total in totals.values()) == 1
    assert len(workers["wa"].parts) == 1
