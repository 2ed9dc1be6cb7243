"""Both FOCUS files of random fleets: they pass our check, and the sums that stand in their cells are the close's."""

import collections
import fractions
import json
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metering.cost.charge_terms import Charged
from metering.cost.close_row import CloseRow, RowKind
from metering.cost.pricing import RateCard
from metering.export.export_parts import Correction, ExportRow, Part
from metering.export.focus import chargeback, split, table
from metering.export.focus.charge import Charge
from metering.export.focus.check import check
from metering.export.focus.columns import Version
from tests.support import closed, closed_fleet
from tests.support.closed_fleet import Hour

PUSD = fractions.Fraction(1, 10**12)
Cells = dict[str, str | None]


def export_rows(hours: list[Hour]) -> Iterator[ExportRow]:
    for hour in hours:
        part = Part(hour.manifest)
        yield from (ExportRow(row, part) for row in hour.rows)


def corrected(hours: list[Hour]) -> Iterator[ExportRow]:
    """Every hour was closed with the first half of its rows, and a month later put right."""
    made_ns = (hours[0].manifest.hour + 24 * 40) * 3_600 * 10**9
    for hour in hours:
        for correction in Correction:
            part = Part(hour.manifest, correction, made_ns)
            yield from (ExportRow(row, part) for row in hour.rows)


def written(charges: Iterator[Charge], *, is_split: bool, version: Version | None = None) -> list[Cells]:
    """The file as a reader has it; it passes the check."""
    columns = table.header(version, is_split=is_split)
    rows = [table.row(charge, columns, table.Issuer()) for charge in charges]
    assert list(check(columns, enumerate(rows, 2), version)) == []
    return [dict(zip(columns, row, strict=True)) for row in rows]


def card_of(cards: dict[str, RateCard]) -> chargeback.CardOf:
    return lambda row: cards.get(row.instance_family or "")


def sums(rows: list[Cells], *by: str) -> dict[tuple[str | None, ...], fractions.Fraction]:
    found: dict[tuple[str | None, ...], fractions.Fraction] = collections.defaultdict(fractions.Fraction)
    for row in rows:
        found[tuple(row[column] for column in by)] += fractions.Fraction(row["EffectiveCost"])
    return {key: amount for key, amount in found.items() if amount}


def closed_sums(hours: list[Hour]) -> dict[tuple[str | None, ...], fractions.Fraction]:
    found: dict[tuple[str | None, ...], fractions.Fraction] = collections.defaultdict(fractions.Fraction)
    for hour in hours:
        for row in hour.rows:
            cost = (row.allocated_pusd or 0) + (row.shared_pusd or 0)
            found[table.moment(row.hour), row.pool] += cost * PUSD
    return {key: amount for key, amount in found.items() if amount}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from(Charged))
