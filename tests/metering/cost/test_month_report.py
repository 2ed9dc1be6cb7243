"""A month's waterfalls and a tenant's month."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.cost import month_report
from metering.cost.amounts import Amounts, Summary
from metering.cost.close_manifest import PoolTime
from metering.cost.close_row import RowKind
from metering.cost.month_report import Effect, effect
from tests.support import closed

costs = st.integers(min_value=0, max_value=10**15)
units = st.integers(min_value=0, max_value=10**12)


@given(costs, units, costs, units)
def test_usage_and_price_explain_all_of_a_difference(before: int, of: int, now: int, by: int) -> None:
    found = effect(cost_before=before, units_before=of, cost=now, units=by)
    assert before + found.usage + found.price == now


@given(costs, st.integers(min_value=1, max_value=10**9), st.integers(min_value=1, max_value=50))
def test_more_use_at_the_same_price_is_usage_alone(price: int, of: int, more: int) -> None:
    found = effect(cost_before=price * of, units_before=of, cost=price * of * more, units=of * more)
    assert found == Effect(price * of * (more - 1), 0)


@given(costs, costs, st.integers(min_value=1, max_value=10**9))
def test_another_price_for_the_same_use_is_price_alone(before: int, now: int, of: int) -> None:
    assert effect(cost_before=before, units_before=of, cost=now, units=of) == Effect(0, now - before)


@pytest.mark.parametrize(("of", "by"), [(0, 5), (5, 0), (0, 0)])
def test_what_is_new_or_gone_is_usage(of: int, by: int) -> None:
    assert effect(cost_before=100, units_before=of, cost=30, units=by) == Effect(-70, 0)


def test_a_half_is_rounded_up_on_either_side() -> None:
    assert effect(cost_before=1, units_before=2, cost=1, units=3) == Effect(1, -1)
    assert effect(cost_before=1, units_before=2, cost=1, units=1) == Effect(-1, 1)


def _sums() -> list[Summary]:
    used = Amounts(
        allocated_pusd=30, estimated_pusd=20, calls=2, prompt_tokens=5, completion_tokens=6, unpriced_calls=1
    )
    return [
        Summary(RowKind.TENANT, ("llama",), used),
        Summary(RowKind.IDLE, ("llama",), Amounts(allocated_pusd=50, unpriced_micro_hours=7)),
        Summary(RowKind.OVERHEAD, ("llama",), Amounts(allocated_pusd=5)),
        Summary(RowKind.STRANDED, (None,), Amounts(allocated_pusd=900)),
        Summary(RowKind.IDLE, ("qwen",), Amounts(allocated_pusd=100)),
        Summary(RowKind.SHARED_COST, (None,), Amounts(allocated_pusd=1_000)),
    ]


def test_a_waterfall_goes_from_what_was_billed_to_what_came_in() -> None:
    time = PoolTime(owned_ns=10, busy_ns=5, slots_ns=100, slot_ns=25)
    manifests = [closed.manifest([], hour=hour, pools={"llama": time}) for hour in (1, 2)]
    qwen, llama, nobody = month_report.waterfalls(_sums(), manifests)
    assert (qwen.pool, llama.pool, nobody.pool) == ("qwen", "llama", None)
    assert (llama.billed, llama.tenants, llama.recovered, llama.under_recovery) == (85, 30, 20, 65)
    assert llama.billed - sum(llama.rest.values()) == llama.tenants
    assert (llama.rest[RowKind.IDLE], llama.rest[RowKind.OVERHEAD]) == (50, 5)
    assert (llama.calls, llama.tokens, llama.unpriced_calls, llama.unpriced_micro_hours) == (2, 11, 1, 7)
    assert llama.ratios is not None
    assert (llama.ratios.used, llama.ratios.busy, llama.ratios.capacity) == (250_000, 500_000, None)
    assert (nobody.billed, nobody.ratios) == (900, None)  # a shared cost is no instance's


def test_a_tenants_lines_are_weighed_by_work_where_both_months_have_it() -> None:
    def one(key: tuple[str | None, ...], **amounts: int) -> Summary:
        return Summary(RowKind.TENANT, key, Amounts(**amounts))

    now = [
        one(("llama", "inf2"), allocated_pusd=300, estimated_pusd=100, work_units=30, prompt_tokens=1),
        one(("llama", "g6e"), allocated_pusd=50, prompt_tokens=10),
        Summary(RowKind.IDLE, ("llama", "inf2"), Amounts(allocated_pusd=9)),
    ]
    before = [
        one(("llama", "inf2"), allocated_pusd=100, estimated_pusd=50, work_units=10, prompt_tokens=9),
        one(("llama", "trn1"), allocated_pusd=7, prompt_tokens=3),
    ]
    lines = month_report.tenant_lines(now, before)
    assert [(line.model, line.hardware) for line in lines] == [
        ("llama", "inf2"),
        ("llama", "g6e"),
        ("llama", "trn1"),
    ]
    assert [line.allocated for line in lines] == [Effect(200, 0), Effect(50, 0), Effect(-7, 0)]
    assert lines[0].estimated == Effect(100, -50)
    assert month_report.sum_of_effects(line.allocated for line in lines) == Effect(243, 0)


def test_a_price_per_token_or_call_is_unknown_without_any() -> None:
    assert month_report.per_mtok(5, 0) is None
    assert month_report.per_call(5, 0) is None
    assert month_report.per_mtok(3, 2) == 1_500_000
    assert month_report.per_call(-3, 2) == -2
