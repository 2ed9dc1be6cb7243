"""Answers of the finance face, from closed hours where they are kept. Blocking; for a process of its own."""

import pathlib
import time
from typing import Any

import msgspec

from gateway.commands import closed_export
from gateway.commands.closed_export import Asked
from gateway.configuration import price_books, pricing_config
from gateway.configuration.archives import objects_of
from gateway.configuration.config import Config
from gateway.duties.close_runs import place_of
from gateway.faces import price_figures, report_figures, statements
from gateway.faces.answers import Answer, Download, Sent
from gateway.faces.finance_questions import (
    Export,
    Hours,
    Months,
    Period,
    Prices,
    Question,
    Report,
    Rows,
    Statement,
    Summary,
    Waterfall,
)
from metering.audit import audit
from metering.cost import month_sums, summaries
from metering.cost.amounts import total
from metering.cost.charge_terms import Charged
from metering.cost.close_manifest import Month, month_hours, month_of
from metering.cost.closes import Closes
from metering.export import allocated_rows, export_manifest, row_cursor, row_pages, selection, zones
from metering.export.export_manifest import Made
from metering.export.export_parts import Part
from metering.export.exports import Format, Stream
from metering.export.focus.table import moment
from metering.export.row_cursor import TooManyRevisions
from metering.export.selection import Selection
from metering.export.statement import statement_page
from metering.periods import instant_text, parse_instant
from metering.units import NS_PER_HOUR

HOURS_MAX = 366 * 24
"""Of a period: a year."""
LISTED_HOURS_MAX = 31 * 24 + 1
"""Of which all is told: a month, also one in which clocks are set back; some 3 MB."""
_MEDIA_TYPES = {Format.JSON: "application/x-ndjson"}

Json = dict[str, Any]


class _Refused(Exception):
    """What was asked makes no sense here. status: of the answer; param: at fault."""

    def __init__(self, message: str, param: str | None, status: int = 400) -> None:
        super().__init__(message)
        self.answer = Answer(status=status, message=message, param=param)


def answer(question: Question, config: Config) -> Answer | Download:
    """Raises ArchiveError, CloseFileError, OSError."""
    objects = objects_of(pathlib.Path(config.state_dir), config.journal)
    closes = Closes(objects)
    try:
        match question:
            case Summary():
                return _summary(question, closes)
            case Rows():
                return _rows(question, closes)
            case Hours():
                return _hours(question, closes)
            case Months():
                return _months(closes)
            case Prices():
                at_ns = time.time_ns() if question.at is None else _instant(question.at)
                book = price_books.load(config.prices, objects)
                data = [price_figures.price(*one) for one in book.in_force(at_ns)]
                return _ok({"object": "list", "at": instant_text(at_ns), "digest": book.digest, "data": data})
            case Waterfall():
                found = _of_month(closes, question.month)
                pools = month_sums.waterfalls(closes, found.parts)
                data = [report_figures.waterfall(one) for one in pools]
                return _ok({"object": "list", **_head(closes, question.month, found), "data": data})
            case Report():
                return _report(question, closes, config)
            case Export():
                return _export(question, closes, config)
            case Statement():
                return _statement(question, closes, config)
    except _Refused as error:
        return error.answer


def _summary(question: Summary, closes: Closes) -> Answer:
    try:
        summaries.check(question.by)
    except ValueError as error:
        raise _Refused(str(error), "by") from error
    hours = _period(question.period, HOURS_MAX)
    found = selection.select(closes, hours)
    sums = summaries.summarise(closes, found.parts, question.by, zones.zone(question.period.zone))
    data = [report_figures.summary(question.by, one) for one in sums]
    return _ok(
        {
            "object": "list",
            "from": moment(hours.start),
            "to": moment(hours.stop),
            "time_zone": question.period.zone,
            "by": question.by,
            **_whole(found),
            "data": data,
            "total": report_figures.amounts(total(sums)),
        }
    )


def _rows(question: Rows, closes: Closes) -> Answer:
    hours = None if question.period is None else _period(question.period, HOURS_MAX)
    if question.cursor is None:
        assert hours is not None
        page = row_pages.first(closes, hours, question.limit)
    elif hours in (None, question.cursor.period):
        page = row_pages.after(closes, question.cursor, question.limit)
    else:
        raise _Refused("from and to are not those that this cursor was given for", "cursor")
    try:
        following = None if page.next is None else row_cursor.encode(page.next)
    except TooManyRevisions as error:
        raise _Refused(str(error), "to") from error
    data = [msgspec.Raw(allocated_rows.json_line(one)) for one in page.rows]
    return _ok({"object": "list", "data": data, "next": following})


def _hours(question: Hours, closes: Closes) -> Answer:
    found = selection.select(closes, _period(question.period, LISTED_HOURS_MAX))
    data = [_hour(part) for part in found.parts]
    return _ok({"object": "list", **_whole(found), "data": data})


def _hour(part: Part) -> Json:
    """A manifest (metering/cost/close_manifest.py); moments are text, and times too, as in the audit face."""
    one = part.manifest
    names = (
        "revision", "reason", "basis", "made_by", "method", "sharing", "prices", "weights", "instances", "pools",
        "ratios", "totals", "missing", "unpriced", "unbilled", "remarks", "writers",
    )  # fmt: skip
    return {
        "hour": moment(one.hour),
        "closed": instant_text(one.closed_ns),
        "correction": part.correction,
        **audit.times_as_text({name: msgspec.to_builtins(getattr(one, name)) for name in names}),
        "rows": {"count": one.rows.count, "sha256": one.rows.sha256},
    }


