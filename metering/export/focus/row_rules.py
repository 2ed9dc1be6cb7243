"""Rules of FOCUS that one row can break, by name. Pure.

Each takes a row and yields what is wrong, as the column (None: the row) and why. Its docstring is the rule. What the
standard says with SHOULD is a rule here too: files of ours keep it, and whoever loads a file wants to know.
"""

import datetime
from collections.abc import Callable, Iterator

from metering.export.focus import values
from metering.export.focus.allocated_details import NotDetails
from metering.export.focus.columns import ALLOCATED, COLUMNS, CURRENCIES, CUSTOM_PATTERN, SUBCATEGORIES, Kind
from metering.export.focus.record import Record

Wrong = Iterator[tuple[str | None, str]]
Rule = Callable[[Record], Wrong]

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the start of a formula."""

_PLACEHOLDERS = frozenset({"n/a", "na", "not applicable", "none", "nil", "-", "null", "nan", "unknown"})
_PLACEHOLDER_CHARACTERS_MAX = max(map(len, _PLACEHOLDERS)) + 2
_MAY_NOT_APPLY = frozenset({"HostProviderName"})
_FOCUS_SKU_PROPERTIES = {
    "CoreCount": float, "DiskMaxIops": float, "DiskSpace": float, "DiskType": str, "GpuCount": float,
    "InstanceSeries": str, "InstanceType": str, "MemorySize": float, "NetworkMaxIops": float,
    "NetworkMaxThroughput": float, "OperatingSystem": str, "Redundancy": str, "StorageClass": str,
}  # fmt: skip
_PRICES = (
    "ContractedUnitPrice", "ListUnitPrice", "PricingCurrencyContractedUnitPrice", "PricingCurrencyListUnitPrice",
)  # fmt: skip
_NOT_NULL = [column.name for column in COLUMNS.values() if not column.nullable]
_HOUR = datetime.timedelta(hours=1)


def mandatory(row: Record) -> Wrong:
    """A column that allows no null has a value in each row."""
    for name in _NOT_NULL:
        if row.text(name) is None and row.has(name):
            yield name, "it must not be null"


def placeholder(row: Record) -> Wrong:
    """What there is no value for is null, not a word or blanks in its place."""
    for column, text in row.known:
        if len(text) > _PLACEHOLDER_CHARACTERS_MAX and not text.isspace():
            continue
        if text.isspace():
            yield column.name, "blanks stand for nothing; leave it empty"
        elif text.strip().lower() in _PLACEHOLDERS and column.name not in _MAY_NOT_APPLY:
            yield column.name, "a word stands for nothing; leave it empty"


def number(row: Record) -> Wrong:
    """Numbers are digits with at most one point, E and an exponent: no plus sign, no separators, no units."""
    for column, _ in row.known:
        if column.kind is Kind.DECIMAL and row.number(column.name) is None:
            yield column.name, "it is no number as FOCUS writes them"


def moment(row: Record) -> Wrong:
    """Moments are in UTC: YYYY-MM-DDTHH:MM:SSZ."""
    for column, _ in row.known:
        if column.kind is Kind.MOMENT and row.moment(column.name) is None:
            yield column.name, "it is no moment YYYY-MM-DDTHH:MM:SSZ"


def allowed(row: Record) -> Wrong:
    """A column with allowed values has one of them in each row."""
    for column, text in row.known:
        if column.values is not None and text not in column.values:
            yield column.name, f"it must be one of {', '.join(sorted(column.values))}"


def currency(row: Record) -> Wrong:
    """Currencies are ISO 4217 codes."""
    for column in ("BillingCurrency", "PricingCurrency"):
        text = row.text(column)
        if text is not None and text not in CURRENCIES:
            yield column, "it is no ISO 4217 code"


def unit(row: Record) -> Wrong:
    """Units are capitalised, as in Hours, 1000 Tokens, GB-Hours."""
    for column in ("CommitmentDiscountUnit", "ConsumedUnit", "PricingUnit"):
        text = row.text(column)
        if text is not None and not values.unit(text):
            yield column, "it is no unit as FOCUS writes them"


def formula(row: Record) -> Wrong:
    """No text begins as a spreadsheet's formula does."""
    for column, text in row.filled:
        if not text.startswith(FORMULA_STARTS) or values.number(text) is not None:
            continue
        if column not in COLUMNS or COLUMNS[column].kind is Kind.STRING:
            yield column, "a spreadsheet takes it for a formula"


def tags(row: Record) -> Wrong:
    """Tags are a flat JSON object on one line: no lists, no objects, no key twice."""
    for column in ("Tags", "AllocatedTags"):
        text = row.text(column)
        if text is not None and ("\n" in text or values.flat(text) is None):
            yield column, "it is no flat JSON object on one line"


