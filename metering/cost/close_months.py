"""When a month can be closed. Pure.

provisional ─▶ reconciled (by a bill) ─▶ closed          or, if a person says so, closed without a bill
"""

from collections.abc import Collection

from metering.cost.close_manifest import Month, MonthState, hour_text, month_hours
from metering.units import NS_PER_HOUR


def hours_of(month: str) -> range:
    """The hours of a month. Raises ValueError: that is none."""
    return month_hours(month)


def why_not(month: Month, closed: Collection[int], *, without_bill: bool, now_ns: int) -> str | None:
    """Why a month can't be closed now; None: it can. closed: its closed hours; now_ns: wall clock.

    Hours before the first closed one are none that a gateway has seen. Raises ValueError: it is no month.
    """
    hours = month_hours(month.month)
    if month.state is MonthState.CLOSED:
        return f"it was closed by {month.by} before"
    if now_ns < hours.stop * NS_PER_HOUR:
        return "it is not over"
    if not closed:
        return "none of its hours is closed; see `weighbridge close`"
    if (missing := _missing(closed, hours.stop)) is not None:
        return missing
    if month.state is MonthState.PROVISIONAL and not without_bill:
        return "it is not reconciled: see `weighbridge reconcile --bill FILE`, or close it --without-bill"
    return None


def why_no_bill(month: str, closed: Collection[int], *, until: int, now_ns: int) -> str | None:
    """Why a month's hours can't take the cost of a bill now; None: they can.

    closed: its closed hours, of which there is one; until: the first hour that the bill does not reach; now_ns: wall
    clock. Raises ValueError: it is no month.
    """
    if now_ns < month_hours(month).stop * NS_PER_HOUR:
        return f"{month} is not over"
    return _missing(closed, until)


def _missing(closed: Collection[int], stop: int) -> str | None:
    """Which hours between the first closed one and this one are not."""
    missing = [hour for hour in range(min(closed), stop) if hour not in closed]
    if not missing:
        return None
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"hour {hour_text(missing[0])}{more} is not closed; see `weighbridge close`"
