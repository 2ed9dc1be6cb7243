"""Prices of instances as JSON: of `weighbridge prices show --json` and of /finance/v1. Pure."""

from metering.cost.price_book import ALWAYS_NS, InstancePrice, Origin
from metering.export import cells
from metering.periods import instant_text


def price(origin: Origin, one: InstancePrice) -> dict[str, str | None]:
    """With where it is from."""
    return {
        "date": one.date,
        "from": origin.value,
        "instance_type": one.instance_type,
        "purchase_option": one.purchase_option,
        "region": one.region,
        "source": one.source,
        "usd_per_hour": usd(one),
        "valid_from": since(one),
    }


def usd(one: InstancePrice) -> str:
    """Per hour, with 6 places."""
    return cells.millionths(one.uusd_per_hour)


def since(one: InstancePrice) -> str | None:
    """Since when it holds; None: since ever."""
    return None if one.valid_from_ns == ALWAYS_NS else instant_text(one.valid_from_ns)