def sku_details(row: Record) -> Wrong:
    """SkuPriceDetails is a flat JSON object; keys are FOCUS's, of their type, or x_ and PascalCase."""
    text = row.text("SkuPriceDetails")
    if text is None:
        return
    found = values.flat(text)
    if found is None:
        yield "SkuPriceDetails", "it is no flat JSON object"
        return
    for key, value in found.items():
        wanted = _FOCUS_SKU_PROPERTIES.get(key)
        if wanted is None and not CUSTOM_PATTERN.fullmatch(key):
            yield "SkuPriceDetails", f"{key} is neither FOCUS's nor x_ and PascalCase"
        elif wanted is not None and isinstance(value, str) != (wanted is str):
            yield "SkuPriceDetails", f"{key} has a value of the wrong type"


def together(row: Record) -> Wrong:
    """Columns that belong together are null, or not, together."""
    for one, other in (
        ("ConsumedQuantity", "ConsumedUnit"),
        ("PricingQuantity", "PricingUnit"),
        ("RegionId", "RegionName"),
        ("ResourceId", "ResourceType"),
        ("SkuId", "SkuMeter"),
        ("SubAccountId", "SubAccountName"),
        ("BillingAccountId", "BillingAccountType"),
        ("CommitmentDiscountId", "CommitmentDiscountStatus"),
    ):
        if (row.text(one) is None) != (row.text(other) is None) and row.has(one, other):
            if one == "CommitmentDiscountId" and row.text("ChargeCategory") != "Usage":
                continue
            yield other, f"it is null, or not, as {one} is"
    for one, other in (
        ("ResourceId", "ResourceName"),
        ("SkuPriceId", "SkuPriceDetails"),
        ("SubAccountId", "SubAccountType"),
    ):
        if row.text(other) is not None and row.text(one) is None and row.has(one):
            yield other, f"it must be null, for {one} is"


def resource_name(row: Record) -> Wrong:
    """ResourceName does not repeat ResourceId."""
    name = row.text("ResourceName")
    if name is not None and name == row.text("ResourceId"):
        yield "ResourceName", "it repeats ResourceId; a resource without a name has none"


def priced(row: Record) -> Wrong:
    """Usage and purchases have quantities, unit prices, a SKU and a pricing category; taxes have none."""
    for column in (*_PRICES, "PricingCategory", "PricingQuantity", "SkuId", "SkuPriceId"):
        if row.is_priced and row.has(column) and row.text(column) is None:
            yield column, "it must not be null for usage or a purchase"
        elif row.text("ChargeCategory") == "Tax" and row.text(column) is not None:
            yield column, "it must be null for a tax"


def consumed(row: Record) -> Wrong:
    """ConsumedQuantity stands in usage, but for the unused part of a commitment, and nowhere else."""
    is_used = row.text("ChargeCategory") == "Usage" and row.text("CommitmentDiscountStatus") != "Unused"
    is_null = row.text("ConsumedQuantity") is None
    if not is_used and not is_null:
        yield "ConsumedQuantity", "it must be null: nothing was consumed"
    elif is_used and is_null and not row.is_correction and row.has("ConsumedQuantity"):
        yield "ConsumedQuantity", "it must not be null for usage"


def price_sign(row: Record) -> Wrong:
    """Unit prices are not negative."""
    for column in _PRICES:
        price = row.number(column)
        if price is not None and price < 0:
            yield column, "a price must not be negative"


def product(row: Record) -> Wrong:
    """Unit price × PricingQuantity = cost, exactly, but in corrections."""
    quantity = row.number("PricingQuantity")
    for cost_column, price_column in (
        ("ListCost", "ListUnitPrice"),
        ("ContractedCost", "ContractedUnitPrice"),
    ):
        cost, price = row.number(cost_column), row.number(price_column)
        if cost is None or price is None or quantity is None or row.is_correction:
            continue
        if values.EXACT.multiply(price, quantity) != cost:
            yield cost_column, f"it is not {price_column} × PricingQuantity"


def unrelated(row: Record) -> Wrong:
    """The list and contracted cost of a credit or adjustment without a unit price are its billed cost."""
    if row.text("ChargeCategory") not in ("Credit", "Adjustment"):
        return
    for cost_column, price_column in (
        ("ListCost", "ListUnitPrice"),
        ("ContractedCost", "ContractedUnitPrice"),
    ):
        if row.text(price_column) is None and row.number(cost_column) != row.number("BilledCost"):
            yield cost_column, "it is not the BilledCost"


def effective(row: Record) -> Wrong:
    """EffectiveCost = BilledCost, but where a commitment is bought or covers the charge."""
    covered = (
        row.text("ChargeCategory") == "Purchase"
        or row.text("PricingCategory") == "Committed"
        or row.text("CommitmentDiscountId") is not None
    )
    if not covered and row.number("EffectiveCost") != row.number("BilledCost"):
        yield "EffectiveCost", "it is not the BilledCost, and nothing covers the charge"


