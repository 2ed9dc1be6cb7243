"""The batch on a clock of the test's own: order, seats, times, and that tokens add up."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.simulator import plans
from backends.simulator.engine import Engine, Generated, State
from backends.simulator.metrics import Metrics
from backends.simulator.prefix_cache import PrefixCache
from backends.simulator.profiles import Basis, Profile

PROFILE = Profile(
    basis=Basis.ASSUMED,
    full=3,
    max_model_len=100,
    source="test",
    ttft_one_ns=100,
    ttft_full_ns=300,
    tpot_one_ns=10,
    tpot_full_ns=30,
)


class Client:
    """Keeps what its sequences are given."""

    def __init__(self) -> None:
        self.tokens: list[tuple[int, str, str | None]] = []

    def token(self, sequence: Generated, text: str, finish_reason: str | None) -> None:
        self.tokens.append((sequence.index, text, finish_reason))


def sequence(client: Client, max_tokens: int = 3, *, index: int = 0, **kw) -> Generated:
    plan = plans.spoken(0, max_tokens=max_tokens, min_tokens=0, ignore_eos=kw.get("ignore_eos", True))
    return Generated(
        prompt=kw.get("prompt", ["p"] * 20),
        index=index,
        plan=plans.nothing() if kw.get("reads") else plan,
        salt=None,
        sink=client,
        reads=kw.get("reads", False),
    )


class Bench:
    """An engine and its clock."""

    def __init__(self, slots: int = 3) -> None:
        self.metrics = Metrics("m")
        self.engine = Engine(PROFILE, slots, PrefixCache(64), self.metrics)
        self.now_ns = 0

    def submit(self, *sequences: Generated) -> None:
        self.engine.submit(sequences, self.now_ns)

    def run_to_next(self) -> int:
        due_ns = self.engine.due_ns
        assert due_ns is not None
        self.now_ns = max(self.now_ns, due_ns)
        self.engine.advance(self.now_ns)
        return self.now_ns

    def run_until_idle(self) -> None:
        for _ in range(100_000):
            if self.engine.due_ns is None:
                return
            self.run_to_next()
        raise AssertionError("it never comes to rest")


def test_one_alone_takes_the_times_of_one() -> None:
    bench, client = Bench(), Client()
    bench.submit(sequence(client))
    times = [bench.run_to_next() for _ in range(3)]
    assert times == [100, 110, 120]
    assert [reason for _, _, reason in client.tokens] == [None, None, "length"]
    assert bench.engine.due_ns is None
    assert bench.engine.running == 0


def test_those_that_come_together_start_together() -> None:
    bench, client = Bench(), Client()
    bench.submit(sequence(client, index=0), sequence(client, index=1))
    assert bench.run_to_next() == 200
    assert [index for index, _, _ in client.tokens] == [0, 1]
    assert bench.run_to_next() == 220
    assert [index for index, _, _ in client.tokens] == [0, 1, 0, 1]


def test_one_that_joins_later_steps_with_the_others() -> None:
    bench, first, second = Bench(), Client(), Client()
    bench.submit(sequence(first, 50))
    bench.run_to_next()
    bench.submit(sequence(second, 2))
    while not second.tokens:
        bench.run_to_next()
    before = len(first.tokens)
    bench.run_to_next()
    assert (len(first.tokens), len(second.tokens)) == (before + 1, 2)


def test_no_more_seats_than_slots_and_first_come_first_served() -> None:
    bench, client = Bench(slots=2), Client()
    bench.submit(*(sequence(client, index=n) for n in range(5)))
    assert (bench.engine.running, bench.engine.waiting) == (2, 3)
    bench.run_until_idle()
    assert [index for index, _, reason in client.tokens if reason] == [0, 1, 2, 3, 4]
    assert (bench.engine.running, bench.engine.waiting) == (0, 0)


@pytest.mark.parametrize("when", ["waiting", "prefill", "decode"])
def test_an_abort_frees_the_seat_at_once(when: str) -> None:
    bench, client, other = Bench(slots=1), Client(), Client()
    left, last = sequence(client, 50), sequence(other, 2)
    if when == "waiting":
        bench.submit(last, left)
    else:
        bench.submit(left, last)
    if when == "decode":
        bench.run_to_next()
    bench.engine.abort(left, bench.now_ns)
    bench.engine.abort(left, bench.now_ns)  # a second time does nothing
    assert (bench.engine.running, bench.engine.waiting) == (1, 0)
    assert last.state is State.PREFILL
    bench.run_until_idle()
    assert len(other.tokens) == 2
    assert len(client.tokens) == (when == "decode")


def test_what_is_held_keeps_its_seat_and_gets_nothing() -> None:
    bench, client, other = Bench(slots=2), Client(), Client()
    held, waits, done = sequence(client, 50), sequence(other, 2), sequence(Client(), 1)
    bench.submit(done, held)
    bench.submit(waits)
    bench.run_to_next()
    for each in (held, done):
        bench.engine.hold(each)
    assert (held.state, done.state) == (State.HELD, State.DONE)
    bench.run_until_idle()
    assert (len(client.tokens), len(other.tokens)) == (1, 2)
    assert bench.engine.running == 1
    bench.engine.abort(held, bench.now_ns)
    assert bench.engine.running == 0


def test_what_waits_cannot_be_held() -> None:
    bench = Bench(slots=1)
    first, waits = sequence(Client()), sequence(Client())
    bench.submit(first, waits)
    bench.engine.hold(waits)
    assert waits.state is State.DONE
    assert bench.engine.waiting == 0


def test_one_that_is_aborted_by_anothers_token_gets_none() -> None:
    bench, victim_client = Bench(), Client()
    victim = sequence(victim_client, 50)

    class Killer(Client):
        def token(self, sequence: Generated, text: str, finish_reason: str | None) -> None:
            super().token(sequence, text, finish_reason)
            if len(self.tokens) == 2:
                bench.engine.abort(victim, bench.now_ns)

    killer = Killer()
    bench.submit(sequence(killer, 5), victim)
    bench.run_until_idle()
    assert (len(killer.tokens), len(victim_client.tokens)) == (5, 1)


def test_a_late_clock_does_not_slow_the_batch_down() -> None:
    bench, client = Bench(), Client()
    bench.submit(sequence(client, 50))
    bench.run_to_next()
    bench.now_ns += 13  # a step was due at 110, the clock says 113
    bench.engine.advance(bench.now_ns)
    assert bench.engine.due_ns == 120
    bench.now_ns = 500  # far too late: it does not catch up in a burst
    bench.engine.advance(bench.now_ns)
    assert len(client.tokens) == 3
    assert bench.engine.due_ns == 500


def test_an_answer_that_ends_by_itself_does() -> None:
    bench, client = Bench(), Client()
    natural = sequence(client, 99, ignore_eos=False)
    bench.submit(natural)
    bench.run_until_idle()
    assert client.tokens[-1][1:] == ("", "stop")
    assert len(client.tokens) == natural.plan.length < 99
    assert bench.metrics.finished["stop"] == 1


def test_a_prompt_that_is_only_read_takes_a_seat_and_no_step() -> None:
    bench, client = Bench(), Client()
    bench.submit(sequence(client, reads=True))
    assert bench.engine.running == 1
    assert bench.run_to_next() == 100
    assert client.tokens == [(0, "", "stop")]
    assert (bench.engine.running, bench.engine.due_ns) == (0, None)
    assert (bench.metrics.prompt_tokens, bench.metrics.generation_tokens) == (20, 0)
    assert bench.metrics.finished["stop"] == 1


def test_one_that_reads_does_not_hurry_those_that_speak() -> None:
    bench, client = Bench(), Client()
    bench.submit(sequence(Client(), reads=True))
    bench.run_to_next()
    bench.submit(sequence(client, 2))
    assert [bench.run_to_next() for _ in range(2)] == [200, 210]


def test_cache_used_is_of_full_seats() -> None:
    bench = Bench()
    assert bench.engine.cache_used(100) == 0
    long, short = sequence(Client(), prompt=["p"] * 17), sequence(Client(), prompt=["p"])
    bench.submit(long, short)
    assert bench.engine.cache_used(96) == 3 / (3 * 6)
    bench.run_to_next()
    bench.engine.hold(long)
    assert bench.engine.cache_used(96) == 3 / (3 * 6)
    bench.engine.abort(long, bench.now_ns)
    assert bench.engine.cache_used(96) == 1 / (3 * 6)


asked = st.tuples(st.just("ask"), st.integers(1, 6), st.integers(1, 3))
left = st.tuples(st.just("leave"), st.integers(0, 20), st.just(0))
passed = st.just(("run", 0, 0))


@given(st.lists(st.one_of(asked, passed, passed, left), max_size=60), st.integers(1, 4))
def test_tokens_add_up_whatever_leaves_when(events: list[tuple[str, int, int]], slots: int) -> None:
    """Counters equal what clients got; seats are never over-taken; those that stay are served in full."""
    bench = Bench(slots)
    clients: list[tuple[Client, list[Generated]]] = []
    gone: set[int] = set()
    for event, number, choices in events:
        if event == "ask":
            client = Client()
            sequences = [sequence(client, number, index=n) for n in range(choices)]
            clients.append((client, sequences))
            bench.submit(*sequences)
        elif event == "leave" and clients:
            position = number % len(clients)
            gone.add(position)
            for each in clients[position][1]:
                bench.engine.abort(each, bench.now_ns)
        elif bench.engine.due_ns is not None:
            bench.run_to_next()
        assert bench.engine.running <= slots
        assert bench.engine.waiting == 0 or bench.engine.running == slots
    bench.run_until_idle()
    assert (bench.engine.running, bench.engine.waiting) == (0, 0)
    for position, (_, sequences) in enumerate(clients):
        assert all(each.state is State.DONE for each in sequences)
        assert position in gone or all(each.generated == each.plan.length for each in sequences)
    assert bench.metrics.generation_tokens == sum(len(client.tokens) for client, _ in clients)
    started = [each for _, sequences in clients for each in sequences if each.generated]
    assert bench.metrics.prompt_tokens == sum(len(each.prompt) for each in started)
    assert bench.metrics.finished["length"] == sum(each.generated == each.plan.length for each in started)


def test_profile_of_the_bench_is_as_the_tests_above_read_it() -> None:
    assert [PROFILE.ttft_ns(n) for n in (1, 2, 3)] == [100, 200, 300]
    assert msgspec.structs.replace(PROFILE, full=1).ttft_ns(9) == 100
