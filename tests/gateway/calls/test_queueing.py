"""Seats and the lines before them."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.fairness import Claim, Claims
from gateway.calls.pace import MOVES_MIN
from gateway.calls.queueing import RETRY_AFTER_S_MAX, Seats, Ticket, TurnedAway, share

CALLS_MAX = 100
SECOND = 1_000_000_000
FULL = TurnedAway(late=False, retry_after_s=1)


def ticket(tenant: str = "acme", model: str = "m1") -> Ticket:
    return Ticket(tenant, model, lambda backend: None)


def seats_of(
    caps: dict[str, int | None],
    *,
    calls_max: int = CALLS_MAX,
    claims: Claims | None = None,
    clock: Callable[[], int] = lambda: 0,
) -> Seats:
    return Seats(caps, calls_max=calls_max, clock=clock, claims=claims)


def full(caps: dict[str, int | None], **options) -> Seats:
    """All seats of these are taken."""
    seats = seats_of(caps, **options)
    for backend, cap in caps.items():
        for _ in range(cap or 0):
            assert seats.take((backend,)) == backend
    return seats


def test_the_best_free_seat_is_taken() -> None:
    seats = seats_of({"a": 1, "b": 1})
    assert seats.take(("a", "b")) == "a"
    assert seats.take(("a", "b")) == "b"
    assert seats.take(("a", "b")) is None
    assert [seats.taken("a"), seats.size("a")] == [1, 1]


def test_a_freed_seat_goes_to_the_longest_waiting_of_a_tenant_that_may_use_it() -> None:
    seats = full({"a": 1, "b": 1})
    first, second, third = ticket(), ticket(), ticket()
    seats.wait(first, ("b",))
    seats.wait(second, ("a",))
    seats.wait(third, ("a", "b"))
    assert seats.release("a") is second
    assert seats.release("b") is first
    assert seats.release("a") is third
    assert seats.release("a") is None
    assert seats.taken("a") == 0


def test_a_waiting_ticket_that_asks_for_more_keeps_its_place() -> None:
    seats = full({"a": 1, "gpu": 1})
    first, second = ticket(), ticket()
    seats.wait(first, ("a",))
    seats.wait(second, ("gpu",))
    seats.wait(first, ("a", "gpu"))  # its patience is over
    assert seats.release("gpu") is first


def test_one_who_leaves_is_not_served() -> None:
    seats = full({"a": 1})
    gone, next_one = ticket(), ticket()
    seats.wait(gone, ("a",))
    seats.wait(next_one, ("a",))
    seats.leave(gone)
    seats.leave(gone)
    assert seats.release("a") is next_one


def test_tenants_take_turns_by_what_they_were_served() -> None:
    seats = full({"a": 1}, claims={"noisy": Claim(), "quiet": Claim()})
    noisy, quiet = [ticket("noisy") for _ in range(20)], ticket("quiet")
    for one in noisy:
        seats.wait(one, ("a",))
    for one in noisy[:3]:
        assert seats.release("a") is one
        seats.settle(one, 4000.0)
    seats.wait(quiet, ("a",))
    assert seats.release("a") is quiet


def test_a_priority_class_goes_before_those_below_it_and_may_be_changed() -> None:
    seats = full({"a": 1}, claims={"high": Claim(1, 1), "low": Claim(1_000, 0)})
    low, high, other = ticket("low"), ticket("high"), ticket("high")
    for one in (low, high, other):
        seats.wait(one, ("a",))
    assert seats.release("a") is high
    seats.use({"high": Claim(1, 0), "low": Claim(1, 1)})
    assert seats.release("a") is low
    assert seats.release("a") is other


def test_an_attempt_is_settled_once_and_only_if_it_was_charged() -> None:
    seats = full({"a": 1})
    one = ticket()
    seats.settle(one, 10.0)
    seats.wait(one, ("a",))
    assert seats.release("a") is one
    assert one.charged is not None
    seats.settle(one, None)
    assert one.charged is None
    seats.settle(one, 10.0)


def test_the_line_is_bounded_by_model_and_only_while_no_seat_is_free() -> None:
    seats = full({"a": 1})
    for _ in range(CALLS_MAX):
        assert seats.turns_away("acme", "m1", ("a",), SECOND) is None
        seats.wait(ticket(), ("a",))
    assert seats.turns_away("acme", "m1", ("a",), SECOND) == FULL
    assert seats.turns_away("acme", "m2", ("a",), SECOND) is None
    assert seats.waiting("m1") == CALLS_MAX
    free = seats_of({"a": 0, "b": None})
    free.wait(ticket(), ("a",))
    assert free.turns_away("acme", "m1", ("a", "b"), SECOND) is None


def test_no_line_at_all() -> None:
    seats = seats_of({"a": 1}, calls_max=0)
    assert seats.turns_away("acme", "m1", ("a",), SECOND) is None
    seats.take(("a",))
    assert seats.turns_away("acme", "m1", ("a",), SECOND) == FULL


def fill(seats: Seats, tenant: str) -> int:
    """Join the line as often as may be."""
    count = 0
    while seats.turns_away(tenant, "m1", ("a",), SECOND) is None:
        seats.wait(ticket(tenant), ("a",))
        count += 1
    return count


def test_a_tenant_alone_leaves_places_for_those_who_have_none() -> None:
    claims = {name: Claim() for name in ("a", "b", "c", "d")}
    seats = full({"a": 1}, claims=claims)
    assert fill(seats, "a") == CALLS_MAX - 3
    assert [fill(seats, name) for name in ("b", "c", "d")] == [1, 1, 1]
    assert seats.waiting("m1") == CALLS_MAX


def test_a_tenants_part_of_the_line_is_its_share() -> None:
    claims = {"big": Claim(3), "small": Claim(1), "above": Claim(1, 1)}
    seats = full({"a": 1}, claims=claims)
    for name in claims:
        seats.wait(ticket(name), ("a",))
    assert fill(seats, "small") + 1 == (CALLS_MAX - 2) // 4
    assert fill(seats, "big") + 1 == (CALLS_MAX - 2) * 3 // 4
    assert fill(seats, "unknown") == 0 or seats.waiting("m1") <= CALLS_MAX


class Moving:
    """A backend of one seat whose line has moved at one call a second, and has `left` of each tenant in it."""

    def __init__(self, left: dict[str, int], claims: Claims) -> None:
        self.now_ns = 0
        self.seats = full({"a": 1}, claims=claims, clock=lambda: self.now_ns)
        for _ in range(MOVES_MIN):
            self.seats.wait(ticket("mover"), ("a",))
        for _ in range(MOVES_MIN):
            self.now_ns += SECOND
            assert self.seats.release("a") is not None
        for tenant, count in left.items():
            for _ in range(count):
                self.seats.wait(ticket(tenant), ("a",))

    def away(self, tenant: str, patience_s: int) -> TurnedAway | None:
        return self.seats.turns_away(tenant, "m1", ("a",), patience_s * SECOND)


@pytest.mark.parametrize(
    ("tenant", "patience_s", "retry_after_s"),
    [
        ("a", 25, None),  # 20 of its own, and as many of its rival's 4 as there are
        ("a", 20, 5),
        ("b", 10, None),  # its 4 and 5 of the other's, and itself
        ("b", 5, 5),
        ("new", 3, None),  # it and one of each of the others
        ("new", 2, 1),
        ("heavy", 2, None),  # ten times the share of each of the others
        ("high", 1, None),  # nobody is before it
        ("low", 24, 1),  # all are
    ],
)
def test_a_call_whose_turn_would_come_too_late_is_told_so_at_once(
    tenant: str, patience_s: int, retry_after_s: int | None
) -> None:
    claims = {"a": Claim(10), "b": Claim(10), "new": Claim(10), "heavy": Claim(100), "high": Claim(1, 2),
              "low": Claim(1, 1)}  # fmt: skip
    claims |= {name: Claim(claims[name].share, 1) for name in ("a", "b", "new", "heavy")}
    claims["low"] = Claim(1, 0)
    moving = Moving({"a": 20, "b": 4}, claims)
    away = moving.away(tenant, patience_s)
    assert away == (None if retry_after_s is None else TurnedAway(late=True, retry_after_s=retry_after_s))


def test_nobody_is_asked_to_come_again_in_an_hour() -> None:
    moving = Moving({"a": 1}, {"a": Claim()})
    moving.now_ns += 3_600 * SECOND
    assert moving.away("a", 1) == TurnedAway(late=True, retry_after_s=RETRY_AFTER_S_MAX)


def test_no_cap_never_waits() -> None:
    seats = seats_of({"a": None})
    assert [seats.take(("a",)) for _ in range(1000)] == ["a"] * 1000
    assert seats.size("a") is None


@given(slots=st.integers(0, 300), workers=st.integers(1, 40))
def test_shares_add_up_and_the_first_workers_take_the_remainder(slots: int, workers: int) -> None:
    shares = [share(slots, worker, workers) for worker in range(workers)]
    assert sum(shares) == slots
    assert shares == sorted(shares, reverse=True)
    assert max(shares) - min(shares) <= 1


WANTS = st.sampled_from([("a",), ("b",), ("a", "b")])
MOVES = st.lists(
    st.tuples(st.integers(0, 7), WANTS, st.sampled_from(["go", "go", "go", "leave"])), max_size=80
)


def check_moves(moves) -> None:
    """Never more seats than the cap, none free while somebody waits for it; in a tenant first come, first served."""
    caps = {"a": 2, "b": 1}
    tickets = [ticket(tenant) for tenant in "uuvvwwxx"]
    seats = seats_of(dict(caps), claims={"u": Claim(3), "v": Claim(1, 1)})
    held: dict[Ticket, str] = {}
    waits: dict[Ticket, tuple[str, ...]] = {}
    for number, wants, move in moves:
        one = tickets[number]
        if one in held:
            backend = held.pop(one)
            seats.settle(one, 10.0)
            if (after := seats.release(backend)) is not None:
                held[after] = backend
                lined = [one for one in waits if one.tenant == after.tenant and backend in waits[one]]
                assert after is lined[0]
                del waits[after]
        elif move == "leave":
            seats.leave(one)
            waits.pop(one, None)
        elif (found := seats.take(wants)) is not None:
            held[one] = found
            seats.leave(one)
            waits.pop(one, None)
        else:
            seats.wait(one, wants)
            waits[one] = wants
        assert seats.waiting("m1") == len(waits)
        for backend, cap in caps.items():
            assert seats.taken(backend) == list(held.values()).count(backend) <= cap
            if seats.taken(backend) < cap:
                assert not any(backend in wants for wants in waits.values())


@given(MOVES)
def test_seats_and_lines_keep_their_laws(moves) -> None:
    check_moves(moves)
