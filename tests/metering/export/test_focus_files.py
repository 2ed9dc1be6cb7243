"""FOCUS files as rows of text: CSV and Parquet give the same, and what is no such file is told."""

import pathlib

import duckdb
import pytest

from metering.export.focus import files
from metering.export.focus.check import check
from metering.export.focus.files import FocusFileError

SPLIT = pathlib.Path(__file__).parent.parent.parent / "data" / "focus" / "sample-1.4-split.csv"


def parquet(path: pathlib.Path, select: str) -> pathlib.Path:
    duckdb.sql(f"COPY ({select}) TO '{path}' (FORMAT parquet)")
    return path


def test_parquet_reads_as_csv_does(tmp_path: pathlib.Path) -> None:
    made = parquet(tmp_path / "text.parquet", f"SELECT * FROM read_csv('{SPLIT}', all_varchar = true)")
    columns, rows = files.read(made)
    wanted_columns, wanted = files.read(SPLIT)
    assert columns == wanted_columns
    assert [(line, list(cells)) for line, cells in rows] == list(wanted)


def test_types_of_parquet_become_text(tmp_path: pathlib.Path) -> None:
    select = """SELECT 1.50::DECIMAL(38, 13) AS a, TIMESTAMP '2026-11-26 10:00:00' AS b, {'k': 'v'} AS c,
        MAP {'k': 'v'} AS d, 5::BIGINT AS e, NULL::VARCHAR AS f, '' AS g"""
    columns, rows = files.read(parquet(tmp_path / "typed.parquet", select))
    assert columns == list("abcdefg")
    moment, obj = "2026-11-26T10:00:00Z", '{"k":"v"}'
    assert [list(cells) for _, cells in rows] == [["1.5000000000000", moment, obj, obj, "5", None, ""]]


def test_a_float_is_not_exact(tmp_path: pathlib.Path) -> None:
    cost = "(ListCost::DOUBLE + 1e-15) AS ListCost"
    made = parquet(
        tmp_path / "float.parquet",
        f"SELECT * REPLACE ({cost}) FROM read_csv('{SPLIT}', all_varchar = true)",
    )
    opened = files.read(made)
    assert {finding.rule for finding in check(opened.header, opened.rows)} == {"product"}


def test_lines_are_those_of_the_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "lines.csv"
    path.write_bytes(b'A,B\r\n"one\r\ntwo",1\r\n\r\n,2\r\n')
    columns, rows = files.read(path)
    assert columns == ["A", "B"]
    assert list(rows) == [(2, ["one\r\ntwo", "1"]), (4, []), (5, [None, "2"])]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "has no header"),
        (b'A,B\n"1,2\n', "line 2"),
        (b"A,B\n\xff,2\n", "utf-8"),
        (b"PAR1 and nothing more", "cannot be read"),
        (b"A\n" + b"x" * 200_000, "field larger"),
    ],
)
def test_what_is_no_such_file(tmp_path: pathlib.Path, data: bytes, says: str) -> None:
    path = tmp_path / "bad"
    path.write_bytes(data)
    with pytest.raises(FocusFileError, match=says):
        list(files.read(path).rows)
