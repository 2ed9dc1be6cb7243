"""Charges as the cells of a FOCUS file. Pure.

Columns are in the order that the standard asks for: FOCUS's own by name, then ours (`x_…`) by name. The files serve 1.4
and, by two columns that 1.4 has taken out, tools that know 1.2 alone; a version can be asked for.
"""

import datetime
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from metering.cost.close_manifest import month_hours
from metering.cost.close_row import CloseRow
from metering.export import cells
from metering.export.export_parts import Correction
from metering.export.focus.charge import Allocation, Charge, Priced, Quantity, Resource
from metering.export.focus.columns import ALLOCATED, COLUMNS, CORRECTION, CURRENCIES, Version
from metering.export.focus.regions import REGION_NAMES

USD = "USD"
assert USD in CURRENCIES

_EPOCH = datetime.datetime(1970, 1, 1)
_AWS = "Amazon Web Services"
_SUB_ACCOUNT = "Tenant"
_NANO = 1_000_000_000
_CATEGORY, _SUBCATEGORY = "AI and Machine Learning", "Generative AI"
_FREQUENCY = "Usage-Based"
_ACCOUNT_TYPE = "Cost Pool"
_ENCODER = msgspec.json.Encoder(order="sorted")


class Issuer(NamedTuple):
    """Who bills (configuration: `exports`). account: BillingAccountId; name: of it, and of who provides the service."""

    account: str = "weighbridge"
    name: str = "Weighbridge"
    service: str = "LLM Inference"


Cell = Callable[[Charge, Issuer], str | None]


def moment(hour: int) -> str:
    """The beginning of an hour since 1970, as FOCUS writes it."""
    return f"{_EPOCH + datetime.timedelta(hours=hour):%Y-%m-%dT%H:%M:%SZ}"


def header(version: Version | None, *, is_split: bool) -> tuple[str, ...]:
    """Names of the columns. version None: all that we have, those of 1.4 and what 1.2 has besides.

    Raises ValueError: the version has no split charges.
    """
    if is_split and version is not None and version < Version.V1_3:
        raise ValueError(f"FOCUS {version} has no split charges; 1.3 has")
    focus = [
        name
        for name in _FOCUS
        if (version is None or COLUMNS[name].is_of(version)) and (is_split or name not in ALLOCATED)
    ]
    return *sorted(focus), *sorted(_CUSTOM)


def row(charge: Charge, columns: tuple[str, ...], issuer: Issuer) -> list[str | None]:
    """The cells of a charge; None: null."""
    return [_CELLS[column](charge, issuer) for column in columns]


def _host(charge: Charge, issuer: Issuer) -> str:
    of = charge.of
    is_aws = of.region or of.account or (of.instance_id or "").startswith("i-")
    return _AWS if is_aws else issuer.name


def _provider(_charge: Charge, issuer: Issuer) -> str:
    return issuer.name


def _cost(charge: Charge, _issuer: Issuer) -> str:
    return cells.usd_of_atto(charge.cost_ausd)


def _list_cost(charge: Charge, _issuer: Issuer) -> str:
    return cells.usd_of_atto(charge.list_ausd)


def _month(charge: Charge) -> range:
    return month_hours(charge.billed_in)


def _invoice(charge: Charge, issuer: Issuer) -> str:
    return f"{issuer.account}-{charge.billed_in}"


def _tenant(charge: Charge, _issuer: Issuer) -> str | None:
    return charge.tenant


def _tags(charge: Charge, _issuer: Issuer) -> str | None:
    return None if not charge.tags else _json(charge.tags)


def _allocated(get: Callable[[Allocation], str | None]) -> Cell:
    return lambda charge, _: None if charge.allocation is None else get(charge.allocation)


def _priced(get: Callable[[Priced], str | None]) -> Cell:
    return lambda charge, _: None if charge.priced is None else get(charge.priced)


def _consumed(get: Callable[[Quantity], str]) -> Cell:
    return lambda charge, _: None if charge.consumed is None else get(charge.consumed)


def _resource(get: Callable[[Resource], str]) -> Cell:
    return lambda charge, _: None if charge.resource is None else get(charge.resource)


def _word(get: Callable[[CloseRow], str | None]) -> Cell:
    """A word of the row that a charge is of."""

    def cell(charge: Charge, _: Issuer) -> str | None:
        word = get(charge.of)
        return cells.guarded(word) if word else None

    return cell


def _method_details(allocation: Allocation) -> str:
    # Written here and not by an encoder: its numbers would be floats.
    ratio = f"{allocation.ratio // _NANO}.{allocation.ratio % _NANO:09d}"
    usage = f"{allocation.usage // _NANO}.{allocation.usage % _NANO:09d}"
    element = f'"AllocatedRatio":{ratio},"UsageQuantity":{usage},"UsageUnit":{_json(allocation.usage_unit)}'
    return f'{{"Elements":[{{{element}}}],"x_Method":{_json(allocation.row_method)}}}'


def _json(value: object) -> str:
    return _ENCODER.encode(value).decode()


