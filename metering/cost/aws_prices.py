"""Prices of instances in AWS' price list, as JSON of either shape. Pure.

    bulk          {"products": {SKU: product}, "terms": {"OnDemand": {SKU: {…: term}}, "Reserved": …}}
    GetProducts   {"PriceList": [item or its JSON as a string, …]}, or that list alone
                  item = {"product": product, "terms": {"OnDemand": {…: term}, "Reserved": …}}

Taken are instances of Linux with nothing installed, on shared hosts, that are paid for as they run (usage type
`BoxUsage`): the list has a dozen other rows for each type. Formats: AWS Billing guide, «Reading the service price list
file», and the API reference of GetProducts.

A reserved price is AWS' hourly one and its fee up front spread over the hours of the lease (of 365 days a year), by
the one lease that is asked for.
"""

import collections
import fractions
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple

import msgspec

from metering.cost.price_book import ON_DEMAND, InstancePrice, PurchaseOption
from metering.cost.price_import import ImportRefused, Offer
from metering.units import MICRO_USD_PER_USD, div_half_up

_BOX_USAGE = re.compile(r"(?:^|-)BoxUsage(?::|$)")
_WANTED = {
    "operatingSystem": ("Linux",),
    "tenancy": ("Shared",),
    "preInstalledSw": ("NA",),
    "capacitystatus": ("Used", None),
    "marketoption": ("OnDemand", None),
    "licenseModel": ("No License required", "NA", None),
}
_HOURS = {"1yr": 8_760, "3yr": 26_280}
_AMOUNT = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,18})?")


LeaseLength = Literal["1yr", "3yr"]
OfferingClass = Literal["standard", "convertible"]
Payment = Literal["No Upfront", "Partial Upfront", "All Upfront"]


class Lease(NamedTuple):
    """A kind of reservation, as the list's terms name it."""

    length: LeaseLength
    offering_class: OfferingClass
    payment: Payment


class Listed(NamedTuple):
    """What a file offers. passed_over: how many of its products were not taken, by reason."""

    offers: list[Offer]
    passed_over: Mapping[str, int]


class _Product(msgspec.Struct, frozen=True):
    sku: str = ""
    attributes: dict[str, str] = {}


class _Dimension(msgspec.Struct, frozen=True, rename="camel"):
    unit: str = ""
    description: str = ""
    price_per_unit: dict[str, str] = {}


class _Term(msgspec.Struct, frozen=True, rename="camel"):
    effective_date: str = ""
    price_dimensions: dict[str, _Dimension] = {}
    term_attributes: dict[str, str] = {}


class _Item(msgspec.Struct, frozen=True, rename="camel"):
    product: _Product
    terms: dict[str, msgspec.Raw] = {}
    publication_date: str = ""


class _Bulk(msgspec.Struct, frozen=True, rename="camel"):
    """Products and terms stay as they are: a region's file has hundreds of thousands, and few of them are wanted."""

    products: dict[str, msgspec.Raw]
    terms: dict[str, msgspec.Raw]
    publication_date: str = ""


class _Answer(msgspec.Struct, frozen=True):
    price_list: list[_Item | str] = msgspec.field(name="PriceList")


class _Sale(NamedTuple):
    """A product with its terms. on_demand, reserved: by their codes."""

    product: _Product
    on_demand: Mapping[str, _Term]
    reserved: Mapping[str, _Term]
    published: str


def read(data: bytes, wanted: Callable[[str], bool], lease: Lease | None = None) -> Listed:
    """The prices of a file. wanted: is this instance type? lease: None: no reserved prices.

    Raises ImportRefused: it is no price list, or has no price that is wanted.
    """
    offers: list[Offer] = []
    passed_over: collections.Counter[str] = collections.Counter()
    try:
        for sale in _sales(data, passed_over, wanted):
            found = list(_offers(sale, lease, passed_over))
            offers += found
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ImportRefused([f"is no price list of AWS: {error}"]) from error
    if not offers:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(passed_over.items()))
        raise ImportRefused([f"there is no price in it that is wanted ({reasons or 'it has no products'})"])
    return Listed(offers, passed_over)


