"""What `weighbridge report` shows in a terminal: plain text, at most 100 columns. Pure.

Amounts are rounded for people; the exact ones are in --json and in the exports.
"""

from collections.abc import Iterable, Sequence

from metering.cost import month_report
from metering.cost.amounts import Amounts, PriceUsed, Summary
from metering.cost.close_manifest import Ratios
from metering.cost.close_row import RowKind
from metering.cost.comparison import FIELDS, Comparison, Side
from metering.cost.month_report import REST, Effect, Line, Waterfall
from metering.units import div_half_up

_BAR = 36
_PPM = 1_000_000
_PICO_PER_CENT = 10_000_000_000
_PICO_PER_MICRO_USD = 1_000_000
_SHOWN_HOURS = 1_000_000
_PRICES_MAX = 12


def waterfall(one: Waterfall) -> list[str]:
    """A pool's month, from what was billed down to what came in."""
    lines = [f"pool {one.pool or '(none, or several)'}", _step("billed", one.billed, one.billed, 0)]
    left = one.billed
    for kind in REST:
        amount = one.rest[kind]
        if amount or kind is not RowKind.RESERVED:
            left -= amount
            lines.append(_step(f"- {kind.value.removeprefix('~')}", amount, one.billed, left))
    lines.append(_step("= tenants", one.tenants, one.billed, 0))
    lines.append(_step("  recovered", one.recovered, one.billed, 0))
    lines.append(_step("  under-recovery", one.under_recovery, one.billed, 0))
    if one.ratios is not None:
        lines.append(f"  {ratios(one.ratios)}")
    if one.calls:
        tenants = None if one.unpriced_micro_hours and not one.tenants else one.tenants
        each = _per_call(tenants, one.calls)
        mtok = _per_mtok(tenants, one.tokens)
        whole = _per_mtok(None if tenants is None else one.billed, one.tokens)
        lines.append(
            f"  {one.calls:,} calls, {one.tokens:,} tokens; allocated {fine(each)} a call, {rate(mtok)} per 1M "
            f"tokens;"
        )
        lines.append(f"  with all that was not used {rate(whole)} per 1M tokens")
    return lines + unknown_money(one.unpriced_micro_hours, one.unpriced_calls, "recovered")


def unknown_money(micro_hours: int, calls: int, estimate: str = "estimated") -> list[str]:
    """Hours and calls that are in no sum of money: their price is not known. estimate: the name of the calls' sum."""
    lines = []
    if micro_hours:
        lines.append(f"  {hours(micro_hours)} have no price and are in no sum: weighbridge prices import")
    if calls:
        lines.append(f"  {calls:,} calls have no estimate and count as 0 in {estimate}")
    return lines


def simulated(used: Sequence[PriceUsed]) -> list[str]:
    """A line, if any of the hardware was not there: its cost is what it would have been."""
    if not any(one.simulated for one in used):
        return []
    if all(one.simulated for one in used):
        return ["simulated hardware: this is what it would have cost, nobody was charged"]
    types = sorted({one.instance_type for one in used if one.simulated})
    return [_cut(f"in part simulated hardware, for which nobody was charged: {', '.join(types)}")]


def shared_costs(pusd: int | None, tenant: str | None) -> list[str]:
    """A line on what no instance is, and is paid for besides; pusd: None or 0: nothing."""
    if not pusd:
        return []
    whose = "not in any pool above" if tenant is None else f"split out to {tenant}, charged besides"
    return ["", f"shared costs {usd(pusd)}, {whose}"]


def ratios(one: Ratios) -> str:
    """The three ways to say how far a pool was used."""
    return (
        f"used {_percent(one.used)} of slots × paid time, busy {_percent(one.busy)} of paid time, "
        f"capacity {_percent(one.capacity)}"
    )


def prices(used: Sequence[PriceUsed]) -> list[str]:
    """What instance-hours were priced by."""
    lines = []
    for one in used[:_PRICES_MAX]:
        price = "no price known" if one.uusd_per_hour is None else f"{_rate(one.uusd_per_hour)} USD/h"
        words = (
            "simulated" if one.simulated else None,
            one.purchase_option,
            one.region,
            one.date,
            one.source,
        )
        about = ", ".join(word for word in words if word)
        lines.append(_cut(f"  {one.instance_type}  {price}, {hours(one.micro_hours)}  {about}".rstrip()))
    if len(used) > _PRICES_MAX:
        lines.append(f"  and {len(used) - _PRICES_MAX} more")
    return lines


