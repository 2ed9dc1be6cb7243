"""Work units: exact, by the weights in force, and never by later ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.cost.work_units import WorkUnits, WorkUnitTable
from metering.periods import parse_instant

NOW_NS = parse_instant("2026-11-28")


def weights(hardware: str = "inf2", date: str = "2026-11-01", **fields: int) -> WorkUnits:
    return WorkUnits(date=date, hardware=hardware, model="llama", source="measured", **fields)


def test_cached_tokens_are_a_part_of_the_prompt() -> None:
    one = weights(prompt=3, cached_prompt=1, completion=10)
    assert one.of(100, 40, 7) == 60 * 3 + 40 * 1 + 7 * 10
    assert weights().of(100, 40, 7) == 60 * 1000 + 40 * 100 + 7 * 4000
    assert one.id == "llama/inf2@2026-11-01"
    with pytest.raises(AssertionError):
        one.of(1, 2, 0)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))))
def test_work_can_be_added_up(calls: list[tuple[int, int, int]]) -> None:
    one = weights()
    whole = [(fresh + cached, cached, completion) for fresh, cached, completion in calls]
    sums = [sum(column) for column in zip(*whole, strict=True)] or [0, 0, 0]
    assert one.of(*sums) == sum(one.of(*call) for call in whole)


def test_the_type_goes_before_the_family_and_both_before_the_default() -> None:
    of_type, of_family = weights("inf2.48xlarge", prompt=2), weights("inf2", prompt=3)
    table = WorkUnitTable([of_family, of_type])
    assert table.at("llama", "inf2.48xlarge", "inf2", NOW_NS) == of_type
    assert table.at("llama", "inf2.xlarge", "inf2", NOW_NS) == of_family
    for default in (
        table.at("llama", None, None, NOW_NS),
        table.at("qwen", "inf2.48xlarge", "inf2", NOW_NS),
        WorkUnitTable().at("llama", "inf2.48xlarge", "inf2", NOW_NS),
    ):
        assert (default.prompt, default.cached_prompt, default.completion) == (1000, 100, 4000)
        assert (default.per_hour, default.source) == (None, "default")


def test_later_weights_change_nothing_before_them() -> None:
    november, december = weights(prompt=2), weights(date="2026-12-01", prompt=3)
    table = WorkUnitTable([december, november])
    change_ns = parse_instant("2026-12-01")
    found = [table.at("llama", None, "inf2", at_ns).prompt for at_ns in (0, NOW_NS, change_ns - 1, change_ns)]
    assert found == [1000, 2, 2, 3]
