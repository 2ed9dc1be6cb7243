"""`weighbridge audit keys …`: which keys have signed the journals, how one is replaced, and a pair for content.

A change is told by a journal of its own before it takes effect; running workers take it up within a second, and tell
of it in theirs.
"""

import argparse
import datetime
import pathlib
import sys
import time
from typing import TYPE_CHECKING

from gateway.commands.commands import EXIT_OK, CommandError, add, add_place, place, say
from metering.periods import instant_text
from metering.units import NS_PER_S

if TYPE_CHECKING:  # cryptography is imported where it is needed: other commands start in half the time
    from metering.audit.keyring import Key, Keyring
    from metering.audit.keys import Tell


def add_to(audit: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The commands and their flags."""
    keys = audit.add_parser("keys", help="The keys that sign the journal").add_subparsers(
        required=True, metavar="command"
    )
    command = add(keys, "list", list_keys)
    command.add_argument("--json", action="store_true", help="as in keys.json")
    add_place(command)

    add_place(add(keys, "rotate", rotate))

    command = add(keys, "content", content)
    command.add_argument(
        "--out", metavar="FILE", type=pathlib.Path, required=True, help="the private key, PEM; not yet there"
    )

    command = add(keys, "end", end)
    command.add_argument("key_id", metavar="KEY_ID", help="8 hex digits, as `audit keys list` shows it")
    command.add_argument("--stolen", action="store_true", required=True, help="why it ends")
    command.add_argument("--at", metavar="T", type=moment, required=True, help="since when: RFC 3339")
    add_place(command)


def content(args: argparse.Namespace) -> int:
    """Make a pair of keys for `tenants[].capture`: the private one into a file, the public one on stdout."""
    from metering.capture.envelope import Opener

    opener = Opener.new()
    try:
        opener.write_new(args.out)
    except OSError as error:
        raise CommandError(f"{args.out}: {error.strerror}") from error
    sys.stdout.write(f"public_key: {opener.recipient.text}\nkey: {opener.recipient.id}\n")
    say(f"whoever has {args.out} can read what is kept; without it nobody can: keep it away from the gateway")
    return EXIT_OK


def list_keys(args: argparse.Namespace) -> int:
    """List the public keys that have signed, and when each counted: for an auditor to keep elsewhere."""
    keys = place(args).keys
    keyring = keys.load()
    if not keyring.keys:
        raise CommandError(f"there are no keys in {keys.path}; name the data's place with --state-dir or -c")
    if args.json:
        sys.stdout.write(keyring.encode().decode())
    else:
        sys.stdout.write("".join(f"# {_words(key)}\n{key.vkey}\n" for key in keyring.keys))
    return EXIT_OK


def rotate(args: argparse.Namespace) -> int:
    """Sign with a new key from now on: one that is made, or the one in journal.signing_key_file."""
    return _show(place(args).keys.rotate(time.time_ns(), _tell(args)))


def end(args: argparse.Namespace) -> int:
    """Say since when a key has been stolen: what it signs from then on does not count. It is replaced."""
    now_ns = time.time_ns()
    if args.at > now_ns:
        raise CommandError("--at is in the future: say when it was stolen, at the latest")
    return _show(place(args).keys.end(args.key_id, args.at, now_ns, _tell(args)))


def _tell(args: argparse.Namespace) -> "Tell":
    """Tells of a change, durably, before it takes effect. Raises CommandError: it cannot be told."""
    from metering.journal import event_journal

    where = place(args)
    told = event_journal.telling(
        where.journals, f"audit keys {args.run.__name__}", event_journal.user(), where.keys
    )

    def tell(before: "Keyring", after: "Keyring") -> None:
        try:
            told(before, after)
        except OSError as error:
            reason = error.strerror or str(error)
            message = f"no key was changed, since {where.journals} cannot tell of it: {reason}"
            raise CommandError(message) from error

    return tell


def _show(keyring: "Keyring") -> int:
    sys.stdout.write("".join(f"{_words(key)}\n" for key in keyring.keys))
    return EXIT_OK


def moment(text: str) -> int:
    """An RFC 3339 time as nanoseconds since 1970 (UTC). Raises ArgumentTypeError."""
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time with its zone, as in 2026-11-01T06:00:00Z")
    since = at - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return (since // datetime.timedelta(microseconds=1)) * (NS_PER_S // 1_000_000)


def _words(key: "Key") -> str:
    began = instant_text(key.from_ns)
    if key.until_ns is None:
        return f"{key.id}  from {began}  signs now"
    return f"{key.id}  from {began}  until {instant_text(key.until_ns)}  {key.ended_because}"
