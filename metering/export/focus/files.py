"""FOCUS files as rows of text: CSV and Parquet, whoever wrote them.

duckdb is imported when a Parquet file is read.
"""

import csv
import pathlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TextIO

from metering.export.focus.record import NumberedRow

if TYPE_CHECKING:
    import duckdb

_PARQUET_MAGIC = b"PAR1"
_BATCH_ROWS = 2_048
_MEMORY = "256MB"


class FocusFileError(Exception):
    """A file can't be read at all; the message says why."""


class Opened(NamedTuple):
    """A file's columns, and its rows. Of Parquet the first row is line 2, as in CSV."""

    header: Sequence[str]
    rows: Iterator[NumberedRow]


def read(path: pathlib.Path) -> Opened:
    """Open a file; few of its rows are in memory at a time. Raises FocusFileError, and so do its rows; OSError."""
    with open(path, "rb") as file:
        is_parquet = file.read(len(_PARQUET_MAGIC)) == _PARQUET_MAGIC
    return _parquet(path) if is_parquet else _csv(path)


def _csv(path: pathlib.Path) -> Opened:
    rows = _csv_rows(path)
    _, header = next(rows, (1, []))
    if not header:
        raise FocusFileError(f"{path} has no header")
    return Opened([name or "" for name in header], rows)


def _csv_rows(path: pathlib.Path) -> Iterator[NumberedRow]:
    with open(path, encoding="utf-8", newline="") as file:
        lines = _Counted(file)
        try:
            for cells in csv.reader(lines, strict=True):
                yield lines.first, [cell or None for cell in cells]
                lines.first = lines.read + 1
        except (csv.Error, UnicodeDecodeError) as error:
            raise FocusFileError(f"{path}: line {lines.read}: {error}") from error


class _Counted:
    """Lines of a file. read: how many; first: at which the present row began."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.read = 0
        self.first = 1

    def __iter__(self) -> "_Counted":
        return self

    def __next__(self) -> str:
        line = next(self._file)
        self.read += 1
        return line


def _parquet(path: pathlib.Path) -> Opened:
    import duckdb

    try:
        connection = duckdb.connect(
            config={
                "memory_limit": _MEMORY,
                "autoinstall_known_extensions": False,  # nothing is fetched
                "autoload_known_extensions": False,
            }
        )
        found = connection.execute("DESCRIBE SELECT * FROM read_parquet(?)", [str(path)]).fetchall()
        columns = [(str(name), str(kind)) for name, kind, *_ in found]
        as_text = ", ".join(_as_text(name, kind) for name, kind in columns)
        cursor = connection.execute(f"SELECT {as_text} FROM read_parquet(?)", [str(path)])
    except duckdb.Error as error:
        raise FocusFileError(f"{path} cannot be read: {error}") from error
    return Opened([name for name, _ in columns], _fetched(path, cursor))


def _fetched(path: pathlib.Path, cursor: "duckdb.DuckDBPyConnection") -> Iterator[NumberedRow]:
    import duckdb

    line = 1
    try:
        while batch := cursor.fetchmany(_BATCH_ROWS):
            for cells in batch:
                line += 1
                yield line, cells
    except duckdb.Error as error:
        raise FocusFileError(f"{path} cannot be read: {error}") from error


def _as_text(name: str, kind: str) -> str:
    """A column as CSV would have it. A float is its shortest decimal: if no product fits it, that is told of."""
    column = '"' + name.replace('"', '""') + '"'
    if kind.startswith("TIMESTAMP"):
        return f"strftime({column}::TIMESTAMP, '%Y-%m-%dT%H:%M:%SZ')"
    if kind.startswith(("STRUCT", "MAP")):
        return f"to_json({column})::VARCHAR"
    return f"{column}::VARCHAR"
