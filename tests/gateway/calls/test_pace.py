"""How long who joins a line will wait."""

from gateway.calls.pace import HORIZON_NS, MOVES_MIN, Pace

SECOND = 1_000_000_000


def moving(*, every_ns: int, times: int) -> tuple[Pace, int]:
    pace, now_ns = Pace(), 0
    pace.waits(now_ns)
    for _ in range(times):
        now_ns += every_ns
        pace.moved(now_ns)
    return pace, now_ns


def test_a_few_moves_say_nothing() -> None:
    pace, now_ns = moving(every_ns=SECOND, times=MOVES_MIN - 1)
    assert pace.wait_ns(5, now_ns) is None
    pace.moved(now_ns)
    assert pace.wait_ns(5, now_ns) is not None


def test_a_place_takes_as_long_as_the_places_before_it() -> None:
    pace, now_ns = moving(every_ns=SECOND // 2, times=20)
    assert pace.wait_ns(1, now_ns) == SECOND // 2
    assert pace.wait_ns(30, now_ns) == 15 * SECOND


def test_time_in_which_nobody_waits_does_not_count() -> None:
    pace, now_ns = moving(every_ns=SECOND // 2, times=20)
    pace.rests(now_ns)
    now_ns += 1000 * SECOND
    assert pace.wait_ns(1, now_ns) == SECOND // 2
    pace.rests(now_ns)
    pace.waits(now_ns)
    pace.waits(now_ns + SECOND)  # one more
    assert pace.wait_ns(1, now_ns + SECOND) == (10 * SECOND + SECOND) // 20


def test_a_line_that_stands_still_is_seen_to() -> None:
    pace, now_ns = moving(every_ns=SECOND // 2, times=20)
    assert pace.wait_ns(1, now_ns + 30 * SECOND) == 2 * SECOND


def test_what_is_long_past_is_forgotten() -> None:
    pace, now_ns = moving(every_ns=SECOND // 10, times=500)
    for _ in range(3 * HORIZON_NS // SECOND):
        now_ns += SECOND
        pace.moved(now_ns)
    assert 0.7 * SECOND < pace.wait_ns(1, now_ns) < SECOND
