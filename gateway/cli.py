"""Weighbridge: an OpenAI-compatible gateway in front of vLLM that meters, prices and audits every call."""

import argparse
import importlib.metadata
import os
import pathlib
import sys
from collections.abc import Sequence

from gateway.commands import (
    audit_commands,
    close_command,
    control_command,
    export_commands,
    focus_commands,
    keys_command,
    ledger_commands,
    price_commands,
    rate_commands,
    reconcile_command,
    report_command,
    statement_command,
    tenants_command,
)
from gateway.commands.commands import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_USAGE,
    Command,
    CommandError,
    add,
    add_place,
    check_tenant,
    count,
    flags,
    port,
    say,
)
from gateway.configuration import config_load
from gateway.configuration.config_tree import ConfigErrors


def serve(args: argparse.Namespace) -> int:
    """Run the gateway: from a configuration file, or with --backend in front of a server you have."""
    from gateway.processes import supervisor

    if args.backend:
        if args.config is not None:
            raise CommandError("--backend needs no file: give one of -c and --backend", EXIT_USAGE)
        from gateway.commands import quick

        return quick.serve(args, flags(args))
    for name in ("instance_type", "model", "slots"):
        if getattr(args, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise CommandError(f"{flag} goes with --backend; in a file it stands under backends", EXIT_USAGE)
    path = config_load.config_path(args.config, os.environ)
    if not path.exists() and args.config is None:
        hint = "write one (deploy/reference/weighbridge.example.yaml), or use --backend URL"
        raise CommandError(f"there is no {path}: {hint}", EXIT_USAGE)
    config = config_load.load(path, os.environ, flags(args))
    config_load.backend_keys(config)  # one that cannot be read is named here, once, and not by each worker
    config_load.peer_keys(config)
    config_load.check_ca_files(config)
    for note in config_load.notes(config):
        say(note)
    return supervisor.run(config)


def demo(args: argparse.Namespace) -> int:
    """Run the gateway before a simulated fleet, send some calls and show what they cost."""
    from gateway.commands import demo as demonstration

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
    from gateway.api.auth import hash_of
    from gateway.api.new_keys import new_key

    check_tenant(args.tenant)
    key = new_key()
    print(f"key: {key}")
    print(f"hash: {hash_of(key)}")
    hint = f"give the key to {args.tenant}; put the hash under its keys in the file: - hash: sha256:…"
    say(hint)
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


def parser() -> argparse.ArgumentParser:
    """All commands and their flags; the docstring of each is its help."""
    top = argparse.ArgumentParser(prog="weighbridge", description=__doc__)
    commands = top.add_subparsers(required=True, metavar="command")

    command = add(commands, "serve", serve)
    add_place(command)
    command.add_argument("--backend", metavar="URL", action="append", help="a vLLM server; no file is needed")
    command.add_argument("--instance-type", metavar="T", help="what --backend runs on, as in inf2.48xlarge")
    command.add_argument("--model", metavar="M", help="the name that --backend serves (default: it is asked)")
    command.add_argument("--slots", metavar="N", type=count, help="its max_num_seqs (default: unknown)")
    command.add_argument("--port", metavar="P", type=port, help="port of listen (default: 8080)")

    command = add(commands, "demo", demo)
    command.add_argument("--state-dir", metavar="D", help="where the data is (default: .weighbridge)")
    command.add_argument("--port", metavar="P", type=port, help="port to listen on (default: 8080)")

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
    command.add_argument("--port", metavar="P", type=port, required=True, help="where; 0: one that is free")
    command.add_argument("--slots", metavar="N", type=count, help="seats in its batch")

    add(commands, "version", version)

    export_commands.add_to(commands)
    ledger_commands.add_to(commands)
    control_command.add_to(commands)
    close_command.add_to(commands)
    audit_commands.add_to(commands)
    price_commands.add_to(commands)
    rate_commands.add_to(commands)
    focus_commands.add_to(commands)
    reconcile_command.add_to(commands)
    report_command.add_to(commands)
    statement_command.add_to(commands)
    tenants_command.add_to(commands)
    keys_command.add_to(commands)
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
        say(str(error))
        return error.code
    except BrokenPipeError:
        # Whoever read our output (head, less) has had enough; the interpreter's own flush must not fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        say(f"{where}{error.strerror or error}")
        return EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_FAILED
    return code


if __name__ == "__main__":
    sys.exit(main())
