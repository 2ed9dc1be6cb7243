"""A gateway with an archive: what has ended is there, and every reader finds it when it is here no more."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import duckdb
import pytest
from moto.server import ThreadedMotoServer

from backends.simulator.settings import Settings
from metering.archive.archive import Archive
from metering.archive.objects import open_objects
from tests.support import gateway, simulator
from tests.support.gateway import ROOT, Gateway, eventually

pytestmark = pytest.mark.integration

MODEL = "llama-3.1-8b"
ASK = {"model": "m1", "messages": [{"role": "user", "content": "How heavy is it?"}], "max_tokens": 8}
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
CALLS = 5


@pytest.fixture(params=["directory", "bucket"])
def journal(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, str]]:
    """The section of the configuration."""
    if request.param == "directory":
        yield {"archive": str(tmp_path / "archive")}
        return
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/journals", method="PUT")).close()
    yield {"archive": "s3://journals/here", "archive_endpoint": endpoint, "archive_region": "us-east-1"}
    server.stop()


@pytest.fixture
def front(journal: dict[str, str], tmp_path: pathlib.Path) -> Iterator[Gateway]:
    with simulator.running(Settings(instance_type="inf2.48xlarge", model=MODEL)) as server:
        backend = {
            "name": "b1",
            "url": server.url,
            "model": MODEL,
            "instance_type": "inf2.48xlarge",
            "slots": 8,
        }
        with gateway.running(tmp_path, [backend], journal=journal) as one:
            yield one


def ask(front: Gateway) -> str:
    """A call that is answered; its id."""
    answer = front.post("/v1/chat/completions", ASK)
    assert answer.status == 200, answer.read()
    answer.read()
    return answer.headers["x-weighbridge-call-id"]


def calls_counted(front: Gateway) -> float:
    _, page = front.get("/metrics", front.keys["acme"])
    return sum(map(float, re.findall(r"^weighbridge_calls_total\{.*\} (\S+)$", page.decode(), re.MULTILINE)))


def command(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", *argv],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def test_what_has_ended_is_archived_and_found_when_it_is_here_no_more(
    front: Gateway, journal: dict[str, str]
) -> None:
    ids = [ask(front) for _ in range(CALLS)]
    writer = ids[0].rpartition("-")[0]
    assert front.stop() == 0
    costs = [line["cost_pusd"] for line in front.lines("call")]
    quiet_s = time.time() - 120
    for path in (front.state_dir / "journal" / writer).iterdir():
        os.utime(path, (quiet_s, quiet_s))
    front.restart()
    front.wait_ready()
    archive = Archive(
        open_objects(
            journal["archive"], endpoint=journal.get("archive_endpoint"), region=journal.get("archive_region")
        )
    )
    eventually(lambda: archive.end(writer), within_s=40, every_s=0.2)
    assert calls_counted(front) == CALLS

    with duckdb.connect() as connection:
        query = (
            f"SELECT count(*), sum(cost_pusd) FROM '{front.state_dir}/facts/day=*/*.parquet' WHERE is_serving"
        )
        assert connection.execute(query).fetchall() == [(CALLS, sum(costs))]
    end = archive.end(writer)
    assert end is not None
    assert [one.path for one in end.beside] == [f"journal/{writer}/end.note"], "it was signed by then"

    if "archive_endpoint" not in journal:
        # Below journal/ the archive is a root of journals like any other, for whoever copies it.
        copied = pathlib.Path(journal["archive"]) / "journal" / writer
        keys = json.loads((front.state_dir / "keys" / "keys.json").read_text())
        verified = command("audit", "verify", str(copied), *[f"--key={key['vkey']}" for key in keys])
        assert verified.returncode == 0, verified.stdout + verified.stderr

    shutil.rmtree(front.state_dir / "journal" / writer)
    shown = command("audit", "show", ids[2], "--json", "-c", str(front.config_file))
    assert (shown.returncode, json.loads(shown.stdout)["cost_pusd"]) == (0, costs[2]), shown.stderr
    status, body = front.get(f"/audit/v1/calls/{ids[3]}", front.keys["acme"])
    assert (status, json.loads(body)["found"]) == (200, "archive")
    assert calls_counted(front) == CALLS
    assert "duty failed" not in front.log.read_text()


@pytest.mark.parametrize("journal", ["directory"], indirect=True)
def test_an_archive_that_is_away_is_said_once_and_caught_up_with(
    front: Gateway, journal: dict[str, str], tmp_path: pathlib.Path
) -> None:
    ask(front)
    blocked = tmp_path / "archive"
    shutil.rmtree(blocked, ignore_errors=True)
    blocked.write_text("no directory")
    front.stop()
    for path in front.state_dir.glob("journal/w*/*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    front.restart()
    front.wait_ready()
    failed = re.compile(r'"event":"duty failed".*"duty":"archive".*Not a directory')
    eventually(lambda: failed.search(front.log.read_text()), within_s=40)
    ask(front)
    blocked.unlink()
    eventually(lambda: Archive(open_objects(str(blocked))).writers(), within_s=60, every_s=0.5)
    eventually(lambda: "duty works again" in front.log.read_text())
    assert len(failed.findall(front.log.read_text())) == 1
