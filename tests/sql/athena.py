"""A stand-in for Athena: its dialect read by sqlglot, its partition projection and its file listing done here.

What Athena does with a table is done as its documentation says: the location template is filled in for each value of
the projection's range, and **every** file below it that is not hidden is read by the table's format. Parquet columns
are found by name and must have the table's type. duckdb answers what sqlglot makes of Trino's SQL.
"""

import datetime
import importlib
import itertools
import pathlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import duckdb

from tests.support import sqlpage
from tests.support.lake import Made
from tests.support.sqlanswers import Rows

_LAST_DAY = datetime.date(2026, 12, 2)
"""The archive's own NOW+1DAY."""


class Table(NamedTuple):
    """An external table. columns: name → type of duckdb; partitions: names of its partition columns."""

    name: str
    columns: dict[str, str]
    is_json: bool
    location: str
    partitions: tuple[str, ...]
    properties: dict[str, str]


def answers(made: Made, bill: pathlib.Path, questions: dict[str, str]) -> dict[str, Rows]:
    """Title → rows. Raises sqlglot's ParseError, duckdb.Error, AssertionError: a table that Athena could not read."""
    glot: Any = importlib.import_module("sqlglot")
    with duckdb.connect(config={"threads": 2}) as connection:
        connection.execute(f"CREATE VIEW cur AS FROM '{bill}'")
        for statement in [*sqlpage.statements("athena"), *sqlpage.views()]:
            text = made.lake.here(statement)
            if "EXTERNAL TABLE" in text:
                _create(connection, _table(glot, text))
            else:
                connection.execute(_translated(glot, text))
        return {
            title: connection.execute(_translated(glot, query)).fetchall()
            for title, query in questions.items()
        }


def _translated(glot: Any, text: str) -> str:
    (found,) = glot.transpile(text, read="athena", write="duckdb")
    return str(found)


def _table(glot: Any, text: str) -> Table:
    expressions = glot.exp
    tree = glot.parse_one(text, read="athena")
    assert isinstance(tree, expressions.Create), text
    schema = tree.this
    assert isinstance(schema, expressions.Schema)
    columns = {one.name: one.args["kind"].sql("duckdb") for one in schema.expressions}
    properties: dict[str, str] = {}
    partitions: tuple[str, ...] = ()
    location = None
    for one in tree.args["properties"].expressions:
        match type(one).__name__:
            case "PartitionedByProperty":
                partitions = tuple(column.name for column in one.this.expressions)
            case "LocationProperty":
                location = one.this.name
            case "Property":
                properties[one.name] = one.args["value"].name
    assert location is not None
    return Table(schema.this.name, columns, "JsonSerDe" in text, location.rstrip("/"), partitions, properties)


def _create(connection: duckdb.DuckDBPyConnection, table: Table) -> None:
    parts = []
    for values, place in _partitions(table):
        files = sorted(
            str(path)
            for path in pathlib.Path(place).rglob("*")
            if path.is_file() and not path.name.startswith((".", "_"))
        )
        if files:
            if not table.is_json:
                _check_types(connection, table, files)
            partition = "".join(f", '{value}' AS \"{name}\"" for name, value in values.items())
            parts.append(f"SELECT *{partition} FROM ({_read(table, files)})")
    assert parts, f"{table.name} finds no file"
    connection.execute(f'CREATE VIEW "{table.name}" AS {" UNION ALL ".join(parts)}')


def _read(table: Table, files: list[str]) -> str:
    names = ", ".join(f'"{name}"' for name in table.columns)
    listed = ", ".join(f"'{file}'" for file in files)
    if not table.is_json:
        found = f"read_parquet([{listed}], filename = true, hive_partitioning = false)"
        return f'SELECT {names}, filename AS "$path" FROM {found}'
    columns = ", ".join(f"\"{name}\": '{kind}'" for name, kind in table.columns.items())
    return (
        f"SELECT {names} FROM read_json([{listed}], columns = {{{columns}}}, format = 'newline_delimited', "
        "ignore_errors = false)"
    )


def _check_types(connection: duckdb.DuckDBPyConnection, table: Table, files: list[str]) -> None:
    """Athena does not convert: a file's column has the table's type, or the query fails."""
    for file in files:
        described = connection.execute(
            f"DESCRIBE SELECT * FROM read_parquet('{file}', hive_partitioning = false)"
        ).fetchall()
        there = {name: kind.replace(" ", "") for name, kind, *_ in described}
        for name, kind in table.columns.items():
            wanted = re.sub(r"\bTEXT\b", "VARCHAR", kind).replace(" ", "")
            assert there.get(name, wanted) == wanted, f"{file}: {name} is {there[name]}, not {wanted}"


def _partitions(table: Table) -> Iterator[tuple[dict[str, str], str]]:
    """(name → value, place) of all values that the projection has."""
    if not table.partitions:
        yield {}, table.location
        return
    assert table.properties["projection.enabled"] == "true"
    each = [list(_projected(table, name)) for name in table.partitions]
    for values in itertools.product(*each):
        of = dict(zip(table.partitions, values, strict=True))
        place = table.properties["storage.location.template"]
        for name, value in of.items():
            place = place.replace(f"${{{name}}}", value)
        yield of, place


def _projected(table: Table, name: str) -> Iterator[str]:
    """The values of one partition column."""
    prefix = f"projection.{name}."
    of = {key.removeprefix(prefix): value for key, value in table.properties.items()}
    first, _, last = of["range"].partition(",")
    match of["type"]:
        case "integer":
            for number in range(int(first), int(last) + 1):
                yield str(number).zfill(int(of["digits"]))
        case "date":
            assert (of["format"], last) == ("yyyy-MM-dd", "NOW+1DAY")
            at = datetime.date.fromisoformat(first)
            while at <= _LAST_DAY:
                yield at.isoformat()
                at += datetime.timedelta(days=1)
        case kind:
            raise AssertionError(f"{table.name}: no projection of type {kind} is known here")
