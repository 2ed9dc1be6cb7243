"""Digests of prompts and answers in records: of the bytes that the client sent and got, and of no other tenant's."""

import gzip
import hashlib
import hmac
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from backends.simulator.settings import Settings
from tests.support import gateway, mutants, simulator
from tests.support.gateway import Gateway, eventually
from tests.support.opened import Opened

pytestmark = pytest.mark.integration

MODEL = "llama-3.1-8b"
ASK = {"model": "m1", "messages": [{"role": "user", "content": "How heavy is it?"}], "max_tokens": 12}


@pytest.fixture(scope="module")
def server() -> Iterator[simulator.Running]:
    with simulator.running(Settings(instance_type="inf2.48xlarge", model=MODEL)) as one:
        yield one


def backend(server: simulator.Running) -> dict:
    return {"name": "b1", "url": server.url, "model": MODEL, "instance_type": "inf2.48xlarge", "slots": 8}


@pytest.fixture(scope="module", params=["direct", "plain"])
def front(
    request: pytest.FixtureRequest, server: simulator.Running, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    directory = tmp_path_factory.mktemp("front")
    with gateway.running(
        directory, [backend(server)], driver=request.param, tenant_keys={"digests": True}
    ) as one:
        yield one


def record_of(front: Gateway, call_id: str) -> dict:
    def found() -> dict | None:
        return next((line for line in front.lines("call") if line["call_id"] == call_id), None)

    return eventually(found)


def key_of(front: Gateway, tenant: str = "acme") -> bytes:
    return (front.state_dir / "keys" / "tenants" / f"{tenant}.key").read_bytes()


def digest(key: bytes, data: bytes) -> str:
    return f"hmac-sha256:{hmac.digest(key, data, 'sha256').hex()}"


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"stream": True},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"max_tokens": 1_000_000},  # an error of the gateway's, or of the server's
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_they_are_of_what_the_client_sent_and_got(front: Gateway, more: dict, packed: bool) -> None:
    body = json.dumps(ASK | more).encode()
    headers = {"content_encoding": "gzip"} if packed else {}
    answer = front.post("/v1/chat/completions", gzip.compress(body) if packed else body, **headers)
    got = answer.read()
    call_id = answer.headers["x-weighbridge-call-id"]
    if call_id is None:
        return  # refused before its admission: there is no record
    record = record_of(front, call_id)
    key = key_of(front)
    assert record["response_bytes"] == len(got)
    assert record["digests"] == {
        "answer": digest(key, got), "key": hashlib.sha256(key).hexdigest()[:8], "prompt": digest(key, body)
    }  # fmt: skip


def test_of_a_client_that_left_it_is_what_was_sent(front: Gateway) -> None:
    """It may have got less: what was on the way is in it too."""
    body = json.dumps(ASK | {"stream": True, "max_tokens": 400}).encode()
    with Opened(front.port, front.keys["acme"], body) as opened:
        opened.read_until(b"data: ")
        call_id = opened.headers["x-weighbridge-call-id"]
        got = opened.body
    record = record_of(front, call_id)
    assert record["outcome"] == "client_gone"
    assert record["digests"]["prompt"] == digest(key_of(front), body)
    assert record["response_bytes"] >= len(got)
    if record["response_bytes"] == len(got):
        assert record["digests"]["answer"] == digest(key_of(front), got)


def test_the_command_computes_the_same_and_forgets_the_key(
    server: simulator.Running, tmp_path: pathlib.Path
) -> None:
    with gateway.running(tmp_path, [backend(server)], tenant_keys={"digests": True}) as front:
        body = json.dumps(ASK).encode()
        answer = front.post("/v1/chat/completions", body)
        answer.read()
        record = record_of(front, answer.headers["x-weighbridge-call-id"])
        (tmp_path / "prompt").write_bytes(body)

        def run(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-m", "gateway.cli", "audit", *words, "--state-dir", str(front.state_dir)],
                cwd=gateway.ROOT, capture_output=True, text=True, check=False,
            )  # fmt: skip

        computed = run("digest", "--tenant", "acme", str(tmp_path / "prompt"))
        digests = record["digests"]
        assert computed.stdout == f"digest: {digests['prompt']}\nkey: {digests['key']}\n"
        assert run("forget", "--tenant", "acme").returncode == 0
        (told,) = [line for line in front.lines("event") if line["topic"] == "forget"]
        assert told["data"] == {"key": digests["key"], "tenant": "acme"}
        assert told["actor"].startswith("cli:")
        for words in (
            ["digest", "--tenant", "acme", str(tmp_path / "prompt")],
            ["forget", "--tenant", "acme"],
        ):
            again = run(*words)
            assert again.returncode == 1
            assert "acme has no key of digests" in again.stderr
        assert run("forget", "--tenant", "../x").returncode == 2

        def without() -> bool:
            late = front.post("/v1/chat/completions", body)
            late.read()
            return record_of(front, late.headers["x-weighbridge-call-id"])["digests"] is None

        eventually(without, every_s=0.3)


def test_nobody_has_them_who_did_not_want_them(server: simulator.Running, tmp_path: pathlib.Path) -> None:
    with gateway.running(tmp_path, [backend(server)]) as front:
        answer = front.post("/v1/chat/completions", ASK)
        answer.read()
        assert record_of(front, answer.headers["x-weighbridge-call-id"])["digests"] is None
        assert not (front.state_dir / "keys" / "tenants").exists()


@pytest.mark.parametrize("mutant", ["digest_unkeyed", "digest_without_the_end"])
def test_the_law_is_seen_to_break(server: simulator.Running, tmp_path: pathlib.Path, mutant: str) -> None:
    env = mutants.environment(mutant)
    with (
        gateway.running(tmp_path, [backend(server)], tenant_keys={"digests": True}, env=env) as front,
        pytest.raises(AssertionError),
    ):
        test_they_are_of_what_the_client_sent_and_got(front, {"stream": True}, packed=False)
