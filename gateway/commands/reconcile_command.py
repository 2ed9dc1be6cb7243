"""`weighbridge reconcile`: a month's closed hours against the bill of AWS.

    judge   bill and closed hours ─▶ every difference by name ─▶ is it all explained?
    give    ─▶ the journal tells ─▶ a revision of each hour that changes ─▶ the month is reconciled

Nothing is written of a bill that is not explained, of a month that is not over or has hours that are not closed, nor in
a dry run. Hours that a bill which is not whole does not
reach keep what they have, and the month stays as it is.
"""

import argparse
import itertools
import pathlib
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gateway.commands import reconcile_page
from gateway.commands.commands import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_USAGE,
    CommandError,
    add,
    add_place,
    place,
    say,
    tell,
)
from gateway.configuration import config_load
from gateway.configuration.archives import objects_of
from gateway.configuration.config_load import Place

if TYPE_CHECKING:
    from metering.cost.bill import ReadBill
    from metering.cost.bill_reader import Wanted
    from metering.cost.close_manifest import Manifest
    from metering.cost.close_row import CloseRow
    from metering.cost.closes import Closes
    from metering.cost.reconcile import Reconciled


def add_to(top: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its flags."""
    command = add(top, "reconcile", reconcile)
    command.add_argument(
        "--bill", metavar="FILE", type=pathlib.Path, nargs="+", action="extend", required=True,
        help="CUR 2.0 or FOCUS, as CSV, gzipped CSV or Parquet",
    )  # fmt: skip
    command.add_argument("--month", metavar="M", help="as in 2026-11 (default: the one that the bill is of)")
    command.add_argument("--dry-run", action="store_true", help="compare, and write nothing")
    command.add_argument("--json", action="store_true", help="as one object")
    add_place(command)


def reconcile(args: argparse.Namespace) -> int:
    """Compare a month's closed hours with the bill of AWS, and give them what was paid. Status 1: not all explained."""
    # What is needed only here is imported only here: the command line starts in a tenth of a second.
    from metering.archive.objects import ArchiveError
    from metering.cost.bill_cells import BillError
    from metering.cost.close_files import CloseFileError
    from metering.cost.closes import Closes

    where = place(args)
    try:
        closes = Closes(objects_of(pathlib.Path(where.state_dir), where.journal))
        work = _Work.of(closes, args.bill, args.month)
        judged = work.judge()
        show = reconcile_page.as_json if args.json else reconcile_page.as_text
        sys.stdout.write(show(work.read, judged.result, work.until))
        if not judged.result.is_explained:
            say("nothing was changed: the bill is not all explained")
            return EXIT_FAILED
        refused = work.refused(time.time_ns())
        if args.dry_run:
            if refused is not None:
                say(f"it can't be reconciled now: {refused}")
        elif refused is not None:
            say(f"nothing was changed: {refused}")
            return EXIT_FAILED
        else:
            _give(where, work, judged)
    except BillError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    except (ArchiveError, CloseFileError) as error:
        raise CommandError(str(error)) from error
    return EXIT_OK


class _Judged(NamedTuple):
    """What came of a comparison. hours: those whose rows are not what the bill makes of them."""

    result: "Reconciled"
    hours: list[int]


class _Work(NamedTuple):
    """A bill, and the closed hours of its month. until: the first hour that the bill does not reach."""

    closes: "Closes"
    read: "ReadBill"
    manifests: "list[Manifest]"
    registered: frozenset[str]
    until: int

    @classmethod
    def of(cls, closes: "Closes", paths: Sequence[pathlib.Path], month: str | None) -> "_Work":
        """Raises BillError, ArchiveError, CloseFileError, CommandError, OSError."""
        from metering.cost import bill_reader, close_files, close_manifest
        from metering.cost.bill_reader import Wanted
        from metering.units import NS_PER_HOUR

        manifests: list[Manifest] = []
        registered: set[str] = set()

        def wanted(of: str) -> "Wanted":
            manifests.extend(closes.hours(_hours_of(of)))
            if not manifests:
                raise CommandError(f"no hour of {of} is closed: there is nothing to reconcile")
            with closes.paths(manifests) as files:
                found = close_files.instances(files)
            registered.update(instance for instance, _ in found)
            return Wanted(registered, _families(type_ for _, type_ in found))

        if month is not None:
            _hours_of(month)
        read = bill_reader.read(paths, month, wanted)
        end = close_manifest.month_hours(read.month).stop
        until = end if read.invoiced else min(end, read.covered_until_ns // NS_PER_HOUR)
        return cls(closes, read, manifests, frozenset(registered), until)

    @property
    def basis(self) -> str:
        """What the manifests of its hours say."""
        from metering.cost.close_manifest import BILL

        return BILL + self.read.digest

    def judge(self) -> _Judged:
        """Compare everything; nothing is written."""
        from metering.cost.reconcile import Reconciling

        reconciling = Reconciling(self.read.bill, self.registered)
        changed = [
            manifest.hour
            for manifest, rows in self._hours(self.manifests)
            if reconciling.hour(manifest.hour, rows, manifest.method) != rows or manifest.basis != self.basis
        ]
        return _Judged(reconciling.result(self.read.split_rows), changed)

    def refused(self, now_ns: int) -> str | None:
        """Why its hours can't take this bill now; None: they can."""
        from metering.cost import close_months

        closed = {one.hour for one in self.manifests}
        return close_months.why_no_bill(self.read.month, closed, until=self.until, now_ns=now_ns)

    def give(self, hours: Collection[int], by: str, clock: Callable[[], int]) -> None:
        """Put a revision of each of these hours. Raises Outdone, as Closes.commit."""
        import msgspec

        from metering.cost.reconcile import Reconciling

        reconciling = Reconciling(self.read.bill, self.registered)
        wanted = frozenset(hours)
        for manifest, rows in self._hours(one for one in self.manifests if one.hour in wanted):
            new = reconciling.hour(manifest.hour, rows, manifest.method)
            made = _revision(manifest, new, self.basis, by, clock())
            unbilled = reconciling.unbilled(manifest.hour, new)
            self.closes.commit(msgspec.structs.replace(made, unbilled=unbilled), new)

    def _hours(self, manifests: "Iterable[Manifest]") -> "Iterator[tuple[Manifest, list[CloseRow]]]":
        """Those that the bill reaches, with their rows; an hour may have none."""
        reached = [manifest for manifest in manifests if manifest.hour < self.until]
        groups = itertools.groupby(self.closes.rows(reached), key=lambda row: row.hour)
        hour, rows = next(groups, (None, iter(())))
        for manifest in reached:
            if manifest.hour != hour:
                yield manifest, []
                continue
            yield manifest, list(rows)
            hour, rows = next(groups, (None, iter(())))


def _revision(
    manifest: "Manifest", rows: "Sequence[CloseRow]", basis: str, by: str, at_ns: int
) -> "Manifest":
    import msgspec

    from metering.cost import close_manifest
    from metering.cost.close_manifest import NO_ROWS, Reason

    unpriced = {row.instance_type for row in rows if row.instance_type and row.allocated_pusd is None}
    return msgspec.structs.replace(
        manifest,
        basis=basis,
        closed_ns=at_ns,
        made_by=by,
        reason=Reason.BILL,
        revision=manifest.revision + 1,
        rows=NO_ROWS,
        totals=close_manifest.totals(rows),
        unpriced=tuple(sorted(unpriced)),
    )


def _give(where: Place, work: _Work, judged: _Judged) -> None:
    from metering.cost.closes import Outdone
    from metering.journal import event_journal, events
    from metering.units import usd_text

    result, read, by = judged.result, work.read, event_journal.user()
    if not judged.hours and _is_settled(work):
        say(f"{read.month} is reconciled with this bill already")
        return
    told = events.reconciled(
        actor=by, month=read.month, bill=read.digest, hours=len(judged.hours),
        billed=usd_text(result.billed_pusd), allocated=usd_text(result.allocated_pusd),
    )  # fmt: skip
    tell(where, "reconcile", told)
    try:
        work.give(judged.hours, by, time.time_ns)
        say(f"{len(judged.hours)} hours have a new revision")
        _settle(work, by)
    except Outdone as error:
        raise CommandError(f"{error}; run this again") from error


def _is_settled(work: _Work) -> bool:
    """The month says already that it is reconciled with this bill, and with these hours."""
    from metering.cost.close_manifest import MonthState, hour_text

    month = work.closes.month(work.read.month)
    now = {hour_text(one.hour): one.revision for one in work.manifests}
    then = {hour: one.revision for hour, one in month.hours.items()}
    return month.state is MonthState.RECONCILED and month.bills == work.read.digests and now == then


def _settle(work: _Work, by: str) -> None:
    """Give the month its state, if the bill is whole and the month is open."""
    from metering.cost.close_manifest import MonthState, hour_text, month_hours

    read = work.read
    if work.until < month_hours(read.month).stop:
        say(f"the bill ends at {hour_text(work.until)}: {read.month} stays as it is until it is whole")
    elif work.closes.month(read.month).state is MonthState.CLOSED:
        say(f"{read.month} is closed: what changed are corrections")
    else:
        state = MonthState.RECONCILED
        work.closes.commit_month(read.month, state, bills=read.digests, by=by, at_ns=time.time_ns())
        say(f"{read.month} is reconciled")


def _hours_of(month: str) -> range:
    from metering.cost.close_manifest import month_hours

    try:
        return month_hours(month)
    except ValueError as error:
        raise CommandError(str(error), EXIT_USAGE) from error


def _families(types: "Iterable[str | None]") -> set[str]:
    """Those that serve, and all of Inferentia and Trainium, whose use nobody may have registered."""
    from backends.catalog import read_catalog

    neuron = {
        one.family
        for one in read_catalog(config_load.instances_csv()).values()
        if one.neuron_cores is not None
    }
    return neuron | {type_.partition(".")[0] for type_ in types if type_}
