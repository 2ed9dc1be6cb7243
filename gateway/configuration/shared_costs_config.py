"""From the configuration to shared costs, and what can be wrong with them. Pure."""

from collections.abc import Callable, Iterable

from gateway.configuration.config import SharedCostEntry
from metering.cost.shared_costs import SharedCost, Split
from metering.periods import parse_moment
from metering.units import MICRO_USD_PER_USD, usd_to

Report = Callable[[str, str], None]
"""Names a mistake: path, message."""


def check_shared_cost(path: str, entry: SharedCostEntry, report: Report) -> None:
    """Name every mistake in one entry."""
    if (entry.usd_per_month is None) == (entry.usd_per_hour is None):
        report(path, "must have one of usd_per_month and usd_per_hour")
    for key in ("usd_per_month", "usd_per_hour"):
        _try(f"{path}.{key}", getattr(entry, key), _amount, report)
    hours = [_try(f"{path}.{key}", getattr(entry, key), parse_moment, report) for key in ("since", "until")]
    since, until = hours
    if since is not None and until is not None and until <= since:
        report(f"{path}.until", f"{entry.until} is not after since, {entry.since}")


def shared_costs(entries: Iterable[SharedCostEntry]) -> tuple[SharedCost, ...]:
    """Those of a configuration that was checked."""
    return tuple(map(_cost, entries))


def _cost(entry: SharedCostEntry) -> SharedCost:
    return SharedCost(
        name=entry.name,
        uusd_per_month=None if entry.usd_per_month is None else _amount(entry.usd_per_month),
        uusd_per_hour=None if entry.usd_per_hour is None else _amount(entry.usd_per_hour),
        from_hour=None if entry.since is None else parse_moment(entry.since),
        to_hour=None if entry.until is None else parse_moment(entry.until),
        split=Split(entry.split),
    )


def _amount(text: str) -> int:
    return usd_to(text, MICRO_USD_PER_USD)


def _try(path: str, text: str | None, read: Callable[[str], int], report: Report) -> int | None:
    try:
        return None if text is None else read(text)
    except ValueError as error:
        report(path, str(error))
        return None
