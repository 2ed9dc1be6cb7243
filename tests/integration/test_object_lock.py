"""Anchors in a bucket with object lock: put under it, seen when somebody has overwritten or hidden them, left alone.

What is there is asked by boto3, which shares no code with us; the server (moto) answers as S3 documents: a locked
version cannot be deleted, a put under lock needs a digest of the body, a plain delete puts a marker.
"""

import datetime
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto.server import ThreadedMotoServer

from backends.simulator.settings import Settings
from gateway.configuration.archives import archive_of
from gateway.configuration.config import ArchiveLock, Journal
from metering.archive import locked, retention
from metering.archive.locked import Lock, LockedObjects
from metering.archive.objects import AlreadyThere, ArchiveError, ArchiveUnavailable, BucketObjects
from metering.archive.s3 import Bucket, Refused, Setup
from metering.audit import verify, versions
from metering.audit.findings import Verdict, What
from metering.units import NS_PER_S
from tests.support import gateway, signed, simulator
from tests.support.archives import Place
from tests.support.gateway import ROOT, eventually
from tests.support.journals import WRITER

pytestmark = pytest.mark.integration

PREFIX = "some/where"
DAYS = 400
NS_PER_DAY = 86_400 * NS_PER_S
OTHER = "w" + "b" * 16


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


class Store:
    """A bucket, by boto3."""

    def __init__(self, endpoint: str, name: str, *, lock: bool = True) -> None:
        self.endpoint, self.name = endpoint, name
        self.s3: Any = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        self.s3.create_bucket(Bucket=name, ObjectLockEnabledForBucket=lock)

    @property
    def bucket(self) -> Bucket:
        return Bucket(self.name, PREFIX, self.endpoint, "us-east-1")

    def objects(self, mode: Any = "compliance", what: Any = "anchors", days: int = DAYS) -> LockedObjects:
        plain = BucketObjects(self.name, PREFIX, self.endpoint, "us-east-1")
        return LockedObjects(plain, self.bucket, Lock(mode, days, what))

    def head(self, path: str) -> dict[str, Any]:
        return dict(self.s3.head_object(Bucket=self.name, Key=f"{PREFIX}/{path}"))

    def versions(self) -> list[str]:
        listed = self.s3.list_object_versions(Bucket=self.name)
        return [one["Key"] for kind in ("Versions", "DeleteMarkers") for one in listed.get(kind, ())]


@pytest.fixture
def store(endpoint: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    return Store(endpoint, f"b{abs(hash(request.node.name))}")


@pytest.mark.parametrize("mode", ["governance", "compliance"])
def test_what_is_put_is_locked_for_its_days(store: Store, mode: str) -> None:
    store.objects(mode).put_new("anchors/w/1.note", b"note")
    head = store.head("anchors/w/1.note")
    assert head["ObjectLockMode"] == mode.upper()
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=DAYS)
    assert abs((head["ObjectLockRetainUntilDate"] - until).total_seconds()) < 60
    held = store.bucket.locked_until_ns("anchors/w/1.note")
    assert held == int(head["ObjectLockRetainUntilDate"].timestamp()) * NS_PER_S
    assert store.bucket.locked_until_ns("anchors/w/2.note") == 0
    with pytest.raises(ClientError, match="AccessDenied"):
        store.s3.delete_object(
            Bucket=store.name, Key=f"{PREFIX}/anchors/w/1.note", VersionId=head["VersionId"]
        )
    with pytest.raises(Refused, match="403 AccessDenied"):
        store.objects(mode).delete("anchors/w/1.note")
    assert store.objects().get("anchors/w/1.note") == b"note"


def test_it_is_put_once(store: Store, tmp_path: pathlib.Path) -> None:
    objects = store.objects(what="all")
    objects.put_new("anchors/a b/=1", b"1")
    with pytest.raises(AlreadyThere, match="is there already"):
        objects.put_new("anchors/a b/=1", b"2")
    assert objects.get("anchors/a b/=1") == b"1"
    assert [one.path for one in objects.list("anchors/")] == ["anchors/a b/=1"]
    (tmp_path / "file").write_bytes(b"3")
    objects.put_file("journal/w/1", tmp_path / "file")
    objects.put_file("facts/x", tmp_path / "file")
    assert store.head("journal/w/1")["ObjectLockMode"] == "COMPLIANCE"
    assert "ObjectLockMode" not in store.head("facts/x")


@pytest.mark.parametrize(
    ("path", "anchors", "everything"),
    [
        ("anchors/w/1.note", True, True),
        ("journal/w/1", False, True),
        ("manifests/w/1.json", False, True),
        ("close/2026112813/rev-1/manifest.json", False, True),
        ("close/months/2026-11/1.json", False, True),
        ("close/2026112813/now/manifest.json", False, False),  # a look into the running hour is deleted
        ("close/looks/2026112813/ab/rows.parquet", False, False),
        ("facts/day=2026-11-28/x", False, False),
        ("content/acme/x", False, False),  # it must be erasable
        ("prices/1.json", False, False),
    ],
)
def test_which_are_locked(path: str, anchors: bool, everything: bool) -> None:
    assert Lock("compliance", 1, "anchors").covers(path) is anchors
    assert Lock("compliance", 1, "all").covers(path) is everything


