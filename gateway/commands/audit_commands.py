"""`weighbridge audit …`: for who looks at the journal. No gateway need run; all but `forget` only read."""

import argparse
import contextlib
import functools
import os
import pathlib
import sys
import time
from collections.abc import Iterable

import msgspec

from gateway.commands import commands, content_commands, key_commands
from gateway.commands.commands import (
    EXIT_FAILED,
    EXIT_INCOMPLETE,
    EXIT_OK,
    EXIT_USAGE,
    CommandError,
    add,
    add_place,
    say,
    say_broken,
    write,
)
from gateway.configuration.config_load import Place
from metering.journal.chain import Broken
from metering.journal.digests import DigestKey

LAST = 10
FOLLOW_S = 0.2


def add_to(top: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The commands and their flags."""
    audit = top.add_parser("audit", help="Read the journal").add_subparsers(required=True, metavar="command")

    command = add(audit, "show", show)
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument("call_id", metavar="CALL_ID", nargs="?", help="as in the header x-weighbridge-call-id")
    which.add_argument("--last", metavar="N", type=commands.count, help="the calls that ended last")
    command.add_argument("--json", action="store_true", help="the records, one a line, with times as strings")
    add_place(command)

    key_commands.add_to(audit)
    content_commands.add_to(audit)

    command = add(audit, "tail", tail)
    command.add_argument("-f", "--follow", action="store_true", help="go on with what comes")
    command.add_argument("--last", metavar="N", type=commands.count, default=LAST, help="lines to begin with")
    command.add_argument(
        "--kind", metavar="K", action="append", default=[], help="lines of this kind; may be repeated"
    )
    command.add_argument("--tenant", metavar="T", help="lines of this tenant")
    command.add_argument("--json", action="store_true", help="the lines as they stand in the journal")
    add_place(command)

    command = add(audit, "prove", prove)
    command.add_argument("--call", metavar="ID", required=True, help="as in the header x-weighbridge-call-id")
    command.add_argument("--out", metavar="FILE", type=pathlib.Path, help="written whole or not at all")
    add_place(command)

    command = add(audit, "export", export)
    command.add_argument("--from", dest="start", metavar="T", required=True, help="a date or RFC 3339")
    command.add_argument("--to", dest="end", metavar="T", required=True, help="the hour after, likewise")
    command.add_argument("--tenant", metavar="T", help="the lines of this one alone")
    command.add_argument(
        "--out", metavar="FILE", type=pathlib.Path, required=True, help="a manifest goes beside it"
    )
    add_place(command)

    command = add(audit, "pack", pack)
    command.add_argument("--month", metavar="YYYY-MM", required=True, help="as in 2026-11, UTC")
    command.add_argument(
        "--out", metavar="FILE", type=pathlib.Path, required=True, help="a tar, whole or not at all"
    )
    command.add_argument("--anchor", metavar="A", action="append", default=[], help="as for verify")
    add_place(command)

    command = add(audit, "verify", verify)
    command.add_argument(
        "paths",
        metavar="DIR",
        type=pathlib.Path,
        nargs="*",
        help="a state directory, its journal/, a writer's, or a pack",
    )
    command.add_argument("--archive", metavar="A", help="where trimmed and older journals are: DIR or s3://…")
    command.add_argument(
        "--anchor",
        metavar="A",
        action="append",
        default=[],
        help="notes kept elsewhere: FILE, DIR, s3://… or redis://…",
    )
    command.add_argument(
        "--key",
        metavar="K",
        action="append",
        default=[],
        help="a vkey, or a file of them; no other key counts",
    )
    command.add_argument("--json", action="store_true", help="the same as data, with times as strings")

    command = add(audit, "digest", digest)
    command.add_argument("--tenant", metavar="T", required=True, help="with whose key")
    command.add_argument("file", metavar="FILE", type=pathlib.Path, help="a prompt or an answer; -: stdin")
    add_place(command)

    command = add(audit, "forget", forget)
    command.add_argument("--tenant", metavar="T", required=True, help="whose key")
    command.add_argument("--content", action="store_true", help="not the key, but all content that was kept")
    add_place(command)


def show(args: argparse.Namespace) -> int:
    """Show a call's record: who, what, on which hardware, what it cost and why, and where it is written."""
    from gateway.configuration import archives
    from metering.archive.objects import ArchiveError
    from metering.audit import audit
    from metering.audit.audit_page import page

    where = commands.place(args)
    if where.journal.archive is None:
        commands.journal_root(args)
    broken: list[Broken] = []
    try:
        if args.call_id:
            found = [archives.find(where.journals, where.journal, args.call_id)]
        else:
            found = audit.last(commands.journal_root(args), args.last, broken.append)
    except (audit.NotFound, ArchiveError) as error:
        raise CommandError(str(error)) from error
    if args.json:
        for one in found:
            sys.stdout.write(audit.as_json(one.line).decode() + "\n")
    else:
        sys.stdout.write("\n".join(page(one) for one in found))
    return say_broken(broken)


def tail(args: argparse.Namespace) -> int:
    """Print the lines of all writers, one a line, as they come."""
    from metering.journal.tail import Tail, Told, Wanted, text
    from metering.record import KINDS

    def write_all(lines: Iterable[Told]) -> None:
        for told in lines:
            sys.stdout.write((told.line.data.decode() if args.json else text(told)) + "\n")
        sys.stdout.flush()

    if unknown := sorted(set(args.kind) - KINDS.keys()):
        known = ", ".join(sorted(KINDS))
        raise CommandError(f"--kind {unknown[0]}: no line is of it; the kinds are {known}", EXIT_USAGE)
    wanted = Wanted(frozenset(args.kind), args.tenant)
    with (
        contextlib.closing(Tail(commands.journal_root(args), wanted)) as lines,
        contextlib.suppress(KeyboardInterrupt),
    ):
        write_all(lines.last(args.last))
        while args.follow:
            time.sleep(FOLLOW_S)
            write_all(lines.more())
    return EXIT_OK


def prove(args: argparse.Namespace) -> int:
    """Prove a call: its lines, and what shows that they are in the journal that was signed, as JSON."""
    from gateway.configuration import archives
    from metering.archive.objects import ArchiveError
    from metering.audit import verify
    from metering.audit.audit import NotFound
    from metering.audit.prove import NotProven

    where = commands.place(args)
    if where.journal.archive is None:
        commands.journal_root(args)
    try:
        trust = verify.trust_beside(where.journals)
        proof = archives.prove(where.journals, where.journal, args.call, trust)
    except (NotFound, NotProven, ArchiveError, verify.VerifyError) as error:
        raise CommandError(str(error)) from error
    if proof.vkey is None:
        say("no key beside the journal has signed this note: whoever checks the proof must know it")
    write(msgspec.json.encode(proof, order="sorted") + b"\n", args.out)
    return EXIT_OK


def export(args: argparse.Namespace) -> int:
    """Write the lines of a period, of one tenant or of all, with their places, and a manifest beside them."""
    from gateway.commands import line_export_command
    from metering.archive.objects import ArchiveError
    from metering.audit import verify
    from metering.audit.line_export import Wanted
    from metering.export.export import parse_period

    root, where = commands.journal_root(args), commands.place(args)
    try:
        wanted = Wanted(parse_period(args.start, args.end), args.tenant)
    except ValueError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    try:
        vkeys = verify.trust_beside(root).vkeys
    except verify.VerifyError as error:
        raise CommandError(str(error)) from error
    tell = functools.partial(commands.tell, where, "audit export")
    try:
        done = line_export_command.write(where, wanted, args.out, vkeys, tell)
    except ArchiveError as error:
        raise CommandError(str(error)) from error
    say(f"{done.lines} lines are in {args.out}; what signs them is in {done.manifest}")
    return say_broken(done.broken)


def pack(args: argparse.Namespace) -> int:
    """Pack a month for an auditor: inventory, verification, keys, checkpoints, events and ledger, signed."""
    from gateway.commands import anchored, pack_command
    from metering.archive.objects import ArchiveError
    from metering.audit import verify
    from metering.cost import close_manifest

    commands.journal_root(args)
    where = commands.place(args)
    try:
        close_manifest.month_hours(args.month)
        anchors = anchored.read_all(args.anchor)
    except (ValueError, verify.VerifyError) as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    tell = functools.partial(commands.tell, where, "audit pack")
    try:
        key = commands.signing_key(where, "audit pack")
        done = pack_command.write(where, args.month, args.out, anchors, key, tell)
    except (verify.VerifyError, ArchiveError) as error:
        raise CommandError(str(error)) from error
    say(f"{done.files} files are in {args.out}; the journals are {done.verdict}")
    return say_broken(done.broken)


def verify(args: argparse.Namespace) -> int:
    """Verify journals: that no line was changed, dropped, added or moved since it was signed. Exit: 0 whole,
    1 tampered, 4 incomplete."""
    from gateway.commands import anchored
    from metering.archive.archive import Archive
    from metering.archive.objects import ArchiveError, open_objects
    from metering.audit import verify
    from metering.audit.audit import as_json
    from metering.audit.findings import Verdict
    from metering.audit.verify_page import page

    if not args.paths and not args.archive:
        raise CommandError("there is nothing to verify: name a DIR, or an --archive", EXIT_USAGE)
    try:
        keys = [key for given in args.key for key in verify.given_keys(given)]
        anchors = anchored.read_all(args.anchor)
        archive = Archive(open_objects(args.archive)) if args.archive else None
        found, processes = verify.find(args.paths), os.cpu_count() or 1
        report = verify.verify(
            found, keys, anchors.anchors, archive, processes=processes, anchors_amiss=anchors.findings
        )
    except (verify.VerifyError, ArchiveError) as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    except OSError as error:  # 1 would say that something was tampered with
        where = f"{error.filename}: " if error.filename else ""
        raise CommandError(f"{where}{error.strerror or error}", EXIT_USAGE) from error
    sys.stdout.write(as_json(report).decode() + "\n" if args.json else page(report))
    exits = {Verdict.WHOLE: EXIT_OK, Verdict.TAMPERED: EXIT_FAILED, Verdict.INCOMPLETE: EXIT_INCOMPLETE}
    return exits[report.verdict]


def digest(args: argparse.Namespace) -> int:
    """Compute the digest of a prompt or an answer with a tenant's key, to be compared with a record's."""
    key = _tenant_key(commands.place(args), args.tenant)
    stdin = args.file == pathlib.Path("-")
    data = sys.stdin.buffer.read() if stdin else args.file.read_bytes()
    sys.stdout.write(f"digest: {key.of(data)}\nkey: {key.id}\n")
    return EXIT_OK


def forget(args: argparse.Namespace) -> int:
    """Delete a tenant's key of digests: those in its records then say nothing to anybody, for ever. With --content,
    delete what was kept of its calls."""
    from metering.journal import digests, event_journal, events

    where = commands.place(args)
    if args.content:
        return content_commands.erase(where, args.tenant)
    key = _tenant_key(where, args.tenant)
    told = events.forgotten(actor=event_journal.user(), tenant=args.tenant, key=key.id)
    commands.tell(where, "audit forget", told)
    digests.forget(pathlib.Path(where.state_dir), args.tenant)
    say(
        f"the key {key.id} of {args.tenant} is deleted; if digests stay switched on, the next start makes another"
    )
    return EXIT_OK


def _tenant_key(where: Place, tenant: str) -> DigestKey:
    """Raises CommandError: there is none."""
    from metering.journal import digests

    commands.check_tenant(tenant)
    key = digests.load(pathlib.Path(where.state_dir), tenant)
    if key is None:
        raise CommandError(
            f"{tenant} has no key of digests in {where.state_dir}: it never had one, or it was deleted"
        )
    return key
