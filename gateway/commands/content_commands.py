"""`weighbridge audit content`: what was said in calls, for whoever holds the tenant's private key."""

import argparse
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gateway.commands import commands, outfile
from gateway.commands.commands import EXIT_FAILED, EXIT_OK, EXIT_USAGE, CommandError, add, add_place, say
from gateway.configuration.config_load import Place

if TYPE_CHECKING:  # cryptography is imported where it is needed: other commands start in half the time
    from metering.capture.content import Contents
    from metering.capture.envelope import Opener
    from metering.capture.frame import Frame, Header
    from metering.record import CallRecord, Line


def add_to(audit: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The commands and their flags."""
    command = add(audit, "content", content)
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument("--call", metavar="ID", help="as in the header x-weighbridge-call-id")
    which.add_argument("--check", action="store_true", help="hold all that was kept against its records")
    command.add_argument("--key", metavar="FILE", type=pathlib.Path, help="the tenant's private key, PEM")
    command.add_argument("--tenant", metavar="T", help="with --check: of this one alone")
    command.add_argument(
        "--prompt", metavar="FILE", type=pathlib.Path, help="write the prompt here, as it was"
    )
    command.add_argument(
        "--answer", metavar="FILE", type=pathlib.Path, help="write the answer here, as it was"
    )
    add_place(command)


def content(args: argparse.Namespace) -> int:
    """Show what was said in a call, if its tenant has it kept, or check that all that was kept is there and whole."""
    if args.check and (args.prompt or args.answer):
        raise CommandError("--prompt and --answer go with --call", EXIT_USAGE)
    if not args.check and args.tenant:
        raise CommandError("--tenant goes with --check", EXIT_USAGE)
    if (args.prompt or args.answer) and args.key is None:
        raise CommandError("without --key nobody can read it", EXIT_USAGE)
    where = commands.place(args)
    opener = _opener(args.key)
    return _check(args, where, opener) if args.check else _show(args, where, opener)


def _opener(path: pathlib.Path | None) -> "Opener | None":
    from metering.capture.envelope import ContentKeyError, Opener

    if path is None:
        return None
    try:
        return Opener.load(path)
    except ContentKeyError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}", EXIT_USAGE) from error


def _contents(where: Place) -> "Contents":
    from gateway.configuration.archives import archive_of
    from metering.capture.content import Contents
    from metering.capture.shelf import Shelf

    archive = archive_of(where.journal)
    return Contents(Shelf(pathlib.Path(where.state_dir)), None if archive is None else archive.objects)


def _show(args: argparse.Namespace, where: Place, opener: "Opener | None") -> int:
    from gateway.configuration import archives
    from metering.archive.objects import ArchiveError
    from metering.audit.audit import NotFound
    from metering.capture.content import ContentError
    from metering.capture.envelope import NotOpened
    from metering.record import CallRecord

    try:
        line = archives.find(where.journals, where.journal, args.call).line
        if not isinstance(line, CallRecord):
            raise CommandError(f"{args.call} has no record yet")
        found = _contents(where).find(line)
        opened = opener.open(found) if opener is not None else None
    except (NotFound, ArchiveError, ContentError, NotOpened) as error:
        raise CommandError(str(error)) from error
    if opened is None:
        sys.stdout.write(_about(found.header))
        say("it is there and is what its record says; to read it, name the tenant's private key with --key")
        return EXIT_OK
    prompt, answer = opened
    for path, data in ((args.prompt, prompt), (args.answer, answer)):
        if path is not None:
            with outfile.whole(path) as file:
                file.write(data)
    if args.prompt is None and args.answer is None:
        sys.stdout.write(_about(found.header))
        for name, data in (("prompt", prompt), ("answer", answer)):
            sys.stdout.write(f"\n--- {name}\n{data.decode(errors='backslashreplace')}\n")
    else:
        sys.stderr.write(_about(found.header))
    return EXIT_OK


def _about(header: "Header") -> str:
    def part(kept: int, whole: int) -> str:
        return f"{whole} bytes" if kept == whole else f"the first {kept} of {whole} bytes"

    return (
        f"call     {header.call_id}\n"
        f"tenant   {header.tenant}  (key {header.key})\n"
        f"prompt   {part(header.prompt_kept_bytes, header.prompt_bytes)}\n"
        f"answer   {part(header.answer_kept_bytes, header.answer_bytes)}\n"
    )


def _check(args: argparse.Namespace, where: Place, opener: "Opener | None") -> int:
    from gateway.configuration.archives import all_journals
    from metering.archive.objects import ArchiveError
    from metering.capture import content

    if args.tenant is not None:
        commands.check_tenant(args.tenant)
    if where.journal.archive is None:
        commands.journal_root(args)

    def lines() -> "Iterator[Line]":
        for journal in all_journals(where.journals, where.journal):
            for one in journal.chained():
                if one.line is not None:
                    yield one.line

    def see(_record: "CallRecord", frame: "Frame") -> None:
        if opener is not None and opener.recipient.id == frame.header.key:
            _open(opener, frame)

    try:
        found = content.check(lines, _contents(where), tenant=args.tenant, see=see)
    except ArchiveError as error:
        raise CommandError(str(error)) from error
    for call_id, reason in found.wrong:
        sys.stdout.write(f"{call_id}: {reason}\n")
    sys.stdout.write(
        f"content: kept={found.kept} dropped={found.dropped} deleted={found.deleted} wrong={len(found.wrong)}\n"
    )
    return EXIT_FAILED if found.wrong else EXIT_OK


def _open(opener: "Opener", frame: "Frame") -> None:
    from metering.capture.content import Altered
    from metering.capture.envelope import NotOpened

    try:
        opener.open(frame)
    except NotOpened as error:
        raise Altered(str(error)) from error


def erase(where: Place, tenant: str) -> int:
    """Delete all kept content of a tenant, here and in the archive; for `audit forget --content`."""
    from gateway.configuration.archives import archive_of
    from metering.archive.objects import ArchiveError
    from metering.capture import removal
    from metering.capture.shelf import Shelf
    from metering.journal import event_journal, events

    commands.check_tenant(tenant)
    shelf, archive = Shelf(pathlib.Path(where.state_dir)), archive_of(where.journal)
    objects = None if archive is None else archive.objects
    try:
        here = shelf.of(tenant)
        there = [] if objects is None else removal.archived(objects, tenant)
        if not here and not there:
            raise CommandError(f"no content of {tenant} is kept")
        told = events.content_deleted(
            actor=event_journal.user(),
            where="archive" if there else "local",
            tenant=tenant,
            reason="erased",
            until_ns=time.time_ns(),
            files=len(here) + len(there),
        )
        commands.tell(where, "audit forget", told)
        removal.delete_local(shelf, here)
        if objects is not None:
            removal.delete_archived(objects, there)
    except ArchiveError as error:
        raise CommandError(str(error)) from error
    say(f"the content of {tenant} is deleted: {len(here)} files here, {len(there)} in the archive")
    return EXIT_OK
