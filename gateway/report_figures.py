"""Sums of closed hours as JSON: of `weighbridge report --json` and of /finance/v1. Pure.

Money is a decimal string in USD with 12 places, hours have 6, seconds 9; counts are integers.
"""

from collections.abc import Sequence
from typing import Any

from metering.cost.amounts import Amounts, Summary
from metering.cost.month_report import Effect, Line, Waterfall
from metering.export.cells import millionths, seconds, usd

Json = dict[str, Any]


def amounts(one: Amounts) -> Json:
    """Of some rows."""
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
        "list_usd": usd(one.list_pusd),
        "allocated_usd": usd(one.allocated_pusd),
        "shared_usd": usd(one.shared_pusd),
        "estimated_usd": usd(one.estimated_pusd),
    }


def summary(by: Sequence[str], one: Summary) -> Json:
    """by: names of its dimensions."""
    return dict(zip(by, one.key, strict=True)) | {"kind": one.kind.value} | amounts(one.amounts)


def waterfall(one: Waterfall) -> Json:
    """Of a pool."""
    return {
        "pool": one.pool,
        "billed_usd": usd(one.billed),
        "rest_usd": {kind.value: usd(amount) for kind, amount in one.rest.items()},
        "tenants_usd": usd(one.tenants),
        "recovered_usd": usd(one.recovered),
        "under_recovery_usd": usd(one.under_recovery),
        "calls": one.calls,
        "tokens": one.tokens,
        "unpriced_micro_hours": one.unpriced_micro_hours,
        "unpriced_calls": one.unpriced_calls,
        "ratios_ppm": one.ratios,
    }


def line(one: Line) -> Json:
    """Of a tenant's month."""
    return {
        "model": one.model,
        "family": one.hardware,
        "now": amounts(one.now),
        "before": amounts(one.before),
        "effects_usd": {"estimated": _effect(one.estimated), "allocated": _effect(one.allocated)},
    }


def _effect(one: Effect) -> Json:
    return {"usage": usd(one.usage), "price": usd(one.price)}
