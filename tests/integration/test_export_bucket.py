"""Exports into S3-compatible storage: whole, with their manifests, and never over what is there."""

import hashlib
import json
import pathlib
import random
import urllib.request
from collections.abc import Iterator

import pytest
from moto.server import ThreadedMotoServer

from gateway.cli import main
from metering.archive.objects import Objects, open_objects
from metering.cost.closes import Closes
from tests.support import closed_fleet

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
