"""Slots of one backend over many workers: shares, use of the slots, and never one too many, whatever happens.

Simulated rounds, each made of its seed alone, over the product's workers and the store's model; the same laws over the
real script: tests/integration/test_pools.py. Each law is held against a protocol that breaks it.
"""

import random
from collections.abc import Callable

import pytest

from gateway.calls.fairness import Claim
from gateway.calls.pooled import PooledSeats
from metering.limits.pool_member import Member
from metering.limits.pool_messages import Reply
from tests.support import pool_model
from tests.support.pool_model import PoolModel
from tests.support.pool_world import MS, NETWORK_NS, SECOND, Worker, World

SHARES = [1, 1, 1, 2, 2, 3, 4, 4, 6, 8]
CLAIMS = {f"t{number}": Claim(share) for number, share in enumerate(SHARES)}
ROUND_TRIP_NS = NETWORK_NS[0] + NETWORK_NS[1]


def again(worker: Worker, tenant: str) -> None:
    """A client that always has a call under way."""
    worker.call(tenant, lambda: worker.dead or again(worker, tenant))


def overloaded(seed: int, *, mean_ms: int, until_s: int = 25, slots: int = 64) -> World:
    """Four workers, to each of which every tenant always has ten calls; after a second in which they meet."""
    world = World(seed, slots=slots, claims=CLAIMS, mean_ms=mean_ms)
    workers = [world.worker(slots // 4) for _ in range(4)]
    world.run(world.now_ns + SECOND)
    for worker in workers:
        for tenant in CLAIMS:
            for _ in range(10):
                again(worker, tenant)
    world.run((2 + until_s) * SECOND)
    return world


def strays(world: World) -> float:
    """The largest relative deviation from a share over the 20 s after the first 5."""
    parts = world.parts(7 * SECOND, 27 * SECOND)
    return max(abs(parts.get(one, 0.0) * sum(SHARES) / claim.share - 1) for one, claim in CLAIMS.items())


@pytest.mark.parametrize("seed", range(2))
def test_work_over_all_workers_follows_the_shares(seed: int) -> None:
    world = overloaded(seed, mean_ms=30)
    assert strays(world) < 0.05
    assert world.worst == world.slots
    assert world.busy_ns > 0.97 * world.span_ns


def test_slots_are_used_though_each_is_asked_for() -> None:
    """A mean call of 35 round trips."""
    mean_ns = 35 * ROUND_TRIP_NS / 1.05
    world = World(1, slots=32, claims={"t": Claim()}, mean_ms=1)
    world._mean_ms = mean_ns / MS  # type: ignore[assignment]
    world._scale = {"t": 1.0}
    workers = [world.worker(8) for _ in range(4)]
    world.run(world.now_ns + SECOND)
    for worker in workers:
        for _ in range(20):
            again(worker, "t")
    world.run(8 * SECOND)
    assert world.busy_ns > 0.96 * world.span_ns
    assert world.worst == 32


def own_order(*_: object) -> bool:
    """Each worker goes on with its own line."""
    return False


def test_a_mutant_whose_workers_keep_their_slots_strays(monkeypatch: pytest.MonkeyPatch) -> None:
    def uneven(seed: int) -> float:
        world = World(seed, slots=32, claims=CLAIMS, mean_ms=30)
        workers = [world.worker(16) for _ in range(2)]
        world.run(world.now_ns + SECOND)
        for number, tenant in enumerate(CLAIMS):
            for _ in range(40):
                again(workers[number % 2], tenant)
        world.run(27 * SECOND)
        return strays(world)

    assert uneven(1) < 0.08
    monkeypatch.setattr(Member, "yields", own_order)
    monkeypatch.setattr(Member, "cap", lambda _member, holds, _taken, _now_ns: holds)
    assert uneven(1) > 0.2


def counted(world: World) -> list[int]:
    """Times of messages (ns), from now on."""
    times: list[int] = []
    step = world.store.step

    def counting(message, now_ms):
        times.append(world.now_ns)
        return step(message, now_ms)

    world.store.step = counting  # type: ignore[method-assign]
    return times


def messages_of_one_alone(*, clients: int) -> tuple[int, int]:
    """One worker of 8 slots for ten seconds. returns: messages, calls."""
    world = World(1, slots=8, claims={"a": Claim(), "b": Claim()}, mean_ms=10)
    worker = world.worker(8)
    world.run(2 * SECOND)
    times = counted(world)
    for number in range(clients):
        again(worker, "ab"[number % 2])
    world.run(12 * SECOND)
    assert world.worst <= 8
    return len(times), len(world.served)


def test_one_worker_alone_says_nothing_of_a_call() -> None:
    """A beat a second, whether there are none, as many as there are slots, or some that wait."""
    counts = [messages_of_one_alone(clients=clients) for clients in (0, 6, 24)]
    assert [calls > 5_000 for _, calls in counts] == [False, True, True]
    assert all(8 <= messages <= 10 for messages, _ in counts), counts


def test_a_mutant_that_asks_though_it_is_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Member, "alone", property(lambda _member: False, lambda *_: None), raising=False)
    assert messages_of_one_alone(clients=24)[0] > 100


def messages_of_two(*, calls_each_ms: int) -> tuple[int, int]:
    """Two workers with slots for all that come, for ten seconds. returns: messages, calls."""
    world = World(1, slots=16, claims={"a": Claim()}, mean_ms=10)
    workers = [world.worker(8) for _ in range(2)]
    world.run(2 * SECOND)
    times = counted(world)

    def come() -> None:
        for worker in workers:
            worker.call("a")
        world.after(calls_each_ms * MS, come)

    come()
    world.run(12 * SECOND)
    return len(times), len(world.served)


def test_of_two_workers_neither_asks_for_a_call_that_finds_its_slot() -> None:
    messages, calls = messages_of_two(calls_each_ms=10)
    assert calls > 1_500
    assert messages < calls / 4, "slots that are kept for a moment serve the next call"


def test_a_second_worker_gets_its_part_at_once_and_all_when_the_first_ends() -> None:
    world = World(3, slots=8, claims={"a": Claim()}, mean_ms=20)
    first = world.worker(8)
    world.run(2 * SECOND)
    for _ in range(20):
        again(first, "a")
    world.run(4 * SECOND)
    second = world.worker(8)
    for _ in range(20):
        again(second, "a")
    world.run(5 * SECOND)
    assert second.seats.taken("b") > 0
    world.run(8 * SECOND)
    assert world.worst == 8
    first.die()
    world.wake(world.store.drop(first.name, world.now_ns // MS))
    world.run(9 * SECOND)
    assert second.seats.taken("b") == 8
    assert world.worst == 8


def test_slots_of_a_silent_worker_are_free_after_20_s() -> None:
    world = World(3, slots=8, claims={"a": Claim()}, mean_ms=20)
    first, second = world.worker(4), world.worker(4)
    world.run(2 * SECOND)
    for worker in (first, second):
        for _ in range(20):
            again(worker, "a")
    world.run(3 * SECOND)
    first.die()
    world.run(22 * SECOND)
    assert second.seats.seats_of("b") < 8
    world.run(26 * SECOND)
    assert second.seats.taken("b") == 8


def one_comes_when_the_store_is_emptied(seed: int) -> World:
    """Two workers hold all slots with long calls and have nothing to say; the emptied store hears of a third first."""
    world = World(seed, slots=8, claims={"a": Claim()}, mean_ms=4_000)
    workers = [world.worker(4) for _ in range(2)]
    world.run(2 * SECOND)
    for worker in workers:
        for _ in range(4):
            again(worker, "a")
    world.run(6 * SECOND + 300 * MS)  # between two of their beats
    world.store.flush()
    third = world.worker(4)
    for _ in range(6):
        again(third, "a")
    world.run(20 * SECOND)
    return world


@pytest.mark.parametrize("seed", range(4))
def test_who_comes_when_the_store_is_emptied_takes_no_slot_of_the_others(seed: int) -> None:
    world = one_comes_when_the_store_is_emptied(seed)
    assert world.worst == 8
    assert world.workers["w2"].seats.taken("b") > 0


def call_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that does not know a pool takes whoever comes to it for the first."""
    monkeypatch.setattr(pool_model, "CALL_MS", -1)


def hear_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were there before are called, and say nothing until their next word is due."""
    monkeypatch.setattr(PooledSeats, "woken", lambda *_: None)


@pytest.mark.parametrize("mutant", [call_nobody, hear_no_call])
def test_a_mutant_that_does_not_call_the_others_is_found(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert max(one_comes_when_the_store_is_emptied(seed).worst for seed in range(4)) > 8


def trouble(world: World, parts: int) -> None:
    """Something goes wrong, now and then; never two things that the promise excludes at once."""
    rng = world.rng
    worker = rng.choice(world.living)
    what = rng.choice(["kill", "kill slowly", "cut", "cut", "flush", "freeze", "join", "leave"])
    if what.startswith("kill") and len(world.living) > 1:
        worker.die()
        delay_ns = rng.randrange(100 * MS) if what == "kill" else 25 * SECOND
        world.after(delay_ns, lambda: world.wake(world.store.drop(worker.name, world.now_ns // MS)))
    elif what == "cut":
        if worker.linked:
            worker.cut()
            world.after(rng.choice([10 * MS, SECOND, 9 * SECOND]), worker.join_again)
    elif what == "flush":
        world.store.flush()
    elif what == "freeze" and world.frozen is None:
        world.frozen = []
        world.after(rng.choice([50 * MS, 600 * MS, 3 * SECOND, 9 * SECOND]), world.thaw)
    elif what == "join" and len(world.living) < 6:
        world.worker(parts)


def rounds(seed: int, *, seconds: int = 40) -> World:
    """Random calls and random trouble, then quiet."""
    rng = random.Random(seed * 7919)
    slots = rng.choice([1, 2, 5, 16])
    claims = {f"t{number}": Claim(rng.choice([1, 2, 5]), rng.choice([0, 0, 1])) for number in range(4)}
    mean_ms = rng.choice([5, 40])
    world = World(seed, slots=slots, claims=claims, mean_ms=mean_ms)
    parts = max(1, slots // 4)
    for _ in range(rng.randint(2, 4)):
        world.worker(parts)
    world.run(2 * SECOND)

    def come() -> None:
        if world.now_ns < seconds * SECOND:
            for _ in range(rng.choice([1] * 20 + [4 * slots])):
                rng.choice(world.living).call(rng.choice(list(claims)))
            world.after(rng.randrange(160 * mean_ms * MS // slots), come)

    def go_wrong() -> None:
        if world.now_ns < (seconds - 10) * SECOND:
            trouble(world, parts)
            world.after(rng.randrange(SECOND, 12 * SECOND), go_wrong)

    come()
    go_wrong()
    world.run((seconds + 60) * SECOND)
    return world


def check(world: World) -> None:
    assert world.worst <= world.slots, f"{world.worst} calls in {world.slots} slots"
    for worker in world.living:
        assert not worker.calls, "calls wait for ever"
        assert worker.seats.taken("b") == 0
    assert not world.running


SEEDS = range(16)


@pytest.mark.parametrize("seed", SEEDS)
def test_never_one_too_many_and_none_waits_for_ever(seed: int) -> None:
    check(rounds(seed))


def check_all() -> None:
    for seed in SEEDS:
        check(rounds(seed))


def forget_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store counts what workers say that they hold, and not what it has granted since."""
    monkeypatch.setattr(PoolModel, "held", lambda _pool, one, _now_ms: one["holds"])


def grant_after_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that has lost a pool does not ask who else was there."""
    order = PoolModel._order

    def careless(pool: PoolModel, state, now_ms, speaker):
        state["missing"].clear()
        return order(pool, state, now_ms, speaker)

    monkeypatch.setattr(PoolModel, "_order", careless)


def count_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was granted is taken again, each time it is told."""
    answered = Member.answered

    def forgetful(member: Member, reply: Reply):
        member._seen = reply.granted - len(reply.unseen)
        return answered(member, reply)

    monkeypatch.setattr(Member, "answered", forgetful)


def take_all_while_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that does not reach the store does not come down to its part."""
    monkeypatch.setattr(Member, "part", property(lambda member: member.slots))


@pytest.mark.parametrize(
    "mutant",
    [forget_what_is_under_way, grant_after_a_loss, count_twice, take_all_while_away],
)
def test_a_mutant_is_found(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check_all()