def test_both_files_add_up_to_the_close_by_hour_and_pool(seed: int, by: Charged) -> None:
    rng = random.Random(seed)
    cards = closed_fleet.cards(rng)
    hours = closed_fleet.hours(rng, cards)
    in_split = written(split.charges(export_rows(hours)), is_split=True)
    in_chargeback = written(chargeback.charges(export_rows(hours), by, card_of(cards)), is_split=False)
    wanted = closed_sums(hours)
    assert sums(in_split, "ChargePeriodStart", "x_Pool") == wanted
    assert sums(in_chargeback, "ChargePeriodStart", "x_Pool") == wanted


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 32))
def test_a_tenant_is_charged_what_its_calls_were_estimated_at(seed: int) -> None:
    rng = random.Random(seed)
    cards = closed_fleet.cards(rng)
    hours = closed_fleet.hours(rng, cards)
    charged = sums(
        written(chargeback.charges(export_rows(hours), Charged.RATE_CARD, card_of(cards)), is_split=False),
        "ChargePeriodStart", "SubAccountId",
    )  # fmt: skip
    wanted: dict[tuple[str | None, ...], fractions.Fraction] = collections.defaultdict(fractions.Fraction)
    for hour in hours:
        for row in hour.rows:
            shared = row.allocated_pusd or 0 if row.kind is RowKind.SHARED_COST else 0
            wanted[table.moment(row.hour), row.tenant] += (row.estimated_pusd + shared) * PUSD
    assert {key: n for key, n in charged.items() if key[1]} == {
        key: n for key, n in wanted.items() if n and key[1]
    }


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 32))
def test_amounts_stand_once_in_each_file(seed: int) -> None:
    """Calls and tokens of the x_ columns can be summed; so can the tokens that were consumed."""
    rng = random.Random(seed)
    cards = closed_fleet.cards(rng)
    hours = closed_fleet.hours(rng, cards)
    rows = written(chargeback.charges(export_rows(hours), Charged.RATE_CARD, card_of(cards)), is_split=False)
    charged = [row for hour in hours for row in hour.rows if row.estimated_pusd]
    assert sum(int(row["x_Calls"] or 0) for row in rows) == sum(row.calls for row in charged)
    tokens = sum(row.prompt_tokens + row.completion_tokens for row in charged)
    consumed = sum(
        fractions.Fraction(row["ConsumedQuantity"]) for row in rows if row["ConsumedUnit"] == "Tokens"
    )
    assert consumed == tokens


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from(Charged))
def test_what_is_taken_back_and_put_again_adds_up_to_nothing(seed: int, by: Charged) -> None:
    rng = random.Random(seed)
    cards = closed_fleet.cards(rng)
    hours = closed_fleet.hours(rng, cards)
    in_split = written(split.charges(corrected(hours)), is_split=True)
    in_chargeback = written(chargeback.charges(corrected(hours), by, card_of(cards)), is_split=False)
    for rows in (in_split, in_chargeback):
        assert sums(rows, "ChargePeriodStart", "x_Pool") == {}
        assert {row["ChargeClass"] for row in rows} <= {"Correction"}
        assert {row["BillingPeriodStart"] for row in rows} <= {"2026-02-01T00:00:00Z"}
        assert {row["ChargePeriodStart"] for row in rows} <= {"2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"}


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 32))
def test_the_tenant_is_in_the_allocated_columns_of_the_split(seed: int) -> None:
    rng = random.Random(seed)
    hours = closed_fleet.hours(rng, {})
    rows = written(split.charges(export_rows(hours)), is_split=True)
    for row in rows:
        is_tenants = row["x_Kind"] == RowKind.TENANT
        assert (row["AllocatedResourceId"] is not None) == is_tenants or row["x_Kind"] == RowKind.SHARED_COST
        assert row["Tags"] is None
    told = sorted(row["AllocatedTags"] for row in rows if row["AllocatedTags"])
    made = [row.tags for hour in hours for row in hour.rows if row.tags and row.instance_id]
    assert [json.loads(one) for one in told] == sorted(
        made, key=lambda tags: json.dumps(tags, separators=(",", ":"))
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 32))
def test_what_the_card_explains_stands_by_kinds_of_tokens(seed: int) -> None:
    rng = random.Random(seed)
    cards = closed_fleet.cards(rng)
    hours = closed_fleet.hours(rng, cards)
    for one in export_rows(hours):
        row, card = one.row, cards.get(one.row.instance_family or "")
        if card is None or not row.estimated_pusd:
            continue
        uncached = row.prompt_tokens - row.cached_prompt_tokens
        amounts = (
            (uncached, card.prompt),
            (row.cached_prompt_tokens, card.cached_prompt),
            (row.completion_tokens, card.completion),
        )
        exact = sum(fractions.Fraction(tokens * price, 10**6) for tokens, price in amounts)
        explained = any(
            abs(row.estimated_pusd - exact - requests * card.per_request) <= fractions.Fraction(row.calls, 2)
            for requests in range(row.calls + 1)
        )
        found = list(chargeback.charges([one], Charged.RATE_CARD, card_of(cards)))
        skus = [charge.priced.sku for charge in found if charge.priced]
        assert (f"llama/{row.instance_family}/calls" in skus) == (not explained)
        if explained:
            consumed = {
                charge.priced.sku.rpartition("/")[2]: charge.priced.quantity.micro
                for charge in found
                if charge.priced
            }
            assert consumed.get("completion", 0) == row.completion_tokens
            assert consumed.get("cached-prompt", 0) == row.cached_prompt_tokens


