"""Sums of closed hours as JSON: of `weighbridge report --json` and of /finance/v1. Pure.

Money is a decimal string in USD with 12 places, hours have 6, seconds 9; counts are integers. A sum of which
nothing has a price is null: it is not known, which is not 0.
"""

from collections.abc import Sequence
from typing import Any

from metering.cost.amounts import Amounts, Summary
from metering.cost.month_report import Effect, Line, Waterfall
from metering.export.cells import millionths, seconds, usd

Json = dict[str, Any]


def amounts(one: Amounts) -> Json:
    """Of some rows."""
    is_priced = one.cost_pusd is not None
    return {
        "calls": one.calls,
        "unpriced_calls": one.unpriced_calls,
        "prompt_tokens": one.prompt_tokens,
        "cached_prompt_tokens": one.cached_prompt_tokens,
        "completion_tokens": one.completion_tokens,
        "work_units": one.work_units,
        "slot_seconds": seconds(one.slot_ns),
        "hours": millionths(one.micro_hours),
        "unpriced_hours": millionths(one.unpriced_micro_hours),
        "unlisted_hours": millionths(one.unlisted_micro_hours),
        "list_usd": _usd(one.list_cost_pusd),
        "allocated_usd": _usd(one.cost_pusd),
        "shared_usd": _usd(one.shared_pusd if is_priced else None),
        "estimated_usd": _usd(one.estimate_pusd),
    }


def summary(by: Sequence[str], one: Summary) -> Json:
    """by: names of its dimensions."""
    return dict(zip(by, one.key, strict=True)) | {"kind": one.kind.value} | amounts(one.amounts)


def waterfall(one: Waterfall) -> Json:
    """Of a pool."""
    is_priced = not one.unpriced_micro_hours or bool(one.billed)
    is_estimated = not one.calls or one.unpriced_calls < one.calls
    return {
        "pool": one.pool,
        "billed_usd": _usd(one.billed if is_priced else None),
        "rest_usd": {kind.value: _usd(amount if is_priced else None) for kind, amount in one.rest.items()},
        "tenants_usd": _usd(one.tenants if is_priced else None),
        "recovered_usd": _usd(one.recovered if is_estimated else None),
        "under_recovery_usd": _usd(one.under_recovery if is_priced and is_estimated else None),
        "calls": one.calls,
        "tokens": one.tokens,
        "unpriced_micro_hours": one.unpriced_micro_hours,
        "unpriced_calls": one.unpriced_calls,
        "ratios_ppm": one.ratios,
    }


def line(one: Line) -> Json:
    """Of a tenant's month. Why a charge differs is known where both charges are."""
    both = (one.now, one.before)
    is_estimated = all(each.estimate_pusd is not None for each in both)
    is_priced = all(each.cost_pusd is not None for each in both)
    return {
        "model": one.model,
        "family": one.hardware,
        "now": amounts(one.now),
        "before": amounts(one.before),
        "effects_usd": {
            "estimated": _effect(one.estimated) if is_estimated else None,
            "allocated": _effect(one.allocated) if is_priced else None,
        },
    }


def _usd(pusd: int | None) -> str | None:
    return None if pusd is None else usd(pusd)


def _effect(one: Effect) -> Json:
    return {"usage": usd(one.usage), "price": usd(one.price)}