_FOCUS: dict[str, Cell] = {
    "AllocatedMethodDetails": _allocated(_method_details),
    "AllocatedMethodId": _allocated(lambda one: one.method),
    "AllocatedResourceId": _allocated(lambda one: one.tenant),
    "AllocatedResourceName": _allocated(lambda one: one.tenant),
    "AllocatedTags": _allocated(lambda one: _json(one.tags) if one.tags else None),
    "AvailabilityZone": _word(lambda row: row.az),
    "BilledCost": _cost,
    "BillingAccountId": lambda _, issuer: issuer.account,
    "BillingAccountName": _provider,
    "BillingAccountType": lambda _charge, _issuer: _ACCOUNT_TYPE,
    "BillingCurrency": lambda _charge, _issuer: USD,
    "BillingPeriodEnd": lambda charge, _: moment(_month(charge).stop),
    "BillingPeriodStart": lambda charge, _: moment(_month(charge).start),
    "ChargeCategory": lambda charge, _: charge.category.value,
    "ChargeClass": lambda charge, _: CORRECTION if charge.correction else None,
    "ChargeDescription": lambda charge, _: cells.guarded(charge.description),
    "ChargeFrequency": lambda _charge, _issuer: _FREQUENCY,
    "ChargePeriodEnd": lambda charge, _: moment(charge.hour + 1),
    "ChargePeriodStart": lambda charge, _: moment(charge.hour),
    "CommitmentDiscountStatus": lambda _charge, _issuer: None,
    "ConsumedQuantity": _consumed(lambda one: cells.millionths(one.micro)),
    "ConsumedUnit": _consumed(lambda one: one.unit),
    "ContractedCost": _list_cost,
    "ContractedUnitPrice": _priced(lambda one: cells.usd(one.pusd)),
    "EffectiveCost": _cost,
    "HostProviderName": _host,
    "InvoiceId": _invoice,
    "InvoiceIssuerName": _provider,
    "ListCost": _list_cost,
    "ListUnitPrice": _priced(lambda one: cells.usd(one.pusd)),
    "PricingCategory": _priced(lambda one: one.category),
    "PricingCurrency": lambda _charge, _issuer: USD,
    "PricingCurrencyContractedUnitPrice": _priced(lambda one: cells.usd(one.pusd)),
    "PricingCurrencyEffectiveCost": _cost,
    "PricingCurrencyListUnitPrice": _priced(lambda one: cells.usd(one.pusd)),
    "PricingQuantity": _priced(lambda one: cells.millionths(one.quantity.micro)),
    "PricingUnit": _priced(lambda one: one.quantity.unit),
    "ProviderName": _provider,
    "PublisherName": _provider,
    "RegionId": _word(lambda row: row.region),
    "RegionName": _word(lambda row: row.region and REGION_NAMES.get(row.region, row.region)),
    "ResourceId": _resource(lambda one: cells.guarded(one.id)),
    "ResourceName": lambda _charge, _issuer: None,
    "ResourceType": _resource(lambda one: one.type),
    "ServiceCategory": lambda _charge, _issuer: _CATEGORY,
    "ServiceName": lambda _, issuer: issuer.service,
    "ServiceProviderName": _provider,
    "ServiceSubcategory": lambda _charge, _issuer: _SUBCATEGORY,
    "SkuId": _priced(lambda one: one.sku),
    "SkuMeter": _priced(lambda one: one.meter),
    "SkuPriceDetails": _priced(lambda one: _json(dict(one.details)) if one.details else None),
    "SkuPriceId": _priced(lambda one: one.sku_price),
    "SubAccountId": _tenant,
    "SubAccountName": _tenant,
    "SubAccountType": lambda charge, _: None if charge.tenant is None else _SUB_ACCOUNT,
    "Tags": _tags,
}


def _amount(get: Callable[[CloseRow], int], write: Callable[[int], str] = str) -> Cell:
    """An amount of the row that stands with this charge; negative where it is taken back."""

    def cell(charge: Charge, _: Issuer) -> str | None:
        if charge.row is None:
            return None
        sign = -1 if charge.correction is Correction.REVERSAL else 1
        return write(sign * get(charge.row))

    return cell


_CUSTOM: dict[str, Cell] = {
    "x_AccountId": _word(lambda row: row.account),
    "x_Backend": _word(lambda row: row.backend),
    "x_CachedPromptTokens": _amount(lambda row: row.cached_prompt_tokens),
    "x_Calls": _amount(lambda row: row.calls),
    "x_CompletionTokens": _amount(lambda row: row.completion_tokens),
    "x_EstimatedCost": _amount(lambda row: row.estimated_pusd, cells.usd),
    "x_InstanceFamily": _word(lambda row: row.instance_family),
    "x_Kind": lambda charge, _: charge.of.kind.value if charge.row or charge.tenant else "under_recovery",
    "x_Model": _word(lambda row: row.model),
    "x_Operation": _word(lambda row: row.operation),
    "x_Pool": _word(lambda row: row.pool),
    "x_PriceDate": _word(lambda row: row.price_date),
    "x_PriceSource": _word(lambda row: row.price_source),
    "x_Project": _word(lambda row: row.project),
    "x_PromptTokens": _amount(lambda row: row.prompt_tokens),
    "x_Revision": lambda charge, _: str(charge.revision),
    "x_SharedHours": _amount(lambda row: row.shared_micro_hours, cells.millionths),
    "x_Simulated": lambda charge, _: str(charge.of.simulated).lower(),
    "x_SlotSeconds": _amount(lambda row: row.slot_ns, cells.seconds),
    "x_UnpricedCalls": _amount(lambda row: row.unpriced_calls),
}
_CELLS = _FOCUS | _CUSTOM
