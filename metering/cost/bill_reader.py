"""Reads the files of a bill: CUR 2.0 or FOCUS, as CSV, gzipped CSV or Parquet, with duckdb.

    files ─▶ which format, by their columns ─▶ the rows that can bear on the serving instances ─▶ Lines ─▶ fold

A bill has millions of rows of everything that a company uses: duckdb reads them, and hands over only instance use of
the wanted families, what carries a wanted instance's id, and plans of a wanted family. Every cell is taken as text;
the doubles of a Parquet file are written as the shortest decimal that reads back as the same double.

duckdb is imported when a bill is read: it takes 0.1 s and much memory.
"""

import hashlib
import pathlib
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from metering.cost import bill, bill_cur, bill_focus, close_manifest
from metering.cost.bill import Line, ReadBill
from metering.cost.bill_cells import INSTANCE_USAGE, RESERVED_USAGE, BillError, Moments

if TYPE_CHECKING:
    import duckdb

_PARQUET_MAGIC = b"PAR1"
_GZIP_MAGIC = b"\x1f\x8b"
_BATCH_ROWS = 4_096
_MEMORY = "1GB"
_CURRENCY = "USD"
_LEGACY = "lineItem/LineItemType"
_SKU_DETAILS = "SkuPriceDetails"
_SKU_TYPE = 'InstanceType"? *[:=] *"?([A-Za-z0-9.-]+)'
_READ_BYTES = 1 << 20


class LineReader(Protocol):
    """Reads the rows of one format. Raises BillError."""

    def line(self, cells: Sequence[str | None], copies: int) -> Line:
        """cells: in the order of the format's columns."""


class Format(NamedTuple):
    """How a kind of bill is read. mark: a column that no other kind has; needed: columns without which it is none.

    columns: field → the columns that may hold it. split: of the lines of containers. has_families: of plans.
    """

    name: str
    mark: str
    needed: tuple[str, ...]
    columns: Mapping[str, tuple[str, ...]]
    currency: str
    invoice: str
    split: str | None
    has_families: bool
    lines: Callable[[str], LineReader]


CUR = Format(
    name="CUR 2.0",
    mark="line_item_line_item_type",
    needed=bill_cur.NEEDED,
    columns=bill_cur.COLUMNS,
    currency="line_item_currency_code",
    invoice="bill_invoice_id",
    split="split_line_item_parent_resource_id",
    has_families=True,
    lines=bill_cur.CurLines,
)
FOCUS = Format(
    name="FOCUS",
    mark="ChargeCategory",
    needed=bill_focus.NEEDED,
    columns=bill_focus.COLUMNS,
    currency="BillingCurrency",
    invoice="InvoiceId",
    split=None,
    has_families=False,
    lines=bill_focus.FocusLines,
)


class Wanted(NamedTuple):
    """Of whom the bill is asked. instances: ids of those that serve; families: as in "inf2"."""

    instances: Collection[str]
    families: Collection[str]


def read(paths: Sequence[pathlib.Path], month: str | None, wanted: Callable[[str], Wanted]) -> ReadBill:
    """Read a bill of one month. month: "2026-11"; None: the one that the files are of. wanted: asked for that month.

    Raises BillError, OSError, ValueError: that is no month.
    """
    import duckdb

    digests = _digests(paths)
    try:
        with tempfile.TemporaryDirectory() as spill, duckdb.connect(config=_config(spill)) as connection:
            files = [_File.of(connection, path) for path in paths]
            if len({file.format.name for file in files}) > 1:
                kinds = ", ".join(f"{file.path.name} is {file.format.name}" for file in files)
                raise BillError(f"a bill has one format: {kinds}")
            return _Reading(connection, files).read(month, digests, wanted)
    except duckdb.Error as error:
        raise BillError(f"the bill cannot be read: {str(error).partition(chr(10))[0]}") from error


