"""Objects in a directory and in S3-compatible storage: put once, whole, and listed."""

import pathlib
import urllib.request
from collections.abc import Iterator

import pytest
from moto.server import ThreadedMotoServer

from metering.archive.objects import (
    AlreadyThere,
    ArchiveError,
    BucketObjects,
    LocalObjects,
    Objects,
    open_objects,
)
from tests.support.archives import Place
from tests.support.journals import WRITER

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(endpoint: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Objects:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    name = f"b{abs(hash(request.node.name))}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT")).close()
    return open_objects(f"s3://{name}/some/where", endpoint=endpoint, region="us-east-1")


@pytest.fixture(params=["directory", "bucket"])
def objects(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Objects:
    return (
        request.getfixturevalue("bucket") if request.param == "bucket" else LocalObjects(tmp_path / "archive")
    )


def test_an_object_is_put_once(objects: Objects) -> None:
    objects.put_new("a/b/c", b"1")
    with pytest.raises(AlreadyThere, match="a/b/c is there already"):
        objects.put_new("a/b/c", b"2")
    assert objects.get("a/b/c") == b"1"
    assert objects.get("a/b/d") is None
    objects.delete("a/b/c")
    objects.delete("a/b/c")
    assert objects.get("a/b/c") is None
    objects.put_new("a/b/c", b"2")


def test_they_are_listed_below_a_prefix_in_order(objects: Objects) -> None:
    assert objects.list("") == []
    for path in ("j/w2/1", "j/w1/2", "j/w1/1", "k/1"):
        objects.put_new(path, path.encode())
    assert [one.path for one in objects.list("j/")] == ["j/w1/1", "j/w1/2", "j/w2/1"]
    assert [(one.path, one.bytes) for one in objects.list("k/")] == [("k/1", 3)]
    assert len(objects.list("")) == 4
    assert objects.list("j/w1/")[0].modified_ns > 1_700_000_000 * 10**9


def test_a_large_object_is_whole(objects: Objects) -> None:
    data = bytes(range(256)) * 65_536
    objects.put_new("large", data)
    assert objects.get("large") == data


def test_a_directory_is_archived_and_read_back(objects: Objects, tmp_path: pathlib.Path) -> None:
    place = Place(tmp_path, objects)
    directory = place.closed()
    place.archiver().archive(directory)
    place.archiver().archive(directory)
    (archived,) = place.archive.directories()
    assert archived.complete
    assert list(archived.chained()) == list(directory.chained())
    assert len(place.archive.first_seqs(WRITER)) == 4


def test_places_are_paths_or_urls(tmp_path: pathlib.Path) -> None:
    for place in (str(tmp_path / "a b"), f"file://{tmp_path}/a%20b"):
        open_objects(place).put_new(place.rpartition("/")[2], b"x")
    assert sorted(path.name for path in (tmp_path / "a b").iterdir()) == ["a b", "a%20b"]
    assert isinstance(open_objects("s3://bucket"), BucketObjects)


def test_storage_that_cannot_be_reached_is_named_without_its_inside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    unreachable = open_objects("s3://b/p", endpoint="http://127.0.0.1:9", region="us-east-1")
    for act in (
        lambda: unreachable.get("x"),
        lambda: unreachable.put_new("x", b""),
        lambda: unreachable.list("x/"),
    ):
        with pytest.raises(ArchiveError) as told:
            act()
        assert str(told.value).startswith("s3://b/p/x")
        assert "secret" not in str(told.value)
        assert "\n" not in str(told.value)
    (tmp_path / "file").touch()
    blocked = LocalObjects(tmp_path / "file")
    with pytest.raises(ArchiveError, match="File exists"):
        blocked.put_new("x", b"")
    with pytest.raises(ArchiveError, match="Not a directory"):
        blocked.get("x")
