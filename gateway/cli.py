"""Weighbridge: an OpenAI-compatible gateway in front of vLLM that meters, prices and audits every call."""

import argparse
import importlib.metadata
import os
import pathlib
import re
import sys
from collections.abc import Callable, Sequence

from backends.model import NAME_PATTERN
from gateway import config_load
from gateway.config_load import DEFAULT_FILE, Flags, Place
from gateway.config_tree import ConfigErrors
from metering.chain import Broken

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2  # argparse's own for wrong flags, and ours for a wrong configuration
EXIT_TAKEN = 3  # a port, a lock or a directory

Command = Callable[[argparse.Namespace], int]


class CommandError(Exception):
    """The command cannot be done; the message is all that the user sees."""

    def __init__(self, message: str, code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.code = code


def serve(args: argparse.Namespace) -> int:
    """Run the gateway: from a configuration file, or with --backend in front of a server you have."""
    from gateway import supervisor

    if args.backend:
        if args.config is not None:
            raise CommandError("--backend needs no file: give one of -c and --backend", EXIT_USAGE)
        from gateway import quick

        return quick.serve(args, _flags(args))
    for name in ("instance_type", "model", "slots"):
        if getattr(args, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise CommandError(f"{flag} goes with --backend; in a file it stands under backends", EXIT_USAGE)
    path = config_load.config_path(args.config, os.environ)
    if not path.exists() and args.config is None:
        hint = "write one (deploy/reference/weighbridge.example.yaml), or use --backend URL"
        raise CommandError(f"there is no {path}: {hint}", EXIT_USAGE)
    config = config_load.load(path, os.environ, _flags(args))
    config_load.backend_keys(config)  # one that cannot be read is named here, once, and not by each worker
    config_load.check_ca_files(config)
    for note in config_load.notes(config):
        _say(note)
    return supervisor.run(config)


def demo(args: argparse.Namespace) -> int:
    """Run the gateway before a simulated fleet, send some calls and show what they cost."""
    from gateway import demo as demonstration

    return demonstration.run(args)


def check(args: argparse.Namespace) -> int:
    """Read a configuration and name every mistake in it, with its line and key."""
    config = config_load.load(pathlib.Path(args.file), os.environ)
    config_load.check_ca_files(config)
    for note in config_load.notes(config):
        print(note)
    counts = (
        ("tenant", len(config.tenants)),
        ("model", len(config.models)),
        ("backend", len(config.backends)),
    )
    print(f"{args.file}: ok, " + ", ".join(f"{n} {word}{'s' * (n != 1)}" for word, n in counts))
    return EXIT_OK


def key_new(args: argparse.Namespace) -> int:
    """Make an API key. It is shown this once; the configuration holds its hash."""
    from gateway.auth import hash_of
    from gateway.keys import new_key

    if not re.match(NAME_PATTERN, args.tenant):
        rule = "lower-case letters, digits, '.', '_' and '-', at most 63, a letter or digit first"
        raise CommandError(f"{args.tenant!r} is no name of a tenant: {rule}", EXIT_USAGE)
    key = new_key()
    print(f"key: {key}")
    print(f"hash: {hash_of(key)}")
    hint = f"give the key to {args.tenant}; put the hash under its keys in the file: - hash: sha256:…"
    _say(hint)
    return EXIT_OK


def simulate(args: argparse.Namespace) -> int:
    """Serve like vLLM on this instance type, with measured timing and no accelerator."""
    from backends.simulator import server
    from backends.simulator.settings import Settings

    settings = Settings(instance_type=args.instance_type, model=args.model, slots=args.slots)
    return server.run(settings, args.port)


def version(_args: argparse.Namespace) -> int:
    """Print the version."""
    print(f"weighbridge {importlib.metadata.version('weighbridge')}")
    return EXIT_OK


def export(args: argparse.Namespace) -> int:
    """Write the ledger of a period as CSV: a row for each hour, tenant, project, model and instance family."""
    from gateway import export_command

    try:
        hours = export_command.parse_period(args.start, args.end)
    except ValueError as error:
        raise CommandError(str(error), EXIT_USAGE) from error
    place = _place(args)
    try:
        found = export_command.find(place, hours, _say)
        export_command.write(found.rows, hours, args.out, pathlib.Path(place.state_dir) / "journal")
    except export_command.ExportError as error:
        raise CommandError(str(error)) from error
    return _say_broken(found.broken)


def audit_show(args: argparse.Namespace) -> int:
    """Show a call's record: who, what, on which hardware, what it cost and why, and where it is written."""
    from metering import audit
    from metering.audit_page import page

    root = pathlib.Path(_place(args).state_dir) / "journal"
    if not root.is_dir():
        raise CommandError(f"there is no journal in {root}; name the data's place with --state-dir or -c")
    broken: list[Broken] = []
    try:
        one = args.call_id
        found = [audit.find(root, one)] if one else audit.last(root, args.last, broken.append)
    except audit.NotFound as error:
        raise CommandError(str(error)) from error
    if args.json:
        for one in found:
            sys.stdout.write(audit.as_json(one.line).decode() + "\n")
    else:
        sys.stdout.write("\n".join(page(one) for one in found))
    return _say_broken(broken)


def _say_broken(broken: Sequence[Broken]) -> int:
    """Journals that could not be read to their end: what was shown is a part, which is no success."""
    for journal in broken:
        _say(str(journal))
    return EXIT_FAILED if broken else EXIT_OK


def _say(text: str) -> None:
    print(f"weighbridge: {text}", file=sys.stderr)


def _place(args: argparse.Namespace) -> Place:
    """Where the data is: a named file must be there, the default one need not be."""
    path = config_load.config_path(args.config, os.environ)
    named = args.config is not None or bool(os.environ.get("WEIGHBRIDGE_CONFIG"))
    return config_load.place(path if named or path.exists() else None, os.environ, _flags(args))


def _flags(args: argparse.Namespace) -> Flags:
    return Flags(port=getattr(args, "port", None), state_dir=args.state_dir)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65_535:
        raise ValueError
    return number


_count.__name__, _port.__name__ = "count", "port"  # argparse says: invalid count value


def _add_place(command: argparse.ArgumentParser) -> None:
    command.add_argument("-c", dest="config", metavar="FILE", help=f"configuration (default: {DEFAULT_FILE})")
    command.add_argument("--state-dir", metavar="D", help="where the data is (default: .weighbridge)")


def parser() -> argparse.ArgumentParser:
    """All commands and their flags; the docstring of each is its help."""
    top = argparse.ArgumentParser(prog="weighbridge", description=__doc__)
    commands = top.add_subparsers(required=True, metavar="command")

    def add(
        under: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, run: Command
    ) -> argparse.ArgumentParser:
        command = under.add_parser(name, help=run.__doc__, description=run.__doc__)
        command.set_defaults(run=run)
        return command

    command = add(commands, "serve", serve)
    _add_place(command)
    command.add_argument("--backend", metavar="URL", action="append", help="a vLLM server; no file is needed")
    command.add_argument("--instance-type", metavar="T", help="what --backend runs on, as in inf2.48xlarge")
    command.add_argument("--model", metavar="M", help="the name that --backend serves (default: it is asked)")
    command.add_argument("--slots", metavar="N", type=_count, help="its max_num_seqs (default: unknown)")
    command.add_argument("--port", metavar="P", type=_port, help="port of listen (default: 8080)")

    command = add(commands, "demo", demo)
    command.add_argument("--state-dir", metavar="D", help="where the data is (default: .weighbridge)")
    command.add_argument("--port", metavar="P", type=_port, help="port to listen on (default: 8080)")

    command = add(commands, "check", check)
    command.add_argument("file", metavar="FILE")

    key = commands.add_parser("key", help="API keys").add_subparsers(required=True, metavar="command")
    command = add(key, "new", key_new)
    command.add_argument("--tenant", metavar="T", required=True, help="whose key it will be")

    command = add(commands, "simulate", simulate)
    command.add_argument(
        "--instance-type", metavar="T", required=True, help="whose timing, as in inf2.48xlarge"
    )
    command.add_argument("--model", metavar="M", required=True, help="the name to serve")
    command.add_argument("--port", metavar="P", type=_port, required=True, help="where; 0: one that is free")
    command.add_argument("--slots", metavar="N", type=_count, help="seats in its batch")

    add(commands, "version", version)

    command = add(commands, "export", export)
    command.add_argument(
        "--from", dest="start", metavar="T", required=True, help="first hour: a date or RFC 3339"
    )
    command.add_argument(
        "--to", dest="end", metavar="T", required=True, help="the hour after the last, likewise"
    )
    command.add_argument("--format", choices=["csv"], default="csv")
    command.add_argument("--out", metavar="FILE", type=pathlib.Path, help="written whole or not at all")
    _add_place(command)

    audit = commands.add_parser("audit", help="Read the journal").add_subparsers(
        required=True, metavar="command"
    )
    command = add(audit, "show", audit_show)
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument("call_id", metavar="CALL_ID", nargs="?", help="as in the header x-weighbridge-call-id")
    which.add_argument("--last", metavar="N", type=_count, help="the calls that ended last")
    command.add_argument("--json", action="store_true", help="the records, one a line, with times as strings")
    _add_place(command)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """The command `weighbridge`; returns its exit status."""
    args = parser().parse_args(argv)
    run: Command = args.run
    try:
        code = run(args)
        sys.stdout.flush()
    except ConfigErrors as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except CommandError as error:
        _say(str(error))
        return error.code
    except BrokenPipeError:
        # Whoever read our output (head, less) has had enough; the interpreter's own flush must not fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _say(f"{where}{error.strerror or error}")
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_FAILED
    return code


if __name__ == "__main__":
    sys.exit(main())
