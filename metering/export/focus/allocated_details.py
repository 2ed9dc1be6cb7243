"""The object in AllocatedMethodDetails (FOCUS_Spec, allocatedmethoddetailsobjectschema.json). Pure."""

import decimal
from typing import NamedTuple

from metering.export.focus import values
from metering.export.focus.columns import CUSTOM_PATTERN

_ELEMENT_KEYS = {"AllocatedRatio", "UsageUnit", "UsageQuantity"}


class NotDetails(ValueError):
    """It does not follow the schema; the message says where."""


class Details(NamedTuple):
    """What a row says of its part. ratio: of the charge that was split, over all elements."""

    ratio: decimal.Decimal
    units: list[str]


def read(text: str) -> Details:
    """Read it strictly. Raises NotDetails."""
    try:
        found = values.parsed(text)
    except (ValueError, RecursionError) as error:
        raise NotDetails(f"it is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise NotDetails("it is no object")
    elements = found.get("Elements")
    if not isinstance(elements, list) or not elements:
        raise NotDetails("it has no Elements")
    _check_keys(found, {"Elements"})
    ratio, units = decimal.Decimal(), []
    for element in elements:
        if not isinstance(element, dict):
            raise NotDetails("an element is no object")
        _check_keys(element, _ELEMENT_KEYS)
        part, unit, quantity = (element.get(key) for key in ("AllocatedRatio", "UsageUnit", "UsageQuantity"))
        if not isinstance(part, decimal.Decimal) or not 0 <= part <= 1:
            raise NotDetails("an AllocatedRatio is no number from 0 to 1")
        if not isinstance(quantity, decimal.Decimal | None):
            raise NotDetails("a UsageQuantity is no number")
        if quantity is not None and unit is None:
            raise NotDetails("a UsageQuantity has no UsageUnit")
        if unit is not None:
            if not isinstance(unit, str) or not values.unit(unit):
                raise NotDetails("a UsageUnit is no unit")
            units.append(unit)
        ratio = values.EXACT.add(ratio, part)
    return Details(ratio, units)


def _check_keys(found: dict[str, object], known: set[str]) -> None:
    for key in found:
        if key not in known and not CUSTOM_PATTERN.fullmatch(key):
            raise NotDetails(f"{key} is neither FOCUS's nor x_ and PascalCase")