class _File(NamedTuple):
    path: pathlib.Path
    format: Format
    source: str
    columns: dict[str, str]

    @classmethod
    def of(cls, connection: "duckdb.DuckDBPyConnection", path: pathlib.Path) -> "_File":
        """Look at a file's first bytes and its columns."""
        with open(path, "rb") as file:
            head = file.read(len(_PARQUET_MAGIC))
        if head == _PARQUET_MAGIC:
            source = f"read_parquet({_quoted(path)})"
        else:
            compression = "gzip" if head.startswith(_GZIP_MAGIC) else "none"
            source = (
                f"read_csv({_quoted(path)}, header = true, all_varchar = true, delim = ',', quote = '\"', "
                f"escape = '\"', compression = '{compression}')"
            )
        described = connection.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()
        columns = {str(name): str(kind) for name, kind, *_ in described}
        return cls(path, _format(path, columns), source, columns)

    def text(self, field: str) -> str:
        """SQL of a field: the first of its columns that the file has and that is not empty there."""
        found = [self.column(one) for one in self.format.columns[field] if one in self.columns]
        if field == "instance_type" and _SKU_DETAILS in self.columns:
            found.append(f"nullif(regexp_extract({_name(_SKU_DETAILS)}::VARCHAR, '{_SKU_TYPE}', 1), '')")
        return f"coalesce({', '.join(found)})" if found else "NULL::VARCHAR"

    def column(self, name: str | None) -> str:
        return f"nullif({_name(name)}::VARCHAR, '')" if name in self.columns else "NULL::VARCHAR"

    @property
    def selected(self) -> str:
        """SQL: all rows, with the fields of the format and what decides whether they are taken."""
        fields = ", ".join(f"{self.text(field)} AS {_name(field)}" for field in self.format.columns)
        return (
            f"SELECT {fields}, {self.column(self.format.currency)} AS currency, "
            f"{self.column(self.format.invoice)} AS invoice, {self.column(self.format.split)} AS split_of "
            f"FROM {self.source}"
        )


def _format(path: pathlib.Path, columns: Mapping[str, str]) -> Format:
    for one in (CUR, FOCUS):
        if one.mark in columns:
            if missing := [name for name in one.needed if name not in columns]:
                raise BillError(f"{path} is a {one.name} bill without the columns {', '.join(missing)}")
            return one
    if _LEGACY in columns:
        raise BillError(f"{path} is a legacy CUR; make an export of CUR 2.0 or FOCUS in AWS Data Exports")
    few = ", ".join(list(columns)[:5])
    raise BillError(f"{path} is neither CUR 2.0 nor FOCUS; its columns are {few}…")


