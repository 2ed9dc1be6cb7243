"""The rows of closed hours as Parquet: written once, in order, and read in the order in which they stand.

duckdb is imported when the first file is written or read: it takes 0.1 s and much memory.
"""

import pathlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from metering.cost.close_row import COLUMNS, CloseRow

if TYPE_CHECKING:
    import duckdb

_BATCH_ROWS = 2_048
_MEMORY = "256MB"


class CloseFileError(Exception):
    """A file of rows can't be written or read; the message says which, and why."""


class Writer:
    """Writes files of rows, one after the other: what it writes with is made once, and costs more than a file."""

    def __init__(self) -> None:
        self._connection: duckdb.DuckDBPyConnection | None = None

    def write(self, rows: Iterable[CloseRow], path: pathlib.Path) -> int:
        """Write rows, as they come, into a new file. The same rows give the same bytes. returns: how many they are.

        Raises CloseFileError, OSError.
        """
        import duckdb

        encoder = msgspec.json.Encoder()
        count = 0
        with tempfile.NamedTemporaryFile("wb", dir=path.parent, suffix=".ndjson") as lines:
            for row in rows:
                lines.write(encoder.encode(row) + b"\n")
                count += 1
            if not count:
                lines.write(b"{}\n")  # duckdb takes no empty file
            lines.flush()
            columns = ", ".join(f"{quoted(name)}: {quoted(kind)}" for name, kind in COLUMNS.items())
            select = f"SELECT * FROM read_ndjson({quoted(lines.name)}, columns = {{{columns}}})"
            limit = "" if count else " LIMIT 0"
            if self._connection is None:
                self._connection = duckdb.connect(config=config())
            try:
                self._connection.execute(
                    f"COPY ({select}{limit}) TO {quoted(path)} (FORMAT parquet, COMPRESSION zstd)"
                )
            except duckdb.Error as error:
                raise CloseFileError(f"{path} cannot be written: {error}") from error
        return count


def write(rows: Iterable[CloseRow], path: pathlib.Path) -> int:
    """As Writer.write, for one file."""
    return Writer().write(rows, path)


def read(paths: Iterable[pathlib.Path]) -> Iterator[CloseRow]:
    """The rows of these files, one file after the other; few are in memory at a time. Raises CloseFileError."""
    import duckdb

    path = None
    try:
        with duckdb.connect(config=config()) as connection:
            names = ", ".join(f'"{name}"' for name in COLUMNS)
            for path in paths:
                cursor = connection.execute(f"SELECT {names} FROM read_parquet({quoted(path)})")
                while batch := cursor.fetchmany(_BATCH_ROWS):
                    for values in batch:
                        yield msgspec.convert(dict(zip(COLUMNS, values, strict=True)), CloseRow)
    except duckdb.Error as error:
        raise CloseFileError(f"{path} cannot be read: {error}") from error


def instances(paths: Sequence[pathlib.Path]) -> set[tuple[str, str | None]]:
    """(id, type) of all instances in these files that are real and were paid for. Raises CloseFileError."""
    import duckdb

    if not paths:
        return set()
    files = ", ".join(map(quoted, paths))
    query = (
        f"SELECT DISTINCT instance_id, instance_type FROM read_parquet([{files}]) "
        "WHERE instance_id IS NOT NULL AND NOT simulated"
    )
    try:
        with duckdb.connect(config=config()) as connection:
            return {(instance, type_) for instance, type_ in connection.execute(query).fetchall()}
    except duckdb.Error as error:
        raise CloseFileError(f"the rows cannot be read: {error}") from error


def config() -> dict[str, str | bool | int | float | list[str]]:
    """How duckdb is connected to for closed hours: little memory, nothing fetched."""
    return {
        "threads": 1,  # the same rows give the same bytes, and workers come first
        "memory_limit": _MEMORY,
        "autoinstall_known_extensions": False,  # nothing is fetched
        "autoload_known_extensions": False,
    }


def quoted(text: object) -> str:
    """As a string of SQL."""
    return "'" + str(text).replace("'", "''") + "'"