def table(by: Sequence[str], summaries: Sequence[Summary]) -> list[str]:
    """Sums by what was asked for: tenants first, then what was not used."""
    rows = [
        (*(word or "-" for word in one.key), one.kind.value, *_figures(one.amounts))
        for one in sorted(summaries, key=lambda one: one.kind is not RowKind.TENANT)
    ]
    sums = sum((one.amounts for one in summaries), start=Amounts())
    head = (*by, "kind", "calls", "tokens", "slot hours", "allocated", "shared", "estimated")
    rows.append(("sum", *[""] * len(by), *_figures(sums)))
    return aligned([head, *rows], words=len(by) + 1) + unknown_money(
        sums.unpriced_micro_hours, sums.unpriced_calls
    )


def tenant(name: str, lines: Sequence[Line], charged: str) -> list[str]:
    """A tenant's month beside the one before; both bases, and why the charge differs."""
    now = sum((line.now for line in lines), start=Amounts())
    before = sum((line.before for line in lines), start=Amounts())
    cost, estimate = now.cost_pusd, now.estimate_pusd
    variance = None if cost is None or estimate is None else cost - estimate
    found = [
        f"tenant {name}, charged by {'rate card' if charged == 'rate-card' else 'allocation'}",
        f"  estimated {usd(estimate)}  allocated {usd(cost)}  variance {usd(variance)}"
        + (f"  shared {usd(now.shared_pusd)}" if now.shared_pusd else "")
        + (f"  charged {usd(now.charge_pusd)}" if now.shared_pusd and charged != "rate-card" else ""),
    ]
    head = (
        "model",
        "hardware",
        "calls",
        "tokens",
        "slot hours",
        "estimated",
        "per 1M",
        "allocated",
        "per 1M",
        "per call",
    )
    rows = [(line.model or "-", line.hardware or "-", *_line(line.now)) for line in lines]
    rows.append(("sum", "", *_line(now)))
    found += aligned([head, *rows], words=2)
    found += unknown_money(now.unpriced_micro_hours, now.unpriced_calls)
    if before == Amounts():
        return [*found, "  nothing is known of the month before"]
    changed: list[tuple[str, ...]] = [("against the month before", "", "before", "usage", "price", "now")]
    for line in lines:
        of, cost_before, cost = _charge(line, charged)
        changed.append(
            (
                line.model or "-",
                line.hardware or "-",
                usd(cost_before),
                usd(of.usage),
                usd(of.price),
                usd(cost),
            )
        )
    charges = [_charge(line, charged) for line in lines]
    of = month_report.sum_of_effects(one for one, _, _ in charges)
    sums = (sum(one[1] for one in charges), of.usage, of.price, sum(one[2] for one in charges))
    changed.append(("sum", "", *map(usd, sums)))
    found += ["", *aligned(changed, words=2)]
    lacking = unknown_money(before.unpriced_micro_hours, before.unpriced_calls)
    return found + [f"  of the month before:{line[1:]}" for line in lacking]


def comparison(model: str, found: Comparison) -> list[str]:
    """Two kinds of hardware side by side, and the saving if there is one to be said."""
    one, other = found.sides
    rows: list[tuple[str, ...]] = [(f"model {model}", one.instance_type, other.instance_type, "")]
    for field in FIELDS:
        values = (", ".join(each.facts[field]) or "not known" for each in found.sides)
        rows.append((field, *values, "differs" if field in found.differing else ""))
    one_by_one = [_costs(each) for each in found.sides]
    rows += [(name, *(costs[name] for costs in one_by_one), "") for name in one_by_one[0]]
    lines = aligned(rows, words=4)
    if found.saving_ppm is None:
        return [*lines, "", "not comparable:", *(f"  {reason}" for reason in found.lacking)]
    word = "less" if found.saving_ppm >= 0 else "more"
    share = _percent(abs(found.saving_ppm))
    lines += [
        "",
        f"a token cost {share} {word} on {one.instance_type} than on {other.instance_type}, with what was not used",
    ]
    if found.differing:
        in_order = [field for field in FIELDS if field in found.differing]
        lines.append(
            f"they differ in {', '.join(in_order)}: what the difference comes of is not said by this"
        )
    return lines


