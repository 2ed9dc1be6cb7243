"""Parquet exports, by duckdb: closed rows by day and tenant, and FOCUS files.

    <out>/day=2026-11-28/tenant=acme/data_0.parquet     tenant: of rows that have none, __HIVE_DEFAULT_PARTITION__

Both stand in the files too: a table of SQL with one partition for each day has no other way to know the tenant.
Rows keep the columns and the units of closed hours (integers: micro-hours, picodollars), with `period_start`,
`revision` and `correction`; amounts of a row that takes a charge back are negative. Days are those of the zone that was
asked for.
duckdb is imported when the first file is made.
"""

import datetime
import hashlib
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from metering.cost.close_row import COLUMNS
from metering.export import allocated_rows, cells
from metering.export.export_parts import Part
from metering.export.focus import columns as focus_columns
from metering.export.focus.columns import Kind
from metering.export.zones import day_of

if TYPE_CHECKING:
    import duckdb

_MEMORY = "512MB"
_AMOUNTS = frozenset(
    {
        "micro_hours", "shared_micro_hours", "list_pusd", "allocated_pusd", "shared_pusd", "calls", "prompt_tokens",
        "cached_prompt_tokens", "completion_tokens", "slot_ns", "work_units", "estimated_pusd", "unpriced_calls",
    }
)  # fmt: skip
_FOCUS_TYPES = {Kind.DECIMAL: "DECIMAL(38, 18)", Kind.MOMENT: "TIMESTAMP"}
PARTITIONS = ("day", "tenant")
ROW_COLUMNS = (*COLUMNS, "period_start", "revision", "correction", "day")
"""Of the partitioned export."""


class ParquetError(Exception):
    """duckdb can't make a file; the message says why."""


class Written(NamedTuple):
    """A directory of files. sha256: of `sha256sum`'s list of them; sums: in USD."""

    rows: int
    bytes: int
    files: int
    sha256: str
    sums: dict[str, str]


def write_rows(
    parts: Sequence[Part], paths: Sequence[pathlib.Path], where: datetime.tzinfo, out: pathlib.Path
) -> Written:
    """Write the rows of these parts into a new directory. paths: a file of rows for each part; where: whose days.

    The same closed hours give the same bytes. Raises ParquetError, OSError.
    """
    import duckdb

    out.mkdir()
    if not paths:
        return Written(0, 0, 0, hashlib.sha256().hexdigest(), _sums([0] * len(allocated_rows.SUMS)))
    try:
        with _connect(out.parent) as connection:
            connection.execute(
                "CREATE TEMP TABLE parts (path VARCHAR, number INT, revision BIGINT, correction VARCHAR, sign INT)"
            )
            connection.executemany(
                "INSERT INTO parts VALUES (?, ?, ?, ?, ?)",
                [
                    (
                        str(path),
                        number,
                        part.manifest.revision,
                        part.correction and part.correction.value,
                        part.sign,
                    )
                    for number, (part, path) in enumerate(zip(parts, paths, strict=True))
                ],
            )
            hours = sorted({part.manifest.hour for part in parts})
            connection.execute("CREATE TEMP TABLE days (hour BIGINT, day VARCHAR)")
            connection.executemany(
                "INSERT INTO days VALUES (?, ?)", [(hour, day_of(hour, where).isoformat()) for hour in hours]
            )
            listed = ", ".join(_quoted(path) for path in paths)
            values = ", ".join(
                f"{name} * sign AS {name}" if name in _AMOUNTS else f"r.{name}" for name in COLUMNS
            )
            partitions = f"PARTITION_BY ({', '.join(PARTITIONS)}), WRITE_PARTITION_COLUMNS true"
            connection.execute(
                f"COPY (SELECT {values}, make_timestamp(r.hour * 3600000000) AS period_start, revision, correction, day"
                f" FROM read_parquet([{listed}], filename = true, file_row_number = true) r"
                " JOIN parts ON parts.path = r.filename JOIN days ON days.hour = r.hour"
                " ORDER BY number, file_row_number)"
                f" TO {_quoted(out)} (FORMAT parquet, COMPRESSION zstd, {partitions})"
            )
            fields = ", ".join(f"coalesce(sum({name}), 0)::HUGEINT::VARCHAR" for name in allocated_rows.SUMS)
            (found,) = connection.execute(
                f"SELECT count(*), {fields} FROM read_parquet({_quoted(out / '*/*/*.parquet')})"
            ).fetchall()
    except duckdb.Error as error:
        raise ParquetError(f"{out} cannot be written: {error}") from error
    digest, size, count = hashlib.sha256(), 0, 0
    for path in sorted(out.rglob("*.parquet")):
        data = path.read_bytes()
        digest.update(f"{hashlib.sha256(data).hexdigest()}  {path.relative_to(out).as_posix()}\n".encode())
        size, count = size + len(data), count + 1
    return Written(found[0], size, count, digest.hexdigest(), _sums([int(one) for one in found[1:]]))


def from_focus_csv(source: pathlib.Path, out: pathlib.Path) -> None:
    """A FOCUS file of ours in CSV as Parquet: numbers as decimals, moments as timestamps. Raises ParquetError."""
    import duckdb

    try:
        with _connect(out.parent) as connection:
            header = connection.execute(f"DESCRIBE SELECT * FROM {_csv(source)}").fetchall()
            cast = ", ".join(_typed(str(name)) for name, *_ in header)
            connection.execute(
                f"COPY (SELECT {cast} FROM {_csv(source)}) TO {_quoted(out)} (FORMAT parquet, COMPRESSION zstd)"
            )
    except duckdb.Error as error:
        raise ParquetError(f"{out} cannot be written: {error}") from error


def _typed(name: str) -> str:
    column = focus_columns.COLUMNS.get(name)
    kind = None if column is None else _FOCUS_TYPES.get(column.kind)
    return f'"{name}"' if kind is None else f'"{name}"::{kind} AS "{name}"'


def _csv(path: pathlib.Path) -> str:
    return f"read_csv({_quoted(path)}, header = true, all_varchar = true, delim = ',', quote = '\"', escape = '\"')"


def _sums(pusd: list[int]) -> dict[str, str]:
    names = (f"{field.removesuffix('pusd')}usd" for field in allocated_rows.SUMS)
    return {name: cells.usd(amount) for name, amount in zip(names, pusd, strict=True)}


def _connect(temporary: pathlib.Path) -> "duckdb.DuckDBPyConnection":
    import duckdb

    return duckdb.connect(
        config={
            "threads": 1,  # the same rows give the same bytes
            "memory_limit": _MEMORY,
            "temp_directory": str(temporary),
            "autoinstall_known_extensions": False,  # nothing is fetched
            "autoload_known_extensions": False,
        }
    )


def _quoted(text: object) -> str:
    return "'" + str(text).replace("'", "''") + "'"
