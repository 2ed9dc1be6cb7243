"""What `weighbridge reconcile` shows: as a table for a person, or as one JSON object. Pure.

what the bill has, by what it is about
what of it is allocated to instances, and the difference
what the difference consists of
what is left over                                          0.000000000000
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from metering.cost.bill import ReadBill
from metering.cost.close_manifest import hour_text
from metering.cost.reconcile import Finding, Reconciled
from metering.units import usd_text

_LABEL = 58
_AMOUNT = 26
_DIGEST_SHOWN = 16
_MICRO_HOURS_PLACES = 6


def as_text(read: ReadBill, result: Reconciled, until: int) -> str:
    """For a person; the last line of the table is what is left over."""
    return "\n".join(_lines(read, result, until)) + "\n"


def as_json(read: ReadBill, result: Reconciled, until: int) -> str:
    """One object on a line; money is text in USD with 12 places."""
    return msgspec.json.encode(_object(read, result, until)).decode() + "\n"


def _lines(read: ReadBill, result: Reconciled, until: int) -> Iterator[str]:
    yield f"bill: {read.format}, {read.rows} rows, sha256 {read.digest[:_DIGEST_SHOWN]}…"
    yield f"month: {read.month}, up to {hour_text(until)}" + ("" if read.invoiced else ", not invoiced yet")
    if read.approximate:
        yield "amounts are binary doubles: each is read as the shortest decimal that it stands for"
    if read.other_months:
        yield f"rows of {', '.join(read.other_months)} are left out"
    yield ""
    yield f"{'':{_LABEL}}{'USD':>{_AMOUNT}}"
    for meaning, tally in result.by_meaning.items():
        yield _row(f"  {meaning.value} ({tally.lines} lines)", tally.pusd)
    yield _row("billed", result.billed_pusd)
    yield _row("allocated", result.allocated_pusd)
    yield _row("difference", result.difference_pusd)
    for label, pusd in result.explained.items():
        yield _row(f"  {label}", pusd)
    yield _row("unexplained", result.rest_pusd)
    if result.findings:
        yield ""
    for finding in result.findings:
        yield _finding(finding)


def _row(label: str, pusd: int) -> str:
    return f"{label:{_LABEL}}{usd_text(pusd):>{_AMOUNT}}"


def _finding(finding: Finding) -> str:
    parts = [f"{finding.what.value}: {finding.of}"]
    if finding.first_hour is not None and finding.last_hour is not None:
        span = f"{hour_text(finding.first_hour)} to {hour_text(finding.last_hour)}"
        parts.append(f"{finding.hours} hours, {span}" if finding.hours > 1 else span.partition(" ")[0])
    if finding.micro_hours:
        parts.append(f"{_hours(finding.micro_hours)} instance-hours")
    if finding.pusd:
        parts.append(f"{usd_text(finding.pusd)} USD")
    if finding.detail:
        parts.append(finding.detail)
    return "; ".join(parts)


def _hours(micro_hours: int) -> str:
    sign = "-" if micro_hours < 0 else ""
    whole, rest = divmod(abs(micro_hours), 10**_MICRO_HOURS_PLACES)
    return f"{sign}{whole}.{rest:0{_MICRO_HOURS_PLACES}d}"


def _object(read: ReadBill, result: Reconciled, until: int) -> dict[str, Any]:
    return {
        "month": read.month,
        "until": hour_text(until),
        "format": read.format,
        "rows": read.rows,
        "bill": read.digest,
        "files": read.digests,
        "invoiced": read.invoiced,
        "approximate": read.approximate,
        "lines": {
            meaning.value: {"lines": tally.lines, "usd": usd_text(tally.pusd)}
            for meaning, tally in result.by_meaning.items()
        },
        "billed_usd": usd_text(result.billed_pusd),
        "allocated_usd": usd_text(result.allocated_pusd),
        "difference_usd": usd_text(result.difference_pusd),
        "explained": {label: usd_text(pusd) for label, pusd in result.explained.items()},
        "unexplained_usd": usd_text(result.rest_pusd),
        "is_explained": result.is_explained,
        "findings": [_finding_object(finding) for finding in result.findings],
    }


def _finding_object(finding: Finding) -> dict[str, Any]:
    hours = (finding.first_hour, finding.last_hour)
    first, last = (None if hour is None else hour_text(hour) for hour in hours)
    return {
        "what": finding.what.value,
        "of": finding.of,
        "hours": finding.hours,
        "first_hour": first,
        "last_hour": last,
        "instance_hours": _hours(finding.micro_hours),
        "usd": usd_text(finding.pusd),
        "detail": finding.detail,
    }
