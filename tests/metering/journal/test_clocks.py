"""A wall clock that was set is seen; one that runs, or is steered, is not."""

from hypothesis import given
from hypothesis import strategies as st

from metering.journal.clocks import STEP_NS, Clocks
from metering.units import NS_PER_HOUR, NS_PER_S

SPANS = st.integers(0, 120 * NS_PER_S)


@given(st.lists(SPANS), st.integers(-500, 500))
def test_a_steered_clock_is_not_told(spans: list[int], ppm: int) -> None:
    wall_ns, monotonic_ns = 10**18, 5
    clocks = Clocks(wall_ns, monotonic_ns)
    for span in spans:
        monotonic_ns += span
        wall_ns += span + span * ppm // 1_000_000
        assert clocks.step_ns(wall_ns, monotonic_ns) == 0


@given(st.integers(-1_000 * NS_PER_HOUR, 1_000 * NS_PER_HOUR), SPANS)
def test_a_step_is_told_once_with_its_size(step: int, span: int) -> None:
    clocks = Clocks(10**18, 0)
    assert clocks.step_ns(10**18 + span + step, span) == (step if abs(step) >= STEP_NS else 0)
    assert clocks.step_ns(10**18 + 2 * span + step, 2 * span) == 0
