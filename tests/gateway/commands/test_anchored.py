"""Anchors as they are named to commands; of a bucket whose versions may not be listed, and what is said of it."""

import pathlib
from collections.abc import Callable

import pytest

from gateway.commands import anchored
from metering.archive.objects import ArchiveUnavailable, LocalObjects
from metering.archive.s3 import Refused
from metering.audit.verify import VerifyError
from tests.support import signed
from tests.support.journals import WRITER


@pytest.fixture
def place(tmp_path: pathlib.Path) -> pathlib.Path:
    """An archive with one anchor."""
    signed.closed(tmp_path / "state")
    note = (tmp_path / "state" / "journal" / WRITER / "end.note").read_bytes()
    LocalObjects(tmp_path / "archive").put_new(f"anchors/{WRITER}/9.note", note)
    return tmp_path / "archive"


def raising(error: Exception) -> Callable[..., object]:
    def read(_bucket: object) -> object:
        raise error

    return read


def test_several_places_are_read_together(place: pathlib.Path) -> None:
    found = anchored.read_all([f"file://{place}", str(place)])
    assert [one.note.head.writer for one in found.anchors] == [WRITER, WRITER]
    assert found.findings == []
    with pytest.raises(VerifyError, match="there is no anchor in"):
        anchored.read(f"file://{place}/nothing")


def test_where_versions_may_not_be_listed_it_is_said(
    place: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(anchored.versions, "read", raising(Refused("no", 403, "AccessDenied")))
    monkeypatch.setattr(anchored, "open_objects", lambda _place: LocalObjects(place))
    assert len(anchored.read("s3://bucket/prefix").anchors) == 1
    assert "its versions can't be listed (AccessDenied)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error", [Refused("no such bucket", 404, "NoSuchBucket"), ArchiveUnavailable("away")]
)
def test_a_bucket_that_cannot_be_read_is_told(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(anchored.versions, "read", raising(error))
    with pytest.raises(VerifyError, match=str(error)):
        anchored.read("s3://bucket/prefix")
