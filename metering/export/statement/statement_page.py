"""A statement as one HTML file: nothing is loaded, nothing runs, everything that somebody chose is escaped. Pure.

Amounts are exact: decimal strings with 12 places. null is «unknown».
"""

from collections.abc import Callable, Iterable, Sequence

from metering.cost import month_report
from metering.cost.amounts import Amounts
from metering.cost.charge_terms import Charged
from metering.cost.close_manifest import MonthState, month_hours
from metering.cost.month_report import REST, Effect, Line, Waterfall
from metering.export import cells
from metering.export.focus.table import moment
from metering.export.statement import how
from metering.export.statement.markup import Child, Markup, join, tag, word
from metering.export.statement.statement import Statement, charge, known_charge, rolled_up
from metering.export.statement.statement_style import STYLE
from metering.export.statement.tables import money, table
from metering.units import div_half_up

MEDIA_TYPE = "text/html; charset=utf-8"

_STATES = {
    MonthState.PROVISIONAL: "by list prices; it may still change",
    MonthState.RECONCILED: "by the bill; it may still change",
    MonthState.CLOSED: "it does not change any more: what comes later is a correction in a later month",
}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_BASES = {Charged.RATE_CARD: "by rate card", Charged.ALLOCATED: "by allocation, with what was shared out"}


def page(one: Statement) -> bytes:
    """The whole file, UTF-8."""
    title = f"Statement {one.month}, {one.tenant}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        Markup(f"<style>{STYLE}</style>"),
    )
    sections = (
        _header(one),
        tag("main", _facts(one), *_notes(one), *_sums(one), _use(one), _days(one), *_centres(one), *_shared(one),
            *_corrections(one), _variance(one), *_pools(one), how.section(one)),
        tag("footer", f"{title}. Rows: SHA-256 {one.made.rows_sha256}. Made {one.made.created}."),
    )  # fmt: skip
    body = tag("body", *sections)
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en').text}\n".encode()


def _name(text: str | None) -> Markup:
    return tag("span", "none", class_="none") if text is None else word(text)


def _header(one: Statement) -> Markup:
    return tag(
        "header",
        tag(
            "div",
            tag("p", word(one.issuer), class_="by"),
            tag("h1", "Statement ", word(one.tenant)),
            tag("p", f"{one.month} ", tag("span", one.state.value, class_="state"), class_="by"),
        ),
        tag(
            "div",
            tag("div", "Total, USD", class_="label"),
            tag("div", money(_total(one)), class_="amount", id="total"),
            class_="total",
        ),
    )


def _total(one: Statement) -> int | None:
    nothing_known = known_charge(one.amounts, one.charged_by) is None
    return None if nothing_known and not one.total_pusd else one.total_pusd


def _facts(one: Statement) -> Markup:
    hours = month_hours(one.month)
    centres = [centre for (centre,) in rolled_up(one.use, ["cost_centre"]) if centre is not None]
    named = join(*(join(", " if n else "", word(centre)) for n, centre in enumerate(centres)))
    revisions = ", ".join(f"revision {n}: {count} hours" for n, count in one.made.revisions.items())
    facts: list[tuple[str, Child]] = [
        ("Issued by", join(word(one.issuer), ", account ", word(one.account))),
        ("Tenant", word(one.tenant)),
        ("Cost centres", named if centres else "none tagged"),
        ("Period", f"{moment(hours.start)} up to, and without, {moment(hours.stop)}"),
        ("State", f"{one.state.value}: {_STATES[one.state]}"),
        ("Charged", _BASES[one.charged_by]),
        ("Hours", f"{one.made.hours_closed} of {one.made.hours} closed; {revisions or 'none'}"),
        ("Digest of the rows", tag("span", f"SHA-256 {one.made.rows_sha256}", class_="hash")),
        ("Made", one.made.created),
    ]
    return tag("dl", *(join(tag("dt", name), tag("dd", value)) for name, value in facts))


