"""Sets of time against sets of moments."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from metering.cost import intervals
from metering.cost.intervals import Interval

ANY = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda pair: Interval(*pair)), max_size=8
)


def moments(found: Iterable[Interval]) -> set[int]:
    return {at for one in found for at in range(*one)}


def is_a_set(found: list[Interval]) -> bool:
    cuts = [at for one in found for at in one]
    return cuts == sorted(set(cuts))


@given(ANY, ANY)
def test_sets_of_time_are_sets(one: list[Interval], other: list[Interval]) -> None:
    first, second = intervals.union(one), intervals.union(other)
    both = intervals.intersection(first, second)
    rest = intervals.difference(first, second)
    assert moments(first) == moments(one)
    assert moments(both) == moments(one) & moments(other)
    assert moments(rest) == moments(one) - moments(other)
    assert is_a_set(first)
    assert is_a_set(both)
    assert is_a_set(rest)
    assert intervals.length_ns(first) == len(moments(one))
