"""The laws of FOCUS files, each broken on purpose: a test must fail then."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from metering.cost.charge_terms import Charged
from metering.cost.close_row import CloseRow
from metering.export.export_parts import Part
from metering.export.focus import chargeback, split
from metering.export.focus.charge import Charge
from tests.metering.export import test_focus_files_of_ours as laws

SEEDS = range(12)


def both(seed: int) -> None:
    for by in Charged:
        laws.test_both_files_add_up_to_the_close_by_hour_and_pool.hypothesis.inner_test(seed, by)


def tenants(seed: int) -> None:
    laws.test_a_tenant_is_charged_what_its_calls_were_estimated_at.hypothesis.inner_test(seed)


def corrections(seed: int) -> None:
    laws.test_what_is_taken_back_and_put_again_adds_up_to_nothing.hypothesis.inner_test(
        seed, Charged.RATE_CARD
    )


def columns(seed: int) -> None:
    laws.test_the_tenant_is_in_the_allocated_columns_of_the_split.hypothesis.inner_test(seed)


def amounts(seed: int) -> None:
    laws.test_amounts_stand_once_in_each_file.hypothesis.inner_test(seed)


def by_kinds(seed: int) -> None:
    laws.test_what_the_card_explains_stands_by_kinds_of_tokens.hypothesis.inner_test(seed)


def twice_cached(row: CloseRow) -> CloseRow:
    return msgspec.structs.replace(row, prompt_tokens=row.prompt_tokens + row.cached_prompt_tokens)


def each_rounded(quantity: int, weights: dict[int, int]) -> dict[int, int]:
    """Each part by itself, as a spreadsheet does it."""
    total = sum(weights.values())
    return {key: round(quantity * weight / total) for key, weight in weights.items()}


def changed(**fields: Any) -> Callable[[Callable[..., Charge]], Callable[..., Charge]]:
    """A maker of charges whose charges have these fields, each by a function of the charge."""

    def wrap(make: Callable[..., Charge]) -> Callable[..., Charge]:
        def made(*args: Any) -> Charge:
            charge = make(*args)
            return msgspec.structs.replace(charge, **{name: get(charge) for name, get in fields.items()})

        return made

    return wrap


def rounded_cents(charge: Charge) -> int:
    return charge.list_ausd // 10**16 * 10**16


def no_rounding(*_: object) -> Iterator[Charge]:
    return iter(())


MUTANTS: dict[str, tuple[Callable[[int], None], object, str, Callable[[Any], Any]]] = {
    "ratios are rounded one by one": (both, split, "split", lambda _: each_rounded),
    "list costs are rounded to cents": (both, split, "_charge", changed(list_ausd=rounded_cents)),
    "billed costs are rounded to cents": (both, split, "_charge", changed(cost_ausd=rounded_cents)),
    "rows that nobody used are left out": (
        both, split, "_of_instance",
        lambda make: lambda rows, part: (one for one in make(rows, part) if one.of.tenant is not None),
    ),
    "under-recovery is never negative": (
        both, chargeback, "_under_recovery",
        changed(cost_ausd=lambda one: abs(one.cost_ausd), list_ausd=lambda one: abs(one.list_ausd)),
    ),
    "shared costs are nobody's": (tenants, chargeback, "_shared_cost", lambda _: no_rounding),
    "cached tokens are paid twice": (
        by_kinds, chargeback, "_kinds",
        lambda kinds: lambda row, card: kinds(twice_cached(row), card),
    ),
    "the rounding of calls is dropped": (
        tenants, chargeback, "_rounding",
        lambda rounding: lambda row, part, _rest: rounding(row, part, 0),
    ),
    "amounts stand with each kind of tokens": (
        amounts, chargeback, "_charge",
        lambda make: lambda row, part, priced, consumed, _amounts, *cost: make(row, part, priced, consumed, row, *cost),
    ),
    "what is taken back counts": (corrections, Part, "sign", lambda _: property(lambda part: 1)),
    "a correction is billed in its own month": (
        corrections, Part, "billed_in", lambda _: property(lambda part: "2026-01"),
    ),
    "the tenant is a dimension of the origin": (columns, split, "_charge", changed(tags=lambda charge: charge.of.tags)),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_law_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    law, where, what, broken = MUTANTS[name]
    for seed in SEEDS:
        law(seed)
    monkeypatch.setattr(where, what, broken(getattr(where, what)))
    seen = 0
    for seed in SEEDS:
        try:
            law(seed)
        except AssertionError:
            seen += 1
    assert seen
