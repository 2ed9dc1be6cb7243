"""Seats and the line before them."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.queueing import Seats, Ticket, share

CALLS_MAX = 100


def ticket(model: str = "m1") -> Ticket:
    return Ticket(model, lambda backend: None)


def test_the_best_free_seat_is_taken() -> None:
    seats = Seats({"a": 1, "b": 1}, calls_max=CALLS_MAX)
    assert seats.ask(ticket(), ("a", "b")) == "a"
    assert seats.ask(ticket(), ("a", "b")) == "b"
    assert seats.ask(ticket(), ("a", "b")) is None


def test_a_freed_seat_goes_to_the_longest_waiting_that_may_use_it() -> None:
    seats = Seats({"a": 1, "b": 1}, calls_max=CALLS_MAX)
    seats.ask(ticket(), ("a",))
    seats.ask(ticket(), ("b",))
    first, second, third = ticket(), ticket(), ticket()
    seats.ask(first, ("b",))
    seats.ask(second, ("a",))
    seats.ask(third, ("a", "b"))
    assert seats.release("a") is second
    assert seats.release("b") is first
    assert seats.release("a") is third
    assert seats.release("a") is None
    assert seats.taken("a") == 0


def test_a_waiting_ticket_that_asks_for_more_keeps_its_place() -> None:
    seats = Seats({"a": 1, "gpu": 1}, calls_max=CALLS_MAX)
    seats.ask(ticket(), ("a",))
    seats.ask(ticket(), ("gpu",))
    first, second = ticket(), ticket()
    seats.ask(first, ("a",))
    seats.ask(second, ("gpu",))
    seats.ask(first, ("a", "gpu"))  # its patience is over
    assert seats.release("gpu") is first


def test_one_who_leaves_is_not_served() -> None:
    seats = Seats({"a": 1}, calls_max=CALLS_MAX)
    seats.ask(ticket(), ("a",))
    gone, next_one = ticket(), ticket()
    seats.ask(gone, ("a",))
    seats.ask(next_one, ("a",))
    seats.leave(gone)
    seats.leave(gone)
    assert seats.release("a") is next_one


def test_the_line_is_bounded_by_model_and_only_while_no_seat_is_free() -> None:
    seats = Seats({"a": 1, "b": 1}, calls_max=CALLS_MAX)
    seats.ask(ticket(), ("a",))
    for _ in range(CALLS_MAX):
        assert not seats.full("m1", ("a",))
        seats.ask(ticket(), ("a",))
    assert seats.full("m1", ("a",))
    assert not seats.full("m1", ("a", "b"))
    assert not seats.full("m2", ("a",))


def test_no_cap_never_waits() -> None:
    seats = Seats({"a": None}, calls_max=CALLS_MAX)
    assert [seats.ask(ticket(), ("a",)) for _ in range(1000)] == ["a"] * 1000
    assert seats.cap("a") is None


@given(slots=st.integers(0, 300), workers=st.integers(1, 40))
def test_shares_add_up_and_the_first_workers_take_the_remainder(slots: int, workers: int) -> None:
    shares = [share(slots, worker, workers) for worker in range(workers)]
    assert sum(shares) == slots
    assert shares == sorted(shares, reverse=True)
    assert max(shares) - min(shares) <= 1
    assert share(None, 0, workers) is None


@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from([("a",), ("b",), ("a", "b")])), max_size=80))
def test_never_more_seats_than_the_cap_and_none_free_while_somebody_waits(moves) -> None:
    caps = {"a": 2, "b": 1}
    seats, tickets = Seats(dict(caps), calls_max=CALLS_MAX), [ticket() for _ in range(8)]
    held: dict[Ticket, str] = {}
    waits: dict[Ticket, tuple[str, ...]] = {}
    for number, wants in moves:
        one = tickets[number]
        if one in held:
            backend = held.pop(one)
            if (after := seats.release(backend)) is not None:
                held[after] = backend
                assert backend in waits.pop(after)
        elif (backend := seats.ask(one, wants)) is not None:
            held[one] = backend
            waits.pop(one, None)
        else:
            waits[one] = wants
        for backend, cap in caps.items():
            assert seats.taken(backend) == list(held.values()).count(backend) <= cap
            if seats.taken(backend) < cap:
                assert not any(backend in wants for wants in waits.values())
