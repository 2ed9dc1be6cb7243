"""`weighbridge export`: the ledger's estimates, or closed hours as FOCUS, CSV, JSON lines and Parquet."""

import argparse
import pathlib

from gateway.commands.commands import (
    EXIT_OK,
    EXIT_USAGE,
    CommandError,
    add,
    add_place,
    place,
    say,
    say_broken,
    say_defaults,
    tell,
)
from gateway.configuration.config_load import Place

FORMATS = ("focus-split", "focus-chargeback", "csv", "parquet", "json")
ESTIMATED, ALLOCATED = "estimated", "allocated"


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its flags."""
    command = add(commands, "export", export)
    when = "a date or RFC 3339"
    command.add_argument("--from", dest="start", metavar="T", required=True, help=f"first hour: {when}")
    command.add_argument(
        "--to", dest="end", metavar="T", required=True, help="the hour after the last, likewise"
    )
    command.add_argument(
        "--tz", metavar="NAME", default="UTC", help="whose days dates are, as in Europe/Berlin"
    )
    command.add_argument("--format", choices=FORMATS, default="csv")
    command.add_argument(
        "--basis",
        choices=[ESTIMATED, ALLOCATED],
        help="of csv: the ledger's estimates (default), or closed hours",
    )
    command.add_argument(
        "--focus-version",
        choices=["1.2", "1.3", "1.4"],
        help="of FOCUS (default: 1.4, and what 1.2 has besides)",
    )
    command.add_argument(
        "--chargeback",
        choices=["rate-card", "allocated"],
        help="of focus-chargeback: how tenants are charged (default: as the file says)",
    )
    command.add_argument("--omit-unpriced", action="store_true", help="of FOCUS: leave out what has no price")
    command.add_argument(
        "--running", action="store_true", help="with what `close --now` has seen of open hours"
    )
    command.add_argument("--out", metavar="OUT", help="a file, a directory or s3://…; - or none: stdout")
    add_place(command)


def export(args: argparse.Namespace) -> int:
    """Write the figures of a period: the ledger's estimates as CSV, or closed hours as FOCUS, CSV, JSON or Parquet."""
    from metering.export import zones

    try:
        hours = zones.parse_period(args.start, args.end, zones.zone(args.tz))
    except ValueError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    _check(args)
    where = place(args)
    if args.format == "csv" and args.basis != ALLOCATED:
        return _estimated(args, where, hours)
    return _closed(args, where, hours)


def _check(args: argparse.Namespace) -> None:
    """Raises CommandError: flags that do not go together."""
    is_focus = args.format.startswith("focus-")
    if args.basis == ESTIMATED and args.format != "csv":
        raise CommandError(
            f"{args.format} is made of closed hours: --basis estimated goes with csv", EXIT_USAGE
        )
    for flag, given, fits in (
        ("--focus-version", args.focus_version is not None, is_focus),
        ("--omit-unpriced", args.omit_unpriced, is_focus),
        ("--chargeback", args.chargeback is not None, args.format == "focus-chargeback"),
        ("--running", args.running, args.format != "csv" or args.basis == ALLOCATED),
    ):
        if given and not fits:
            raise CommandError(f"{flag} does not go with this export", EXIT_USAGE)


def _estimated(args: argparse.Namespace, where: Place, hours: range) -> int:
    from gateway.commands import export_command

    out = _ledger_file(args.out, args.start, args.end)
    try:
        found = export_command.find(where, hours, say)
        export_command.write(found.rows, hours, out, lambda told: tell(where, "export", told))
    except export_command.ExportError as error:
        raise CommandError(str(error)) from error
    return say_broken(found.broken)


def _ledger_file(out: str | None, start: str, end: str) -> pathlib.Path | None:
    """None: stdout. In a directory the file is named by the period."""
    if out in (None, "-"):
        return None
    if out.startswith("s3://"):
        raise CommandError(
            "the ledger's CSV goes to a file or a directory here: s3:// is for closed hours", EXIT_USAGE
        )
    path = pathlib.Path(out)
    if out.endswith("/"):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror}") from error
    return path / f"estimated-{start}--{end}.csv".replace(":", "") if path.is_dir() else path


def _closed(args: argparse.Namespace, where: Place, hours: range) -> int:
    from gateway.commands import closed_export
    from metering.cost.charge_terms import Charged
    from metering.export.exports import Format

    form = Format(args.format)
    try:
        options = closed_export.options(form, args.focus_version, args.chargeback, where)
    except ValueError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    if form is Format.FOCUS_CHARGEBACK and options.terms.chargeback is Charged.RATE_CARD:
        say_defaults(
            args,
            "tenants are charged by rate card, and as no card is known, in one row for all kinds, "
            "where a month was not closed with other terms",
        )
    asked = closed_export.Asked(
        form,
        hours,
        args.tz,
        args.out,
        options,
        omit_unpriced=args.omit_unpriced,
        running=args.running,
        charged=None if args.chargeback is None else Charged(args.chargeback),
    )
    closed_export.write(where, asked, lambda told: tell(where, "export", told), say)
    return EXIT_OK
