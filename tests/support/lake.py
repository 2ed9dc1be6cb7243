"""An archive as it is after some weeks, for SQL: two months, one of them closed, and all that must not count.

2026-10  closed; one hour has a correction, made in November
2026-11  open; some hours have two revisions, one a look beside them, one the rows of a closer that lost
"""

import contextlib
import pathlib
import random
from typing import NamedTuple

from gateway.cli import main
from metering.archive.facts import Maker
from metering.archive.objects import LocalObjects
from metering.cost.close_manifest import MonthState, Reason, month_hours
from metering.cost.closes import Closes, Outdone
from metering.journal import sealing
from metering.journal.journal import Directory
from metering.record import AttemptOutcome, AttemptRecord, Instance, Outcome
from metering.units import NS_PER_HOUR
from metering.usage import Usage, UsageSource
from tests.support import closed, closed_fleet
from tests.support.closed_fleet import Hour
from tests.support.journals import WRITER, Make, admitted, call, start, stop, write_directory
from tests.support.sqlpage import Lake

MONTHS = ("2026-10", "2026-11")
HOURS = 30
"""Closed of each month, its last ones: over more than one day."""
CALLS = 60
DAY = "2026-11-28"
_AT_NS = (month_hours("2026-11").start + 27 * 24 + 12) * NS_PER_HOUR


class Made(NamedTuple):
    """counting: the hours as they count, by month; taken_back, restated: the correction; usages: of the calls."""

    lake: Lake
    counting: dict[str, list[Hour]]
    taken_back: Hour
    restated: Hour
    calls: list[dict[str, object]]


def make(root: pathlib.Path, seed: int) -> Made:
    """All of it below `root`."""
    rng = random.Random(seed)
    closes = Closes(LocalObjects(root))
    counting = {}
    for month in MONTHS:
        first = month_hours(month).stop - HOURS
        counting[month] = closed_fleet.hours(rng, closed_fleet.cards(rng), first=first, count=HOURS)
        for hour in counting[month]:
            closes.commit(hour.manifest, hour.rows)
    closes.commit_month("2026-10", MonthState.RECONCILED, bills=("ab",), by="cli:me", at_ns=1)
    closes.commit_month("2026-10", MonthState.CLOSED, bills=("ab",), by="cli:me", at_ns=2)
    taken_back = next(hour for hour in counting["2026-10"] if hour.rows)
    restated = _again(closes, taken_back, at_hour=month_hours("2026-11").start)
    november = counting["2026-11"]
    for n in (3, 7):
        november[n] = _again(closes, november[n], at_hour=november[n].manifest.hour + 1)
    with contextlib.suppress(Outdone):
        closes.commit(closed.manifest(restated.rows, hour=november[5].manifest.hour), restated.rows)
    look = [closed.row(november[-1].manifest.hour + 1, micro_hours=77)]
    closes.look(closed.manifest(look, hour=look[0].hour, revision=0, reason=Reason.NOW), look)
    calls = _facts(root, rng)
    export = root.with_name(f"{root.name}-export")
    period = ["--from", "2026-11-01", "--to", "2026-12-01"]
    status = main(["export", "--format", "parquet", *period, "--state-dir", str(root), "--out", str(export)])
    assert status == 0
    lake = Lake(root, export, DAY, f"{WRITER}-{CALLS // 2}")
    return Made(lake, counting, taken_back, restated, calls)


def _again(closes: Closes, hour: Hour, *, at_hour: int) -> Hour:
    """The same hour with a row more."""
    rows = sorted(
        [
            *hour.rows,
            closed.row(hour.manifest.hour, instance_id="i-late", micro_hours=1_000_000, simulated=False),
        ],
        key=lambda row: row.key,
    )
    later = closed.manifest(
        rows, hour=hour.manifest.hour, revision=2, reason=Reason.LATE, closed_ns=at_hour * NS_PER_HOUR
    )
    return Hour(closes.commit(later, rows), rows)


def _facts(root: pathlib.Path, rng: random.Random) -> list[dict[str, object]]:
    """Calls of a day, some of two attempts, as facts. returns: what each of them used."""
    calls: list[dict[str, object]] = []
    makes: list[Make] = [start(at_ns=_AT_NS)]
    for n in range(CALLS):
        used = {
            "tenant": rng.choice(["acme", "globex"]),
            "prompt_tokens": rng.randrange(9_000),
            "completion_tokens": rng.randrange(900),
            "cost_pusd": rng.choice([None, rng.randrange(1 << 40)]),
            "attempts": 1 + n % 2,
        }
        usage = Usage(
            source=UsageSource.REPORTED,
            prompt_tokens=used["prompt_tokens"],
            completion_tokens=used["completion_tokens"],
        )
        failed = _attempt("b-1", AttemptOutcome.FAILED)
        served = _attempt("b-2", AttemptOutcome.COMPLETED)
        makes += [
            admitted(f"{WRITER}-{n}", at_ns=_AT_NS),
            call(
                f"{WRITER}-{n}",
                at_ns=_AT_NS,
                attempts=(failed, served) if n % 2 else (served,),
                backend="b-2",
                cost_pusd=used["cost_pusd"],
                instances=(Instance(id="i-0", type="inf2.48xlarge", units=24, units_total=24),),
                outcome=Outcome.COMPLETED,
                tenant=used["tenant"],
                usage=usage,
            ),
        ]
        calls.append(used)
    directory = Directory(write_directory(root / "journals-of-calls", [*makes, stop(at_ns=_AT_NS)]))
    for path in sealing.due(directory, 1 << 62):
        sealing.seal(path)
    maker = Maker(root / "facts")
    for first_seq in maker.missing(directory):
        maker.make(directory, first_seq)
    (root / "facts" / "hours").mkdir(exist_ok=True)
    (root / "facts" / "hours" / f"{WRITER}-0000000000000001.jsonl").write_text("{}\n")
    return calls


def _attempt(backend: str, outcome: AttemptOutcome) -> AttemptRecord:
    return AttemptRecord(
        backend=backend, ended_ns=_AT_NS, outcome=outcome, slot_ns=5, started_ns=_AT_NS,
        usage=Usage(source=UsageSource.UNKNOWN),
    )  # fmt: skip
