"""A verification as a page for a person. Pure."""

import datetime
from collections.abc import Iterator

from metering.audit.findings import Finding, Verdict
from metering.audit.inspection import Inspected, State
from metering.audit.verdict import Report
from metering.units import NS_PER_S

_KEYS = {
    "given": "those that were given, and no others",
    "found": "keys found beside the journal: this proves no more than that whoever holds them wrote it",
    "none": "no key was given or found: no signature was looked at",
}


def page(report: Report) -> str:
    """All of it, the verdict last."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    for journal in report.journals:
        yield f"{journal.inspected.verdict:<10}  {journal.path}"
        yield f"            {_journal(journal.inspected)}"
        yield from _findings(journal.inspected.findings)
        if more := journal.inspected.findings_left_out:
            yield f"            and {more} more"
    for pack in report.packs:
        about = f"the pack of {pack.month}, {_count(pack.files, 'file')}"
        yield f"pack        {pack.path}: {about}; the journals were {pack.verdict} when it was made"
    yield from _findings(report.findings)
    yield _sum(report)
    yield f"keys        {_keys(report)}"
    for vkey in report.keys.vkeys:
        yield f"            {vkey}"
    if report.keys.followed_by:
        yield "            lines signed by these name new keys, which did not count; if that was to be, give them too:"
    for vkey in report.keys.followed_by:
        yield f"            {vkey}"
    yield f"anchors     {_anchors(report)}"
    yield f"verdict     {report.verdict}"


def _journal(one: Inspected) -> str:
    front = f", from seq {one.starts_after + 1} on" if one.starts_after else ""
    lost = f" ({one.lost} lost)" if one.lost else ""
    signed = "signed whole" if 0 < one.signed_size == one.size else f"signed up to seq {one.signed_size}"
    parts = [
        f"{one.state}{front}",
        _count(one.lines, "line"),
        _count(one.calls, "call"),
        f"{_count(one.records, 'record')}{lost}",
        _count(one.checkpoints, "signed note"),
        signed if one.state is not State.OPEN or one.signed_size else "not signed yet",
    ]
    if one.torn_bytes:
        tail = "behind them" if one.verdict is Verdict.TAMPERED else "of a torn tail"
        parts.append(f"{_count(one.torn_bytes, 'byte')} {tail}")
    if one.unknown:
        parts.append(f"{_count(one.unknown, 'line')} of kinds that this version does not know")
    return ", ".join(parts)


def _findings(findings: tuple[Finding, ...]) -> Iterator[str]:
    for finding in findings:
        yield f"            {finding} ({finding.what})"


def _sum(report: Report) -> str:
    all_of = [journal.inspected for journal in report.journals]
    times = [
        time for one in all_of for time in (one.first_ns, one.last_ns) if time
    ]  # 0: closed without a line
    period = f"{_moment(min(times))} to {_moment(max(times))}" if times else "no line"
    writers = len({one.writer for one in all_of})
    return (
        f"all         {_count(writers, 'writer')}, {_count(sum(one.lines for one in all_of), 'line')}, "
        f"{_count(sum(one.calls for one in all_of), 'call')}, "
        f"{_count(sum(one.records for one in all_of), 'record')}, "
        f"{_count(sum(one.checkpoints for one in all_of), 'signed note')}, {period}"
    )


def _keys(report: Report) -> str:
    return _KEYS[report.keys.source]


def _anchors(report: Report) -> str:
    if not report.anchors:
        return "none were given: a rewrite by whoever holds the key would not be seen"
    return f"{report.anchors_met} of {report.anchors} agree with what is here"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def _moment(ns: int) -> str:
    moment = datetime.datetime.fromtimestamp(ns // NS_PER_S, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
