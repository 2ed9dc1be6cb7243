"""The clerk's care for content: moved to the archive after its hour, deleted by its tenant's days, told before."""

import os
import pathlib

import pytest

from backends.model import Backend
from gateway.configuration.config import Capture, Config, Model, Tenant, Tier
from gateway.duties import content_duty
from gateway.duties.content_duty import ContentDuty
from gateway.duties.duties import Clerk
from metering.archive.objects import LocalObjects
from metering.archive.retention import NS_PER_DAY
from metering.capture import removal
from metering.capture.content import Deletions
from metering.capture.shelf import Shelf, Shelved, file_name
from metering.journal import event_journal
from metering.journal.journal import directories
from metering.record import CallRecord, Event
from metering.units import NS_PER_HOUR
from tests.support.journals import AT_NS, call

KEY = "x25519:hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo="
NAME = file_name(AT_NS // NS_PER_HOUR, "0" * 16)
SOON_NS = AT_NS + 2 * NS_PER_HOUR


def config(state_dir: pathlib.Path, *tenants: str) -> Config:
    capture = Capture(public_key=KEY, retention_days=3)
    return Config(
        state_dir=str(state_dir),
        retention_days=30,
        tenants=tuple(Tenant(name=name, capture=capture) for name in tenants),
        models=(Model(name="m", tiers=(Tier(backends=("b",)),)),),
        backends=(Backend(name="b", url="http://127.0.0.1:1", model="m"),),
    )


def put(state_dir: pathlib.Path, tenant: str) -> pathlib.Path:
    path = Shelf(state_dir).path(Shelved(tenant, NAME))
    path.parent.mkdir(parents=True)
    path.write_bytes(b"frames")
    os.utime(path, ns=(AT_NS, AT_NS))
    return path


def round_of(config: Config, now_ns: int, objects: LocalObjects | None = None) -> None:
    """What a clerk does that was started at this time."""
    Clerk(ContentDuty(config, objects, lambda: now_ns, lambda: now_ns).duties()).round()


def events(state_dir: pathlib.Path) -> list[Event]:
    lines = [one.line for journal in directories(state_dir / "journal") for one in journal.chained()]
    return [line for line in lines if isinstance(line, Event)]


def test_where_nobody_wants_any_nothing_is_done(tmp_path: pathlib.Path) -> None:
    round_of(config(tmp_path), SOON_NS, LocalObjects(tmp_path / "archive"))
    assert list(tmp_path.iterdir()) == []


def test_a_final_file_is_moved_and_one_of_this_hour_is_not(tmp_path: pathlib.Path) -> None:
    path = put(tmp_path, "acme")
    objects = LocalObjects(tmp_path / "archive")
    round_of(config(tmp_path, "acme"), AT_NS + NS_PER_HOUR, objects)
    assert path.exists()
    round_of(config(tmp_path, "acme"), SOON_NS, objects)
    assert not path.exists()
    assert objects.get(f"content/acme/{NAME}") == b"frames"


@pytest.mark.parametrize("is_archived", [False, True])
def test_what_is_older_than_its_tenants_days_goes_and_is_told(
    tmp_path: pathlib.Path, is_archived: bool
) -> None:
    objects = LocalObjects(tmp_path / "archive") if is_archived else None
    put(tmp_path, "acme")
    put(tmp_path, "gone-since")  # it has no capture any more: as long as the journal
    both = config(tmp_path, "acme")
    round_of(both, SOON_NS, objects)
    round_of(both, AT_NS + 3 * NS_PER_DAY, objects)
    assert events(tmp_path) == []
    old_ns = AT_NS + 3 * NS_PER_DAY + 2 * NS_PER_HOUR
    round_of(both, old_ns, objects)
    (told,) = events(tmp_path)
    where = "archive" if is_archived else "local"
    assert (told.topic, told.data["tenant"], told.data["where"]) == ("content_deleted", "acme", where)
    left = list(Shelf(tmp_path).files()) + (removal.archived(objects) if objects else [])
    assert [one.tenant for one in left] == ["gone-since"]
    deletions = Deletions()
    deletions.add(told)
    record = call("w-1", finished_ns=AT_NS + NS_PER_HOUR - 1)(1, "")
    assert isinstance(record, CallRecord)
    assert deletions.explain(record)
    round_of(both, AT_NS + 31 * NS_PER_DAY, objects)
    assert {one.data["tenant"] for one in events(tmp_path)} == {"acme", "gone-since"}


def test_what_cannot_be_told_is_not_deleted(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, "acme")

    def full(*_: object, **__: object) -> str:
        raise OSError("disk full")

    monkeypatch.setattr(event_journal, "tell", full)
    round_of(config(tmp_path, "acme"), AT_NS + 10 * NS_PER_DAY)
    assert path.exists()


def test_it_is_looked_once_a_day(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "acme")
    looked: list[int] = []
    monkeypatch.setattr(content_duty.removal, "old", lambda *_: looked.append(1) or {})
    clerk = Clerk(ContentDuty(config(tmp_path, "acme"), None, lambda: SOON_NS, lambda: SOON_NS).duties())
    for _ in range(3):
        clerk.round()
    assert looked == [1]