def aligned(rows: Sequence[Sequence[str]], *, words: int) -> list[str]:
    """Columns: the first so many to the left, the others to the right; two spaces before each line."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return [
        "  " + "  ".join(_padded(n, text, widths[n], words) for n, text in enumerate(row)).rstrip()
        for row in rows
    ]


def usd(pusd: int | None) -> str:
    """To the cent; a smaller amount to the millionth of a dollar."""
    if pusd is None:
        return "-"
    if 0 < abs(pusd) < 100 * _PICO_PER_CENT:
        return fine(pusd)
    sign, cents = _sign(pusd), div_half_up(abs(pusd), _PICO_PER_CENT)
    return f"{sign}{cents // 100:,}.{cents % 100:02d}"


def fine(pusd: int | None) -> str:
    """To the millionth of a dollar."""
    if pusd is None:
        return "-"
    sign, micro = _sign(pusd), div_half_up(abs(pusd), _PICO_PER_MICRO_USD)
    return f"{sign}{micro // _PPM:,}.{micro % _PPM:06d}"


def rate(pusd: int | None) -> str:
    """A price per 1M tokens, to four places."""
    if pusd is None:
        return "-"
    sign, parts = _sign(pusd), div_half_up(abs(pusd), _PICO_PER_CENT // 100)
    return f"{sign}{parts // 10_000:,}.{parts % 10_000:04d}"


def hours(micro_hours: int) -> str:
    """Instance-hours."""
    sign, hundredths = _sign(micro_hours), div_half_up(abs(micro_hours) * 100, _SHOWN_HOURS)
    return f"{sign}{hundredths // 100:,}.{hundredths % 100:02d} h"


def _charge(line: Line, charged: str) -> tuple[Effect, int, int]:
    if charged == "rate-card":
        return line.estimated, line.before.estimated_pusd, line.now.estimated_pusd
    return line.allocated, line.before.charge_pusd, line.now.charge_pusd


def _line(one: Amounts) -> Iterable[str]:
    return (
        f"{one.calls:,}",
        f"{one.tokens:,}",
        _slot_hours(one.slot_ns),
        usd(one.estimate_pusd),
        rate(_per_mtok(one.estimate_pusd, one.tokens)),
        usd(one.cost_pusd),
        rate(_per_mtok(one.cost_pusd, one.tokens)),
        fine(_per_call(one.cost_pusd, one.calls)),
    )


def _figures(one: Amounts) -> Iterable[str]:
    return (
        f"{one.calls:,}",
        f"{one.tokens:,}",
        _slot_hours(one.slot_ns),
        usd(one.cost_pusd),
        usd(one.shared_pusd if one.cost_pusd is not None else None),
        usd(one.estimate_pusd),
    )


def _per_mtok(pusd: int | None, tokens: int) -> int | None:
    return None if pusd is None else month_report.per_mtok(pusd, tokens)


def _per_call(pusd: int | None, calls: int) -> int | None:
    return None if pusd is None else month_report.per_call(pusd, calls)


def _costs(each: Side) -> dict[str, str]:
    tenants = each.tenants
    return {
        "paid": hours(each.all_of_it.micro_hours),
        "calls": f"{tenants.calls:,}",
        "prompt tokens a call": _mean(tenants.prompt_tokens, tenants.calls),
        "completion tokens a call": _mean(tenants.completion_tokens, tenants.calls),
        "USD per 1M tokens": rate(each.per_mtok),
        "without what was not used": rate(each.used_per_mtok),
    }


def _mean(amount: int, count: int) -> str:
    return f"{div_half_up(amount, count):,}" if count else "-"


def _slot_hours(slot_ns: int) -> str:
    thousandths = div_half_up(abs(slot_ns), 3_600_000_000)
    return f"{_sign(slot_ns)}{thousandths // 1000:,}.{thousandths % 1000:03d}"


def _step(name: str, amount: int, whole: int, before: int) -> str:
    """A line of a waterfall: its bar begins where the amount below it ends."""
    share = f"{_percent(amount * _PPM // whole if whole else None)}"
    start, end = (_cells(before, whole), _cells(before + amount, whole))
    bar = " " * start + "█" * max(end - start, 0)
    return f"  {name:<17}{usd(amount):>14}  {share:>7}  {bar}".rstrip()


def _cells(amount: int, whole: int) -> int:
    return min(_BAR, max(0, (2 * amount * _BAR + whole) // (2 * whole))) if whole > 0 else 0


def _percent(ppm: int | None) -> str:
    if ppm is None:
        return "-"
    tenths = div_half_up(abs(ppm), 1_000)
    return f"{_sign(ppm)}{tenths // 10}.{tenths % 10} %"


def _rate(uusd_per_hour: int) -> str:
    text = f"{uusd_per_hour // _PPM}.{uusd_per_hour % _PPM:06d}".rstrip("0")
    whole, _, rest = text.partition(".")
    return f"{whole}.{rest:0<2}"


def _padded(n: int, text: str, width: int, words: int) -> str:
    return text.ljust(width) if n < words else text.rjust(width)


def _sign(amount: int) -> str:
    return "-" if amount < 0 else ""


def _cut(text: str, columns: int = 100) -> str:
    return text if len(text) <= columns else f"{text[: columns - 1]}…"
