"""`weighbridge control`: compare journal, ledger, metrics and export now, and name what differs."""

import argparse
import asyncio
import pathlib
import sys
from collections.abc import Iterable

import msgspec

from gateway.commands.commands import EXIT_FAILED, EXIT_OK, CommandError, add, add_place, place
from gateway.configuration import config_load
from gateway.configuration.config_load import Place
from metering.ledger import ledger
from metering.ledger.control import Difference
from metering.ledger.embedded import running_url
from metering.ledger.ledger import Account

COLUMNS = (
    "pair",
    "unit",
    "tenant",
    "hour",
    "project",
    "model",
    "family",
    "writer",
    "left",
    "right",
    "difference",
)


def add_to(top: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its flags."""
    command = add(top, "control", control)
    command.add_argument("--json", action="store_true", help="a line each, as an object")
    add_place(command)


def control(args: argparse.Namespace) -> int:
    """Compare journal, ledger, metrics and export now: tenants, hours and figures that differ. Status 1 if any does."""
    differences = compare(place(args))
    if args.json:
        sys.stdout.write(as_json(differences))
    else:
        sys.stdout.write(as_table(differences) if differences else "nothing differs\n")
    return EXIT_FAILED if differences else EXIT_OK


def compare(where: Place) -> list[Difference]:
    """All differences now. Changes nothing. Raises CommandError: it cannot be compared; OSError, ConfigErrors."""
    # What is needed only here is imported only here: the command line starts in a tenth of a second.
    from metering.archive.objects import ArchiveError
    from metering.ledger.store import StoreUnavailable
    from metering.pages.pages import PageError

    state_dir = pathlib.Path(where.state_dir)
    journals = state_dir / "journal"
    if not journals.is_dir():
        raise CommandError(f"there is no journal in {journals}; name the data's place with --state-dir or -c")
    url = config_load.redis_url(where.redis) or running_url(state_dir)
    if url is None:
        raise CommandError("the embedded store is not running, so there is no ledger to compare with")
    try:
        return asyncio.run(_look(where, url))
    except StoreUnavailable as error:
        raise CommandError(f"the store cannot be reached: {error.reason}") from error
    except PageError as error:
        raise CommandError(f"the metrics pages cannot be read: {error}") from error
    except ArchiveError as error:
        raise CommandError(f"the archive cannot be read: {error}") from error


async def _look(where: Place, url: str) -> list[Difference]:
    from gateway.configuration.archives import archive_of
    from metering.ledger.controller import Controller
    from metering.ledger.store import Store

    async with Store(url) as store:
        controller = Controller(pathlib.Path(where.state_dir), archive=archive_of(where.journal), keep=False)
        return await controller.look(store)


def as_table(differences: Iterable[Difference]) -> str:
    """A line each under a header, in columns."""
    rows = [COLUMNS, *(_cells(one) for one in differences)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n"
        for row in rows
    )


def as_json(differences: Iterable[Difference]) -> str:
    """A JSON object a line; figures are integers."""
    lines = []
    for one in differences:
        cells = dict(zip(COLUMNS, _cells(one), strict=True))
        figures = {"left": one.left, "right": one.right, "difference": one.right - one.left}
        lines.append(msgspec.json.encode(cells | figures).decode() + "\n")
    return "".join(lines)


def _cells(one: Difference) -> tuple[str, ...]:
    hour = project = model = family = writer = ""
    match one.where:
        case Account():
            hour, project, model, family = (ledger.hour_text(one.where.hour), *one.where[1:])
        case (number, writer):
            hour = ledger.hour_text(number) if number else ""
    figures = (str(one.left), str(one.right), f"{one.right - one.left:+d}")
    return (one.pair, one.unit, one.tenant, hour, project, model, family, writer, *figures)
