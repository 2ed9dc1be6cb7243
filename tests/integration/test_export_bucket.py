"""Exports into S3-compatible storage: whole, with their manifests, and never over what is there."""

import hashlib
import io
import json
import pathlib
import random
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest
from moto.server import ThreadedMotoServer

from gateway.cli import main
from metering.archive import objects
from metering.archive.objects import AlreadyThere, ArchiveUnavailable, Objects, open_objects
from metering.cost.closes import Closes
from tests.support import closed_fleet, gateway

pytestmark = pytest.mark.integration

PERIOD = ["--from", "2026-01-01", "--to", "2026-01-01T02:00:00Z"]


@pytest.fixture
def bucket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> Iterator[Objects]:
    """A bucket that holds closed hours; the configuration names it as the archive. It is called as the test is."""
    name = request.node.name.replace("_", "-")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.chdir(tmp_path)
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{name}", method="PUT")).close()
    journal = {"archive": f"s3://{name}/archive", "archive_endpoint": endpoint, "archive_region": "us-east-1"}
    (tmp_path / "weighbridge.yaml").write_text(json.dumps({"state_dir": "state", "journal": journal}))
    closes = Closes(open_objects(f"s3://{name}/archive", endpoint=endpoint, region="us-east-1"))
    for hour in closed_fleet.hours(random.Random(3), {}, count=2):
        closes.commit(hour.manifest, hour.rows)
    yield open_objects(f"s3://{name}", endpoint=endpoint, region="us-east-1")
    server.stop()


def test_a_file_is_put_once(bucket: Objects, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "export",
        *PERIOD,
        "--format",
        "focus-split",
        "--out",
        "s3://test-a-file-is-put-once/out/january.csv",
    ]
    assert main(command) == 0
    data = bucket.get("out/january.csv")
    told = bucket.get("out/january.csv.manifest.json")
    assert data is not None
    assert told is not None
    assert json.loads(told)["file"]["sha256"] == hashlib.sha256(data).hexdigest()
    assert main(command) == 1
    assert (
        "s3://test-a-file-is-put-once/out/january.csv is there already, with its manifest"
        in capsys.readouterr().err
    )
    assert main([*command[:-1], "s3://test-a-file-is-put-once/out/"]) == 0
    assert bucket.get("out/focus-split-2026-01-01--2026-01-01T02.csv") == data


def test_a_directory_is_put(bucket: Objects, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["export", *PERIOD, "--format", "parquet", "--out", "s3://test-a-directory-is-put/rows"]
    assert main(command) == 0
    paths = [one.path for one in bucket.list("rows/")]
    assert all(path.startswith("rows/day=2026-01-01/tenant=") for path in paths)
    told = bucket.get("rows.manifest.json")
    assert told is not None
    assert json.loads(told)["file"]["files"] == len(paths)
    assert main(command) == 1
    assert "has objects already" in capsys.readouterr().err


def uploads(endpoint_of: Objects) -> str:
    """What storage says of uploads in parts that have neither ended nor been called off."""
    store = endpoint_of._store()  # type: ignore[attr-defined]
    url = f"{store.config['endpoint']}/{store.config['bucket']}?uploads"
    with urllib.request.urlopen(url) as answer:
        return answer.read().decode()


def large(tmp_path: pathlib.Path) -> pathlib.Path:
    """A file that is put in parts, the last one short."""
    file = tmp_path / "large"
    file.write_bytes(random.Random(1).randbytes(1 << 20) * 33 + b"the end")
    assert file.stat().st_size > objects.WHOLE_BYTES_MAX
    return file


def test_a_large_file_is_put_in_parts_and_once(bucket: Objects, tmp_path: pathlib.Path) -> None:
    file = large(tmp_path)
    bucket.put_file("out/large.csv", file)
    assert bucket.get("out/large.csv") == file.read_bytes()
    other = large(tmp_path)
    other.write_bytes(b"x" + other.read_bytes()[1:])
    with pytest.raises(AlreadyThere, match=r"out/large\.csv is there already"):
        bucket.put_file("out/large.csv", other)
    assert bucket.get("out/large.csv")[:1] != b"x"  # type: ignore[index]
    assert [one.path for one in bucket.list("out/")] == ["out/large.csv"]
    assert "<Upload>" not in uploads(bucket)


def test_an_upload_that_fails_leaves_nothing(
    bucket: Objects, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is cut short while it is read: its disk fails."""
    file = large(tmp_path)

    class Failing(io.BufferedReader):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 16 << 20:
                raise OSError(5, "Input/output error")
            return super().read(size)

    monkeypatch.setattr(objects, "open", lambda path, mode: Failing(io.FileIO(path)), raising=False)
    with pytest.raises(ArchiveUnavailable):
        bucket.put_file("out/large.csv", file)
    assert bucket.list("out/") == []
    assert "<Upload>" not in uploads(bucket)


def test_a_file_is_put_into_a_directory_as_into_a_bucket(tmp_path: pathlib.Path) -> None:
    file = large(tmp_path)
    place = objects.LocalObjects(tmp_path / "there")
    place.put_file("out/large.csv", file)
    assert (tmp_path / "there" / "out" / "large.csv").read_bytes() == file.read_bytes()
    with pytest.raises(AlreadyThere):
        place.put_file("out/large.csv", file)


def test_little_of_a_large_file_is_in_memory(bucket: Objects, tmp_path: pathlib.Path) -> None:
    """In a process of its own, whose most can be measured: 256 MB in parts take less than 100 MB more than 33."""
    most = []
    for mebibytes in (33, 256):
        file = tmp_path / f"of-{mebibytes}"
        with open(file, "wb") as out:
            for _ in range(mebibytes):
                out.write(bytes(1 << 20))
        store = bucket._store().config  # type: ignore[attr-defined]
        code = (
            "import pathlib, resource, sys\n"
            "from metering.archive.objects import open_objects\n"
            "bucket = open_objects(sys.argv[1], endpoint=sys.argv[2], region='us-east-1')\n"
            "bucket.put_file(sys.argv[3], pathlib.Path(sys.argv[4]))\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
        )
        command = [sys.executable, "-c", code, f"s3://{store['bucket']}", store["endpoint"], file.name, file]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=gateway.ROOT, timeout=100
        )
        most.append(int(done.stdout))
    assert most[1] - most[0] < 100 * 1024