def test_what_is_not_locked_is_deleted_for_good(store: Store) -> None:
    objects = store.objects()
    objects.put_new("content/acme/x", b"1")
    objects.put_new("content/acme/xy", b"2")
    objects.delete("content/acme/x")
    objects.delete("content/acme/x")
    assert store.versions() == [f"{PREFIX}/content/acme/xy"]


def test_a_bucket_that_locks_by_default_is_put_to(store: Store) -> None:
    rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 3}}
    store.s3.put_object_lock_configuration(
        Bucket=store.name, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule}
    )
    store.objects().put_new("facts/x", b"1")
    assert store.head("facts/x")["ObjectLockMode"] == "GOVERNANCE"
    assert store.bucket.setup() == Setup(True, True, "GOVERNANCE", 3)


def test_what_the_bucket_lacks_is_told(store: Store, endpoint: str) -> None:
    store.objects().check()
    assert store.bucket.setup() == Setup(True, True, None, None)
    other = Store(endpoint, store.name + "x", lock=False)
    with pytest.raises(
        ArchiveError, match=r"has no versioning and no object lock: what journal\.archive_lock"
    ):
        other.objects().check()
    with pytest.raises(ArchiveUnavailable, match="400 InvalidRequest"):
        other.objects().put_new("anchors/w/1.note", b"note")
    with pytest.raises(ArchiveUnavailable, match="404 NoSuchBucket"):
        Bucket("nobody-has-this", "", endpoint, None).setup()


def test_a_bucket_that_cannot_be_reached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    monkeypatch.setattr("metering.archive.s3._AGAIN_S", 0.0)
    with pytest.raises(ArchiveUnavailable) as told:
        Bucket("b", "p", "http://127.0.0.1:9", "us-east-1").setup()
    assert str(told.value).startswith("s3://b/p")
    assert "secret" not in str(told.value)


def test_the_configuration_leads_to_it(store: Store) -> None:
    journal = Journal(
        archive=f"s3://{store.name}/{PREFIX}",
        archive_endpoint=store.endpoint,
        archive_lock=ArchiveLock(mode="governance", days=DAYS),
    )
    archive = archive_of(journal)
    assert archive is not None
    archive.objects.put_new("anchors/w/1.note", b"n")
    assert store.head("anchors/w/1.note")["ObjectLockMode"] == "GOVERNANCE"


class Anchored:
    """A whole journal, and its last note as an anchor in the bucket."""

    def __init__(self, store: Store, root: pathlib.Path) -> None:
        self.store = store
        self.state = root / "state"
        lines = signed.closed(self.state)
        self.note = (self.state / "journal" / WRITER / "end.note").read_bytes()
        self.path = f"anchors/{WRITER}/{len(lines)}.note"
        store.objects().put_new(self.path, self.note)

    @property
    def key(self) -> dict[str, str]:
        return {"Bucket": self.store.name, "Key": f"{PREFIX}/{self.path}"}

    def verified(self) -> verify.Report:
        read = versions.read(self.store.bucket)
        return verify.verify(verify.find([self.state]), [], read.anchors, anchors_amiss=read.findings)


@pytest.fixture
def anchored(store: Store, tmp_path: pathlib.Path) -> Anchored:
    return Anchored(store, tmp_path)


def test_an_anchor_that_nobody_touched_agrees(anchored: Anchored) -> None:
    report = anchored.verified()
    assert (report.verdict, report.anchors, report.anchors_met) == (Verdict.WHOLE, 1, 1)


@pytest.mark.parametrize("data", [b"nonsense", b"another journal's"])
def test_an_anchor_that_was_overwritten_is_named_and_its_first_version_counts(
    anchored: Anchored, data: bytes, tmp_path: pathlib.Path
) -> None:
    if data != b"nonsense":
        signed.closed(tmp_path / "other", writer=OTHER)
        data = (tmp_path / "other" / "journal" / OTHER / "end.note").read_bytes()
    anchored.store.s3.put_object(**anchored.key, Body=data)
    report = anchored.verified()
    assert report.verdict is Verdict.TAMPERED
    assert What.ANCHOR_REPLACED in {one.what for one in report.findings}
    (said,) = [one for one in report.findings if one.what is What.ANCHOR_REPLACED]
    assert said.writer == WRITER
    assert anchored.path in said.file
    assert report.anchors_met == 1


def test_an_anchor_that_was_hidden_is_named_and_still_counts(anchored: Anchored) -> None:
    anchored.store.s3.delete_object(**anchored.key)
    assert anchored.store.objects().list("anchors/") == []
    report = anchored.verified()
    assert [one.what for one in report.findings] == [What.ANCHOR_HIDDEN]
    assert (report.verdict, report.anchors_met) == (Verdict.TAMPERED, 1)


