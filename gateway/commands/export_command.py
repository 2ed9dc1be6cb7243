"""`weighbridge export`: where the rows come from, and how the file is put in place.

From the store at redis.url; without one from the embedded store while it runs, and else from the
journals, which then are all there is: the rows are the same. A store at redis.url that does not answer
is an error: it may hold other hosts' calls, and a part of the ledger must not look like the whole.

The journal tells of each export, before it is there: figures that nobody knows of must not go round.
"""

import asyncio
import hashlib
import io
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gateway.commands import outfile
from gateway.configuration import config_load
from gateway.configuration.archives import all_journals
from gateway.configuration.config_load import Place
from metering.archive.objects import ArchiveError
from metering.export import export
from metering.export.export import Row, export_csv
from metering.export.export import parse_period as parse_period
from metering.journal import event_journal, events
from metering.journal.chain import Broken
from metering.journal.events import Happening
from metering.ledger.embedded import running_url
from metering.ledger.store import Store, StoreUnavailable


class ExportError(Exception):
    """There are no rows to be had; the message says why."""


class Found(NamedTuple):
    """The rows. broken: journals that they lack something of; never any if they are the store's."""

    rows: list[Row]
    broken: list[Broken]


def find(place: Place, hours: range, say: Callable[[str], None]) -> Found:
    """The ledger's rows of these hours. say: told where they come from, if that is not the store.

    Raises ExportError, OSError, ConfigErrors.
    """
    state_dir = pathlib.Path(place.state_dir)
    configured = config_load.redis_url(place.redis)
    url = configured or running_url(state_dir)
    reason = "the embedded store is not running"
    if url is not None:
        try:
            return Found(asyncio.run(_from_store(url, hours)), [])
        except StoreUnavailable as error:
            reason = f"the store cannot be reached: {error.reason}"
        except ValueError as error:
            raise ExportError(f"the store holds what is no ledger: {error}") from error
    if configured is not None:
        raise ExportError(reason)
    journals = place.journals
    if not journals.is_dir():
        raise ExportError(
            f"{reason}, and there is no journal in {journals}; name the data's place with --state-dir or -c"
        )
    also = f" and in {place.journal.archive}" if place.journal.archive else ""
    say(f"{reason}; the rows are from the journals in {journals}{also}")
    broken: list[Broken] = []
    try:
        found = all_journals(journals, place.journal)
        return Found(export.rows_from_journal(found, hours, broken.append), broken)
    except ArchiveError as error:
        raise ExportError(str(error)) from error


async def _from_store(url: str, hours: range) -> list[Row]:
    async with Store(url) as store:
        return await export.rows_from_store(store, hours)


def write(
    rows: Sequence[Row], hours: range, out: pathlib.Path | None, tell: Callable[[Happening], None]
) -> None:
    """Write the CSV to a file, whole or not at all, or to stdout, once the journal has been told of it.

    tell: what it raises leaves nothing written. Raises OSError, naming `out`.
    """
    text = io.StringIO(newline="")
    export_csv(rows, text)
    data = text.getvalue().encode()
    told = events.exported(
        actor=event_journal.user(),
        what="csv",
        period=f"{export.moment_text(hours.start)}/{export.moment_text(hours.stop)}",
        rows=len(rows),
        sha256=hashlib.sha256(data).hexdigest(),
        to="stdout" if out is None else str(out.absolute()),
    )
    if out is None:
        tell(told)
        sys.stdout.write(text.getvalue())
        return
    with outfile.whole(out) as file:
        file.write(data)
        outfile.settle(file)
        tell(told)