def _notes(one: Statement) -> Iterable[Markup]:
    """What keeps the figures from being all of it."""
    made = one.made
    calls, hours = one.amounts.unpriced_calls, one.amounts.unpriced_micro_hours
    if made.simulated:
        yield _note(
            f"Simulated hardware ({', '.join(made.simulated)}): this is what it would have cost, nobody was charged."
        )
    if made.not_closed:
        spans = ", ".join(made.not_closed[:3]) + (" and more" if len(made.not_closed) > 3 else "")
        missing = made.hours - made.hours_closed
        yield _note(f"{missing} of {made.hours} hours of this month are not closed and not in it: {spans}.")
    if made.missing:
        yield _note(f"{len(made.missing)} journals could not be read when hours were closed.")
    if calls and one.charged_by is Charged.RATE_CARD:
        yield _note(f"{calls:,} calls have no price. They are in no sum of money.")
    if hours and one.charged_by is Charged.ALLOCATED:
        yield _note(
            f"{cells.millionths(hours)} instance-hours have no price ({', '.join(made.unpriced)}). "
            "They are in no sum of money."
        )


def _note(text: str) -> Markup:
    return tag("p", text, class_="note", role="note")


def _sums(one: Statement) -> Iterable[Markup]:
    amounts = one.amounts
    rows: list[Sequence[Child]] = [
        (f"Use, {_BASES[one.charged_by]}", money(known_charge(amounts, one.charged_by))),
        ("Shared costs, split out", money(one.shared_costs_pusd)),
        ("Corrections of months that were closed", money(one.corrections_pusd)),
    ]
    yield tag("h2", "Summary")
    yield table(
        "What the total consists of, in USD",
        [("", False), ("USD", True)],
        rows,
        ("Total", money(_total(one))),
    )


_USE_HEAD = [("calls", True), ("prompt tokens", True), ("of them cached", True), ("completion tokens", True)]


def _counts(one: Amounts) -> list[Child]:
    counts = (one.calls, one.prompt_tokens, one.cached_prompt_tokens, one.completion_tokens)
    return [f"{count:,}" for count in counts]


def _charge(one: Statement) -> Callable[[Amounts], Markup]:
    return lambda amounts: money(known_charge(amounts, one.charged_by))


def _use(one: Statement) -> Markup:
    charged = _charge(one)
    rows: list[Sequence[Child]] = [
        (_name(project), _name(model), _name(family), *_counts(amounts), charged(amounts))
        for (project, model, family), amounts in rolled_up(one.use, ["project", "model", "family"]).items()
    ]
    head = [("project", False), ("model", False), ("hardware", False), *_USE_HEAD, ("USD", True)]
    last: Sequence[Child] = ("Sum", "", "", *_counts(one.amounts), charged(one.amounts))
    caption = f"Use by project, model and hardware, {_BASES[one.charged_by]}, in USD"
    return tag("section", tag("h2", "Use"), table(caption, head, rows, last), _both_bases(one))


def _both_bases(one: Statement) -> Markup:
    """By the rate cards, and what was allocated, whichever is charged."""
    amounts = one.amounts
    estimate, allocated = (known_charge(amounts, by) for by in (Charged.RATE_CARD, Charged.ALLOCATED))
    variance = None if estimate is None or allocated is None else allocated - estimate
    rows: list[Sequence[Child]] = [
        ("By the rate cards (estimated)", money(estimate)),
        ("Allocated of the instances' cost", money(amounts.cost_pusd)),
        ("Shared out of what nobody used", money(None if allocated is None else amounts.shared_pusd)),
        ("Allocated and shared, less estimated (variance)", money(variance)),
    ]
    return table("The same use on both bases, in USD", [("basis", False), ("USD", True)], rows)


def _days(one: Statement) -> Markup:
    charged = _charge(one)
    rows: list[Sequence[Child]] = [
        (day or "", *_counts(amounts), charged(amounts))
        for (day,), amounts in rolled_up(one.use, ["day"]).items()
    ]
    last: Sequence[Child] = ("Sum", *_counts(one.amounts), charged(one.amounts))
    head = [("day", False), *_USE_HEAD, ("USD", True)]
    return tag("section", tag("h2", "Days"), table("Use by day, UTC, in USD", head, rows, last))