@pytest.mark.parametrize(
    ("method", "unit", "usage"), [("slot-time", "Slot-Seconds", 5), ("capacity", "Work-Units", 7 * 10**9)]
)
def test_what_a_tenants_part_was_measured_by(method: str, unit: str, usage: int) -> None:
    row = closed.row(
        kind=RowKind.TENANT, tenant="acme", micro_hours=5, slot_ns=5, work_units=7, method=method
    )
    (charge,) = split.charges([ExportRow(row, Part(closed.manifest([], method="capacity")))])
    assert charge.allocation is not None
    assert (charge.allocation.usage_unit, charge.allocation.usage) == (unit, usage)
    assert (charge.allocation.method, charge.allocation.row_method) == ("weighbridge-capacity", method)


def test_hours_that_only_a_bill_prices_are_adjustments() -> None:
    row = closed.row(
        kind=RowKind.TENANT,
        tenant="acme",
        instance_type=None,
        uusd_per_hour=None,
        micro_hours=10**6,
        allocated_pusd=7,
    )
    rows = [ExportRow(row, Part(closed.manifest([row])))]
    for charges in (split.charges(rows), chargeback.charges(rows, Charged.ALLOCATED, card_of({}))):
        found = list(charges)
        assert [(one.category, one.priced, one.cost_ausd) for one in found[:1]] == [
            ("Adjustment", None, 7_000_000)
        ]
    written(split.charges(rows), is_split=True)
    written(chargeback.charges(rows, Charged.ALLOCATED, card_of({})), is_split=False)


def test_a_shared_cost_of_nothing_is_no_charge() -> None:
    row = closed.row(
        kind=RowKind.SHARED_COST, tenant="acme", instance_id=None, uusd_per_hour=None, allocated_pusd=0
    )
    rows = [ExportRow(row, Part(closed.manifest([row])))]
    assert [one.tenant for one in chargeback.charges(rows, Charged.RATE_CARD, card_of({}))] == [None]


def test_the_card_in_force_at_the_hours_beginning_is_taken() -> None:
    def card(hardware: str, date: str) -> RateCard:
        return RateCard(
            model="llama",
            hardware=hardware,
            prompt=1,
            cached_prompt=1,
            completion=1,
            date=date,
            source="ours",
        )

    family, later, of_type = (
        card("inf2", "2025-12-01"),
        card("inf2", "2026-01-02"),
        card("inf2.48xlarge", "2026-01-03"),
    )
    find = chargeback.cards_in_force([of_type, later, family])
    assert [find(closed.row(closed.HOUR + 24 * days)) for days in (-60, 0, 1, 2)] == [
        None,
        family,
        later,
        of_type,
    ]
    assert find(closed.row(instance_type=None, instance_family=None, uusd_per_hour=None)) is None


def test_each_version_has_its_columns() -> None:
    rng = random.Random(7)
    cards = closed_fleet.cards(rng)
    hours = closed_fleet.hours(rng, cards, count=4)
    for version in Version:
        written(
            chargeback.charges(export_rows(hours), Charged.RATE_CARD, card_of(cards)),
            is_split=False,
            version=version,
        )
    for version in (Version.V1_3, Version.V1_4):
        written(split.charges(export_rows(hours)), is_split=True, version=version)
    with pytest.raises(ValueError, match=r"FOCUS 1\.2 has no split charges"):
        table.header(Version.V1_2, is_split=True)
    assert "ProviderName" not in table.header(Version.V1_4, is_split=True)
    assert "ServiceProviderName" not in table.header(Version.V1_2, is_split=False)


def test_what_has_no_price_is_left_out_and_nothing_is_said_of_its_pool() -> None:
    row = CloseRow(
        hour=1, kind=RowKind.IDLE, pool="llama", instance_id="i-1", micro_hours=5, method="slot-time"
    )
    hours = [Hour(closed_fleet.hours(random.Random(1), {})[0].manifest, [row])]
    assert list(split.charges(export_rows(hours))) == []
    assert list(chargeback.charges(export_rows(hours), Charged.ALLOCATED, card_of({}))) == []
