"""Prices of instances as a CSV that a person writes. Pure. Its columns: deploy/reference/commands.md."""

import csv
import difflib
import io
import re
from typing import get_args

from metering.cost.price_book import ON_DEMAND, InstancePrice, PurchaseOption
from metering.cost.price_import import ImportRefused, Offer
from metering.periods import parse_instant
from metering.units import MICRO_USD_PER_USD, usd_to

COLUMNS = ("instance_type", "region", "purchase_option", "usd_per_hour", "valid_from", "date", "source")
REQUIRED = ("instance_type", "usd_per_hour", "source")
_CELL_CHARACTERS_MAX = 256
_TYPE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_DAY_PATTERN = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def read(text: str) -> list[Offer]:
    """The rows of a file. Raises ImportRefused with every line that can't be used: then none is."""
    lines = csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    offers: list[Offer] = []
    try:
        header = [name or "" for name in lines.fieldnames or ()]
        if mistakes := _wrong_header(header):
            raise ImportRefused(mistakes)
        for row in lines:
            where = f"line {lines.line_num}"
            try:
                offers.append(_offer(where, row))
            except ValueError as error:
                mistakes.append(f"{where}: {error}")
    except csv.Error as error:
        mistakes = [f"line {lines.line_num}: is no CSV: {error}"]
    if not offers and not mistakes:
        mistakes = ["there is no price in it"]
    if mistakes:
        raise ImportRefused(mistakes)
    return offers


def _wrong_header(header: list[str]) -> list[str]:
    mistakes = [f"line 1: the column {name} is missing" for name in REQUIRED if name not in header]
    for name in header:
        if name not in COLUMNS:
            near = difflib.get_close_matches(name, COLUMNS, n=1)
            hint = f"; did you mean {near[0]}?" if near else f": there are {', '.join(COLUMNS)}"
            mistakes.append(f"line 1: {name!r} is no column{hint}")
    if len(set(header)) < len(header):
        mistakes.append("line 1: a column stands twice")
    return mistakes


def _offer(where: str, row: dict[str, str | None]) -> Offer:
    """Raises ValueError with the reason."""
    if None in row or None in row.values():
        raise ValueError("has more or fewer cells than the first line")
    cells = {name: (value or "").strip() for name, value in row.items()}
    for name, value in cells.items():
        if name in REQUIRED and not value:
            raise ValueError(f"{name} is empty")
        if len(value) > _CELL_CHARACTERS_MAX or not value.isprintable():
            raise ValueError(
                f"{name} must have at most {_CELL_CHARACTERS_MAX} characters, and no control ones"
            )
    if not _TYPE_PATTERN.fullmatch(cells["instance_type"]):
        raise ValueError(f"{cells['instance_type']!r} is no instance type")
    valid_from = cells.get("valid_from")
    date = cells.get("date") or None
    if date is not None:
        if not _DAY_PATTERN.fullmatch(date):
            raise ValueError(f"{date!r} is no date; write it as in 2026-11-01")
        parse_instant(date)
    price = InstancePrice(
        date=date or (valid_from[:10] if valid_from else None),
        instance_type=cells["instance_type"],
        purchase_option=_purchase_option(cells.get("purchase_option") or ON_DEMAND),
        region=cells.get("region") or None,
        source=cells["source"],
        uusd_per_hour=usd_to(cells["usd_per_hour"], MICRO_USD_PER_USD),
    )
    if not price.uusd_per_hour:
        raise ValueError("usd_per_hour is 0; what costs nothing needs no price, and what is unknown has none")
    return Offer(where, price, parse_instant(valid_from) if valid_from else None)


def _purchase_option(text: str) -> PurchaseOption:
    for option in get_args(PurchaseOption):
        if option == text:
            found: PurchaseOption = option
            return found
    raise ValueError(f"{text!r} is no purchase option: there are {', '.join(get_args(PurchaseOption))}")
