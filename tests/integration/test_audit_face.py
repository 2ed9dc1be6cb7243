"""The auditors' face of a running gateway: what it shows, to whom, and that the journal tells who has looked."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from backends.simulator.settings import Settings
from tests.support import gateway, mutants, simulator
from tests.support.gateway import Gateway, eventually
from tests.support.ports import free_port

pytestmark = pytest.mark.integration

MODEL = "llama-3.1-8b"
LONG_AGO_S = 1_700_000_000
ASK = {"model": "m1", "messages": [{"role": "user", "content": "How heavy is it?"}], "max_tokens": 4}
SCOPES = {"acme": ["inference"], "auditors": ["auditor"], "beta": ["inference", "operator", "finance"]}
PATHS = ["/audit/v1/checkpoints", "/audit/v1/changes", "/audit/v1/keys", "/audit/v1/verify"]


@pytest.fixture(scope="module")
def server() -> Iterator[simulator.Running]:
    with simulator.running(Settings(instance_type="inf2.48xlarge", model=MODEL)) as one:
        yield one


def backend(server: simulator.Running) -> dict:
    return {"name": "b1", "url": server.url, "model": MODEL, "instance_type": "inf2.48xlarge", "slots": 8}


@pytest.fixture(scope="module")
def front(server: simulator.Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    directory = tmp_path_factory.mktemp("front")
    with gateway.running(directory, [backend(server)], tenants=tuple(SCOPES), scopes=SCOPES) as one:
        yield one


def call(front: Gateway, **more: object) -> str:
    answer = front.post("/v1/chat/completions", ASK | more)
    assert answer.status == 200, answer.read()
    answer.read()
    return answer.headers["x-weighbridge-call-id"]


def look(front: Gateway, path: str, tenant: str | None = "auditors") -> tuple[int, dict]:
    status, body = front.get(path, front.keys[tenant] if tenant else None)
    return status, json.loads(body)


def post(front: Gateway, path: str) -> int:
    answer = front.post(path, b"", tenant="auditors")
    answer.read()
    return answer.status


def reads(front: Gateway) -> list[dict]:
    return [line for line in front.lines("event") if line["topic"] == "audit_read"]


def key_id(front: Gateway, tenant: str) -> str:
    tenants = json.loads(front.config_file.read_text())["tenants"]
    (digest,) = [key["hash"] for one in tenants if one["name"] == tenant for key in one["keys"]]
    return digest.removeprefix("sha256:")[:12]


def test_a_call_is_shown_with_its_admission_its_host_and_its_place(front: Gateway) -> None:
    call_id = call(front)
    status, found = look(front, f"/audit/v1/calls/{call_id}")
    assert status == 200
    (line,) = [line for line in front.lines("call") if line["call_id"] == call_id]
    (admitted,) = [line for line in front.lines("admitted") if line["call_id"] == call_id]
    times = {name: str(value) for name, value in line.items() if name.endswith("_ns") and value is not None}
    assert found["record"] == line | times | {"attempts": found["record"]["attempts"]}
    assert found["admission"]["seq"] == admitted["seq"]
    assert found["host"]["instances"][0]["type"] == "inf2.48xlarge"
    assert (found["state"], found["found"], found["call_id"]) == ("ended", "here", call_id)
    place = found["place"]
    assert (place["seq"], place["prev"]) == (line["seq"], line["prev"])
    following = [other for other in front.lines() if other["seq"] == line["seq"] + 1]
    assert place["leaf"] in [other["prev"] for other in following]


def test_a_proof_is_one_that_the_checker_takes(front: Gateway, tmp_path: pathlib.Path) -> None:
    """The checker imports nothing of ours."""
    call_id = call(front)
    path = f"/audit/v1/calls/{call_id}/proof"
    assert "no checkpoint" in look(front, path)[1]["error"]["message"]
    front.stop()  # its journal is signed whole
    front.restart()
    front.wait_ready()
    status, proof = look(front, path)
    assert status == 200
    assert json.loads(proof["lines"][-1]["line"])["call_id"] == call_id
    (key,) = look(front, "/audit/v1/keys")[1]["data"]
    ended = [one for one in look(front, "/audit/v1/checkpoints")[1]["data"] if one["ended"]]
    assert [one["note"].split("\n")[0] for one in ended] == [proof["note"].split("\n")[0]]
    file = tmp_path / "proof.json"
    checker = gateway.ROOT / "deploy" / "reference" / "check_proof.py"
    for lines, code in ((proof["lines"], 0), ([proof["lines"][-1] | {"index": 0}], 1)):
        file.write_text(json.dumps(proof | {"lines": lines}))
        ran = subprocess.run([sys.executable, checker, file, "--key", key["vkey"]], check=False)
        assert ran.returncode == code


def test_a_verification_is_asked_for_and_shown(front: Gateway) -> None:
    asked_ns = time.time_ns()
    assert post(front, "/audit/v1/verify") == 200
    found = eventually(
        lambda: (
            found := look(front, "/audit/v1/verify")[1]
        ).get("verdict") and int(found["began_ns"]) > asked_ns and found,
        within_s=30, every_s=1,
    )  # fmt: skip
    assert (found["verdict"], found["live"], found["findings"]) == ("incomplete", 1, [])
    assert found["lines"] > 0
    methods = [(line["data"]["method"], line["data"]["path"]) for line in reads(front)]
    assert ("POST", "/audit/v1/verify") in methods


def test_each_look_is_in_the_journal_before_its_answer_leaves(front: Gateway) -> None:
    before = len(reads(front))
    for number, path in enumerate(
        [*PATHS, "/audit/v1/calls/waaaaaaaaaaaaaaaa-1", "/audit/v1/changes?count=0"], 1
    ):
        status, _ = look(front, path)
        told = reads(front)
        assert len(told) == before + number
        newest = max(told, key=lambda line: (line["at_ns"], line["seq"]))
        assert newest["actor"] == key_id(front, "auditors")
        assert newest["data"]["path"] == path
        assert newest["data"]["status"] == str(status)


@pytest.mark.parametrize("path", [*PATHS, "/audit/v1/calls/waaaaaaaaaaaaaaaa-1"])
def test_nobody_else_sees_anything_and_who_tried_is_told(front: Gateway, path: str) -> None:
    before = len(reads(front))
    told = len([line for line in front.lines("event") if line["topic"] == "sign_in_refused"])
    for tenant, expected in ((None, 401), ("acme", 403), ("beta", 403)):
        status, error = look(front, path, tenant)
        assert status == expected
        assert error.keys() == {"error"}

    def refused() -> list[tuple]:
        lines = [line for line in front.lines("event") if line["topic"] == "sign_in_refused"][told:]
        found = [(line["actor"], line["data"]["status"]) for line in lines]
        return found if len(found) == 3 else []

    expected = {(None, "401"), (key_id(front, "acme"), "403"), (key_id(front, "beta"), "403")}
    assert set(eventually(refused)) == expected
    assert len(reads(front)) == before


def test_many_refusals_in_a_second_are_one_line(front: Gateway) -> None:
    def counted() -> int:
        lines = [
            line for line in front.lines("event") if line["topic"] == "sign_in_refused" and not line["actor"]
        ]
        return sum(int(line["data"]["count"]) for line in lines)

    before, lines_before = counted(), len(front.lines("event"))
    for _ in range(60):
        assert front.get("/audit/v1/keys")[0] == 401
    assert eventually(lambda: counted() == before + 60)
    assert len(front.lines("event")) - lines_before < 30


def test_changes_are_paged_in_a_stable_order(front: Gateway) -> None:
    for _ in range(3):
        look(front, "/audit/v1/keys")
    status, whole = look(front, "/audit/v1/changes?count=1000&to=2100-01-01")
    assert status == 200
    found, after = [], ""
    while True:
        _, page = look(front, f"/audit/v1/changes?count=2&to=2100-01-01{after}")
        found += page["data"]
        if page["next"] is None or len(found) >= len(whole["data"]):
            break
        after = f"&after={page['next']}"
    assert found[: len(whole["data"])] == whole["data"]
    assert [int(one["at_ns"]) for one in found] == sorted(int(one["at_ns"]) for one in found)
    _, configs = look(front, "/audit/v1/changes?topic=config")
    assert [one["topic"] for one in configs["data"]] == ["config"]
    assert look(front, "/audit/v1/changes?to=2020-01-01")[1]["data"] == []
    assert look(front, "/audit/v1/changes?from=2100-01-01T00:00:00Z")[1]["data"] == []


@pytest.mark.parametrize(
    "query", ["from=yesterday", "count=x", "after=1", "colour=red", "topic=", "to=2026-13-01"]
)  # fmt: skip
def test_a_question_that_makes_no_sense_is_told_why(front: Gateway, query: str) -> None:
    status, error = look(front, f"/audit/v1/changes?{query}")
    assert status == 400
    assert error["error"]["type"] == "invalid_request_error"


def test_a_call_that_is_not_here_names_its_writer(front: Gateway) -> None:
    status, error = look(front, "/audit/v1/calls/waaaaaaaaaaaaaaaa-1")
    assert status == 404
    assert "waaaaaaaaaaaaaaaa" in error["error"]["message"]
    status, error = look(front, "/audit/v1/calls/w-1")
    assert status == 404
    writer = front.lines("start")[0]["writer"]
    status, error = look(front, f"/audit/v1/calls/{writer}-999999")
    assert status == 404
    assert str(front.state_dir) not in error["error"]["message"]


def test_an_open_call_is_shown_as_open(front: Gateway) -> None:
    answer = front.post(
        "/v1/chat/completions", ASK | {"stream": True, "max_tokens": 4000, "ignore_eos": True}
    )
    call_id = answer.headers["x-weighbridge-call-id"]
    with answer:  # it is left, so that it may be as long as a slow machine needs
        status, found = look(front, f"/audit/v1/calls/{call_id}")
    assert (status, found["state"], found["record"]) == (200, "open", None)
    assert found["admission"]["call_id"] == call_id
    eventually(lambda: look(front, f"/audit/v1/calls/{call_id}")[1]["state"] == "ended")


def test_it_is_on_the_port_for_operations_too_with_a_key(
    server: simulator.Running, tmp_path: pathlib.Path
) -> None:
    port = free_port()
    with gateway.running(tmp_path, [backend(server)], ops={"listen": f"127.0.0.1:{port}"}) as front:
        front.port = port
        assert front.get("/audit/v1/keys")[0] == 401
        assert look(front, "/audit/v1/keys", "acme")[0] == 200
        assert front.get("/metrics")[0] == 200


def test_a_call_of_another_gateway_is_fetched_from_there(
    server: simulator.Running, tmp_path: pathlib.Path
) -> None:
    for name in ("far", "near", "key"):
        (tmp_path / name).mkdir()
    with gateway.running(tmp_path / "far", [backend(server)]) as far:
        key_file = tmp_path / "key" / "far"
        key_file.write_text(far.keys["acme"] + "\n")
        url = f"http://127.0.0.1:{far.port}"
        nobody = f"http://127.0.0.1:{free_port()}"
        here = {"url": url, "key_file": str(key_file)}
        with gateway.running(tmp_path / "near", [backend(server)], audit={"peers": [here]}) as near:
            call_id = call(far)
            status, found = look(near, f"/audit/v1/calls/{call_id}", "acme")
            assert (status, found["found"], found["record"]["call_id"]) == (200, url, call_id)
            assert [line["data"]["path"] for line in reads(far)] == [f"/audit/v1/calls/{call_id}"]
            assert len(reads(near)) == 1
            status, error = look(near, "/audit/v1/calls/waaaaaaaaaaaaaaaa-1", "acme")
            assert (status, len(reads(far))) == (404, 2)  # it was asked
            near.stop()
            config = json.loads(near.config_file.read_text())
            config["audit"]["peers"] = [{"url": nobody, "key_file": str(key_file)}]
            near.config_file.write_text(json.dumps(config))
            near.restart()
            near.wait_ready()
            status, error = look(near, f"/audit/v1/calls/{call_id}", "acme")
            assert (status, error["error"]["code"]) == (503, "gateway_unreachable")
            assert nobody in error["error"]["message"]


def test_a_call_whose_journal_is_no_longer_here_is_read_from_the_archive(
    server: simulator.Running, tmp_path: pathlib.Path
) -> None:
    archive = tmp_path / "archive"
    with gateway.running(tmp_path, [backend(server)], journal={"archive": str(archive)}) as front:
        call_id = call(front)
        writer = call_id.rpartition("-")[0]
        front.stop()
        front.restart()
        front.wait_ready()
        for segment in (front.state_dir / "journal" / writer).glob("0*.jsonl"):
            os.utime(segment, (LONG_AGO_S, LONG_AGO_S))  # a segment is sealed once it is a minute old
        eventually(lambda: (archive / "manifests" / writer / "end.json").exists(), within_s=60, every_s=0.5)
        shutil.rmtree(front.state_dir / "journal" / writer)
        status, found = look(front, f"/audit/v1/calls/{call_id}", "acme")
        assert (status, found["found"], found["record"]["call_id"]) == (200, "archive", call_id)
        assert look(front, f"/audit/v1/calls/{call_id}/proof", "acme")[0] == 200
        shown = subprocess.run(
            [sys.executable, "-m", "gateway.cli", "audit", "show", call_id, "-c", front.config_file],
            cwd=gateway.ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert shown.stdout.startswith(f"call      {call_id}")
        (archive / "manifests" / writer / "0000000000000001.json").write_text("altered")
        assert look(front, f"/audit/v1/calls/{call_id}", "acme")[0] == 503


def test_a_gateway_that_is_asked_by_another_asks_nobody(
    server: simulator.Running, tmp_path: pathlib.Path
) -> None:
    """Two that have each other as peers do not ask in a circle."""
    key_file = tmp_path / "key"
    port = free_port()
    peers = [{"url": f"http://127.0.0.1:{port}", "key_file": str(key_file)}]
    key_file.write_text("not yet")
    with gateway.running(
        tmp_path, [backend(server)], listen=f"127.0.0.1:{port}", audit={"peers": peers}
    ) as front:
        key_file.write_text(front.keys["acme"])
        status, _ = look(front, "/audit/v1/calls/waaaaaaaaaaaaaaaa-1", "acme")
        assert status == 404
        assert len(reads(front)) == 2  # its own, and that of the one it asked: itself


@pytest.mark.parametrize(
    ("mutant", "law"),
    [
        ("look_not_told", test_each_look_is_in_the_journal_before_its_answer_leaves),
        ("scope_not_checked", lambda front: test_nobody_else_sees_anything_and_who_tried_is_told(front, PATHS[0])),
    ],
)  # fmt: skip
def test_the_laws_are_seen_to_break(
    server: simulator.Running, tmp_path: pathlib.Path, mutant: str, law: object
) -> None:
    with (
        gateway.running(
            tmp_path, [backend(server)], tenants=tuple(SCOPES), scopes=SCOPES, env=mutants.environment(mutant)
        ) as front,
        pytest.raises(AssertionError),
    ):
        law(front)
