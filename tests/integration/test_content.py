"""Content that is kept: of the bytes that the client sent and got, readable by whoever holds the tenant's key alone."""

import base64
import gzip
import hashlib
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from backends.simulator.settings import Settings
from tests.support import gateway, hpke, mutants, processes, simulator
from tests.support.gateway import Gateway, eventually
from tests.support.opened import Opened
from tests.support.powercut import PowerCut

pytestmark = pytest.mark.integration

MODEL = "llama-3.1-8b"
ASK = {"model": "m1", "messages": [{"role": "user", "content": "How heavy is it?"}], "max_tokens": 12}
PRIVATE = X25519PrivateKey.generate()
PUBLIC = "x25519:" + base64.b64encode(PRIVATE.public_key().public_bytes_raw()).decode()
CAPTURE = {"public_key": PUBLIC}


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
    keys = {"digests": True, "capture": CAPTURE}
    with gateway.running(directory, [backend(server)], driver=request.param, tenant_keys=keys) as one:
        yield one


@pytest.fixture
def key_file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "acme.pem"
    path.write_bytes(
        PRIVATE.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


def record_of(front: Gateway, call_id: str) -> dict:
    def found() -> dict | None:
        return next((line for line in front.lines("call") if line["call_id"] == call_id), None)

    return eventually(found)


def kept(front: Gateway, record: dict) -> tuple[dict, bytes, bytes]:
    """Header, prompt and answer, by the format's page and RFC 9180 alone."""
    capture = record["capture"]
    assert capture["dropped"] is None
    data = (front.state_dir / "content" / record["tenant"] / capture["file"]).read_bytes()
    frame = data[capture["offset"] :][: capture["bytes"]]
    assert hashlib.sha256(frame).hexdigest() == capture["sha256"]
    magic, header_bytes, box_bytes = struct.unpack_from(">4sII", frame)
    assert (magic, 12 + header_bytes + box_bytes) == (b"WBC1", len(frame))
    header = json.loads(frame[12 : 12 + header_bytes])
    content = hpke.open_box(PRIVATE, frame[12 + header_bytes :], frame[: 12 + header_bytes])
    at = header["prompt_kept_bytes"]
    assert (capture["prompt_bytes"], capture["answer_bytes"]) == (at, len(content) - at)
    assert (header["call_id"], header["tenant"]) == (record["call_id"], record["tenant"])
    return header, content[:at], content[at:]


def audit(front: Gateway, *words: str, at: bool = True) -> subprocess.CompletedProcess[str]:
    place = ["--state-dir", str(front.state_dir)] if at else []
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", "audit", *words, *place],
        cwd=gateway.ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


def ask(front: Gateway, *, tenant: str = "acme", **more: object) -> dict:
    """An answered call; its record."""
    answer = front.post("/v1/chat/completions", ASK | more, tenant=tenant)
    answer.read()
    return record_of(front, answer.headers["x-weighbridge-call-id"])


@pytest.mark.parametrize(
    "more", [{}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}]
)
@pytest.mark.parametrize("packed", [False, True])
def test_it_is_what_the_client_sent_and_got(front: Gateway, more: dict, packed: bool) -> None:
    body = json.dumps(ASK | more).encode()
    headers = {"content_encoding": "gzip"} if packed else {}
    answer = front.post("/v1/chat/completions", gzip.compress(body) if packed else body, **headers)
    got = answer.read()
    record = record_of(front, answer.headers["x-weighbridge-call-id"])
    header, prompt, answered = kept(front, record)
    assert (prompt, answered) == (body, got)
    assert (header["prompt_bytes"], header["answer_bytes"]) == (len(body), record["response_bytes"])
    assert record["digests"]["answer"].startswith("hmac-sha256:")


def test_of_a_client_that_left_it_is_what_was_sent(front: Gateway) -> None:
    body = json.dumps(ASK | {"stream": True, "max_tokens": 400}).encode()
    with Opened(front.port, front.keys["acme"], body) as opened:
        opened.read_until(b"data: ")
        call_id = opened.headers["x-weighbridge-call-id"]
        got = opened.body
    record = record_of(front, call_id)
    assert record["outcome"] == "client_gone"
    _, prompt, answered = kept(front, record)
    assert prompt == body
    assert answered.startswith(got)
    assert len(answered) == record["response_bytes"]


def test_nothing_of_it_can_be_read_on_the_disk(front: Gateway) -> None:
    secret = "a-word-that-nobody-else-says"
    body = ASK | {"messages": [{"role": "user", "content": secret}]}
    answer = front.post("/v1/chat/completions", body)
    answer.read()
    record_of(front, answer.headers["x-weighbridge-call-id"])
    files = [path for path in front.state_dir.rglob("*") if path.is_file()]
    assert any("content" in path.parts for path in files)
    for path in files:
        if "store" not in path.parts:
            assert secret.encode() not in path.read_bytes(), path
            assert not path.is_relative_to(front.state_dir / "content") or path.stat().st_mode & 0o077 == 0


