"""Cards from measurement: that sales at the target utilisation pay for the instance, and no sale counts twice."""

import fractions

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.cost.close_row import RowKind
from metering.cost.rate_review import propose, yields
from metering.cost.work_units import WorkUnits
from metering.units import PICO_USD_PER_MICRO_USD
from tests.support.closed import HOUR, row

WEIGHTS = WorkUnits(date="2026-11-01", hardware="inf2", model="llama", source="test")
HOURLY = 12_981_270


def test_the_readmes_rates_are_those_of_the_benchmark_at_full_load() -> None:
    """1,226.12 completion tokens a second on an inf2.48xlarge, six of the prompt for each."""
    completion = fractions.Fraction("1226.12") * 3600
    per_hour = completion * 6 * 1000 + completion * 4000
    card = propose(HOURLY, per_hour, WEIGHTS, fractions.Fraction(1))
    assert [round(price / 10**12, 4) for price in (card.prompt, card.cached_prompt, card.completion)] == [
        0.2941,
        0.0294,
        1.1764,
    ]


@given(
    st.integers(1, 10**9),
    st.integers(10**6, 10**9),
    st.integers(0, 10**8),
    st.integers(1, 100),
)
def test_what_is_sold_at_the_target_pays_for_the_instance(
    uusd: int, prompt_per_hour: int, completion_per_hour: int, percent: int
) -> None:
    per_hour = fractions.Fraction(WEIGHTS.of(prompt_per_hour, 0, completion_per_hour))
    utilisation = fractions.Fraction(percent, 100)
    card = propose(uusd, per_hour, WEIGHTS, utilisation)
    sold = (
        fractions.Fraction(prompt_per_hour * card.prompt + completion_per_hour * card.completion, 10**6)
        * utilisation
    )
    cost = uusd * PICO_USD_PER_MICRO_USD
    rounding = fractions.Fraction(
        prompt_per_hour + completion_per_hour, 2
    )  # half a micro-dollar per 1M tokens
    assert abs(sold - cost) <= rounding


@pytest.mark.parametrize(("per_hour", "utilisation"), [(0, 1), (1, 0), (1, 2)])
def test_nonsense_is_our_own_mistake(per_hour: int, utilisation: int) -> None:
    with pytest.raises(AssertionError):
        propose(1, fractions.Fraction(per_hour), WEIGHTS, fractions.Fraction(utilisation))


def test_a_month_yields_what_its_tenants_used() -> None:
    tenant = {"kind": RowKind.TENANT, "tenant": "acme", "model": "llama", "operation": "chat"}
    of = {"pool": "llama", "instance_type": "inf2.48xlarge"}
    first = {"micro_hours": 250_000, "calls": 2, "prompt_tokens": 100, "cached_prompt_tokens": 40}
    second = {"micro_hours": 250_000, "calls": 1, "prompt_tokens": 60, "completion_tokens": 5}
    rows = [
        row(**of, **tenant, **first, completion_tokens=10),
        row(HOUR + 1, **of, **tenant, **second, simulated=True),
        row(**of, micro_hours=1_500_000),
        row(instance_type="inf2.48xlarge", micro_hours=9, pool=None),
        row(pool="llama", instance_type=None, kind=RowKind.TENANT, tenant="acme", completion_tokens=9),
        row(pool="qwen", instance_type="inf2.48xlarge", kind=RowKind.TENANT, tenant="acme", micro_hours=9),
    ]
    ((key, found),) = yields(rows).items()
    assert key == ("llama", "inf2.48xlarge")
    assert (found.calls, found.micro_hours, found.paid_micro_hours) == (3, 500_000, 2_000_000)
    work = 120 * 1000 + 40 * 100 + 15 * 4000
    assert found.per_hour(WEIGHTS) == 2 * work
    assert found.simulated
    assert found.newest.hour == HOUR + 1
