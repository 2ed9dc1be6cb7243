"""The pools' script against its model, in real servers: every answer and every wake, through rounds of trouble.

Time is given to the script, and what it publishes is caught; nothing else of it is changed.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pytest

from metering.limits import pools
from tests.gateway.calls import test_pooled as rounds_of
from tests.support import stores
from tests.support.pool_model import PoolModel
from tests.support.pool_world import World
from tests.support.stores import Running

pytestmark = pytest.mark.integration

KEY = pools.key("b")
CAUGHT = "wb:1:{pool:b}:caught"
CLOCK = "redis.call('TIME')"
PUBLISH = "redis.call('PUBLISH', 'wb:1:pools:' .. name, cmsgpack.pack({KEYS[1], told(mine)}))"


def under_test() -> str:
    """The script with its two ends in the test's hands."""
    text = pools.script()
    assert text.count(CLOCK) == text.count(PUBLISH) == 1
    return text.replace(CLOCK, "{KEYS[2], KEYS[3]}").replace(
        PUBLISH, f"redis.call('RPUSH', '{CAUGHT}', cmsgpack.pack({{name, KEYS[1], told(mine)}}))"
    )


@pytest.fixture(params=["valkey", "redis"], scope="module")
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    binary = stores.valkey_binary() if request.param == "valkey" else stores.redis_binary()
    if binary is None:
        pytest.skip("no Redis of this version here")
    with stores.single(binary, tmp_path_factory.mktemp(request.param)) as running, running:
        yield running


class Both:
    """The script and the model: one answer, or the test fails."""

    def __init__(self, store: Running) -> None:
        self._store = store
        self._model = PoolModel()
        self._script = under_test()
        self.steps = 0
        self.flush()

    def flush(self) -> None:
        self._model.flush()
        self._store.ask("DEL", KEY, CAUGHT)

    def step(self, message: tuple[Any, ...], now_ms: int) -> tuple[list[Any], dict[str, Any]]:
        self.steps += 1
        reply, wakes = self._model.step(message, now_ms)
        packed = self._eval(msgspec.msgpack.encode(message), "", now_ms)
        assert msgspec.msgpack.decode(packed) == reply
        assert self._caught() == {name: told for name, told in wakes.items() if name != "*"}
        assert self._model.state is not None
        kept = msgspec.msgpack.decode(self._store.ask("GET", KEY, raw=True))
        assert (kept["tenants"] or {}) == self._model.state["tenants"]  # an empty table is packed as an array
        return reply, wakes

    def drop(self, member: str, now_ms: int) -> dict[str, Any]:
        wakes = self._model.drop(member, now_ms)
        assert self._eval(b"", member, now_ms) == b""
        assert self._caught() == wakes
        return wakes

    def _eval(self, data: bytes, member: str, now_ms: int) -> bytes:
        time = (str(now_ms // 1000), str(now_ms % 1000 * 1000))
        return self._store.ask("EVAL", self._script, "3", KEY, *time, data, member, raw=True)

    def _caught(self) -> dict[str, Any]:
        found = self._store.ask("LRANGE", CAUGHT, "0", "-1", raw=True)
        self._store.ask("DEL", CAUGHT)
        caught = {}
        for one in found:
            name, key, told = msgspec.msgpack.decode(one)
            assert key == KEY
            assert name not in caught
            caught[name] = told
        return caught


@pytest.mark.parametrize("seed", range(6))
def test_the_script_answers_as_its_model(store: Running, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(store)
    monkeypatch.setattr(rounds_of, "World", lambda *args, **options: World(*args, store=both, **options))
    rounds_of.check(rounds_of.rounds(seed, seconds=15))
    assert both.steps > 100


def any_message(rng: random.Random, number: int) -> tuple[Any, ...]:
    """What no worker of ours would say, as well."""
    lines = tuple(
        (f"t{tenant}", rng.choice([0, 1, 9]), rng.choice([1, 3, 10**6]), rng.randint(1, 4), rng.randrange(9) * 10_000,
         rng.choice([0.5, 4000.0, 1e9]), rng.choice([0.0, 4000.0]))
        for tenant in rng.sample(range(4), rng.randrange(4))
    )  # fmt: skip
    served = tuple(
        (f"t{tenant}", 0.0, rng.choice([-1.0, 1.5, 1e6]), rng.choice([1, 2])) for tenant in range(2)
    )
    return (
        f"w{rng.randrange(3)}", rng.choice(["", "w0:1", "other"]), rng.randint(number - 3, number),
        rng.randrange(number),
        rng.choice([1, 7, 7, 7]), rng.randrange(12), rng.randrange(5), rng.randrange(3), rng.randrange(4), lines,
        served if rng.random() < 0.5 else (), rng.choice([(), (), ("w1", "w8")]), int(rng.random() < 0.05),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_the_script_answers_anything_as_its_model(store: Running, seed: int) -> None:
    say_anything(store, [seed])


def say_anything(store: Running, seeds: Iterable[int]) -> None:
    for seed in seeds:
        say_anything_of(random.Random(seed), Both(store))


def say_anything_of(rng: random.Random, both: Both) -> None:
    now_ms = 1_800_000_000_000
    for number in range(1, 400):
        now_ms += rng.choice([0, 1, 50, 2_000, 2_000, 25_000 if rng.random() < 0.1 else 0])
        if rng.random() < 0.02:
            both.drop(f"w{rng.randrange(3)}", now_ms)
        both.step(any_message(rng, number), now_ms)


def swap(old: str, new: str) -> Callable[[str], str]:
    def broken(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return broken


@pytest.mark.parametrize(
    "broken",
    [
        swap("mine.holds + #mine.pend", "mine.holds"),
        swap("if mine and number <= mine.number then", "if false then"),
        swap("virtual < best_virtual", "virtual > best_virtual"),
        swap("local settling = next(state.missing) ~= nil\n", "local settling = false\n"),
        swap("mine.last[tenant] or base", "base"),
        swap("line[5] / line[2]", "line[5]"),
    ],
)
def test_a_mutant_of_the_script_is_found(store: Running, broken: Callable[[str], str], monkeypatch) -> None:
    text = broken(pools.script())
    monkeypatch.setattr(pools, "script", lambda: text)
    with pytest.raises(AssertionError):
        say_anything(store, range(4))
