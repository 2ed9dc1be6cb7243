"""`weighbridge statement`: a tenant's month as a page to print and hand on."""

import argparse

from gateway.commands.commands import EXIT_OK, EXIT_USAGE, CommandError, add, add_place, place, tell


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its flags."""
    command = add(commands, "statement", statement)
    command.add_argument("--tenant", metavar="T", required=True, help="whose")
    command.add_argument("--month", metavar="M", required=True, help="which month, as in 2026-11")
    command.add_argument("--out", metavar="OUT", help="a file, a directory or s3://…; - or none: stdout")
    add_place(command)


def statement(args: argparse.Namespace) -> int:
    """Write a tenant's month as one HTML file: what it is charged, for what, and how that was made."""
    # What is needed only here is imported only here: the command line starts in a tenth of a second.
    import time

    from gateway.commands.export_places import place_of
    from gateway.configuration import pricing_config
    from gateway.duties import close_runs
    from gateway.faces import statements
    from metering.archive.objects import ArchiveError
    from metering.cost.close_files import CloseFileError
    from metering.journal import event_journal, events

    where = place(args)
    terms = pricing_config.terms(where.models, where.chargeback, where.exports)
    try:
        made = statements.make(
            close_runs.closes_of(where),
            tenant=args.tenant,
            month=args.month,
            terms=terms,
            now_ns=time.time_ns(),
        )
        if made is None:
            raise CommandError(f"no closed hour of {args.month} has a tenant {args.tenant!r}")
        target = place_of(args.out, made.file_name, where.journal)
        with target.scratch() as scratch:
            path = scratch / "made"
            path.write_bytes(made.data)
            target.settle(path)
            told = events.exported(
                actor=event_journal.user(),
                what="statement",
                period=made.period,
                rows=made.rows,
                sha256=made.sha256,
                to=target.text,
                tenant=args.tenant,
            )
            tell(where, "statement", told)
            target.put(path)
    except ValueError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    except (ArchiveError, CloseFileError) as error:
        raise CommandError(str(error)) from error
    return EXIT_OK
