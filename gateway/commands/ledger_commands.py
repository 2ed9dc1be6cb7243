"""`weighbridge ledger …`: fold journals by hand, make the ledger anew, and see how it stands."""

import argparse
import asyncio
import pathlib
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from gateway.commands.commands import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_USAGE,
    CommandError,
    add,
    add_place,
    journal_root,
    place,
    say,
    tell,
)
from gateway.configuration import config_check, config_load
from metering import periods
from metering.journal import events
from metering.journal.events import Happening

if TYPE_CHECKING:
    from metering.journal.journal import Directory as LocalDirectory
    from metering.journal.readable import Readable
    from metering.journal.replay import Stopped
    from metering.ledger.folder import Directory
    from metering.ledger.ledger_status import Status
    from metering.ledger.store import Store

T = TypeVar("T")

ROUNDS_MAX = 10
"""Of a command; a further one is needed only where the store loses its records meanwhile."""


def add_to(top: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The commands and their flags."""
    ledger = top.add_parser("ledger", help="The ledger in its store").add_subparsers(
        required=True, metavar="command"
    )
    command = add(ledger, "fold", fold)
    command.add_argument(
        "paths",
        metavar="DIR",
        type=pathlib.Path,
        nargs="+",
        help="a state directory, its journal/, or a writer's",
    )
    command.add_argument(
        "--writer-is-dead",
        metavar="W",
        action="append",
        default=[],
        help="close this writer's journal first: it lived on another host, and does no more",
    )
    _add_store(command)

    command = add(ledger, "rebuild", rebuild)
    command.add_argument("--tenant", metavar="T", help="delete all that the ledger has of T first")
    command.add_argument("--yes", action="store_true", help="do not ask")
    _add_store(command)

    command = add(ledger, "status", status)
    command.add_argument("--json", action="store_true", help="as one object")
    _add_store(command)


def _add_store(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--redis", metavar="URL", help="the ledger's store (default: that of the configuration)"
    )
    add_place(command)


def fold(args: argparse.Namespace) -> int:
    """Fold journals into the ledger: those of another host, or copies. A second time changes nothing."""
    from metering.audit import verify

    try:
        directories = verify.find(args.paths).directories
    except verify.VerifyError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    dead = frozenset(args.writer_is_dead)
    if unknown := dead - {one.writer for one in directories}:
        raise CommandError(f"there is no journal of {', '.join(sorted(unknown))} there", EXIT_USAGE)
    if dead:
        _tell(args, "ledger fold", lambda actor: events.writers_closed(actor=actor, writers=dead))
    ready, open_ = _close_dead(directories, dead)
    code = _with_store(args, lambda store: _upkeep(store, ready))
    return EXIT_FAILED if open_ else code


def _close_dead(
    directories: Sequence["LocalDirectory"], dead: frozenset[str]
) -> tuple[list["Directory"], bool]:
    """Complete journals, those among them that were said to be dead and are closed now; were there others?"""
    from metering.journal import journal

    complete: list[Directory] = []
    others = False
    for one in directories:
        if not one.complete and one.writer in dead:
            closed = journal.close_dead(one)
            if closed is not None:
                say(f"closed the journal of {one.writer}: {closed.lost} calls were lost with it")
        if one.complete:
            complete.append(one)
            continue
        others = True
        reason = (
            "its writer holds its lock: it lives on this host"
            if one.writer in dead
            else f"its writer may live on another host; if it does not: --writer-is-dead {one.writer}"
        )
        say(f"not folded: the journal in {one.path} is not closed, and {reason}")
    return complete, others


async def _upkeep(store: "Store", directories: Sequence["Directory"], *, anew: bool = False) -> int:
    """Fold, state, and say what is left."""
    from metering.ledger.upkeep import Upkeep

    upkeep = Upkeep(store, tenants=(), host=socket.gethostname())
    done = False
    for _ in range(ROUNDS_MAX):
        done = await upkeep.round(directories)
        if done and anew:
            upkeep.lost, anew, done = True, False, False  # of this epoch nobody's word holds any more
        if done:
            break
    records = sum(len(learnt.lasts) for learnt in upkeep.folder.learnt.values())
    say(
        f"folded {len(upkeep.folder.learnt)} journals with {records} streams; epoch {upkeep.register.epoch or 'none'}"
    )
    for stop in upkeep.folder.stopped.values():
        _say_stopped(stop)
    if not done:
        say("the store lost records again and again; it was left")
    return EXIT_OK if done and not upkeep.folder.left else EXIT_FAILED


def rebuild(args: argparse.Namespace) -> int:
    """Fold every journal of state directory and archive into the ledger, in a new epoch; what it has stays."""
    if args.tenant is not None and not args.yes:
        _ask(f"delete all that the ledger has of {args.tenant}, and make it again from the journals here?")

    complete, live = _everything(args)
    _tell(args, "ledger rebuild", lambda actor: events.ledger_rebuilt(actor=actor, tenant=args.tenant))

    async def run(store: "Store") -> int:
        if args.tenant is not None:
            say(f"deleted {await store.drop_tenant(args.tenant)} keys of {args.tenant}")
        code = await _upkeep(store, complete, anew=True)
        fronts = [await _fold_front(store, one, upto_seq) for one, upto_seq in live]
        return code if all(fronts) else EXIT_FAILED

    from metering.archive.objects import ArchiveError

    try:
        return _with_store(args, run)
    except ArchiveError as error:
        raise CommandError(str(error)) from error


def _tell(args: argparse.Namespace, command: str, happening: Callable[[str], Happening]) -> None:
    """Have the journal tell of it first. Raises CommandError."""
    from metering.journal import event_journal

    tell(place(args), command, happening(event_journal.user()))


async def _fold_front(store: "Store", directory: "Readable", upto_seq: int) -> bool:
    """Fold what the archive alone has of a journal that is still written; its writer does the rest. False: not all."""
    from metering.ledger.folder import read_again
    from metering.ledger.ledger import Refused

    tenants = {record.tenant for record, seq, _ in directory.billed() if record.tenant and seq <= upto_seq}
    found = await store.marks({tenant: [directory.writer] for tenant in sorted(tenants)})
    marks = {
        tenant: at for (tenant, _), at in found.items() if not isinstance(at, Refused) and at.seq < upto_seq
    }
    replay = await read_again(store, directory, marks, upto_seq=upto_seq)
    for stop in replay.stopped.values():
        _say_stopped(stop)
    return not (replay.stopped or replay.again or any(isinstance(at, Refused) for at in found.values()))


def _say_stopped(stop: "Stopped") -> None:
    say(f"{stop.reason}: {stop.tenant} of {stop.writer} is stopped at {stop.where}; see the ledger's page")


def _everything(args: argparse.Namespace) -> tuple[list["Directory"], list[tuple["Readable", int]]]:
    """All closed journals, of the state directory and of the archive; and those that are still written and were
    trimmed, with the seq up to which the archive alone has them. Raises CommandError."""
    from gateway.configuration.archives import archive_of
    from metering.archive.objects import ArchiveError
    from metering.journal.journal import directories

    try:
        archive = archive_of(place(args).journal)
        if archive is None:
            return [one for one in directories(journal_root(args)) if one.complete], []
        here = {one.writer: one for one in directories(place(args).journals)}
        found: list[Directory] = [archive.whole(one) for one in here.values() if one.complete]
        found += [one for one in archive.directories() if one.complete and one.writer not in here]
        live: list[tuple[Readable, int]] = [
            (archive.whole(one), one.starts_after)
            for one in here.values()
            if one.starts_after and not one.complete
        ]
    except ArchiveError as error:
        raise CommandError(str(error)) from error
    return found, live


def _ask(question: str) -> None:
    """Raises CommandError unless the answer is yes."""
    if not sys.stdin.isatty():
        raise CommandError(f"{question} --yes says so without being asked", EXIT_USAGE)
    sys.stderr.write(f"weighbridge: {question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was done")


def status(args: argparse.Namespace) -> int:
    """Show how the ledger stands: epoch, tenants, gateways, writers, what it lacks of the journals here. Status 1: not
    sound."""
    from metering.journal.journal import directories
    from metering.ledger import ledger_status

    where = place(args)
    unwritten = ledger_status.unwritten_of(pathlib.Path(where.state_dir) / "pages")
    found = _with_store(
        args, lambda store: ledger_status.look(store, directories(where.journals), (), unwritten)
    )
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n" if args.json else as_text(found))
    return EXIT_OK if found.sound else EXIT_FAILED


def as_text(found: "Status") -> str:
    """For a person: a line for each tenant, each writer that needs somebody, each stream that is behind."""
    lines = [f"epoch {found.epoch or 'none'}  eviction {found.eviction or 'not told'}"]
    for tenant in found.tenants:
        why = f"  waits for {', '.join(tenant.unfolded)}" if tenant.unfolded else ""
        floor = f"  floor {tenant.floor}" if tenant.floor else ""
        lines.append(f"tenant {tenant.tenant}  {'ready' if tenant.ready else 'not ready'}{floor}{why}")
    for host in found.hosts:
        seen = periods.instant_text(host.seen_ns) if host.seen_ns else "never"
        unfolded = f", {host.unfolded} not folded in this epoch" if host.unfolded else ""
        lines.append(
            f"host {host.host or 'unknown'}  {host.open} open, {host.closed} closed, {host.gone} given up{unfolded}  "
            f"heard of {seen}"
        )
    for writer in found.writers:
        state = (
            writer.state
            if writer.folded or writer.state == "gone"
            else f"{writer.state}, not folded in this epoch"
        )
        place_ = "here" if writer.here else f"on {writer.host or 'no host'}"
        behind = f"  behind: {', '.join(writer.behind)}" if writer.behind else ""
        lines.append(f"writer {writer.writer}  {place_}  {state}  seq {writer.seq}{behind}")
    for stream in found.streams:
        reason = f"{stream.reason} at" if stream.reason else "mark"
        lines.append(
            f"stream {stream.tenant} of {stream.writer}  lag {stream.lag_records} records  {reason} {stream.mark}"
        )
    if found.unwritten:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(found.unwritten.items()))
        lines.append(f"unwritten {kinds}  lines that no journal here took: nobody can fold them")
    return "".join(line + "\n" for line in lines)


def _with_store(args: argparse.Namespace, run: Callable[["Store"], Awaitable[T]]) -> T:
    """Run with the store that the flags, or the configuration, lead to. Raises CommandError."""
    from metering.ledger.embedded import running_url
    from metering.ledger.store import Store, StoreUnavailable

    where = place(args)
    if args.redis is not None and (wrong := config_check.wrong_redis_url(args.redis)):
        raise CommandError(f"--redis {wrong}", EXIT_USAGE)
    url = args.redis or config_load.redis_url(where.redis) or running_url(pathlib.Path(where.state_dir))
    if url is None:
        raise CommandError(
            "the embedded store is not running: start the gateway, or name a store with --redis"
        )

    async def opened() -> T:
        async with Store(url) as store:
            return await run(store)

    try:
        return asyncio.run(opened())
    except StoreUnavailable as error:
        raise CommandError(f"the store cannot be reached: {error.reason}") from error
