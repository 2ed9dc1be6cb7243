"""The clerk's keeping of a state directory: from plain segments to the archive, and in the end to nothing."""

import os
import pathlib

import pytest

from backends.model import Backend
from gateway.configuration.config import MIB, Config, Journal, Model, Tenant, Tier
from gateway.duties import duties, keeping
from gateway.duties.duties import Clerk
from gateway.duties.keeping import Keeping
from gateway.processes.logs import FACTS
from metering.archive.archive import Archive
from metering.archive.objects import LocalObjects
from metering.archive.retention import NS_PER_DAY
from metering.cost.closes import Closes
from metering.journal.journal import Directory, directories
from metering.journal.segments import is_sealed
from metering.pages import gone
from metering.record import Event
from metering.units import NS_PER_HOUR
from tests.support.archives import makes
from tests.support.closed import manifest
from tests.support.journals import AT_NS, WRITER, stop, write_directory


def config(state_dir: pathlib.Path, **journal: object) -> Config:
    return Config(
        state_dir=str(state_dir),
        retention_days=30,
        journal=Journal(**journal),  # type: ignore[arg-type]
        tenants=(Tenant(name="acme"),),
        models=(Model(name="m", tiers=(Tier(backends=("b",)),)),),
        backends=(Backend(name="b", url="http://127.0.0.1:1", model="m"),),
    )


@pytest.fixture
def directory(tmp_path: pathlib.Path) -> Directory:
    """A complete directory of four segments that is counted, as old as its lines say."""
    path = write_directory(tmp_path / "journal", [*makes(6), stop()], per_segment=4)
    for segment in path.iterdir():
        os.utime(segment, ns=(AT_NS, AT_NS))
    gone.retire(tmp_path / "pages", tmp_path / "journal")
    return Directory(path)


def rounds(config: Config, now_ns: int, count: int = 1) -> None:
    """What a clerk does that was started at this time."""
    clerk = Clerk(Keeping(config, lambda: now_ns).duties())
    for _ in range(count):
        clerk.round()


def test_one_round_takes_a_journal_into_the_archive(tmp_path: pathlib.Path, directory: Directory) -> None:
    lines = list(directory.chained())
    rounds(config(tmp_path, archive=str(tmp_path / "archive")), AT_NS + NS_PER_DAY)
    assert all(is_sealed(path) for _, path in directory.segment_paths())
    assert len(list((tmp_path / "facts").glob("day=2026-01-01/*.parquet"))) == 4
    archived = Archive(LocalObjects(tmp_path / "archive")).directory(WRITER)
    assert archived.complete
    assert list(archived.chained()) == list(directory.chained()) == lines


def test_without_an_archive_it_is_sealed_and_stays(tmp_path: pathlib.Path, directory: Directory) -> None:
    rounds(config(tmp_path, bytes_max=MIB, segment_bytes_max=MIB), AT_NS + NS_PER_DAY)
    assert [is_sealed(path) for _, path in directory.segment_paths()] == [True] * 4
    assert not (tmp_path / "archive").exists()


