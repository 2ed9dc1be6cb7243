"""What `weighbridge close` shows: a line for each hour that was closed, and what a person should know of it. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from metering.cost.close_manifest import Manifest, Ratios, Reason, hour_text
from metering.cost.close_row import RowKind
from metering.units import PICO_USD_PER_USD, usd_to

_REST = (RowKind.OVERHEAD, RowKind.HEADROOM, RowKind.IDLE, RowKind.STARTUP, RowKind.STRANDED)
_COLUMNS = (
    "hour", "rev", "inst", "cost", "tenants", *(kind.value for kind in _REST), "under-rec.", "used", "busy", "cap.",
)  # fmt: skip
_PLACES = 4
_PPM_PER_PERCENT = 10_000
_LEFT = 1
"""Columns that are text."""


def page(closed: Sequence[Manifest], waiting: Mapping[int, Sequence[str]]) -> str:
    """All of it; amounts are USD, rounded for people. waiting: hours that are over, with whom they wait for."""
    lines = []
    if closed:
        rows = [_COLUMNS, *map(_row, closed)]
        widths = [max(len(row[n]) for row in rows) for n in range(len(_COLUMNS))]
        lines += ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
        lines.append(
            f"{_count(len(closed), 'hour')}, in USD; rest by kind; used, busy, cap.(acity) in percent"
        )
    else:
        lines.append("nothing to close")
    lines += _notes(closed)
    for hour, writers in sorted(waiting.items()):
        lines.append(f"{hour_text(hour)} waits for {', '.join(writers) or 'its turn'}")
    return "\n".join(lines) + "\n"


def not_over(period: range, this_hour: int, *, now: bool) -> str | None:
    """Why hours of a period that was asked for are not closed: they are not over. now: it was looked into this one."""
    if period.stop <= this_hour:
        return None
    if period.start > this_hour:
        return f"{hour_text(period.start)} has not begun"
    if not now:
        return f"{hour_text(this_hour)} is not over: it can be closed after its end, and --now looks into it"
    return None


def _row(one: Manifest) -> tuple[str, ...]:
    totals = one.totals
    return (
        hour_text(one.hour),
        "now" if one.reason is Reason.NOW else str(one.revision),
        str(len(one.instances)),
        _usd(totals.instances),
        _usd(totals.tenants),
        *(_usd(totals.rest.get(kind.value, "0")) for kind in _REST),
        _usd(totals.under_recovery),
        *map(_percent, _in_order(one.ratios)),
    )


def _in_order(ratios: Ratios) -> tuple[int | None, ...]:
    return ratios.used, ratios.busy, ratios.capacity


def _notes(closed: Sequence[Manifest]) -> Iterable[str]:
    unpriced = sorted({name for one in closed for name in one.unpriced})
    for name in unpriced:
        yield f"{name} has no price, and its hours no money: weighbridge prices import FILE, or a line under prices"
    if simulated := sorted({name for one in closed for name in one.simulated}):
        yield f"simulated hardware, for which nobody was charged: {', '.join(simulated)}"
    for one in closed:
        late = [writer.writer for writer in one.writers if writer.complete == "deadline"]
        if late and one.reason is not Reason.NOW:
            yield f"{hour_text(one.hour)} was closed before these told all of it: {', '.join(late)}"
        if one.missing:
            yield f"{hour_text(one.hour)} lacks the journals of {', '.join(one.missing)}"
        for remark in one.remarks:
            yield f"{hour_text(one.hour)}: {remark}"


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        text.ljust(width) if n < _LEFT else text.rjust(width)
        for n, (text, width) in enumerate(zip(row, widths, strict=True))
    ]


def _usd(text: str) -> str:
    """A decimal string to four places, half up."""
    negative, digits = text.startswith("-"), text.removeprefix("-")
    unit = PICO_USD_PER_USD // 10**_PLACES
    rounded = (usd_to(digits, PICO_USD_PER_USD) + unit // 2) // unit
    whole, rest = divmod(rounded, 10**_PLACES)
    return f"{'-' if negative and rounded else ''}{whole}.{rest:0{_PLACES}d}"


def _percent(ppm: int | None) -> str:
    return "-" if ppm is None else f"{(ppm + _PPM_PER_PERCENT // 20) // (_PPM_PER_PERCENT // 10) / 10:.1f}"


def _count(n: int, word: str) -> str:
    return f"{n} {word}{'s' * (n != 1)}"
