"""What an hour of samples says. Pure."""

import statistics
from collections.abc import Sequence


def slope(times_s: Sequence[float], values: Sequence[float]) -> float:
    """By how much the values grow in a second: linear regression by least squares. At least two times."""
    return statistics.linear_regression(times_s, values).slope


def growth(times_s: Sequence[float], values: Sequence[float]) -> float:
    """By how much they grow from the first to the last, along the regression's line."""
    return slope(times_s, values) * (times_s[-1] - times_s[0])


def second_half(values: Sequence[float]) -> Sequence[float]:
    """What is left when what belongs to the start is over."""
    return values[len(values) // 2 :]


def quantile_of_maxima(maxima: Sequence[float], *, each_of: int, q: float) -> float:
    """The q-quantile of observations of which only the greatest of each `each_of` in a row is known.

    Of those above the quantile each is counted as the only one of its group; they are few.
    """
    above = int(len(maxima) * each_of * (1 - q) + 1e-9)
    return sorted(maxima, reverse=True)[min(above, len(maxima) - 1)]
