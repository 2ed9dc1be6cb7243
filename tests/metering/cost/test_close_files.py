"""Rows of closed hours: what was written is read, whatever stands in it; duckdb alone reads the same."""

import pathlib
import random

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metering.cost import close_files
from metering.cost.close_files import CloseFileError
from metering.cost.close_row import COLUMNS, CloseRow, RowKey, RowKind

INTS = st.integers(0, (1 << 63) - 1)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9)
ROWS = st.builds(
    CloseRow,
    hour=INTS,
    kind=st.sampled_from(RowKind),
    pool=st.none() | TEXTS,
    instance_id=st.none() | TEXTS,
    tenant=st.none() | TEXTS,
    tags=st.none() | st.dictionaries(TEXTS, TEXTS, max_size=3),
    simulated=st.booleans(),
    micro_hours=INTS,
    list_pusd=st.none() | INTS,
    method=st.just("slot-time"),
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(ROWS, max_size=6))
def test_what_was_written_is_read(tmp_path: pathlib.Path, rows: list[CloseRow]) -> None:
    path = tmp_path / "rows.parquet"
    assert close_files.write(rows, path) == len(rows)
    assert list(close_files.read([path])) == rows
    first = path.read_bytes()
    close_files.write(rows, path)
    assert path.read_bytes() == first


def test_files_are_read_one_after_the_other_in_batches(tmp_path: pathlib.Path) -> None:
    rows = [CloseRow(hour=n, kind=RowKind.IDLE, micro_hours=n, method="slot-time") for n in range(5_000)]
    close_files.write(rows[3_000:], tmp_path / "b.parquet")
    close_files.write(rows[:3_000], tmp_path / "a.parquet")
    assert list(close_files.read([tmp_path / "a.parquet", tmp_path / "b.parquet"])) == rows
    assert list(close_files.read([])) == []


def test_sql_sees_the_columns_of_the_contract(tmp_path: pathlib.Path) -> None:
    close_files.write([], tmp_path / "none.parquet")
    found = duckdb.sql(f"DESCRIBE SELECT * FROM '{tmp_path}/none.parquet'").fetchall()
    assert [(name, kind) for name, kind, *_ in found] == list(COLUMNS.items())


def test_a_file_that_is_none_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"no Parquet")
    with pytest.raises(CloseFileError, match=r"rows\.parquet cannot be read"):
        list(close_files.read([tmp_path / "rows.parquet"]))
    (tmp_path / "taken.parquet").mkdir()
    with pytest.raises(CloseFileError, match=r"taken\.parquet cannot be written"):
        close_files.write([], tmp_path / "taken.parquet")


def test_keys_sort_by_bytes_and_nothing_before_something() -> None:
    def key(instance_id: str | None, tenant: str, **tags: str) -> RowKey:
        row = CloseRow(
            hour=1, kind=RowKind.TENANT, instance_id=instance_id, tenant=tenant, tags=tags, method="m"
        )
        return row.key

    in_order = [
        key(None, "z"),
        key("i-1", "acme"),
        key("i-1", "acme", a="1", b="2"),
        key("i-1", "acme", b="1", a="2"),
        key("i-1", "acme-b"),
        key("i-1", "ß"),
    ]
    assert sorted(random.Random(7).sample(in_order, len(in_order))) == in_order