def _sales(
    data: bytes, passed_over: collections.Counter[str], wanted: Callable[[str], bool]
) -> Iterator[_Sale]:
    """Raises msgspec.DecodeError."""

    def chosen(product: _Product) -> bool:
        reason = _why_not(product.attributes, wanted)
        if reason is not None:
            passed_over[reason] += 1
        return reason is None

    shape = msgspec.json.decode(data, type=dict[str, msgspec.Raw] | list[_Item | str])
    if isinstance(shape, dict) and "products" in shape:
        bulk = msgspec.json.decode(data, type=_Bulk)
        terms = {
            kind: msgspec.json.decode(bulk.terms.get(kind, b"{}"), type=dict[str, msgspec.Raw])
            for kind in ("OnDemand", "Reserved")
        }
        for sku, raw in bulk.products.items():
            product = msgspec.json.decode(raw, type=_Product)
            if chosen(product):
                of_sku = {kind: _terms(by_sku.get(sku)) for kind, by_sku in terms.items()}
                product = msgspec.structs.replace(product, sku=sku)
                yield _Sale(product, of_sku["OnDemand"], of_sku["Reserved"], bulk.publication_date)
        return
    items = shape if isinstance(shape, list) else msgspec.json.decode(data, type=_Answer).price_list
    for told in items:
        item = msgspec.json.decode(told, type=_Item) if isinstance(told, str) else told
        if chosen(item.product):
            on_demand, reserved = (_terms(item.terms.get(kind)) for kind in ("OnDemand", "Reserved"))
            yield _Sale(item.product, on_demand, reserved, item.publication_date)


def _terms(raw: msgspec.Raw | None) -> dict[str, _Term]:
    return {} if raw is None else msgspec.json.decode(raw, type=dict[str, _Term])


def _why_not(attributes: Mapping[str, str], wanted: Callable[[str], bool]) -> str | None:
    """Why a product is passed over; None: it is one of those that are looked for."""
    instance_type = attributes.get("instanceType")
    if instance_type is None or not _BOX_USAGE.search(attributes.get("usagetype", "")):
        return "no running instances"
    if any(attributes.get(name) not in values for name, values in _WANTED.items()):
        return "with another system, licence or tenancy"
    if "regionCode" not in attributes:
        return "without a region"
    return None if wanted(instance_type) else "of instance types that are not asked for"


def _offers(sale: _Sale, lease: Lease | None, passed_over: collections.Counter[str]) -> Iterator[Offer]:
    found = False
    for term in sale.on_demand.values():
        if offer := _offer(sale, term, ON_DEMAND, _hourly(term), "on demand"):
            found = True
            yield offer
    for term in sale.reserved.values() if lease is not None else ():
        assert lease is not None
        if lease == _lease_of(term) and (
            offer := _offer(sale, term, "reserved", _effective(term, lease), f"reserved, {' '.join(lease)}")
        ):
            found = True
            yield offer
    if not found:
        passed_over["without a price in USD"] += 1


def _offer(
    sale: _Sale, term: _Term, purchase_option: PurchaseOption, usd: fractions.Fraction | None, how: str
) -> Offer | None:
    if not usd:  # 0 stands where AWS asks nothing for a row, or does not say
        return None
    attributes = sale.product.attributes
    of = f"SKU {sale.product.sku} ({attributes['instanceType']})"
    exact = usd * MICRO_USD_PER_USD
    price = InstancePrice(
        date=_day(term.effective_date) or _day(sale.published),
        instance_type=attributes["instanceType"],
        purchase_option=purchase_option,
        region=attributes["regionCode"],
        source=f"AWS price list of {_day(sale.published) or 'an unknown day'}, {how}",
        uusd_per_hour=div_half_up(exact.numerator, exact.denominator),
    )
    return Offer(of, price, None)


def _hourly(term: _Term) -> fractions.Fraction | None:
    """USD per hour; None: the term has none, or in another currency."""
    amounts = [_usd(one) for one in term.price_dimensions.values() if one.unit == "Hrs"]
    return amounts[0] if len(amounts) == 1 else None


def _effective(term: _Term, lease: Lease) -> fractions.Fraction | None:
    hourly = _hourly(term)
    fees = [_usd(one) for one in term.price_dimensions.values() if one.description == "Upfront Fee"]
    if hourly is None or None in fees:
        return None
    return hourly + sum((fee for fee in fees if fee is not None), fractions.Fraction()) / _HOURS[lease.length]


def _usd(dimension: _Dimension) -> fractions.Fraction | None:
    text = dimension.price_per_unit.get("USD", "")
    return fractions.Fraction(text) if _AMOUNT.fullmatch(text) else None


def _lease_of(term: _Term) -> tuple[str | None, ...]:
    said = term.term_attributes
    return said.get("LeaseContractLength"), said.get("OfferingClass"), said.get("PurchaseOption")


def _day(moment: str) -> str | None:
    day = moment[:10]
    return day if re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", day) else None
