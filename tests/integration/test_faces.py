"""What an application sees of the gateway: answers, errors, headers, fallback, spill, queue; each with its record.

Real sockets: a gateway process before two raw backends in the first tier and a GPU one behind them.
"""

import asyncio
import contextlib
import http.client
import json
import pathlib
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.support import mutants
from tests.support.gateway import Gateway, eventually, running
from tests.support.rawbackend import Scripted, chunked, sized

pytestmark = pytest.mark.integration

USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "total_tokens": 15,
    "prompt_tokens_details": {"cached_tokens": 4},
}
CHAT = json.dumps(
    {"id": "c1", "object": "chat.completion", "model": "served", "usage": USAGE,
     "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]}
).encode()  # fmt: skip


def event(choices: list | None, **more: object) -> bytes:
    return b"data: " + json.dumps({"id": "c1", "choices": choices, **more}).encode() + b"\n\n"


ROLE = event([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
HELLO = event([{"index": 0, "delta": {"content": "hello"}, "finish_reason": None}])
FINISH = event([{"index": 0, "delta": {}, "finish_reason": "stop"}])
USAGE_EVENT = event([], usage=USAGE)
DONE = b"data: [DONE]\n\n"
STREAM = chunked(ROLE, HELLO, FINISH, USAGE_EVENT, DONE)
ASK = {"model": "cheap", "messages": [{"role": "user", "content": "hi"}]}
ASK_STREAM = ASK | {"stream": True}
COUNTED_PUSD = len(json.dumps(ASK_STREAM)) // 4 * 1_000_000 + 2_000_000
"""Of a stream that was cut behind HELLO: its prompt by its bytes, one token seen."""


class Fleet:
    """The gateway and its three backends."""

    def __init__(self, gateway: Gateway, a: Scripted, b: Scripted, gpu: Scripted) -> None:
        self.gateway = gateway
        self.a, self.b, self.gpu = a, b, gpu

    def record(self, answer: http.client.HTTPResponse) -> dict:
        """The record of the call that gave this answer."""
        call_id = answer.headers["x-weighbridge-call-id"]
        return eventually(
            lambda: next((r for r in self.gateway.lines("call") if r["call_id"] == call_id), None)
        )

    def refused(self, request_id: str) -> dict:
        """The `refused` line of a request."""
        return eventually(
            lambda: next((r for r in self.gateway.lines("refused") if r["request_id"] == request_id), None)
        )

    def ready(self, **states: str) -> bool:
        """Are these backends in these states?"""
        found = json.loads(self.gateway.get("/readyz")[1])["backends"]
        return states.items() <= {one["name"]: one["state"] for one in found}.items()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    directory: pathlib.Path = tmp_path_factory.mktemp("faces")
    a, b, gpu = Scripted(sized(CHAT)), Scripted(sized(CHAT)), Scripted(sized(CHAT), max_model_len=8192)
    backends = [
        {"name": name, "url": f"http://127.0.0.1:{one.port}", "model": "m1", "slots": 2, "instance_type": kind,
         "neuron_version": version, "max_model_len": length}
        for name, one, kind, version, length in (
            ("a", a, "inf2.48xlarge", "2.28.0", 4096),
            ("b", b, "inf2.48xlarge", "2.28.0", 4096),
            ("gpu", gpu, "g6e.xlarge", None, 8192),
        )
    ]  # fmt: skip
    card = {
        "prompt": "1.00",
        "cached_prompt": "0.10",
        "completion": "2.00",
        "date": "2026-11-01",
        "source": "test",
    }
    tiers = [{"backends": ["a", "b"], "patience_s": 0.2}, {"backends": ["gpu"]}]
    try:
        with running(
            directory, backends, tiers=tiers, aliases=("cheap",),
            rate_cards=[card | {"family": "inf2"}, card | {"family": "g6e", "completion": "6.00"}],
            timeouts={"first_event_s": 1.0, "between_events_s": 1.0, "connect_s": 1.0},
        ) as gateway:  # fmt: skip
            fleet = Fleet(gateway, a, b, gpu)
            eventually(lambda: fleet.ready(a="ready", b="ready", gpu="ready"))
            yield fleet
    finally:
        for one in (a, b, gpu):
            one.stop()


@pytest.fixture
def fleet(made: Fleet) -> Fleet:
    for one in (made.a, made.b, made.gpu):
        one.asked.clear()
        one.script.clear()
        one.default = sized(CHAT)
    return made


def test_a_sized_answer_passes_as_it_came_with_its_record(fleet: Fleet) -> None:
    answer = fleet.gateway.post("/v1/chat/completions", ASK, x_request_id="my-1")
    assert (answer.status, answer.read()) == (200, CHAT)
    assert answer.headers["x-request-id"] == "my-1"
    assert answer.headers["x-weighbridge-served-by"] == "inf2"
    (asked,) = fleet.a.asked
    assert json.loads(asked.body) == ASK | {"model": "m1"}
    assert set(asked.headers) == {
        "host", "accept", "accept-encoding", "x-request-id", "content-type", "content-length"
    }  # fmt: skip
    record = fleet.record(answer)
    assert (record["tenant"], record["project"], record["tags"]) == ("acme", "main", {"cost_center": "42"})
    assert (record["model"], record["model_requested"]) == ("m1", "cheap")
    assert (record["instance_family"], record["neuron_version"]) == ("inf2", "2.28.0")
    assert record["instances"] == [{"id": None, "type": "inf2.48xlarge", "units": 24, "units_total": 24}]
    # 6 prompt tokens at 1 USD, 4 cached at 0.10, 5 completion at 2 USD per 1M tokens
    assert record["cost_pusd"] == 6 * 1_000_000 + 4 * 100_000 + 5 * 2_000_000
    assert (record["rate_card"], record["outcome"], record["status"]) == (
        "m1/inf2@2026-11-01",
        "completed",
        200,
    )


def test_a_stream_passes_but_for_the_usage_event_that_was_only_ours(fleet: Fleet) -> None:
    fleet.a.default = STREAM
    answer = fleet.gateway.post("/v1/chat/completions", ASK_STREAM)
    assert answer.read() == ROLE + HELLO + FINISH + DONE
    assert json.loads(fleet.a.asked[0].body)["stream_options"] == {"include_usage": True}
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert fleet.record(answer)["usage"]["completion_tokens"] == 5
    wanted = ASK_STREAM | {"stream_options": {"include_usage": True, "x": 1}}
    answer = fleet.gateway.post("/v1/chat/completions", wanted)
    assert answer.read() == ROLE + HELLO + FINISH + USAGE_EVENT + DONE
    assert json.loads(fleet.a.asked[1].body)["stream_options"] == {"include_usage": True, "x": 1}


def test_text_completions(fleet: Fleet) -> None:
    body = json.dumps(
        {"id": "c", "choices": [{"index": 0, "text": "x", "finish_reason": "length"}], "usage": USAGE}
    )
    fleet.a.default = sized(body.encode())
    answer = fleet.gateway.post("/v1/completions", {"model": "m1", "prompt": "hi"})
    assert (answer.status, answer.read()) == (200, body.encode())
    record = fleet.record(answer)
    assert (record["operation"], record["finish_reasons"]) == ("completions", ["length"])
    assert fleet.a.asked[0].path == "/v1/completions"


def test_parameters_that_the_hardware_ignores_are_named(fleet: Fleet) -> None:
    answer = fleet.gateway.post("/v1/chat/completions", ASK | {"seed": 7, "logit_bias": {"1": 2}, "top_k": 5})
    answer.read()
    assert answer.headers["x-weighbridge-ignored"] == "logit_bias,seed"
    assert fleet.record(answer)["params_ignored"] == ["logit_bias", "seed"]


@pytest.mark.parametrize("failure", [
    sized(b'{"error":"x"}', "500 Internal Server Error"),
    sized(b"<html>", "502 Bad Gateway", "text/html"),
    sized(b"<html>nginx</html>", kind="text/html"),
    sized(b"[]"),
    b"garbage\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\nconnection: close\r\n\r\n{",
])  # fmt: skip
def test_a_failed_attempt_falls_back_in_one_record(fleet: Fleet, failure: bytes) -> None:
    async def fail(_asked: object, _reader: object, writer: asyncio.StreamWriter) -> None:
        writer.write(failure)
        writer.close()

    fleet.a.script.append(fail)
    answer = fleet.gateway.post("/v1/chat/completions", ASK)
    assert (answer.status, answer.read()) == (200, CHAT)
    record = fleet.record(answer)
    assert [attempt["backend"] for attempt in record["attempts"]] == ["a", "b"]
    assert answer.headers["x-weighbridge-fallback"] == record["fallback_reason"]
    assert record["cost_pusd"] == 16_400_000  # of the attempt that served, once


def test_when_all_fail_the_client_gets_one_clear_error(fleet: Fleet) -> None:
    for one in (fleet.a, fleet.b, fleet.gpu):
        one.default = sized(b'{"detail":"boom at 10.0.0.5:8000"}', "500 Internal Server Error")
    answer = fleet.gateway.post("/v1/chat/completions", ASK_STREAM)
    error = json.loads(answer.read())["error"]
    assert (answer.status, error["code"], set(error)) == (
        502,
        "backend_failed",
        {"message", "type", "param", "code"},
    )
    assert "10.0.0.5" not in json.dumps(error)
    record = fleet.record(answer)
    assert (record["outcome"], record["cost_pusd"], len(record["attempts"])) == ("backend_failed", 0, 3)
    assert record["backend"] == "gpu"


def test_after_the_commit_point_there_is_no_second_voice(fleet: Fleet) -> None:
    async def die(_asked: object, _reader: object, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked(ROLE, HELLO)[:-5])
        await writer.drain()
        writer.transport.abort()

    fleet.a.script.append(die)
    answer = fleet.gateway.post("/v1/chat/completions", ASK_STREAM)
    body = answer.read()
    assert body.startswith(ROLE + HELLO)
    error = json.loads(body.removeprefix(ROLE + HELLO).removeprefix(b"data: "))
    assert error["error"]["code"] == "backend_failed"
    assert fleet.b.asked == fleet.gpu.asked == []
    record = fleet.record(answer)
    assert (record["outcome"], record["usage"]["source"]) == ("backend_failed", "counted")
    assert record["cost_pusd"] == COUNTED_PUSD


def test_a_backend_that_stalls_before_its_first_event_is_left(fleet: Fleet) -> None:
    async def stall(_asked: object, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b""  # the gateway hangs up

    fleet.a.script.append(stall)
    fleet.b.default = STREAM
    answer = fleet.gateway.post("/v1/chat/completions", ASK_STREAM)
    assert answer.read() == ROLE + HELLO + FINISH + DONE
    assert fleet.record(answer)["fallback_reason"] == "timeout"


def test_a_full_tier_spills_to_the_next(fleet: Fleet) -> None:
    held = threading.Event()

    async def hold(_asked: object, _reader: object, writer: asyncio.StreamWriter) -> None:
        await asyncio.to_thread(held.wait)
        writer.write(sized(CHAT))

    fleet.a.script += [hold, hold]
    fleet.b.script += [hold, hold]
    first = [
        threading.Thread(target=lambda: fleet.gateway.post("/v1/chat/completions", ASK).read())
        for _ in range(4)
    ]
    for thread in first:
        thread.start()
    eventually(lambda: len(fleet.a.asked) + len(fleet.b.asked) == 4)
    answer = fleet.gateway.post("/v1/chat/completions", ASK)
    answer.read()
    held.set()
    for thread in first:
        thread.join()
    record = fleet.record(answer)
    assert (answer.headers["x-weighbridge-spill"], answer.headers["x-weighbridge-served-by"]) == (
        "full",
        "g6e",
    )
    assert (record["spill_reason"], record["tier"], record["backend"]) == ("full", 1, "gpu")
    assert record["queue_wait_ns"] >= 200_000_000
    assert (
        record["cost_pusd"] == 6 * 1_000_000 + 4 * 100_000 + 5 * 6_000_000
    )  # the price follows the hardware


def test_a_backends_own_refusal_is_the_clients_to_read(fleet: Fleet) -> None:
    body = b'{"error":{"message":"temperature must be >= 0","type":"BadRequestError","param":"temperature","code":400}}'
    fleet.a.script.append(sized(body, "400 Bad Request"))
    answer = fleet.gateway.post("/v1/chat/completions", ASK)
    assert (answer.status, json.loads(answer.read())["error"]["param"]) == (400, "temperature")
    assert fleet.b.asked == []
    assert (fleet.record(answer)["outcome"], fleet.record(answer)["cost_pusd"]) == ("refused", 0)


def test_a_prompt_too_long_for_the_chip_moves_on_to_the_longer_wall(fleet: Fleet) -> None:
    message = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."
    body = json.dumps(
        {"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400}}
    ).encode()
    fleet.a.script.append(sized(body, "400 Bad Request"))
    answer = fleet.gateway.post("/v1/chat/completions", ASK)
    answer.read()
    assert (answer.status, answer.headers["x-weighbridge-fallback"]) == (200, "context length")
    assert fleet.b.asked == []
    assert len(fleet.gpu.asked) == 1


def test_a_client_that_leaves_frees_the_backend(fleet: Fleet) -> None:
    seen = threading.Event()

    async def endless(_asked: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(chunked(ROLE, HELLO)[:-5])
        assert await reader.read() == b""
        seen.set()

    fleet.a.script.append(endless)
    answer = fleet.gateway.post("/v1/chat/completions", ASK_STREAM)
    assert answer.read1() == ROLE + HELLO
    answer.close()
    assert seen.wait(5)
    record = fleet.record(answer)
    assert (record["outcome"], record["usage"]["source"]) == ("client_gone", "counted")
    assert record["cost_pusd"] == COUNTED_PUSD


def test_a_dead_idle_connection_is_replaced_unseen(fleet: Fleet) -> None:
    async def hang_up(_asked: object, _reader: object, writer: asyncio.StreamWriter) -> None:
        writer.write(sized(CHAT))
        await writer.drain()
        writer.close()

    fleet.a.script.append(hang_up)
    fleet.gateway.post("/v1/chat/completions", ASK).read()
    answer = fleet.gateway.post("/v1/chat/completions", ASK)
    assert (answer.status, answer.read()) == (200, CHAT)
    assert [attempt["backend"] for attempt in fleet.record(answer)["attempts"]] == ["a"]


@pytest.mark.parametrize(("body", "status", "param"), [
    (b"{", 400, None),
    (b"", 400, None),
    (b"[]", 400, None),
    (b'{"messages":[]}', 400, "model"),
    (b'{"model":"m1","mod\\u0065l":"m2"}', 400, "model"),
    (b'{"model":"m1","stream":true,"stream":false}', 400, "stream"),
    (b'{"model":"m1","max_tokens":-1}', 400, "max_tokens"),
    (b'{"model":"nobody"}', 404, "model"),
    (b'{"model":"m1","max_tokens":9000}', 400, "max_tokens"),
])  # fmt: skip
def test_requests_at_fault_reach_no_backend(
    fleet: Fleet, body: bytes, status: int, param: str | None
) -> None:
    answer = fleet.gateway.post("/v1/chat/completions", body, x_request_id="at-fault")
    error = json.loads(answer.read())["error"]
    assert (answer.status, error["param"], error["type"]) == (status, param, "invalid_request_error")
    assert fleet.a.asked == fleet.b.asked == fleet.gpu.asked == []
    assert (fleet.refused("at-fault")["tenant"], "x-weighbridge-call-id" in answer.headers) == ("acme", False)


@pytest.mark.parametrize("header", [None, "Bearer wb-wrong", "Basic abc", "Bearer"])
def test_without_a_known_key_nothing_is_shown(fleet: Fleet, header: str | None) -> None:
    headers = {"authorization": header} if header else {}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", fleet.gateway.port)) as connection:
        for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/metrics")):
            connection.request(method, path, body=json.dumps(ASK), headers=headers)
            answer = connection.getresponse()
            body = answer.read()
            assert (answer.status, json.loads(body)["error"]["code"]) == (401, "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
            assert b"wb-wrong" not in body


def test_other_media_are_refused(fleet: Fleet) -> None:
    for kind, status in (
        ("text/plain", 415),
        ("application/json; charset=utf-16", 415),
        ("application/json; charset=UTF-8", 200),
        ('Application/JSON;charset="utf-8"', 200),
    ):
        answer = fleet.gateway.post("/v1/chat/completions", ASK, content_type=kind)
        answer.read()
        assert (kind, answer.status) == (kind, status)


def test_a_request_id_that_is_no_plain_one_is_replaced(fleet: Fleet) -> None:
    for given in ("x" * 129, 'a"b', "{}"):
        answer = fleet.gateway.post("/v1/chat/completions", ASK, x_request_id=given)
        answer.read()
        assert answer.headers["x-request-id"].startswith("req-")


def test_a_list_of_models_has_a_request_id_as_every_answer_of_the_api(fleet: Fleet) -> None:
    headers = {"authorization": f"Bearer {fleet.gateway.keys['acme']}", "x-request-id": "mine-1"}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", fleet.gateway.port)) as connection:
        for path in ("/v1/models", "/v1/models/m1", "/v1/models/x"):
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            answer.read()
            assert answer.headers["x-request-id"] == "mine-1"


def test_pages(fleet: Fleet) -> None:
    key = fleet.gateway.keys["acme"]
    assert fleet.gateway.get("/healthz") == (200, b"ok\n")
    assert json.loads(fleet.gateway.get("/version")[1])["version"]
    listed = json.loads(fleet.gateway.get("/v1/models", key)[1])
    assert [(card["id"], card["object"], card["max_model_len"]) for card in listed["data"]] == [
        ("m1", "model", 8192)
    ]
    assert json.loads(fleet.gateway.get("/v1/models/cheap", key)[1])["id"] == "m1"
    assert fleet.gateway.get("/v1/models/x", key)[0] == 404
    assert b"weighbridge_calls_total{" in fleet.gateway.get("/metrics", key)[1]
    for path, status in (
        ("/v1/nothing", 404), ("/", 404), ("/v1/chat/completions", 405), ("/healthz/", 404), ("//v1/models", 404),
        ("/v1/chat/completions/", 404), ("/metrics/", 404),
    ):  # fmt: skip
        found, body = fleet.gateway.get(path, key)
        assert (path, found, set(json.loads(body)["error"])) == (
            path,
            status,
            {"message", "type", "param", "code"},
        )


def test_a_backend_that_refuses_connections_is_down_at_the_third_and_comes_back(fleet: Fleet) -> None:
    fleet.a.stop()
    try:
        for _ in range(4):
            answer = fleet.gateway.post("/v1/chat/completions", ASK)
            assert (answer.status, answer.read()) == (200, CHAT)
        eventually(lambda: fleet.ready(a="down", b="ready"))
        answer = fleet.gateway.post("/v1/chat/completions", ASK)
        answer.read()
        record = fleet.record(answer)
        assert [attempt["backend"] for attempt in record["attempts"]] == ["b"]
        assert record["plan"]["left_out"] == [{"backend": "a", "reason": "down"}]
    finally:
        fleet.a.start()
    eventually(lambda: fleet.ready(a="ready"))


CANARY = b"CANARY-7f3a"


def written_with_a_canary(gateway: Gateway, one: Scripted) -> bytes:
    """All that a gateway has written after calls with a canary in every place that a client can fill."""
    canary = CANARY.decode()
    ask = {"model": "m1", "messages": [{"role": "user", "content": canary}], "cookie": canary}
    one.script.append(sized(b'{"error":"' + CANARY + b'"}', "500 Internal Server Error"))
    gateway.post("/v1/chat/completions", ask, cookie=canary).read()
    gateway.post("/v1/chat/completions", b'{"model":"m1","x":"' + CANARY + b'"', cookie=canary).read()
    return b"".join(path.read_bytes() for path in gateway.directory.rglob("*") if path.is_file())


def test_no_secret_and_no_content_reaches_a_log_or_the_journal(fleet: Fleet) -> None:
    assert CANARY not in written_with_a_canary(fleet.gateway, fleet.a)
    log_and_journal = fleet.gateway.log.read_bytes() + json.dumps(fleet.gateway.lines()).encode()
    for secret in (*fleet.gateway.keys.values(), "127.0.0.1:" + str(fleet.a.port)):
        assert secret.encode() not in log_and_journal


def test_a_gateway_that_logs_bodies_is_found(tmp_path: pathlib.Path) -> None:
    one = Scripted(sized(CHAT))
    backends = [{"name": "a", "url": f"http://127.0.0.1:{one.port}", "model": "m1"}]
    try:
        with running(tmp_path, backends, env=mutants.environment("bodies_logged")) as gateway:
            assert CANARY in written_with_a_canary(gateway, one)
    finally:
        one.stop()


def test_a_request_cut_short_is_no_call(fleet: Fleet) -> None:
    before = len(fleet.gateway.lines("admitted"))
    with socket.create_connection(("127.0.0.1", fleet.gateway.port)) as sock:
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
        head += f"authorization: Bearer {fleet.gateway.keys['acme']}\r\n"
        sock.sendall(head.encode() + b"content-type: application/json\r\ncontent-length: 1000\r\n\r\n{")
    fleet.gateway.post("/v1/chat/completions", ASK).read()
    assert len(fleet.gateway.lines("admitted")) == before + 1
