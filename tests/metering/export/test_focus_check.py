"""The check of FOCUS files: two samples pass, and every planted fault is found by its rule, line and column."""

import csv
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import pytest

from metering.export.focus import file_rules, values
from metering.export.focus.check import check
from metering.export.focus.columns import Version
from metering.export.focus.record import Finding
from metering.export.focus.row_rules import RULES

DATA = pathlib.Path(__file__).parent.parent.parent / "data" / "focus"
SAMPLES = {"1.2": "sample-1.2.csv", "split": "sample-1.4-split.csv"}


class Sheet(NamedTuple):
    """A file as a table. Cells are text; empty is null."""

    header: list[str]
    rows: list[list[str]]

    def at(self, row: int, column: str) -> str:
        return self.rows[row][self.header.index(column)]

    def put(self, row: int, column: str, value: str) -> None:
        self.rows[row][self.header.index(column)] = value

    def put_all(self, column: str, value: str) -> None:
        for row in range(len(self.rows)):
            self.put(row, column, value)

    def drop(self, column: str) -> None:
        at = self.header.index(column)
        for cells in (self.header, *self.rows):
            del cells[at]

    def findings(self, version: Version | None = None) -> list[Finding]:
        rows = ((n, [cell or None for cell in cells]) for n, cells in enumerate(self.rows, 2))
        return list(check(self.header, rows, version))


def sheet(name: str) -> Sheet:
    with open(DATA / SAMPLES[name], newline="") as file:
        header, *rows = csv.reader(file)
    return Sheet(header, rows)


def put(row: int, **cells: str) -> Callable[[Sheet], None]:
    def edit(of: Sheet) -> None:
        for column, value in cells.items():
            of.put(row, column, value)

    return edit


def put_all(**cells: str) -> Callable[[Sheet], None]:
    def edit(of: Sheet) -> None:
        for column, value in cells.items():
            of.put_all(column, value)

    return edit


def drop(column: str) -> Callable[[Sheet], None]:
    return lambda of: of.drop(column)


def rename(column: str, name: str) -> Callable[[Sheet], None]:
    def edit(of: Sheet) -> None:
        of.header[of.header.index(column)] = name

    return edit


def swap(one: str, other: str) -> Callable[[Sheet], None]:
    def edit(of: Sheet) -> None:
        a, b = of.header.index(one), of.header.index(other)
        for cells in (of.header, *of.rows):
            cells[a], cells[b] = cells[b], cells[a]

    return edit


def details(ratio: str = "0.437120001", **more: str) -> str:
    element = ", ".join([f'"AllocatedRatio": {ratio}', *(f'"{key}": {value}' for key, value in more.items())])
    return f'{{"Elements": [{{{element}}}]}}'


TAX = {
    "ChargeCategory": "Tax",
    "ConsumedQuantity": "",
    "ConsumedUnit": "",
    "PricingQuantity": "",
    "PricingUnit": "",
}