def pricing_currency(row: Record) -> Wrong:
    """What is priced in the billing currency has the same amounts in both sets of columns."""
    if row.text("PricingCurrency") is None or row.text("PricingCurrency") != row.text("BillingCurrency"):
        return
    for column, other in (
        ("PricingCurrencyContractedUnitPrice", "ContractedUnitPrice"),
        ("PricingCurrencyEffectiveCost", "EffectiveCost"),
        ("PricingCurrencyListUnitPrice", "ListUnitPrice"),
    ):
        if row.has(column, other) and row.number(column) != row.number(other):
            yield column, f"it is not {other}, and the currencies are the same"


def periods(row: Record) -> Wrong:
    """Periods end after they start."""
    for start_column, end_column in (
        ("BillingPeriodStart", "BillingPeriodEnd"),
        ("ChargePeriodStart", "ChargePeriodEnd"),
    ):
        start, end = row.moment(start_column), row.moment(end_column)
        if start is not None and end is not None and start >= end:
            yield end_column, f"it is not after {start_column}"


def billing_period(row: Record) -> Wrong:
    """A charge lies within its billing period; what a correction corrects, before it."""
    start, end = row.moment("ChargePeriodStart"), row.moment("ChargePeriodEnd")
    billing_start, billing_end = row.moment("BillingPeriodStart"), row.moment("BillingPeriodEnd")
    if start is None or end is None or billing_start is None or billing_end is None:
        return
    if row.is_correction:
        if end > billing_start:
            yield "ChargePeriodEnd", "what is corrected is not of an earlier billing period"
    elif start < billing_start or end > billing_end:
        yield "ChargePeriodStart", "the charge is not within its billing period"


def frequency(row: Record) -> Wrong:
    """A purchase is not Usage-Based."""
    if row.text("ChargeCategory") == "Purchase" and row.text("ChargeFrequency") == "Usage-Based":
        yield "ChargeFrequency", "a purchase is not usage-based"


def subcategory(row: Record) -> Wrong:
    """A subcategory stands under its own category."""
    known = SUBCATEGORIES.get(row.text("ServiceCategory") or "")
    text = row.text("ServiceSubcategory")
    if text is None:
        return
    elsewhere = {name for category, names in SUBCATEGORIES.items() for name in names if names is not known}
    if (known is not None and text not in known) or text in elsewhere:
        yield "ServiceSubcategory", "it is none of this ServiceCategory"


def hours(row: Record) -> Wrong:
    """Of one resource no more hours are consumed than the charge period has."""
    quantity, start, end = (
        row.number("ConsumedQuantity"),
        row.moment("ChargePeriodStart"),
        row.moment("ChargePeriodEnd"),
    )
    if row.text("ConsumedUnit") != "Hours" or row.text("AllocatedMethodId") is None or row.is_correction:
        return
    if quantity is not None and start is not None and end is not None and quantity > (end - start) / _HOUR:
        yield "ConsumedQuantity", "the charge period does not have so many hours"


def allocated_nulls(row: Record) -> Wrong:
    """Without AllocatedMethodId nothing of an allocation stands there; without a resource it has no name and tags."""
    others = [column for column in ALLOCATED if row.text(column) is not None]
    if row.text("AllocatedMethodId") is None:
        yield from ((column, "it must be null, for AllocatedMethodId is") for column in others)
        return
    if row.text("AllocatedMethodDetails") is None:
        yield "AllocatedMethodDetails", "a row of a split charge says how it was split"
    if row.text("AllocatedResourceId") is None:
        for column in ("AllocatedResourceName", "AllocatedTags"):
            if column in others:
                yield column, "it must be null, for AllocatedResourceId is"


def allocated_object(row: Record) -> Wrong:
    """AllocatedMethodDetails follows FOCUS's JSON schema."""
    if isinstance(row.details, NotDetails):
        yield "AllocatedMethodDetails", str(row.details)


def tags_twice(row: Record) -> Wrong:
    """AllocatedTags repeat no key of Tags."""
    if row.text("Tags") is None or row.text("AllocatedTags") is None:
        return
    tags, allocated = (values.flat(row.text(column) or "{}") for column in ("Tags", "AllocatedTags"))
    for key in sorted((tags or {}).keys() & (allocated or {}).keys()):
        yield "AllocatedTags", f"{key} stands in Tags already"


RULES: dict[str, Rule] = {
    rule.__name__.replace("_", "-"): rule
    for rule in (
        mandatory, placeholder, number, moment, allowed, currency, unit, formula, tags, sku_details, together,
        resource_name, priced, consumed, price_sign, product, unrelated, effective, pricing_currency, periods,
        billing_period, frequency, subcategory, hours, allocated_nulls, allocated_object, tags_twice,
    )
}  # fmt: skip
