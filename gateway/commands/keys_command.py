"""`weighbridge keys …`: API keys, in a running gateway's directory; and the first one, on its host."""

import argparse
import pathlib
import sys
import time
from typing import TYPE_CHECKING

from gateway.commands import admin_client, admin_page, settings
from gateway.commands.admin_client import Admin, Json, part
from gateway.commands.commands import (
    EXIT_OK,
    CommandError,
    add,
    add_place,
    check_tenant,
    place,
    say,
    tell,
)
from gateway.commands.keys import ADMIN_KEY_FILE, kept_key
from gateway.configuration.config import Scope

if TYPE_CHECKING:
    from metering.record import Entry

BOOTSTRAP_TENANT = "operators"
SCOPES: tuple[Scope, ...] = ("inference", "operator", "finance", "auditor")


def add_to(top: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The commands and their flags."""
    keys = top.add_parser("keys", help="API keys, while gateways run").add_subparsers(
        required=True, metavar="command"
    )
    command = add(keys, "list", list_keys)
    command.add_argument("--tenant", metavar="T", help="of this tenant alone")
    admin_client.add_flags(command)

    command = add(keys, "create", create)
    command.add_argument("--tenant", metavar="T", required=True, help="whose key it is")
    settings.add_to(command)
    admin_client.add_flags(command)

    command = add(keys, "set", set_)
    command.add_argument("key_id", metavar="KEY_ID")
    settings.add_to(command, least="+")
    admin_client.add_flags(command)

    command = add(keys, "rotate", rotate)
    command.add_argument("key_id", metavar="KEY_ID")
    command.add_argument(
        "--overlap-s", metavar="S", type=int, help="for how long the old one goes on (86400)"
    )
    admin_client.add_flags(command)

    for name, run in (("show", show), ("disable", disable), ("enable", enable), ("revoke", revoke)):
        command = add(keys, name, run)
        command.add_argument("key_id", metavar="KEY_ID")
        admin_client.add_flags(command)

    command = add(keys, "bootstrap", bootstrap)
    command.add_argument(
        "--tenant", metavar="T", default=BOOTSTRAP_TENANT, help="whose key (default: operators)"
    )
    command.add_argument(
        "--scope", metavar="S", action="append", choices=SCOPES, help="may be given again (default: operator)"
    )
    command.add_argument(
        "--key-file", metavar="FILE", type=pathlib.Path, help="where it is kept (default: admin-key)"
    )
    add_place(command)


def list_keys(args: argparse.Namespace) -> int:
    """List keys: never themselves."""
    found = Admin(args).listed("/keys", tenant=args.tenant)
    sys.stdout.write(admin_page.lines(found) if args.json else admin_page.keys(found))
    return EXIT_OK


def show(args: argparse.Namespace) -> int:
    """Show what a key may do, and whether it opens anything now."""
    return _say(args, Admin(args).get(f"/keys/{part(args.key_id)}"))


def create(args: argparse.Namespace) -> int:
    """Make a key for a tenant. It is shown this once."""
    body = settings.laid({}, args.settings) | {"tenant": args.tenant}
    return _say(args, Admin(args).post("/keys", body))


def set_(args: argparse.Namespace) -> int:
    """Change settings of a key; null takes one back to its default."""
    admin = Admin(args)
    path = f"/keys/{part(args.key_id)}"
    before = admin.get(path)
    return _say(args, admin.patch(path, settings.laid(before, args.settings), before["version"]))


def rotate(args: argparse.Namespace) -> int:
    """Replace a key by a new one with the same settings, shown this once; the old one goes on for a while."""
    body = {} if args.overlap_s is None else {"overlap_s": args.overlap_s}
    return _say(args, Admin(args).post(f"/keys/{part(args.key_id)}/rotate", body))


def disable(args: argparse.Namespace) -> int:
    """Disable a key, until it is enabled."""
    return _say(args, Admin(args).post(f"/keys/{part(args.key_id)}/disable"))


def enable(args: argparse.Namespace) -> int:
    """Enable a key again."""
    return _say(args, Admin(args).post(f"/keys/{part(args.key_id)}/enable"))


def revoke(args: argparse.Namespace) -> int:
    """Revoke a key, for ever: within a second it opens nothing on any gateway."""
    return _say(args, Admin(args).post(f"/keys/{part(args.key_id)}/revoke"))


def bootstrap(args: argparse.Namespace) -> int:
    """Make the first operator's key, on a gateway's host: it runs, or is started later. Again: the same key."""
    from gateway.api.auth import hash_of, key_id
    from gateway.directory import entries
    from gateway.directory.entries import KeySettings, TenantSettings
    from metering import files
    from metering.journal import event_journal
    from metering.journal.events import Changed
    from metering.ledger.directory import Copy
    from metering.ledger.directory_file import DirectoryFile

    check_tenant(args.tenant)
    where = place(args)
    state_dir = pathlib.Path(where.state_dir)
    key_file = args.key_file or state_dir / ADMIN_KEY_FILE
    state_dir.mkdir(parents=True, exist_ok=True)
    key_hash = hash_of(kept_key(key_file))
    files.give_to_owner(key_file.parent, key_file)
    copy, file, now_ns = Copy(), DirectoryFile(state_dir), time.time_ns()
    copy.take(copy.unread(file.read()))
    identity, made = key_id(key_hash), []
    known = copy.get("key", identity)
    if known is not None and (state := _shut(known, now_ns)):
        raise CommandError(f"the key in {key_file} {state}; remove that file to get a new one")
    settings = None if known is None else entries.read(known, KeySettings)
    owner = copy.get("tenant", settings.tenant if settings else args.tenant)
    if owner is not None and _is_disabled(owner):
        remedy = "make a key of another one with --tenant and --key-file"
        raise CommandError(f"the tenant {owner.name} is disabled, and its keys open nothing; {remedy}")
    if known is None:
        if copy.get("tenant", args.tenant) is None:
            tenant = TenantSettings(name=args.tenant)
            made.append(entries.entry("tenant", args.tenant, tenant, None, now_ns))
        scopes = tuple(args.scope or ("operator",))
        key = KeySettings(hash=key_hash, tenant=args.tenant, scopes=scopes, name="bootstrap")
        made.append(entries.entry("key", identity, key, None, now_ns))
        actor = event_journal.user()
        tell(where, "keys bootstrap", *(Changed(actor, "bootstrap", entry, None) for entry in made))
        file.join(made)
    sys.stdout.write(f"key_file: {key_file}\nkey_id: {identity}\n")
    say("a gateway that runs here knows it within a second; the others of its store, through it")
    return EXIT_OK


def _shut(known: "Entry", now_ns: int) -> str | None:
    """Why a key of the directory opens nothing; None: it does."""
    from gateway.directory import entries
    from gateway.directory.entries import KeySettings
    from metering.periods import parse_instant

    settings = entries.read(known, KeySettings)
    if known.revoked:
        return "was revoked"
    if settings is None:
        return "cannot be read: a newer gateway wrote of it"
    if settings.disabled:
        return "is disabled"
    if settings.expires is not None and parse_instant(settings.expires) <= now_ns:
        return "has expired"
    return None


def _is_disabled(owner: "Entry") -> bool:
    from gateway.directory import entries
    from gateway.directory.entries import TenantSettings

    tenant = entries.read(owner, TenantSettings)
    return tenant is not None and tenant.disabled


def _say(args: argparse.Namespace, found: Json) -> int:
    if "key" in found:
        say("the key is shown this once: give it to who is to use it, and to nobody else")
    sys.stdout.write(admin_page.lines([found]) if args.json else admin_page.key(found))
    return EXIT_OK
