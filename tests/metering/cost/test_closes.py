"""Closed hours where they are kept: what is committed is read, once, whole, and never again otherwise."""

import pathlib

import pytest

from metering.archive.objects import ArchiveError, LocalObjects
from metering.cost.close_manifest import MonthState, Reason, hour_text
from metering.cost.close_row import RowKind
from metering.cost.closes import Closes, Outdone
from tests.support.closed import HOUR, manifest, row

TENANT = {"kind": RowKind.TENANT, "tenant": "acme", "model": "llama", "operation": "chat", "tags": {"a": "b"}}
ROWS = [row(micro_hours=600_000), row(**TENANT, micro_hours=400_000, estimated_pusd=7, calls=1)]


@pytest.fixture
def closes(tmp_path: pathlib.Path) -> Closes:
    return Closes(LocalObjects(tmp_path))


def test_what_is_committed_is_read(closes: Closes, tmp_path: pathlib.Path) -> None:
    assert closes.hours(range(HOUR, HOUR + 100)) == []
    made = closes.commit(manifest(ROWS), ROWS)
    later = [row(HOUR + 1, micro_hours=1)]
    closes.commit(manifest(later, hour=HOUR + 1), later)
    for period in (range(HOUR, HOUR + 2), range(HOUR - 100, HOUR + 100)):  # listed one by one, and all
        assert [one.hour for one in closes.hours(period)] == [HOUR, HOUR + 1]
    assert closes.hours(range(HOUR, HOUR + 1)) == [made]
    assert list(closes.rows(closes.hours(range(HOUR, HOUR + 2)))) == ROWS + later
    with closes.paths([made]) as paths:
        assert [path.read_bytes() for path in paths] == [(tmp_path / made.rows.path).read_bytes()]
    assert not paths[0].exists()


def test_rows_beside_their_manifest_are_read_as_well(closes: Closes, tmp_path: pathlib.Path) -> None:
    """As hours lay that were closed before rows had a place of their own: the manifest says where they are."""
    made = closes.commit(manifest(ROWS), ROWS)
    beside = f"close/{hour_text(HOUR)}/rev-1/rows-{made.rows.sha256[:12]}.parquet"
    (tmp_path / made.rows.path).rename(tmp_path / beside)
    path = tmp_path / "close" / hour_text(HOUR) / "rev-1" / "manifest.json"
    path.write_text(path.read_text().replace(made.rows.path, beside))
    (found,) = closes.hours(range(HOUR, HOUR + 1))
    assert found.rows.path == beside
    assert list(closes.rows([found])) == ROWS


def test_a_second_closer_loses_and_leaves_nothing_that_counts(closes: Closes) -> None:
    made = closes.commit(manifest(ROWS), ROWS)
    with pytest.raises(Outdone, match=r"rev-1/manifest\.json was put by somebody else"):
        closes.commit(manifest(ROWS[:1]), ROWS[:1])
    assert closes.hours(range(HOUR, HOUR + 1)) == [made]


def test_the_newest_revision_counts_and_the_others_stay(closes: Closes) -> None:
    first = closes.commit(manifest(ROWS), ROWS)
    last = None
    for revision in range(2, 12):
        last = closes.commit(manifest(ROWS, revision=revision, reason=Reason.LATE), ROWS)
    assert closes.hours(range(HOUR, HOUR + 1)) == [last]
    assert closes.numbers(range(HOUR, HOUR + 1)) == {HOUR: 11}
    assert closes.revisions(HOUR)[0] == first
    assert len(closes.revisions(HOUR)) == 11


def test_a_look_is_replaced_and_gone_with_the_close(closes: Closes, tmp_path: pathlib.Path) -> None:
    hour = range(HOUR, HOUR + 1)
    for micro_hours in (1, 2):
        rows = [row(micro_hours=micro_hours)]
        look = closes.look(manifest(rows, revision=0, reason=Reason.NOW), rows)
    assert closes.hours(hour) == []
    assert closes.numbers(hour) == {}
    assert closes.revisions(HOUR) == []
    assert closes.hours(hour, running=True) == [look]
    assert list(closes.rows([look])) == rows
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
    made = closes.commit(manifest(ROWS), ROWS)
    assert closes.hours(hour, running=True) == [made]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_a_month_goes_forward_and_keeps_its_hours(closes: Closes) -> None:
    closes.commit(manifest(ROWS), ROWS)
    assert closes.month("2026-01").state is MonthState.PROVISIONAL
    reconciled = closes.commit_month("2026-01", MonthState.RECONCILED, bills=("ab",), by="cli:me", at_ns=1)
    closes.commit(manifest(ROWS, revision=2, reason=Reason.LATE), ROWS)
    closed = closes.commit_month("2026-01", MonthState.CLOSED, bills=("ab",), by="cli:me", at_ns=2)
    closes.commit(manifest(ROWS, revision=3, reason=Reason.LATE), ROWS)
    assert closes.month("2026-01") == closed
    assert closes.states("2026-01") == [reconciled, closed]
    assert [one.revision for one in closes.of_month(reconciled)] == [1]
    assert [one.revision for one in closes.of_month(closed)] == [2]
    with pytest.raises(ValueError, match="2026-01 is closed"):
        closes.commit_month("2026-01", MonthState.RECONCILED, bills=(), by="", at_ns=3)


def test_what_was_altered_is_named(closes: Closes, tmp_path: pathlib.Path) -> None:
    made = closes.commit(manifest(ROWS), ROWS)
    month = closes.commit_month("2026-01", MonthState.CLOSED, bills=(), by="", at_ns=2)
    (tmp_path / made.rows.path).write_bytes(b"PAR1")
    with pytest.raises(ArchiveError, match=r"rev-1-.*\.parquet is not what its manifest says"):
        list(closes.rows([made]))
    path = tmp_path / "close" / hour_text(HOUR) / "rev-1" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b"cli:test", b"cli:else"))
    with pytest.raises(ArchiveError, match=r"is not what month 2026-01 was closed with"):
        closes.of_month(month)
    path.write_text("{}")
    with pytest.raises(ArchiveError, match=r"rev-1/manifest\.json is no manifest"):
        closes.hours(range(HOUR, HOUR + 1))