def test_the_command_shows_it_to_the_key_alone(
    front: Gateway, key_file: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    body = json.dumps(ASK).encode()
    answer = front.post("/v1/chat/completions", body)
    got = answer.read()
    call_id = answer.headers["x-weighbridge-call-id"]
    record_of(front, call_id)
    shown = audit(front, "content", "--call", call_id, "--key", str(key_file))
    assert shown.returncode == 0, shown.stderr
    assert got.decode() in shown.stdout
    out = {name: tmp_path / name for name in ("prompt", "answer")}
    words = [word for name, path in out.items() for word in (f"--{name}", str(path))]
    assert audit(front, "content", "--call", call_id, "--key", str(key_file), *words).returncode == 0
    assert (out["prompt"].read_bytes(), out["answer"].read_bytes()) == (body, got)
    without = audit(front, "content", "--call", call_id)
    assert without.returncode == 0
    assert "How heavy" not in without.stdout
    made = audit(front, "keys", "content", "--out", str(tmp_path / "other.pem"), at=False)
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("public_key: x25519:")
    wrong = audit(front, "content", "--call", call_id, "--key", str(tmp_path / "other.pem"))
    assert wrong.returncode == 1
    assert "it is for the key" in wrong.stderr


def test_a_tenant_without_it_leaves_no_file(server: simulator.Running, tmp_path: pathlib.Path) -> None:
    with gateway.running(tmp_path, [backend(server)]) as one:
        assert "capture" not in ask(one)
        assert not (one.state_dir / "content").exists()


def checked(front: Gateway, *words: str) -> tuple[int, str]:
    done = audit(front, "content", "--check", *words)
    return done.returncode, done.stdout


def counted(front: Gateway, outcome: str) -> float:
    _, page = front.get("/metrics", front.keys["acme"])
    return sum(
        float(line.rpartition(" ")[2])
        for line in page.decode().splitlines()
        if line.startswith(f'weighbridge_captures_total{{outcome="{outcome}"}}')
    )


def test_of_a_long_prompt_and_answer_the_front_is_kept(
    server: simulator.Running, tmp_path: pathlib.Path
) -> None:
    keys = {"capture": CAPTURE | {"bytes_max": 1024}}
    with gateway.running(tmp_path, [backend(server)], tenant_keys=keys) as one:
        body = json.dumps(ASK | {"stream": True, "max_tokens": 60, "user": "u" * 3000}).encode()
        answer = one.post("/v1/chat/completions", body)
        got = answer.read()
        record = record_of(one, answer.headers["x-weighbridge-call-id"])
        header, prompt, answered = kept(one, record)
        assert (prompt, answered) == (body[:1024], got[:1024])
        assert (header["prompt_bytes"], header["answer_bytes"]) == (len(body), len(got))
        eventually(lambda: counted(one, "cut") == 1)


@pytest.mark.parametrize("required", [False, True])
def test_a_full_disk_drops_content_first(
    server: simulator.Running, tmp_path: pathlib.Path, required: bool
) -> None:
    broken = tmp_path / "full"
    env = mutants.environment("content_disk_full") | {"KILL_TEST_BROKEN": str(broken)}
    keys = {"capture": CAPTURE | {"required": required}}
    with gateway.running(tmp_path, [backend(server)], tenant_keys=keys, env=env) as one:
        assert ask(one)["capture"]["dropped"] is None
        broken.touch()
        record = ask(one)  # nobody knew of it yet
        assert record["outcome"] == "completed"
        assert record["capture"]["dropped"] == "disk_full"
        assert record["capture"]["sha256"] is None
        eventually(lambda: counted(one, "disk_full") >= 1)
        second = one.post("/v1/chat/completions", ASK)
        if required:
            assert (second.status, json.loads(second.read())["error"]["code"]) == (503, "journal_full")
        else:
            assert second.status == 200
            second.read()
        broken.unlink()

        def again() -> bool:
            answer = one.post("/v1/chat/completions", ASK)
            answer.read()
            return answer.status == 200 and "None" in str(
                record_of(one, answer.headers["x-weighbridge-call-id"])["capture"]["dropped"]
            )

        eventually(again, every_s=0.3)
        code, said = checked(one)
        assert code == 0, said


def killed_after_answers(one: Gateway) -> None:
    """Answered calls, and one under way; then the worker is killed, and all else behind it."""
    for n in range(6):
        answer = one.post("/v1/chat/completions", ASK | {"stream": n % 2 == 0})
        answer.read()
    body = json.dumps(ASK | {"stream": True, "max_tokens": 400}).encode()
    with Opened(one.port, one.keys["acme"], body) as opened:
        opened.read_until(b"data: ")
        (pid,) = {line["pid"] for line in one.lines("start") if line["command"] is None}
        os.kill(pid, signal.SIGKILL)
        one.kill()


def test_a_kill_leaves_all_that_records_speak_of(server: simulator.Running, tmp_path: pathlib.Path) -> None:
    with gateway.running(tmp_path, [backend(server)], tenant_keys={"capture": CAPTURE}) as one:
        killed_after_answers(one)
        code, said = checked(one)
        assert (code, said) == (0, "content: kept=6 dropped=0 deleted=0 wrong=0\n")
        one.restart()
        one.wait_ready()
        ask(one)
        (lost,) = [line for line in one.lines("call") if line["outcome"] == "lost"]
        assert "capture" not in lost
        code, said = checked(one)
        assert (code, said) == (0, "content: kept=7 dropped=0 deleted=0 wrong=0\n")


def checked_after_a_power_cut(
    server: simulator.Running, tmp_path: pathlib.Path, env: dict[str, str]
) -> tuple[int, str]:
    """Of four calls whose records were durable."""
    power = PowerCut(tmp_path / "state", tmp_path / "synced.log")
    both = env | power.environment
    with gateway.running(tmp_path, [backend(server)], tenant_keys={"capture": CAPTURE}, env=both) as one:
        for _ in range(4):
            ask(one)
        (directory,) = {line["writer"] for line in one.lines("start") if line["command"] is None}
        segments = list((one.state_dir / "journal" / directory).glob("*.jsonl"))
        eventually(lambda: all(power.durable_bytes(path) == path.stat().st_size for path in segments))
        pids = {one.process.pid} | processes.descendants(one.process.pid)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: not any(map(processes.is_alive, pids - {one.process.pid})))
        power.cut()
        return checked(one)


