"""Rules of FOCUS that only a header, or several rows together, can break, by name. Pure."""

import decimal
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from metering.export.focus import values
from metering.export.focus.allocated_details import Details
from metering.export.focus.columns import ALLOCATED, COLUMNS, CUSTOM_PATTERN, SUMMABLE, Version
from metering.export.focus.record import Finding, Record

HEADER_RULES = {
    "column-name": "A column is FOCUS's own, or begins with x_ and is PascalCase; none stands twice.",
    "column-version": "A column is of the file's version of FOCUS.",
    "column-missing": "Every mandatory column of the version is there, and what each brings with it.",
    "column-order": "FOCUS's columns come first, then the x_ ones; each in alphabetical order.",
}
ACROSS_RULES = {
    "cells": "A row has as many cells as the header.",
    "sku-parent": "A SkuPriceId has one SkuId, one meter and one set of details.",
    "service": "A ServiceName has one category and one subcategory.",
    "account": "A billing account has one name, type and currency.",
    "invoice": "An invoice has one issuer and one billing period.",
    "ratios": "The ratios of a split charge add up to 1.",
    "shares": "Each ratio is its row's part of the quantity that was split.",
    "origin": "The rows of a split charge are alike in all but amounts and whom they went to.",
    "whole": "A split charge has no more hours than its charge period.",
}

_WITH = {
    "AllocatedResourceId": ("AllocatedMethodId", "AllocatedTags"),
    "ConsumedQuantity": ("ConsumedUnit",),
    "ConsumedUnit": ("ConsumedQuantity",),
    "RegionId": ("RegionName",),
    "ResourceId": ("ResourceName", "ResourceType"),
    "SkuId": ("SkuMeter", "SkuPriceId"),
    "SkuPriceId": ("ListUnitPrice", "SkuId", "SkuPriceDetails"),
    "SubAccountId": ("SubAccountName",),
}
"""A column → what must be there with it."""

_ONE_OF = {
    "sku-parent": (("SkuPriceId",), ("SkuId", "SkuMeter", "SkuPriceDetails")),
    "service": (("ServiceName",), ("ServiceCategory", "ServiceSubcategory")),
    "account": (("BillingAccountId",), ("BillingAccountName", "BillingAccountType", "BillingCurrency")),
    "invoice": (("InvoiceId",), ("BillingPeriodEnd", "BillingPeriodStart", "InvoiceIssuerName")),
}
"""Rule → columns by which, and columns that have then one value each."""

_ORIGIN = (
    "ResourceId",
    "ChargePeriodStart",
    "ChargePeriodEnd",
    "BillingPeriodStart",
    "ChargeClass",
    "InvoiceId",
    "SkuId",
)
"""What tells split charges apart."""
_ALIKE = (
    "AllocatedMethodId",
    *(name for name in COLUMNS if name not in SUMMABLE and name not in ALLOCATED and name not in _ORIGIN),
)
_RATIO_DIFFERENCE_MAX = decimal.Decimal("0.000000002")
"""A ratio has nine digits: it is rounded once, and the last takes the rest."""


def version_of(header: Sequence[str]) -> Version:
    """The version that a file is of by its columns: the newest of which it has one that is mandatory."""
    return Version.V1_4 if "ServiceProviderName" in header or "HostProviderName" in header else Version.V1_2


def header_findings(header: Sequence[str], asked: Version | None) -> Iterator[Finding]:
    """What is wrong with the names of the columns. asked: the version to check by; None: as the file shows.

    A file that shows 1.4 and keeps the two columns that 1.4 has taken out is taken for one that serves both.
    """
    version = asked or version_of(header)
    seen: set[str] = set()
    for name in header:
        if name in seen:
            yield Finding(1, name, "column-name", name, "it stands twice")
        elif name not in COLUMNS and not CUSTOM_PATTERN.fullmatch(name):
            yield Finding(1, name, "column-name", name, "it is neither FOCUS's nor x_ and PascalCase")
        elif name in COLUMNS and not COLUMNS[name].is_of(version):
            kept = asked is None and COLUMNS[name].until is Version.V1_3
            if not kept:
                yield Finding(1, name, "column-version", name, f"FOCUS {version} has no such column")
        seen.add(name)
    for column in COLUMNS.values():
        if column.mandatory and column.is_of(version) and column.name not in seen:
            yield Finding(1, column.name, "column-missing", "", f"FOCUS {version} wants it in every file")
    for name, wanted in _WITH.items():
        for other in wanted:
            if name in seen and other not in seen:
                yield Finding(1, other, "column-missing", "", f"it belongs to {name}")
    ordered = sorted(header, key=lambda name: (name not in COLUMNS, name))
    for name, right in zip(header, ordered, strict=True):
        if name != right:
            yield Finding(1, name, "column-order", name, f"{right} comes before it")
            return


