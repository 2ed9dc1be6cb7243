"""What all commands share: exit statuses, messages on stderr, where the data is."""

import argparse
import errno
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Sequence

from backends.model import NAME_PATTERN
from gateway.commands import outfile
from gateway.configuration import config_load
from gateway.configuration.config_load import DEFAULT_FILE, Flags, Place
from metering.audit.notary import SigningKey
from metering.journal.chain import Broken
from metering.journal.events import Changed, Happening

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2  # argparse's own for wrong flags, and ours for a wrong configuration
EXIT_TAKEN = 3  # a port, a lock or a directory
EXIT_INCOMPLETE = 4  # `audit verify`: nothing contradicts, and something is not here

_ONLY_READ = (errno.EACCES, errno.EPERM, errno.EROFS)

Command = Callable[[argparse.Namespace], int]


class CommandError(Exception):
    """The command cannot be done; the message is all that the user sees."""

    def __init__(self, message: str, code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.code = code


def say(text: str) -> None:
    """A message for a person, on stderr."""
    sys.stderr.write(f"weighbridge: {text}\n")


def write(data: bytes, out: pathlib.Path | None) -> None:
    """A result: to a file, whole or not at all, or to stdout. Raises OSError."""
    if out is None:
        sys.stdout.write(data.decode())
        return
    with outfile.whole(out) as file:
        file.write(data)


def say_broken(broken: Sequence[Broken]) -> int:
    """Journals that could not be read to their end: what was shown is a part, which is no success."""
    for journal in broken:
        say(str(journal))
    return EXIT_FAILED if broken else EXIT_OK


def place(args: argparse.Namespace) -> Place:
    """Where the data is: a named file must be there, the default one need not be."""
    path = config_load.config_path(args.config, os.environ)
    named = args.config is not None or bool(os.environ.get("WEIGHBRIDGE_CONFIG"))
    return config_load.place(path if named or path.exists() else None, os.environ, flags(args))


def say_defaults(args: argparse.Namespace, what: str) -> None:
    """Say that no file was read, if that is so, and what follows. what: as in «hours are closed by the defaults»."""
    if not config_load.config_path(args.config, os.environ).exists():
        say(f"no configuration file was read (-c FILE): {what}")


def journal_root(args: argparse.Namespace) -> pathlib.Path:
    """The directory of the journals that `place` leads to. Raises CommandError if there is none."""
    root = pathlib.Path(place(args).state_dir) / "journal"
    if not root.is_dir():
        raise CommandError(f"there is no journal in {root}; name the data's place with --state-dir or -c")
    return root


def tell(where: Place, command: str, *happenings: Happening | Changed) -> None:
    """Have the journal tell what a command is about to do. Raises CommandError: it cannot, so nothing is to be done.

    where: as `place` gives it; command: as the user calls it.
    """
    from metering.journal import event_journal

    key = signing_key(where, command)
    try:
        event_journal.tell(where.journals, command, happenings, key)
    except OSError as error:
        raise _untold(where, error) from error


def signing_key(where: Place, command: str) -> SigningKey:
    """The key that a command signs with; a first one is made, and told. As for `tell`."""
    from metering.journal import event_journal

    keys = where.keys
    telling = event_journal.telling(where.journals, command, event_journal.user(), keys)
    try:
        return keys.ensure(time.time_ns(), telling)
    except OSError as error:
        raise _untold(where, error) from error


def _untold(where: Place, error: OSError) -> CommandError:
    reason = error.strerror or str(error)
    hint = "; of data that may only be read, name a copy" if error.errno in _ONLY_READ else ""
    return CommandError(f"nothing was done, since {where.journals} cannot tell of it: {reason}{hint}")


def flags(args: argparse.Namespace) -> Flags:
    """Flags that stand for keys of the configuration."""
    return Flags(port=getattr(args, "port", None), state_dir=args.state_dir)


def check_tenant(name: str) -> None:
    """Raises CommandError: this is no name of a tenant."""
    if not re.match(NAME_PATTERN, name):
        rule = "lower-case letters, digits, '.', '_' and '-', at most 63, a letter or digit first"
        raise CommandError(f"{name!r} is no name of a tenant: {rule}", EXIT_USAGE)


def count(text: str) -> int:
    """The type of a flag: a whole number from 1."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def port(text: str) -> int:
    """The type of a flag: a port; 0: one that is free."""
    number = int(text)
    if not 0 <= number <= 65_535:
        raise ValueError
    return number


def add(
    under: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, run: Command
) -> argparse.ArgumentParser:
    """Add a command; its docstring is its help."""
    command = under.add_parser(name, help=run.__doc__, description=run.__doc__)
    command.set_defaults(run=run)
    return command


def add_place(command: argparse.ArgumentParser) -> None:
    """Add the flags that `place` reads."""
    command.add_argument("-c", dest="config", metavar="FILE", help=f"configuration (default: {DEFAULT_FILE})")
    command.add_argument("--state-dir", metavar="D", help="where the data is (default: .weighbridge)")