# What is done to which sample, and the rule and column that tell of it.
FAULTS: dict[str, tuple[str, Callable[[Sheet], object], str, str | None]] = {
    # header
    "a column of nobody's": ("1.2", rename("x_Model", "Model"), "column-name", "Model"),
    "a custom column in lower case": ("1.2", rename("x_Model", "x_model"), "column-name", "x_model"),
    "a column twice": ("1.2", rename("x_Model", "x_Ledger"), "column-name", "x_Ledger"),
    "a column of a later version": (
        "1.2",
        rename("x_AllocationMethodId", "AllocatedMethodId"),
        "column-version",
        "AllocatedMethodId",
    ),
    "a mandatory column left out": ("1.2", drop("BilledCost"), "column-missing", "BilledCost"),
    "1.4 without who provides": (
        "split",
        drop("ServiceProviderName"),
        "column-missing",
        "ServiceProviderName",
    ),
    "a quantity without its unit's column": ("1.2", drop("ConsumedUnit"), "column-missing", "ConsumedUnit"),
    "a region without the names' column": ("1.2", drop("RegionName"), "column-missing", "RegionName"),
    "a SKU without its meter's column": ("1.2", drop("SkuMeter"), "column-missing", "SkuMeter"),
    "columns out of order": ("1.2", swap("ChargeClass", "Tags"), "column-order", "Tags"),
    "a custom column among FOCUS's": ("1.2", swap("Tags", "x_Model"), "column-order", "x_Model"),
    # cells
    "a cell too few": ("1.2", lambda of: of.rows[1].pop(), "cells", None),
    "no cost": ("1.2", put(0, BilledCost=""), "mandatory", "BilledCost"),
    "no account": ("1.2", put(1, BillingAccountId=""), "mandatory", "BillingAccountId"),
    "no subcategory": ("1.2", put(1, ServiceSubcategory=""), "mandatory", "ServiceSubcategory"),
    "a word for nothing": (
        "1.2",
        put(1, SubAccountId="N/A", SubAccountName="N/A"),
        "placeholder",
        "SubAccountId",
    ),
    "blanks for nothing": ("1.2", put(1, ChargeDescription="  "), "placeholder", "ChargeDescription"),
    "NULL in words": ("1.2", put(0, ChargeClass="NULL"), "placeholder", "ChargeClass"),
    "a plus sign": ("1.2", put(0, ListCost="+0.4291207049817"), "number", "ListCost"),
    "a decimal comma": ("1.2", put(0, ListCost="0,43"), "number", "ListCost"),
    "thousands": ("1.2", put(0, ConsumedQuantity="1,200,345"), "number", "ConsumedQuantity"),
    "a currency sign": ("1.2", put(0, ListUnitPrice="$0.9817"), "number", "ListUnitPrice"),
    "a fraction": ("1.2", put(0, PricingQuantity="1/2"), "number", "PricingQuantity"),
    "a small e": ("1.2", put(0, PricingQuantity="4.37e-1"), "number", "PricingQuantity"),
    "no number": ("1.2", put(0, EffectiveCost="NaN"), "number", "EffectiveCost"),
    "an offset for Z": (
        "1.2",
        put(0, ChargePeriodEnd="2026-11-26T11:00:00+00:00"),
        "moment",
        "ChargePeriodEnd",
    ),
    "a date alone": ("1.2", put(0, BillingPeriodStart="2026-11-01"), "moment", "BillingPeriodStart"),
    "a day that is none": (
        "1.2",
        put(0, BillingPeriodEnd="2026-11-31T00:00:00Z"),
        "moment",
        "BillingPeriodEnd",
    ),
    "milliseconds": (
        "1.2",
        put(0, ChargePeriodStart="2026-11-26T10:00:00.000Z"),
        "moment",
        "ChargePeriodStart",
    ),
    "a category of our own": ("1.2", put(0, ChargeCategory="Consumption"), "allowed", "ChargeCategory"),
    "a class of our own": ("1.2", put(0, ChargeClass="Late"), "allowed", "ChargeClass"),
    "one row is hourly": ("1.2", put(0, ChargeFrequency="Hourly"), "allowed", "ChargeFrequency"),
    "an unknown pricing category": ("1.2", put(0, PricingCategory="On-Demand"), "allowed", "PricingCategory"),
    "an unknown service category": ("1.2", put_all(ServiceCategory="AI"), "allowed", "ServiceCategory"),
    "no currency": ("1.2", put_all(BillingCurrency="US$"), "currency", "BillingCurrency"),
    "a unit in lower case": ("1.2", put(0, ConsumedUnit="tokens"), "unit", "ConsumedUnit"),
    "a unit in capitals": ("1.2", put_all(PricingUnit="HOURS"), "unit", "PricingUnit"),
    "a formula": ("1.2", put(0, ChargeDescription="=HYPERLINK(1)"), "formula", "ChargeDescription"),
    "a formula in a custom column": ("1.2", put(0, x_Model="@SUM(A1)"), "formula", "x_Model"),
    "nested tags": ("1.2", put(0, Tags='{"team": {"name": "search"}}'), "tags", "Tags"),
    "a list for tags": ("1.2", put(0, Tags='["search"]'), "tags", "Tags"),
    "a tag twice": ("1.2", put(0, Tags='{"team": "a", "team": "b"}'), "tags", "Tags"),
    "no JSON for tags": ("1.2", put(0, Tags="team=search"), "tags", "Tags"),
    "nested allocated tags": ("split", put(0, AllocatedTags='{"a": ["b"]}'), "tags", "AllocatedTags"),
    "a property of nobody's": (
        "1.2",
        put(0, SkuPriceDetails='{"instanceType": "inf2.8xlarge"}'),
        "sku-details",
        "SkuPriceDetails",
    ),
    "a property of the wrong type": (
        "1.2",
        put(0, SkuPriceDetails='{"InstanceType": 8}'),
        "sku-details",
        "SkuPriceDetails",
    ),
    "no object for properties": ("1.2", put(0, SkuPriceDetails="inf2"), "sku-details", "SkuPriceDetails"),
    # rows
    "consumed what": ("1.2", put(0, ConsumedUnit=""), "together", "ConsumedUnit"),
    "priced what": ("1.2", put(0, PricingUnit=""), "together", "PricingUnit"),
    "a region without a name": ("1.2", put(0, RegionName=""), "together", "RegionName"),
    "a resource without a type": ("1.2", put(0, ResourceType=""), "together", "ResourceType"),
    "a sub-account without a name": ("1.2", put(0, SubAccountName=""), "together", "SubAccountName"),
    "a SKU without a meter": ("1.2", put(0, SkuMeter=""), "together", "SkuMeter"),
    "a name of no resource": ("1.2", put(0, ResourceId="", ResourceType=""), "together", "ResourceName"),
    "a type of no sub-account": ("1.2", put(1, SubAccountType="Tenant"), "together", "SubAccountType"),
    "a name that is the id": ("1.2", put(0, ResourceId="inf2-pool-a-0"), "resource-name", "ResourceName"),
    "usage without a price": ("1.2", put(0, ListUnitPrice=""), "priced", "ListUnitPrice"),
    "usage without a quantity": (
        "1.2",
        put(0, PricingQuantity="", PricingUnit=""),
        "priced",
        "PricingQuantity",
    ),
    "usage without a SKU": ("1.2", put(0, SkuId="", SkuMeter=""), "priced", "SkuId"),
    "usage without a pricing category": ("1.2", put(0, PricingCategory=""), "priced", "PricingCategory"),
    "a tax with a SKU": ("1.2", put(0, **TAX), "priced", "SkuId"),
    "a credit that was consumed": ("1.2", put(0, ChargeCategory="Credit"), "consumed", "ConsumedQuantity"),
    "usage of nothing": ("1.2", put(0, ConsumedQuantity="", ConsumedUnit=""), "consumed", "ConsumedQuantity"),
    "a negative price": ("1.2", put(0, ContractedUnitPrice="-0.9817"), "price-sign", "ContractedUnitPrice"),
    "a list cost that is no product": ("1.2", put(0, ListCost="0.4291207049818"), "product", "ListCost"),
    "a rounded cost": ("1.2", put(0, ContractedCost="0.43"), "product", "ContractedCost"),
    "another quantity": ("1.2", put(0, PricingQuantity="0.437120002"), "product", "ListCost"),
    "an adjustment's list cost": (
        "1.2",
        put(
            1,
            ChargeCategory="Adjustment",
            ConsumedQuantity="",
            ConsumedUnit="",
            ListUnitPrice="",
            ListCost="0.55",
        ),
        "unrelated",
        "ListCost",
    ),
    "a discount out of nowhere": ("1.2", put(0, EffectiveCost="0.4"), "effective", "EffectiveCost"),
    "another effective cost in the same currency": (
        "1.2",
        put(0, PricingCurrencyEffectiveCost="0.4"),
        "pricing-currency",
        "PricingCurrencyEffectiveCost",
    ),
    "another price in the same currency": (
        "1.2",
        put(0, PricingCurrencyListUnitPrice="0.98"),
        "pricing-currency",
        "PricingCurrencyListUnitPrice",
    ),
    "a period of no time": (
        "1.2",
        put(0, ChargePeriodEnd="2026-11-26T10:00:00Z"),
        "periods",
        "ChargePeriodEnd",
    ),
    "a billing period backwards": (
        "1.2",
        put(0, BillingPeriodEnd="2026-10-01T00:00:00Z"),
        "periods",
        "BillingPeriodEnd",
    ),
    "a charge of another month": (
        "1.2",
        put(0, BillingPeriodStart="2026-11-27T00:00:00Z"),
        "billing-period",
        "ChargePeriodStart",
    ),
    "a correction within its month": (
        "1.2",
        put(0, ChargeClass="Correction"),
        "billing-period",
        "ChargePeriodEnd",
    ),
    "a purchase by usage": ("1.2", put(0, ChargeCategory="Purchase"), "frequency", "ChargeFrequency"),
    "a subcategory of another category": (
        "1.2",
        put_all(ServiceSubcategory="Virtual Machines"),
        "subcategory",
        "ServiceSubcategory",
    ),
    "more hours than an hour": ("split", put(0, ConsumedQuantity="1.437120001"), "hours", "ConsumedQuantity"),
    # splits
    "split by no method": ("split", put(0, AllocatedMethodId=""), "allocated-nulls", "AllocatedResourceId"),
    "split in no way": (
        "split",
        put(0, AllocatedMethodDetails=""),
        "allocated-nulls",
        "AllocatedMethodDetails",
    ),
    "tags of nobody": (
        "split",
        put(1, AllocatedTags='{"team": "search"}'),
        "allocated-nulls",
        "AllocatedTags",
    ),
    "no ratio": (
        "split",
        put(0, AllocatedMethodDetails='{"Elements": [{"UsageUnit": "Hours"}]}'),
        "allocated-object",
        "AllocatedMethodDetails",
    ),
    "a ratio above 1": (
        "split",
        put(0, AllocatedMethodDetails=details("1.437120001")),
        "allocated-object",
        "AllocatedMethodDetails",
    ),
    "a ratio in text": (
        "split",
        put(0, AllocatedMethodDetails=details('"0.437120001"')),
        "allocated-object",
        "AllocatedMethodDetails",
    ),
    "a quantity of what": (
        "split",
        put(0, AllocatedMethodDetails=details(UsageQuantity="5")),
        "allocated-object",
        "AllocatedMethodDetails",
    ),
    "a quantity in text": (
        "split",
        put(0, AllocatedMethodDetails=details(UsageUnit='"Hours"', UsageQuantity='"5"')),
        "allocated-object",
        "AllocatedMethodDetails",
    ),
    "a unit of usage in lower case": (
        "split",
        put(0, AllocatedMethodDetails=details(UsageUnit='"hours"')),
        "allocated-object",
        "AllocatedMethodDetails",
    ),
    "a key of nobody's": (
        "split",
        put(0, AllocatedMethodDetails=details(Tokens="5")),
        "allocated-object",
        "AllocatedMethodDetails",
    ),
    "no elements": (
        "split",
        put(0, AllocatedMethodDetails='{"Elements": []}'),
        "allocated-object",
        "AllocatedMethodDetails",
    ),
    "an element that is none": (
        "split",
        put(0, AllocatedMethodDetails='{"Elements": [1]}'),
        "allocated-object",
        "AllocatedMethodDetails",
    ),
    "a list of elements": (
        "split",
        put(0, AllocatedMethodDetails="[]"),
        "allocated-object",
        "AllocatedMethodDetails",
    ),
    "a tag in both columns": ("split", put(0, Tags='{"team": "x"}'), "tags-twice", "AllocatedTags"),
    "a row of the split is lost": ("split", lambda of: of.rows.pop(), "ratios", "AllocatedMethodDetails"),
    "a row of the split is doubled": (
        "split",
        lambda of: of.rows.append(of.rows[0]),
        "ratios",
        "AllocatedMethodDetails",
    ),
    "another ratio": (
        "split",
        put(0, AllocatedMethodDetails=details("0.43712")),
        "ratios",
        "AllocatedMethodDetails",
    ),
    "ratios of other rows": (
        "split",
        lambda of: (
            put(0, AllocatedMethodDetails=details("0.5"))(of),
            put(1, AllocatedMethodDetails=details("0.5"))(of),
        ),
        "shares",
        "AllocatedMethodDetails",
    ),
    "a split over two regions": ("split", put(1, RegionId="us-west-2"), "origin", "RegionId"),
    "a split with two prices": ("split", put(1, ContractedUnitPrice="0.98"), "origin", "ContractedUnitPrice"),
    "a split with two descriptions": (
        "split",
        put(1, ChargeDescription="Unused"),
        "origin",
        "ChargeDescription",
    ),
    "the tenant as sub-account": (
        "split",
        put(0, SubAccountId="acme", SubAccountName="Acme"),
        "origin",
        "SubAccountId",
    ),
    "more than an hour in all": (
        "split",
        put_all(PricingQuantity="0.6", ConsumedQuantity="0.6"),
        "whole",
        "PricingQuantity",
    ),
    # the whole file
    "a SKU price of two SKUs": ("1.2", put(1, SkuId="inf2.xlarge"), "sku-parent", "SkuId"),
    "a SKU price with two sets of details": (
        "1.2",
        put(1, SkuPriceDetails='{"InstanceType": "inf2.xlarge"}'),
        "sku-parent",
        "SkuPriceDetails",
    ),
    "a service in two subcategories": (
        "1.2",
        put(1, ServiceSubcategory="AI Platforms"),
        "service",
        "ServiceSubcategory",
    ),
    "an account of two names": ("1.2", put(1, BillingAccountName="LLM"), "account", "BillingAccountName"),
    "an account in two currencies": ("1.2", put(1, BillingCurrency="EUR"), "account", "BillingCurrency"),
    "an invoice of two months": (
        "1.2",
        put(1, BillingPeriodStart="2026-10-01T00:00:00Z"),
        "invoice",
        "BillingPeriodStart",
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_pass(name: str) -> None:
    assert sheet(name).findings() == []


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_found(name: str) -> None:
    sample, plant, rule, column = FAULTS[name]
    faulty = sheet(sample)
    plant(faulty)
    found = faulty.findings()
    assert (rule, column) in {(finding.rule, finding.column) for finding in found}, found


def test_every_rule_has_a_fault() -> None:
    assert {rule for _, _, rule, _ in FAULTS.values()} == {
        *RULES,
        *file_rules.HEADER_RULES,
        *file_rules.ACROSS_RULES,
    }


def test_a_finding_says_where_and_what() -> None:
    faulty = sheet("1.2")
    faulty.put(1, "ListCost", "0.5")
    assert faulty.findings() == [
        Finding(3, "ListCost", "product", "0.5", "it is not ListUnitPrice × PricingQuantity"),
    ]


def test_a_file_for_one_version_has_no_column_of_another() -> None:
    assert {finding.column for finding in sheet("split").findings(Version.V1_4)} == {
        "ProviderName",
        "PublisherName",
    }
    assert {finding.rule for finding in sheet("1.2").findings(Version.V1_4)} == {
        "column-version",
        "column-missing",
    }
    for column in ("ProviderName", "PublisherName"):
        (both := sheet("split")).drop(column)
        assert [finding.column for finding in both.findings(Version.V1_3)] == [column]


@pytest.mark.parametrize(
    "text", ["Hours", "1000 Tokens", "GB-Hours", "MB/Day", "Units/3 Months", "Core-Hours/Day", "Slot-Seconds"]
)
def test_units(text: str) -> None:
    assert values.unit(text)


@pytest.mark.parametrize(
    "text", ["", "hours", "HOURS", "0 Tokens", "gb", "GB-", "GB/hour", "Units/3", "Tokens!", "1.5 Hours"]
)
def test_what_is_no_unit(text: str) -> None:
    assert not values.unit(text)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"a": {}}', '{"a": NaN}', '{"a": ' + "1" * 99 + "}", '{"a":1,"a":1}', "[" * 100_000]
)
def test_what_is_no_flat_object(text: str) -> None:
    assert values.flat(text) is None


def test_the_purchase_of_a_commitment_has_no_state() -> None:
    def with_commitment(category: str) -> set[str]:
        of = sheet("1.2")
        of.header[of.header.index("CommitmentDiscountStatus")] = "CommitmentDiscountId"
        of.header.insert(of.header.index("CommitmentDiscountId") + 1, "CommitmentDiscountStatus")
        for cells in of.rows:
            cells.insert(of.header.index("CommitmentDiscountStatus"), "")
        put(0, CommitmentDiscountId="sp-1", ChargeCategory=category, ChargeFrequency="One-Time")(of)
        return {finding.column for finding in of.findings() if finding.rule == "together"}

    assert with_commitment("Usage") == {"CommitmentDiscountStatus"}
    assert with_commitment("Purchase") == set()


@pytest.mark.parametrize(
    "cells",
    [
        {
            "ChargeClass": "Correction",
            "BillingPeriodStart": "2026-12-01T00:00:00Z",
            "BillingPeriodEnd": "2027-01-01T00:00:00Z",
            "InvoiceId": "later",
            "ListCost": "-0.1",
            "ConsumedQuantity": "",
            "ConsumedUnit": "",
        },
        {"PricingCategory": "Committed", "EffectiveCost": "0.2", "PricingCurrencyEffectiveCost": "0.2"},
        {"ListUnitPrice": "9.817E-1", "PricingCurrencyListUnitPrice": "9.817E-1"},
        {"ConsumedUnit": "1000 Tokens", "Tags": '{"a": null, "b": true, "c": 1.5}'},
        {"ConsumedUnit": "GB-Hours", "ChargeDescription": "-5"},
        {"ConsumedUnit": "Units/3 Months"},
    ],
)
def test_what_is_allowed_passes(cells: dict[str, str]) -> None:
    good = sheet("1.2")
    put(0, **cells)(good)
    assert good.findings() == []