def _months(closes: Closes) -> Answer:
    numbers = closes.numbers(range(time.time_ns() // NS_PER_HOUR + 1))
    closed: dict[str, int] = {}
    for hour in numbers:
        closed[month_of(hour)] = closed.get(month_of(hour), 0) + 1
    data = []
    for month in sorted({*closed, *closes.months()}):
        states = closes.states(month)
        data.append(
            {
                "month": month,
                "state": states[-1].state if states else "provisional",
                "hours_closed": closed.get(month, 0),
                "hours": len(month_hours(month)),
                "states": [_state(one) for one in states],
            }
        )
    return _ok({"object": "list", "data": data})


def _state(one: Month) -> Json:
    return {
        "number": one.number,
        "state": one.state,
        "at": instant_text(one.at_ns),
        "by": one.by,
        "bills": one.bills,
        "hours": len(one.hours),
    }


def _report(question: Report, closes: Closes, config: Config) -> Answer:
    found = _of_month(closes, question.month)
    lines = month_sums.tenant_lines(closes, found, question.tenant)
    if not lines:
        message = f"no closed hour of this month or the one before has a tenant {question.tenant!r}"
        raise _Refused(message, "tenant", status=404)
    told = {
        "object": "list",
        **_head(closes, question.month, found),
        "tenant": question.tenant,
        "chargeback": found.chargeback_of(question.month) or config.chargeback,
        "data": [report_figures.line(line) for line in lines],
    }
    return _ok(told)


def _export(question: Export, closes: Closes, config: Config) -> Answer | Download:
    hours = _period(question.period, HOURS_MAX)
    form = Format(question.form)
    try:
        options = closed_export.options(form, question.focus_version, question.charged, place_of(config))
    except ValueError as error:
        raise _Refused(str(error), "focus_version") from error
    found = selection.select(closes, hours)
    asked = Asked(
        form,
        hours,
        question.period.zone,
        None,
        options,
        omit_unpriced=question.omit_unpriced,
        running=False,
        charged=None if question.charged is None else Charged(question.charged),
    )
    try:
        asked = closed_export.kept(asked, found)
    except ValueError as error:
        raise _Refused(str(error), "chargeback") from error
    if closed_export.lacks_prices(asked, found):
        message = (
            f"no price is known of {', '.join(found.unpriced)}: omit_unpriced=true leaves their hours out"
        )
        raise _Refused(message, "omit_unpriced")
    stream = Stream(form, selection.rows(closes, found.parts), asked.options)
    name = closed_export.file_name(asked)
    if question.is_manifest:
        for _ in stream:
            pass
        made = Made(bytes=stream.bytes, name=name, rows=stream.rows, sha256=stream.sha256, sums=stream.sums)
        manifest = closed_export.manifest_of(asked, found, stream.columns, made)
        return Answer(status=200, content=msgspec.Raw(msgspec.json.encode(manifest, order="sorted")))
    period = f"{moment(hours.start)}/{moment(hours.stop)}"
    return Download(
        Answer(status=200, file_name=name, media_type=_MEDIA_TYPES.get(form, "text/csv; charset=utf-8")),
        stream,
        lambda: Sent(what=closed_export.WHAT[form], period=period, rows=stream.rows, sha256=stream.sha256),
    )


def _statement(question: Statement, closes: Closes, config: Config) -> Download:
    terms = pricing_config.terms(config.models, config.chargeback, config.exports)
    try:
        made = statements.make(
            closes, tenant=question.tenant, month=question.month, terms=terms, now_ns=time.time_ns()
        )
    except ValueError as error:
        raise _Refused(str(error), "month") from error
    if made is None:
        message = f"no closed hour of this month has a tenant {question.tenant!r}"
        raise _Refused(message, "tenant", status=404)
    sent = Sent(
        what="statement", period=made.period, rows=made.rows, sha256=made.sha256, tenant=question.tenant
    )
    head = Answer(status=200, file_name=made.file_name, media_type=statement_page.MEDIA_TYPE)
    return Download(head, [made.data], lambda: sent)


def _period(period: Period, hours_max: int) -> range:
    """Raises _Refused."""
    try:
        zone = zones.zone(period.zone)
    except ValueError as error:
        raise _Refused(str(error), "tz") from error
    try:
        hours = zones.parse_period(period.start, period.end, zone)
    except ValueError as error:
        raise _Refused(str(error), None) from error
    if len(hours) > hours_max:
        raise _Refused(f"the period has {len(hours)} hours; here {hours_max} are the most", "to")
    return hours


def _instant(text: str) -> int:
    """Raises _Refused."""
    try:
        return parse_instant(text)
    except ValueError as error:
        raise _Refused(str(error), "at") from error


def _of_month(closes: Closes, month: str) -> Selection:
    """Raises _Refused."""
    try:
        period = month_hours(month)
    except ValueError as error:
        raise _Refused(str(error), "month") from error
    return selection.select(closes, period)


def _head(closes: Closes, month: str, found: Selection) -> Json:
    return {"month": month, "state": closes.month(month).state, **_whole(found)}


def _whole(found: Selection) -> Json:
    """What a period lacks, and which of its hardware was not there."""
    simulated = export_manifest.different(one for part in found.parts for one in part.manifest.simulated)
    return {
        "not_closed": export_manifest.spans(found.not_closed),
        "simulated": simulated,
        "unpriced": found.unpriced,
    }


def _ok(content: Json) -> Answer:
    return Answer(status=200, content=msgspec.Raw(msgspec.json.encode(content)))