def test_a_power_cut_leaves_all_that_durable_records_speak_of(
    server: simulator.Running, tmp_path: pathlib.Path
) -> None:
    left = checked_after_a_power_cut(server, tmp_path, {})
    assert left == (0, "content: kept=4 dropped=0 deleted=0 wrong=0\n")


def test_a_power_cut_is_seen_where_content_is_not_synced(
    server: simulator.Running, tmp_path: pathlib.Path
) -> None:
    code, said = checked_after_a_power_cut(server, tmp_path, mutants.environment("content_not_synced"))
    assert code == 1
    assert said.endswith("content: kept=0 dropped=0 deleted=0 wrong=4\n")


def test_every_alteration_is_found_and_an_erasure_is_told(
    server: simulator.Running, tmp_path: pathlib.Path, key_file: pathlib.Path
) -> None:
    with gateway.running(tmp_path, [backend(server)], tenant_keys={"capture": CAPTURE}) as one:
        calls = [ask(one) for _ in range(3)]
        assert checked(one, "--key", str(key_file))[1].startswith("content: kept=3 ")
        (file,) = (one.state_dir / "content").rglob("*.frames")
        data = bytearray(file.read_bytes())
        at = calls[1]["capture"]
        data[at["offset"] + at["bytes"] - 1] ^= 1
        file.write_bytes(data)
        code, said = checked(one)
        assert code == 1
        assert calls[1]["call_id"] in said
        assert said.endswith("content: kept=2 dropped=0 deleted=0 wrong=1\n")
        shown = audit(one, "content", "--call", calls[1]["call_id"], "--key", str(key_file))
        assert (shown.returncode, shown.stdout) == (1, "")
        moved = file.rename(tmp_path / "away")
        assert checked(one, "--tenant", "acme")[1].endswith("wrong=3\n")
        moved.rename(file)
        assert audit(one, "forget", "--tenant", "acme", "--content").returncode == 0
        (told,) = [line for line in one.lines("event") if line["topic"] == "content_deleted"]
        assert (told["data"]["tenant"], told["data"]["reason"]) == ("acme", "erased")
        assert checked(one) == (0, "content: kept=0 dropped=0 deleted=3 wrong=0\n")
        assert ask(one)["capture"]["dropped"] is None  # what comes later is kept again, elsewhere
        assert checked(one) == (0, "content: kept=1 dropped=0 deleted=3 wrong=0\n")
        assert audit(one, "forget", "--tenant", "globex", "--content").returncode == 1


def test_the_page_of_a_call_and_verify_know_it(server: simulator.Running, tmp_path: pathlib.Path) -> None:
    with gateway.running(tmp_path, [backend(server)], tenant_keys={"capture": CAPTURE}) as one:
        record = ask(one)
        page = audit(one, "show", record["call_id"])
        assert f"for the key {record['capture']['key']}" in page.stdout
        assert one.stop() == 0
        verified = subprocess.run(
            [sys.executable, "-m", "gateway.cli", "audit", "verify", str(one.state_dir)],
            cwd=gateway.ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert verified.returncode == 0, verified.stdout


@pytest.mark.parametrize("mutant", ["digest_without_the_end", "content_in_clear", "content_after_the_record"])
def test_the_laws_are_seen_to_break(server: simulator.Running, tmp_path: pathlib.Path, mutant: str) -> None:
    env = mutants.environment(mutant)
    with gateway.running(tmp_path, [backend(server)], tenant_keys={"capture": CAPTURE}, env=env) as one:
        if mutant == "digest_without_the_end":
            with pytest.raises(AssertionError):
                test_it_is_what_the_client_sent_and_got(one, {"stream": True}, packed=False)
        elif mutant == "content_in_clear":
            with pytest.raises(AssertionError):
                test_nothing_of_it_can_be_read_on_the_disk(one)
        else:
            killed_after_answers(one)
            assert checked(one)[0] == 1
