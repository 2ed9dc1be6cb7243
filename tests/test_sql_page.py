"""deploy/reference/sql.md: its statements run on an archive as it is after some weeks, and give what was put in.

duckdb's here; Athena's and Spark's with `make sql` (tests/sql).
"""

import pathlib
import re

import duckdb
import pytest

from metering.archive import facts
from metering.cost.close_row import COLUMNS
from metering.export.export_parquet import ROW_COLUMNS
from tests.support import lake, sqlanswers, sqlpage
from tests.support.lake import Made

SEED = 7


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return lake.make(tmp_path_factory.mktemp("archive"), SEED)


@pytest.fixture(scope="module")
def connection(made: Made) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": 1})
    for statement in [*sqlpage.statements("duckdb"), *sqlpage.views()]:
        connection.execute(made.lake.here(statement))
    sqlanswers.bill(made, made.lake.export.with_name("cur.parquet"))
    connection.execute(f"CREATE VIEW cur AS FROM '{made.lake.export.with_name('cur.parquet')}'")
    return connection


@pytest.mark.parametrize("title", sqlpage.questions())
def test_a_question_is_answered_as_the_rows_say(
    title: str, made: Made, connection: duckdb.DuckDBPyConnection
) -> None:
    query = made.lake.here(sqlpage.questions()[title])
    sqlanswers.check(title, made, connection.execute(query).fetchall())


def test_every_question_has_its_answer(made: Made) -> None:
    assert {*sqlanswers.expected(made), "A call by its id"} == set(sqlpage.questions())


def test_rows_that_no_manifest_names_would_be_found_out(
    made: Made, connection: duckdb.DuckDBPyConnection
) -> None:
    """The lake has them: without `counting` sums are wrong, and that the answers above are right says something."""
    (all_of_it,) = connection.execute("SELECT count(*) FROM close_rows").fetchall()
    assert all_of_it[0] > sum(len(hour.rows) for hours in made.counting.values() for hour in hours)


@pytest.mark.parametrize(
    ("table", "columns"),
    [("facts", facts.COLUMNS), ("close_files", COLUMNS), ("exported", [name for name in ROW_COLUMNS if name != "day"])],
)  # fmt: skip
def test_the_tables_for_athena_have_every_column(table: str, columns: list[str]) -> None:
    (statement,) = [one for one in sqlpage.statements("athena") if f"TABLE {table} (" in one]
    body = statement.partition("(\n")[2].partition("\n)")[0]
    assert re.findall(r"(?:^|,)\s*(\w+) [a-z]", body) == list(columns)


def test_no_file_lies_where_a_table_would_take_it_for_its_own(made: Made) -> None:
    below = {
        "close/rows": {".parquet"},
        "facts/day=2026-11-28": {".parquet"},
        "close/months": {".json"},
    }
    for place, suffixes in below.items():
        found = {path.suffix for path in (made.lake.archive / place).rglob("*") if path.is_file()}
        assert found == suffixes, place
    hours: list[pathlib.Path] = list((made.lake.archive / "close").glob("20*"))
    assert hours
    assert {path.name for hour in hours for path in hour.rglob("*") if path.is_file()} == {"manifest.json"}
