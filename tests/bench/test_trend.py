import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench import trend


def test_growth_is_that_of_the_line_and_not_of_one_value() -> None:
    times_s = [float(at) for at in range(11)]
    line = [100 + 2 * at for at in times_s]
    assert trend.slope(times_s, line) == pytest.approx(2)
    assert trend.growth(times_s, line) == pytest.approx(20)
    wobbling = [100.0, 101.0] * 5 + [100.0]
    assert abs(trend.growth(times_s, wobbling)) < 0.5
    assert trend.growth(times_s, [100.0] * 10 + [130.0]) < 15  # one jump at the end is not a slope


@given(st.integers(2, 200), st.integers(-1000, 1000), st.integers(0, 10**6))
def test_growth_along_a_straight_line_is_the_difference_of_its_ends(
    count: int, step: int, first: int
) -> None:
    times_s = [float(at) for at in range(count)]
    values = [float(first + step * at) for at in range(count)]
    assert trend.growth(times_s, values) == pytest.approx(values[-1] - values[0], abs=1e-3)


def test_the_second_half_is_the_later_one() -> None:
    assert list(trend.second_half([1, 2, 3, 4])) == [3, 4]
    assert list(trend.second_half([1, 2, 3])) == [2, 3]


@pytest.mark.parametrize(
    ("maxima", "quantile"),
    [
        ([1] * 10, 1),
        ([1] * 9 + [50], 50),  # 100 rounds: the worst one is already beyond the quantile
        ([1] * 3599 + [50], 1),  # 36,000 rounds: three may be worse
        ([1] * 3596 + [50] * 4, 50),
    ],
)
def test_a_quantile_of_rounds_from_the_worst_of_each_second(maxima: list[float], quantile: float) -> None:
    assert trend.quantile_of_maxima(maxima, each_of=10, q=0.9999) == quantile


@given(st.lists(st.lists(st.integers(0, 1000), min_size=10, max_size=10), min_size=1, max_size=200))
def test_the_quantile_is_never_above_the_true_one(groups: list[list[int]]) -> None:
    """And it is exact where no group holds more than one of those above it."""
    rounds = sorted((each for group in groups for each in group), reverse=True)
    above = int(len(rounds) * 0.0001 + 1e-9)
    maxima = [float(max(group)) for group in groups]
    assert trend.quantile_of_maxima(maxima, each_of=10, q=0.9999) <= rounds[above]
