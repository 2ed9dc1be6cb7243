"""The journals of a gateway that really ran, and was killed, verified and proven by the commands."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from backends.simulator.settings import Settings
from tests.support import gateway, simulator, stores, valkey
from tests.support.gateway import ROOT, Gateway, eventually

pytestmark = pytest.mark.integration

CALLS = 6


def command(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", "audit", *args],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def verified(path: pathlib.Path, *args: str) -> tuple[int, dict]:
    done = command("verify", str(path), "--json", *args)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def findings(report: dict) -> set[str]:
    inside = [finding for one in report["journals"] for finding in one["inspected"]["findings"]]
    return {finding["what"] for finding in [*inside, *report["findings"]]}


def call(served: Gateway) -> str:
    ask = {"model": "m1", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    answer = served.post("/v1/chat/completions", ask)
    assert answer.status == 200, answer.read()
    answer.read()
    return answer.headers["x-weighbridge-call-id"]


def kill_a_worker(served: Gateway) -> None:
    """By the pid in the newest start line of a worker; returns when its directory is closed and signed."""
    start = max(served.lines("start"), key=lambda line: line["at_ns"])
    os.kill(start["pid"], signal.SIGKILL)
    directory = served.state_dir / "journal" / start["writer"]
    eventually((directory / "end.note").exists, within_s=30)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, list[str]]]:
    """Two starts of a gateway, with a killed worker in the first; both have ended. With the ids of its calls."""
    settings = Settings(instance_type="inf2.48xlarge", model="m1")
    with simulator.running(settings) as backend:
        backends = [{"name": "b1", "url": backend.url, "model": "m1"}]
        with gateway.running(tmp_path_factory.mktemp("served"), backends) as one:
            calls = [call(one) for _ in range(CALLS)]
            kill_a_worker(one)
            eventually(lambda: one.alive("/readyz"), within_s=30)
            calls += [call(one) for _ in range(CALLS)]
            code, report = verified(one.state_dir)
            assert (code, findings(report)) == (4, {"live"})
            assert one.stop() == 0
            one.restart()
            one.wait_ready()
            calls += [call(one) for _ in range(CALLS)]
            assert one.stop() == 0
            yield one, calls


def test_they_are_whole(served: tuple[Gateway, list[str]]) -> None:
    one, calls = served
    code, report = verified(one.state_dir)
    assert (code, findings(report)) == (0, set())
    states = sorted(journal["inspected"]["state"] for journal in report["journals"])
    assert states.count("salvaged") == 1
    assert sum(journal["inspected"]["records"] for journal in report["journals"]) == len(calls)
    assert all(
        journal["inspected"]["signed_size"] == journal["inspected"]["lines"] for journal in report["journals"]
    )


def test_each_call_is_proven(served: tuple[Gateway, list[str]], tmp_path: pathlib.Path) -> None:
    one, calls = served
    keys = json.loads((one.state_dir / "keys" / "keys.json").read_bytes())
    checker = ROOT / "deploy" / "reference" / "check_proof.py"
    for call_id in (calls[0], calls[CALLS], calls[-1]):
        proof = tmp_path / "proof.json"
        done = command("prove", "--call", call_id, "--out", str(proof), "--state-dir", str(one.state_dir))
        assert (done.returncode, done.stderr) == (0, "")
        arguments = [sys.executable, "-I", str(checker), str(proof), "--key", keys[0]["vkey"]]
        checked = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
        assert checked.returncode == 0, checked.stdout
        assert f"call line of {call_id}" in checked.stdout


def test_one_that_is_dropped_is_missed(served: tuple[Gateway, list[str]], tmp_path: pathlib.Path) -> None:
    """The first writer's directory, which the second start's journals name."""
    one, calls = served
    copy = tmp_path / "copy"
    shutil.copytree(one.state_dir, copy, ignore=shutil.ignore_patterns("*.sock"))
    writer = calls[0].rpartition("-")[0]
    shutil.rmtree(copy / "journal" / writer)
    code, report = verified(copy)
    assert (code, findings(report)) == (4, {"directory_missing"})
    assert {finding["writer"] for finding in report["findings"]} == {writer}
    kept = str(one.state_dir / "journal" / writer / "end.note")
    code, report = verified(copy, "--anchor", kept)
    assert (code, report["anchors"], report["anchors_met"]) == (4, 1, 0)


def test_the_anchors_of_a_store_are_what_the_journals_were(
    served: tuple[Gateway, list[str]], tmp_path: pathlib.Path
) -> None:
    """Each writer's newest note, as gateways keep it in their store."""
    one, _ = served
    with stores.single(stores.valkey_binary(), tmp_path) as store, valkey.Valkey(store.url) as asking:
        for note in one.state_dir.glob("journal/*/end.note"):
            asking.ask("HSET", "wb:1:anchors", note.parent.name, note.read_bytes())
        code, report = verified(one.state_dir, "--anchor", store.url)
        assert (code, report["anchors_met"]) == (0, report["anchors"])
        assert report["anchors"] > 1
        asking.ask("DEL", "wb:1:anchors")
        done = command("verify", str(one.state_dir), "--anchor", store.url)
        assert (done.returncode, done.stdout) == (2, "")
        assert "there is no anchor in" in done.stderr
