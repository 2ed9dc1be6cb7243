"""`weighbridge export`: where the rows come from, and how the file is put in place.

From the store at redis.url; without one from the embedded store while it runs, and else from the
journals, which then are all there is: the rows are the same. A store at redis.url that does not answer
is an error: it may hold other hosts' calls, and a part of the ledger must not look like the whole.
"""

import asyncio
import errno
import os
import pathlib
import secrets
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gateway import config_load
from gateway.config_load import Place
from metering import export
from metering.chain import Broken
from metering.embedded import running_url
from metering.export import Row, export_csv
from metering.export import parse_period as parse_period
from metering.journal import directories
from metering.store import Store, StoreUnavailable


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
    journals = state_dir / "journal"
    if not journals.is_dir():
        raise ExportError(
            f"{reason}, and there is no journal in {journals}; name the data's place with --state-dir or -c"
        )
    say(f"{reason}; the rows are from the journals in {journals}")
    broken: list[Broken] = []
    return Found(export.rows_from_journal(directories(journals), hours, broken.append), broken)


async def _from_store(url: str, hours: range) -> list[Row]:
    async with Store(url) as store:
        return await export.rows_from_store(store, hours)


def write(rows: Sequence[Row], out: pathlib.Path | None) -> None:
    """Write the CSV to a file, whole or not at all, or to stdout. Raises OSError, naming `out`."""
    if out is None:
        export_csv(rows, sys.stdout)
        return
    try:
        _put(rows, out)
    except OSError as error:
        error.filename, error.filename2 = str(out), None
        raise


def _put(rows: Sequence[Row], out: pathlib.Path) -> None:
    if out.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(out))
    part = out.with_name(f".{out.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("x", encoding="utf-8", newline="") as file:
            export_csv(rows, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