def _centres(one: Statement) -> Iterable[Markup]:
    charged = _charge(one)
    by_centre = rolled_up(one.use, ["cost_centre"])
    if set(by_centre) <= {(None,)}:
        return
    rows: list[Sequence[Child]] = [
        (_name(centre), *_counts(amounts), charged(amounts)) for (centre,), amounts in by_centre.items()
    ]
    head = [("cost centre", False), *_USE_HEAD, ("USD", True)]
    last: Sequence[Child] = ("Sum", *_counts(one.amounts), charged(one.amounts))
    caption = "Use by cost centre, from the tags as of each call, in USD"
    yield tag("section", tag("h2", "Cost centres"), table(caption, head, rows, last))


def _shared(one: Statement) -> Iterable[Markup]:
    if not one.shared_costs:
        return
    rows: list[Sequence[Child]] = [(word(name), money(pusd)) for name, pusd in one.shared_costs.items()]
    caption = "Costs that are no instance, and are split out to tenants, in USD"
    last: Sequence[Child] = ("Sum", money(one.shared_costs_pusd))
    yield tag(
        "section",
        tag("h2", "Shared costs"),
        table(caption, [("cost", False), ("USD", True)], rows, last),
    )


def _corrections(one: Statement) -> Iterable[Markup]:
    if not one.corrections:
        return
    rows: list[Sequence[Child]] = [
        (
            each.month,
            f"{each.hours:,}",
            _BASES[each.charged_by],
            *map(money, (each.taken_back_pusd, each.restated_pusd, each.difference_pusd)),
        )
        for each in one.corrections
    ]
    head = [("month", False), ("hours", True), ("charged", False), ("taken back", True), ("put anew", True),
            ("difference", True)]  # fmt: skip
    last: Sequence[Child] = ("Sum", "", "", "", "", money(one.corrections_pusd))
    caption = "What was learnt in this month of months that were closed before, by their terms, in USD"
    yield tag("section", tag("h2", "Corrections"), table(caption, head, rows, last))


def _variance(one: Statement) -> Markup:
    title = tag("h2", "Against the month before")
    if one.changes is None:
        return tag("section", title, tag("p", "Nothing is known of the month before."))
    head = [
        ("model", False),
        ("hardware", False),
        ("before", True),
        ("usage", True),
        ("price", True),
        ("now", True),
    ]
    found = [(line, *_effect(line, one.charged_by)) for line in one.changes]
    rows: list[Sequence[Child]] = [
        (_name(line.model), _name(line.hardware), *map(money, (before, effect.usage, effect.price, now)))
        for line, before, effect, now in found
    ]
    of_all = month_report.sum_of_effects(effect for _, _, effect, _ in found)
    sums = sum(each[1] for each in found), of_all.usage, of_all.price, sum(each[3] for each in found)
    caption = (
        "Why the charge for use differs: by how much was used, and by what a unit of it cost, in USD. "
        "Corrections are in neither month; what has no price counts as 0"
    )
    return tag("section", title, table(caption, head, rows, ("Sum", "", *map(money, sums))))


def _effect(line: Line, by: Charged) -> tuple[int, Effect, int]:
    effect = line.estimated if by is Charged.RATE_CARD else line.allocated
    return charge(line.before, by), effect, charge(line.now, by)


def _pools(one: Statement) -> Iterable[Markup]:
    """What the servers of the models used cost in all, and what nobody used of them."""
    if not one.pools:
        return
    methods, sharing = ", ".join(one.made.methods), ", ".join(one.made.sharing)
    yield tag(
        "section",
        tag("h2", "Used and not used"),
        tag("p", f"All tenants together. Time was split by {methods}; the rest was shared: {sharing}."),
        *map(_pool, one.pools),
    )


def _pool(pool: Waterfall) -> Markup:
    is_priced = not pool.unpriced_micro_hours or bool(pool.billed)
    parts = [
        *((kind.value.removeprefix("~"), pool.rest[kind]) for kind in REST if pool.rest[kind]),
        ("tenants", pool.tenants),
    ]
    rows: list[Sequence[Child]] = [
        (name, money(pusd if is_priced else None), _share(pusd, pool.billed)) for name, pusd in parts
    ]
    return table(
        join("What the servers of ", word(pool.pool or ""), " cost in the month, by what it went to, in USD"),
        [("part", False), ("USD", True), ("share", True)],
        rows,
        ("All servers", money(pool.billed if is_priced else None), ""),
    )


def _share(part: int, whole: int) -> str:
    return f"{div_half_up(part * 1_000, whole) / 10:.1f} %" if whole > 0 <= part else ""