def test_over_half_of_the_cap_the_front_goes(
    tmp_path: pathlib.Path, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = config(tmp_path, archive=str(tmp_path / "archive"))
    monkeypatch.setattr(keeping, "tree_bytes", lambda _root, *, but: full.journal.bytes_max // 2 + 1)
    rounds(full, AT_NS + NS_PER_DAY)
    assert [first for first, _ in directory.segment_paths()] == [5, 9, 13], "one was enough for a byte"
    monkeypatch.setattr(keeping, "tree_bytes", lambda _root, *, but: full.journal.bytes_max // 2)
    rounds(full, AT_NS + NS_PER_DAY)
    assert len(directory.segment_paths()) == 3


def test_an_old_journal_goes_everywhere_and_an_event_tells_of_it(
    tmp_path: pathlib.Path, directory: Directory
) -> None:
    here = config(tmp_path, archive=str(tmp_path / "archive"))
    rounds(here, AT_NS + 29 * NS_PER_DAY)
    assert Archive(LocalObjects(tmp_path / "archive")).writers() == [WRITER]
    rounds(here, AT_NS + 31 * NS_PER_DAY, count=2)
    assert not directory.path.exists()
    assert list((tmp_path / "facts").glob("day=*/*.parquet")) == []
    assert Archive(LocalObjects(tmp_path / "archive")).writers() == []
    told = directories(tmp_path / "journal")
    events = [line for one in told for line, _, _ in one.records() if isinstance(line, Event)]
    older = str(AT_NS + NS_PER_DAY)
    assert sorted((one.data["where"], one.topic, one.actor) for one in events) == [
        ("archive", "retention", None),
        ("local", "retention", None),
    ]
    assert {(one.data["writers"], one.data["older_than_ns"]) for one in events} == {(WRITER, older)}


def test_a_deletion_that_fails_is_told_once(
    tmp_path: pathlib.Path, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it is tried: each telling is a journal of its own."""
    monkeypatch.setattr(duties, "RETRY_S", 0.0)
    in_the_way = tmp_path / "journal" / f".{WRITER}.deleted" / "file"
    in_the_way.parent.mkdir()
    in_the_way.touch()
    rounds(config(tmp_path), AT_NS + 31 * NS_PER_DAY, count=3)
    assert len(directories(tmp_path / "journal")) == 2
    in_the_way.unlink()
    rounds(config(tmp_path), AT_NS + 31 * NS_PER_DAY)
    assert not directory.path.exists()


def test_one_directory_that_cannot_be_archived_does_not_keep_the_others_back(
    tmp_path: pathlib.Path, directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    other = write_directory(tmp_path / "journal", [*makes(2), stop()], writer="w" + "b" * 16)
    for segment in other.iterdir():
        os.utime(segment, ns=(AT_NS, AT_NS))
    objects = LocalObjects(tmp_path / "archive")
    objects.put_new(f"journal/{WRITER}/0000000000000001.jsonl.zst", b"somebody else's")
    rounds(config(tmp_path, archive=str(tmp_path / "archive")), AT_NS + NS_PER_DAY)
    assert Archive(objects).writers() == [other.name]
    (told,) = [getattr(one, FACTS) for one in caplog.records]
    assert told["duty"] == "archive"
    assert f"{WRITER}/0000000000000001.jsonl.zst is in the archive with other bytes" in told["reason"]


def test_an_archive_that_is_away_is_said_once(
    tmp_path: pathlib.Path, directory: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    write_directory(tmp_path / "journal", [*makes(2), stop()], writer="w" + "b" * 16)
    (tmp_path / "archive").write_text("no directory")
    rounds(config(tmp_path, archive=str(tmp_path / "archive")), AT_NS + NS_PER_DAY, count=3)
    told = [getattr(one, FACTS)["duty"] for one in caplog.records]
    # Here and there: without it nobody knows which hours are closed.
    assert (told.count("retention"), told.count("archive")) == (2, 1)
    assert all(is_sealed(path) for _, path in directory.segment_paths())


def test_what_is_not_counted_yet_is_not_deleted(tmp_path: pathlib.Path, directory: Directory) -> None:
    (tmp_path / "pages" / gone.NAME).unlink()
    rounds(config(tmp_path), AT_NS + 31 * NS_PER_DAY)
    assert directory.path.exists()


def test_a_state_directory_that_is_new_has_nothing_to_keep(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    rounds(config(tmp_path, archive=str(tmp_path / "archive")), AT_NS)
    assert caplog.records == []


def test_what_an_open_hour_needs_is_kept(tmp_path: pathlib.Path, directory: Directory) -> None:
    """Once hours are closed at all, a journal is deleted only when those of its lines are."""
    hour = AT_NS // NS_PER_HOUR
    closes = Closes(LocalObjects(tmp_path))
    closes.commit(manifest([], hour=hour - 1), [])
    late_ns = AT_NS + 40 * NS_PER_DAY
    rounds(config(tmp_path), late_ns)
    assert directory.path.is_dir()
    closes.commit(manifest([], hour=hour), [])
    rounds(config(tmp_path), late_ns)
    assert not directory.path.is_dir()
