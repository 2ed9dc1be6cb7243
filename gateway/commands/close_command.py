"""`weighbridge close`: hours by hand, a look into the running one, and the month by a person.

A running gateway closes hours by itself (gateway/duties/closer.py); the command does the same, and shows it.
"""

import argparse
import sys
import time

from gateway.commands.commands import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_USAGE,
    CommandError,
    add,
    add_place,
    place,
    say,
    say_defaults,
    tell,
)
from gateway.configuration.config_load import Place


def add_to(top: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its flags."""
    command = add(top, "close", close)
    command.add_argument("what", nargs="*", metavar="month YYYY-MM", help="close a month instead of hours")
    command.add_argument("--from", dest="start", metavar="T", help="first hour: a date or RFC 3339")
    command.add_argument("--to", dest="end", metavar="T", help="the hour after the last, likewise")
    command.add_argument("--now", action="store_true", help="look into the running hour too, up to now")
    command.add_argument("--without-bill", action="store_true", help="of a month: it has not been reconciled")
    add_place(command)


def close(args: argparse.Namespace) -> int:
    """Close hours, which allocates what instances cost to tenants: in a range, or all that can be. Or close a month."""
    match args.what:
        case []:
            if args.without_bill:
                raise CommandError("--without-bill goes with close month", EXIT_USAGE)
            return _close_hours(args)
        case ["month", str(month)]:
            if args.start or args.end or args.now:
                raise CommandError("--from, --to and --now go with hours, not with a month", EXIT_USAGE)
            say_defaults(args, "the month keeps the default chargeback and issuer, and no rate cards")
            return _close_month(place(args), month, without_bill=args.without_bill)
        case _:
            raise CommandError("write close, or close month 2026-11", EXIT_USAGE)


def _close_hours(args: argparse.Namespace) -> int:
    # What is needed only here is imported only here: the command line starts in a tenth of a second.
    from gateway.commands import close_table
    from gateway.duties import close_runs
    from metering.archive.facts import FactsError
    from metering.archive.objects import ArchiveError
    from metering.cost.close_files import CloseFileError
    from metering.cost.close_manifest import hour_text
    from metering.cost.closes import Outdone
    from metering.cost.closing import Told
    from metering.export import export
    from metering.journal import event_journal, events
    from metering.units import NS_PER_HOUR

    if (args.start is None) != (args.end is None):
        raise CommandError("--from and --to go together", EXIT_USAGE)
    try:
        period = export.parse_period(args.start, args.end) if args.start else None
    except ValueError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    where = _with_journals(place(args))
    say_defaults(args, "hours are closed by the default method, at shipped and imported prices")
    actor = event_journal.user()

    def tell_of(told: Told) -> None:
        first, last = hour_text(told.hours[0]), hour_text(told.hours[-1])
        happening = events.hours_closed(
            actor=actor, reason=told.reason.value, first=first, last=last, hours=len(told.hours)
        )
        tell(where, "close", happening)

    now_ns = time.time_ns()
    try:
        found = close_runs.run(
            where, period=period, now=args.now, now_ns=now_ns, made_by=actor, tell=tell_of, note=say
        )
    except (ArchiveError, FactsError, CloseFileError, Outdone) as error:
        raise CommandError(str(error)) from error
    sys.stdout.write(close_table.page(found.closed, found.waiting))
    if period and (reason := close_table.not_over(period, now_ns // NS_PER_HOUR, now=args.now)):
        say(reason)
    return EXIT_OK


def _close_month(where: Place, month: str, *, without_bill: bool) -> int:
    from gateway.configuration import pricing_config
    from gateway.duties import close_runs
    from metering.archive.objects import ArchiveError
    from metering.cost import close_months
    from metering.cost.close_manifest import MonthState
    from metering.cost.closes import Outdone
    from metering.journal import event_journal, events

    where = _with_journals(where)
    closes = close_runs.closes_of(where)
    try:
        before = closes.month(month)
        refused = close_months.why_not(
            before,
            closes.numbers(close_months.hours_of(month)),
            without_bill=without_bill,
            now_ns=time.time_ns(),
        )
        if refused is not None:
            raise CommandError(f"{month} is not closed: {refused}", EXIT_FAILED)
        bills = () if without_bill else before.bills
        actor = event_journal.user()
        hours = len(closes.numbers(close_months.hours_of(month)))
        tell(where, "close month", events.month_closed(actor=actor, month=month, hours=hours, bills=bills))
        terms = pricing_config.terms(where.models, where.chargeback, where.exports)
        closes.commit_month(
            month, MonthState.CLOSED, bills=bills, by=actor, at_ns=time.time_ns(), terms=terms
        )
    except ValueError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    except (ArchiveError, Outdone) as error:
        raise CommandError(str(error)) from error
    basis = "without a bill" if without_bill else f"with {len(bills)} bill{'s' * (len(bills) != 1)}"
    sys.stdout.write(f"{month} is closed, {hours} hours, {basis}; what comes later is a correction\n")
    return EXIT_OK


def _with_journals(where: Place) -> Place:
    if not where.journals.is_dir() and where.journal.archive is None:
        raise CommandError(
            f"there is no journal in {where.journals}; name the data's place with --state-dir or -c"
        )
    return where