class _Reading:
    """The queries over the files of one bill."""

    def __init__(self, connection: "duckdb.DuckDBPyConnection", files: Sequence[_File]) -> None:
        self._connection = connection
        self._files = files
        self._format = files[0].format
        everything = " UNION ALL BY NAME ".join(file.selected for file in files)
        connection.execute(f"CREATE TEMP VIEW bill AS {everything}")

    def read(self, month: str | None, digests: tuple[str, ...], wanted: Callable[[str], Wanted]) -> ReadBill:
        rows, months = self._months()
        if month is None:
            if len(months) != 1:
                raise BillError(f"the files are of {', '.join(months) or 'no month'}: name one with --month")
            month = months[0]
        if month not in months:
            raise BillError(
                f"the files are of {', '.join(months) or 'no month'}, and have nothing of {month}"
            )
        self._want(wanted(month))
        ((covered, uninvoiced),) = self._all(
            f'SELECT max("end"), count(*) FILTER (invoice IS NULL) FROM bill WHERE {_of(month)}'
        )
        self._check_currency(month)
        return ReadBill(
            format=self._format.name,
            month=month,
            digests=digests,
            rows=rows,
            other_months=tuple(other for other in months if other != month),
            split_rows=self._split_rows(month),
            covered_until_ns=Moments().read(covered, "the newest row"),
            invoiced=not uninvoiced,
            approximate=any("DOUBLE" in kind or "FLOAT" in kind for kind in self._kinds()),
            bill=bill.fold(self._lines(month), close_manifest.month_hours(month)),
        )

    def _want(self, wanted: Wanted) -> None:
        for name, values in (("instances", wanted.instances), ("families", wanted.families)):
            select = "SELECT unnest(?::VARCHAR[]) AS id"
            self._connection.execute(f"CREATE TEMP TABLE {name} AS {select}", [sorted(values)])

    def _lines(self, month: str) -> Iterator[Line]:
        fields = ", ".join(_name(field) for field in self._format.columns)
        query = (
            f"SELECT count(*), {fields} FROM bill WHERE ({_of(month)} OR usage_type LIKE '%CapacityBlock%') "
            f"AND split_of IS NULL AND ({self._scope()}) GROUP BY ALL ORDER BY ALL"
        )
        lines = self._format.lines(month)
        cursor = self._connection.execute(query)
        while batch := cursor.fetchmany(_BATCH_ROWS):
            for copies, *cells in batch:
                yield lines.line(cells, copies)

    def _scope(self) -> str:
        """SQL: this row can bear on the serving instances, or on hardware of their families."""
        type_ = "coalesce(instance_type, nullif(regexp_extract(usage_type, ':(.+)$', 1), ''))"
        of_hours = f"regexp_matches(usage_type, {_quoted(f'{INSTANCE_USAGE}|{RESERVED_USAGE}')})"
        parts = [
            "regexp_extract(resource, '[^/]*$') IN (SELECT id FROM instances)",
            f"({of_hours} OR usage_type IS NULL) AND split_part({type_}, '.', 1) IN (SELECT id FROM families)",
        ]
        if self._format.has_families:
            family = "split_part(plan_family, '.', 1)"
            parts.append(f"line_type LIKE 'SavingsPlan%Fee' AND {family} IN (SELECT id FROM families)")
        return " OR ".join(f"({part})" for part in parts)

    def _months(self) -> tuple[int, list[str]]:
        found = self._all("SELECT substr(period, 1, 7), count(*) FROM bill GROUP BY ALL ORDER BY ALL")
        return sum(count for _, count in found), [month for month, _ in found if month is not None]

    def _check_currency(self, month: str) -> None:
        query = f"SELECT DISTINCT currency FROM bill WHERE {_of(month)} AND ({self._scope()})"
        found = {currency for (currency,) in self._all(query)}
        if others := sorted(str(currency) for currency in found - {_CURRENCY}):
            raise BillError(f"the bill is in {', '.join(others)}; only {_CURRENCY} can be reconciled")

    def _split_rows(self, month: str) -> int:
        parent = "regexp_extract(split_of, '[^/]*$') IN (SELECT id FROM instances)"
        ((count,),) = self._all(f"SELECT count(*) FROM bill WHERE {_of(month)} AND {parent}")
        return int(count)

    def _kinds(self) -> Iterator[str]:
        for file in self._files:
            for columns in self._format.columns.values():
                yield from (file.columns[name] for name in columns if name in file.columns)

    def _all(self, query: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(query).fetchall()


def _digests(paths: Sequence[pathlib.Path]) -> tuple[str, ...]:
    """SHA-256 of each file, sorted."""
    digests: dict[str, pathlib.Path] = {}
    for path in paths:
        running = hashlib.sha256()
        with open(path, "rb") as file:
            while data := file.read(_READ_BYTES):
                running.update(data)
        if (twin := digests.setdefault(running.hexdigest(), path)) is not path:
            raise BillError(f"{path} is the same file as {twin}")
    return tuple(sorted(digests))


def _of(month: str) -> str:
    return f"starts_with(period, {_quoted(month)})"


def _config(spill: str) -> dict[str, str | bool | int | float | list[str]]:
    return {
        "threads": 1,  # a bill can wait, and workers come first
        "memory_limit": _MEMORY,
        "temp_directory": spill,
        "autoinstall_known_extensions": False,  # nothing is fetched
        "autoload_known_extensions": False,
    }


def _name(key: str | None) -> str:
    return '"' + str(key).replace('"', '""') + '"'


def _quoted(text: object) -> str:
    return "'" + str(text).replace("'", "''") + "'"