def test_a_rewritten_journal_is_found_by_the_version_that_was_hidden(
    anchored: Anchored, tmp_path: pathlib.Path
) -> None:
    """Though whoever did it held the key, and could write to the bucket."""
    directory = anchored.state / "journal" / WRITER
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()
    signed.closed(anchored.state, count=2)
    anchored.store.s3.put_object(**anchored.key, Body=(directory / "end.note").read_bytes())
    report = anchored.verified()
    whats = {one.what for one in report.findings} | {
        one.what for journal in report.journals for one in journal.inspected.findings
    }
    assert report.verdict is Verdict.TAMPERED
    assert whats & {What.TOO_FEW_LINES, What.ROOT_DIFFERS}


def test_putting_the_same_again_is_no_finding(anchored: Anchored) -> None:
    anchored.store.s3.put_object(**anchored.key, Body=anchored.note)
    assert anchored.verified().verdict is Verdict.WHOLE


def test_what_is_no_note_is_named(anchored: Anchored) -> None:
    anchored.store.s3.put_object(
        Bucket=anchored.store.name, Key=f"{PREFIX}/anchors/{OTHER}/1.note", Body=b"x"
    )
    assert [one.what for one in anchored.verified().findings] == [What.NOTE_UNREADABLE]


def test_the_command_reads_the_versions(anchored: Anchored) -> None:
    anchored.store.s3.delete_object(**anchored.key)
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "audit", "verify", str(anchored.state),
         "--anchor", f"s3://{anchored.store.name}/{PREFIX}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "AWS_ENDPOINT_URL": anchored.store.endpoint, "AWS_ALLOW_HTTP": "true"},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "it was deleted: a marker hides it" in done.stdout


@pytest.mark.parametrize("what", ["anchors", "all"])
def test_old_journals_under_lock_stay_until_it_ends(store: Store, tmp_path: pathlib.Path, what: str) -> None:
    place = Place(tmp_path, store.objects("governance", what))
    place.archiver(made_ns=time.time_ns()).archive(place.closed())
    place.objects.put_new(f"anchors/{WRITER}/9.note", b"note")
    far_ns = time.time_ns() + 2 * DAYS * NS_PER_DAY
    before = store.versions()
    told: list[str] = []
    held = retention.delete_archived(place.archive, far_ns, told.extend, time.time_ns())
    assert abs(held.until_ns - time.time_ns() - DAYS * NS_PER_DAY) < 60 * NS_PER_S
    if what == "all":
        assert (told, held.journals) == ([], 1)
        assert store.versions() == before
    else:
        assert (told, held.journals, held.anchors) == ([WRITER], 0, 1)
        assert store.versions() == [f"{PREFIX}/anchors/{WRITER}/9.note"]


def test_a_deletion_that_does_not_ask_is_seen_to_break(
    store: Store, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LockedObjects, "locked_until_ns", lambda *_: 0)
    with pytest.raises((AssertionError, Refused)):
        test_old_journals_under_lock_stay_until_it_ends(store, tmp_path, "all")


def test_a_reader_of_the_newest_alone_is_seen_to_break(
    anchored: Anchored, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = Bucket.versions
    monkeypatch.setattr(
        Bucket, "versions", lambda bucket, prefix: (one for one in every(bucket, prefix) if one.latest)
    )
    with pytest.raises(AssertionError):
        test_an_anchor_that_was_hidden_is_named_and_still_counts(anchored)


def test_a_lock_that_is_not_asked_for_is_seen_to_break(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locked.Lock, "covers", lambda *_: False)
    with pytest.raises(KeyError):
        test_what_is_put_is_locked_for_its_days(store, "compliance")


def test_a_gateway_puts_its_anchors_under_lock_and_tells_of_a_bucket_that_has_none(
    store: Store, endpoint: str, tmp_path: pathlib.Path
) -> None:
    def anchors(one: Store) -> list[str]:
        found = one.s3.list_objects_v2(Bucket=one.name, Prefix=f"{PREFIX}/anchors/").get("Contents", ())
        return [each["Key"] for each in found]

    other = Store(endpoint, store.name + "x", lock=False)
    with simulator.running(Settings(instance_type="inf2.48xlarge", model="llama-3.1-8b")) as server:
        backend = {"name": "b1", "url": server.url, "model": "llama-3.1-8b", "slots": 8}
        for one in (store, other):
            journal = {
                "archive": f"s3://{one.name}/{PREFIX}",
                "archive_endpoint": endpoint,
                "archive_region": "us-east-1",
                "archive_lock": {"mode": "compliance", "days": DAYS},
            }
            directory = tmp_path / one.name
            directory.mkdir()
            with gateway.running(directory, [backend], journal=journal) as front:
                if one is store:
                    rotate = [sys.executable, "-m", "gateway.cli", "audit", "keys", "rotate"]
                    place = ["--state-dir", str(front.state_dir)]  # its journal is signed at once
                    subprocess.run([*rotate, *place], cwd=ROOT, check=True, capture_output=True)
                    key = eventually(lambda: anchors(store), within_s=60)[0]
                    head = store.s3.head_object(Bucket=store.name, Key=key)
                    assert head["ObjectLockMode"] == "COMPLIANCE"
                else:
                    eventually(lambda front=front: "no object lock" in front.log.read_text(), within_s=60)
                    assert anchors(other) == []