class _First(NamedTuple):
    """The first row of some that must be alike. cells: of the columns that must be."""

    line: int
    cells: tuple[str | None, ...]

    def unlike(
        self, rule: str, row: Record, columns: Sequence[str], cells: tuple[str | None, ...]
    ) -> Iterator[Finding]:
        """Where a later one differs."""
        if cells == self.cells:
            return
        for column, cell, first in zip(columns, cells, self.cells, strict=True):
            if cell != first:
                yield Finding(row.line, column, rule, cell or "", f"line {self.line} has {first!r}")


class _Origin:
    """A charge that was split, as far as its rows have been seen.

    hours_max: of its charge period, where it is in hours; reference: ratio and quantity of its first row that has any.
    """

    def __init__(self, first: _First, row: Record) -> None:
        self.first = first
        self.name = f"{row.text('ResourceId')} from {row.text('ChargePeriodStart')}"
        self.ratio = self.quantity = decimal.Decimal()
        self.reference: tuple[decimal.Decimal, decimal.Decimal] | None = None
        start, end = row.moment("ChargePeriodStart"), row.moment("ChargePeriodEnd")
        self.hours_max: decimal.Decimal | None = None
        if (
            row.text("ConsumedUnit") == "Hours"
            and not row.is_correction
            and start is not None
            and end is not None
        ):
            self.hours_max = decimal.Decimal((end - start).total_seconds()) / 3_600

    def take(self, ratio: decimal.Decimal, quantity: decimal.Decimal) -> bool:
        """One more row. returns: is its ratio to the first row's that of their quantities?"""
        self.ratio = values.EXACT.add(self.ratio, ratio)
        self.quantity = values.EXACT.add(self.quantity, quantity)
        if self.reference is None:
            if quantity:
                self.reference = ratio, quantity
            return True
        first_ratio, first_quantity = self.reference
        difference = abs(ratio * first_quantity - first_ratio * quantity)
        return difference <= _RATIO_DIFFERENCE_MAX * (abs(first_quantity) + abs(quantity))


class Across:
    """Gathers what rules over several rows need. Memory grows with SKUs, accounts and split charges."""

    def __init__(self) -> None:
        self._firsts: dict[tuple[str, ...], _First] = {}
        self._origins: dict[tuple[str | None, ...], _Origin] = {}
        self._words: dict[str | None, str | None] = {}

    def take(self, row: Record) -> Iterator[Finding]:
        """The next row. yields what it breaks with those before it."""
        for rule, (by, alike) in _ONE_OF.items():
            key = tuple(row.text(column) or "" for column in by)
            if all(key):
                cells = self._cells(row, alike)
                first = self._firsts.setdefault((rule, *key), _First(row.line, cells))
                yield from first.unlike(rule, row, alike, cells)
        if row.text("AllocatedMethodId") is not None:
            yield from self._split(row)

    def end(self) -> Iterator[Finding]:
        """All rows were taken. yields what is wrong with split charges as wholes."""
        for origin in self._origins.values():
            line = origin.first.line
            if origin.ratio != 1:
                says = f"the ratios of {origin.name} add up to {origin.ratio}"
                yield Finding(line, "AllocatedMethodDetails", "ratios", str(origin.ratio), says)
            if origin.hours_max is not None and origin.quantity > origin.hours_max:
                says = f"the rows of {origin.name} add up to more hours than the period has"
                yield Finding(line, "PricingQuantity", "whole", str(origin.quantity), says)

    def _split(self, row: Record) -> Iterator[Finding]:
        key = self._cells(row, _ORIGIN)
        if row.is_correction:  # what is taken back and what takes its place are two charges
            key += (row.text("ChargeDescription"),)
        cells = self._cells(row, _ALIKE)
        origin = self._origins.get(key)
        if origin is None:
            origin = self._origins[key] = _Origin(_First(row.line, cells), row)
        yield from origin.first.unlike("origin", row, _ALIKE, cells)
        if not isinstance(row.details, Details):
            return  # a rule of the row tells of it, and the sum will not be 1
        ratio = row.details.ratio
        if not origin.take(ratio, row.number("PricingQuantity") or decimal.Decimal()):
            says = "beside the first row's it is another part of the quantity"
            yield Finding(row.line, "AllocatedMethodDetails", "shares", str(ratio), says)

    def _cells(self, row: Record, columns: Sequence[str]) -> tuple[str | None, ...]:
        """These cells; the same word is kept once, however many rows have it."""
        words = self._words
        return tuple(words.setdefault(cell, cell) for cell in map(row.text, columns))
