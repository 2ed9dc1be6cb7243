"""`weighbridge tenants …`: who is billed, in a running gateway's directory."""

import argparse
import sys

from gateway.commands import admin_client, admin_page, settings
from gateway.commands.admin_client import Admin, Json, part
from gateway.commands.commands import EXIT_OK, add


def add_to(top: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The commands and their flags."""
    tenants = top.add_parser("tenants", help="Tenants, while gateways run").add_subparsers(
        required=True, metavar="command"
    )
    admin_client.add_flags(add(tenants, "list", list_tenants))
    for name, run in (("show", show), ("disable", disable), ("enable", enable)):
        command = add(tenants, name, run)
        command.add_argument("tenant", metavar="TENANT")
        admin_client.add_flags(command)
    for name, run, least in (("create", create, "*"), ("set", set_, "+")):
        command = add(tenants, name, run)
        command.add_argument("tenant", metavar="TENANT")
        settings.add_to(command, least=least)
        admin_client.add_flags(command)


def list_tenants(args: argparse.Namespace) -> int:
    """List all tenants, those of the configuration file too."""
    found = Admin(args).listed("/tenants")
    sys.stdout.write(admin_page.lines(found) if args.json else admin_page.tenants(found))
    return EXIT_OK


def show(args: argparse.Namespace) -> int:
    """Show a tenant with all of its settings."""
    return _say(args, Admin(args).get(f"/tenants/{part(args.tenant)}"))


def create(args: argparse.Namespace) -> int:
    """Make a tenant."""
    body = settings.laid({}, args.settings) | {"name": args.tenant}
    return _say(args, Admin(args).post("/tenants", body))


def set_(args: argparse.Namespace) -> int:
    """Change settings of a tenant; null takes one back to its default."""
    admin = Admin(args)
    path = f"/tenants/{part(args.tenant)}"
    before = admin.get(path)
    return _say(args, admin.patch(path, settings.laid(before, args.settings), before["version"]))


def disable(args: argparse.Namespace) -> int:
    """Disable a tenant: none of its keys opens anything."""
    return _say(args, Admin(args).post(f"/tenants/{part(args.tenant)}/disable"))


def enable(args: argparse.Namespace) -> int:
    """Enable a tenant again."""
    return _say(args, Admin(args).post(f"/tenants/{part(args.tenant)}/enable"))


def _say(args: argparse.Namespace, found: Json) -> int:
    sys.stdout.write(admin_page.lines([found]) if args.json else admin_page.tenant(found))
    return EXIT_OK
