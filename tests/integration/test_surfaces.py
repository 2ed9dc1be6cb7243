"""Every API through the gateway: its bytes are the backend's, and its record says what the backend's own log says."""

import base64
import http.client
import json
import pathlib
import socket
from collections.abc import Iterator

import pytest

from backends.simulator.settings import Settings
from tests.support import simulator
from tests.support.gateway import Gateway, eventually, running

pytestmark = pytest.mark.integration

MODEL = "m1"
TIME_SCALE = 0.2
"""3 ms a token: the first events of a stream have been read before the last are written."""
USER = {"role": "user", "content": "Name three rivers, and say which is the longest of them."}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

CHAT = {"messages": [USER], "max_tokens": 9}
COMPLETION = {"prompt": "Name three rivers", "max_tokens": 9}
RESPONSE = {"input": "Name three rivers", "max_output_tokens": 9}
MESSAGE = {"messages": [USER], "max_tokens": 9}
TOOL = {"name": "weather", "parameters": CITY}
GENERATING = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/responses": RESPONSE,
    "/v1/messages": MESSAGE,
}
READING = {
    "/v1/embeddings": {"input": ["Name three rivers", "the longest"]},
    "/v1/rerank": {"query": "rivers", "documents": ["the Rhine", "a lorry"]},
    "/v2/rerank": {"query": "rivers", "documents": ["the Rhine", "a lorry"]},
    "/rerank": {"query": "rivers", "documents": ["the Rhine", "a lorry"], "top_n": 1},
    "/v1/score": {"text_1": "rivers", "text_2": ["the Rhine", "a lorry"]},
    "/score": {"text_1": "rivers", "text_2": "the Rhine"},
    "/pooling": {"input": ["Name three rivers", "the longest"], "task": "embed"},
    "/classify": {"messages": [{"role": "user", "content": "Is it a river?"}]},
}
FREE = {
    "/v1/messages/count_tokens": {"messages": [USER]},
    "/tokenize": {"prompt": "Name three rivers"},
    "/detokenize": {"tokens": [1, 2, 3]},
}
TOOLS = {
    "/v1/chat/completions": CHAT
    | {"max_tokens": 60, "tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"},
    "/v1/responses": RESPONSE
    | {"max_output_tokens": 60, "tools": [TOOL | {"type": "function"}], "tool_choice": "required"},
    "/v1/messages": MESSAGE
    | {
        "max_tokens": 60,
        "tools": [{"name": "weather", "input_schema": CITY}],
        "tool_choice": {"type": "any"},
    },
}
ANTHROPIC = ("/v1/messages", "/v1/messages/count_tokens")


class Pair:
    """A gateway and the simulated server behind it."""

    def __init__(self, gateway: Gateway, backend: simulator.Running) -> None:
        self.gateway = gateway
        self.backend = backend

    def call(self, path: str, body: dict[str, object], **more: object) -> "Call":
        answer = self.gateway.post(path, {"model": MODEL} | body | more)
        return Call(self, answer, answer.read())

    def record(self, call_id: str) -> dict:
        records = self.gateway.lines
        return eventually(lambda: next((r for r in records("call") if r["call_id"] == call_id), None))


class Call:
    """One call as the client saw it, as it was recorded, and as the backend's log has it."""

    def __init__(self, pair: Pair, answer: http.client.HTTPResponse, body: bytes) -> None:
        self.answer = answer
        self.body = body
        self.record = pair.record(answer.headers["x-weighbridge-call-id"])
        self.entry = eventually(lambda: (e := pair.backend.log(raw=True)[-1])["outcome"] != "open" and e)

    @property
    def sent(self) -> bytes:
        return base64.b64decode(self.entry["raw"])

    @property
    def counts(self) -> tuple[int, int, int]:
        usage = self.record["usage"]
        return usage["prompt_tokens"], usage["cached_prompt_tokens"] or 0, usage["completion_tokens"]

    @property
    def logged(self) -> tuple[int, int, int]:
        entry = self.entry
        return entry["prompt_tokens"], entry["cached_tokens"] or 0, entry["completion_tokens"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    settings = Settings(instance_type="inf2.48xlarge", model=MODEL, time_scale=TIME_SCALE)
    with simulator.running(settings) as backend:
        described = {
            "name": "sim",
            "url": backend.url,
            "model": MODEL,
            "instance_type": "inf2.48xlarge",
            "slots": 8,
        }
        directory: pathlib.Path = tmp_path_factory.mktemp("surfaces")
        with running(directory, [described], model=MODEL) as gateway:
            yield Pair(gateway, backend)


@pytest.mark.parametrize(("path", "body"), [*GENERATING.items(), *READING.items(), *TOOLS.items()])
def test_a_sized_answer(pair: Pair, path: str, body: dict[str, object]) -> None:
    call = pair.call(path, body)
    assert (call.answer.status, call.body) == (200, call.sent)
    assert (call.record["outcome"], call.record["usage"]["source"]) == ("completed", "reported")
    assert call.counts == call.logged
    assert call.counts[0] > 0
    assert (call.counts[2] > 0) == (path in GENERATING)
    if path in READING:
        assert call.record["operation"] == path.rpartition("/")[2]


@pytest.mark.parametrize(("path", "body"), [*GENERATING.items(), *TOOLS.items()])
def test_a_stream(pair: Pair, path: str, body: dict[str, object]) -> None:
    asked: dict[str, object] = {"stream": True}
    if "completions" in path:
        asked |= {"stream_options": {"include_usage": True}}
    call = pair.call(path, body, **asked)
    assert (call.answer.status, call.body) == (200, call.sent)
    assert (call.record["outcome"], call.record["usage"]["source"]) == ("completed", "reported")
    assert call.counts == call.logged
    assert call.record["first_token_ns"] is not None


@pytest.mark.parametrize(("path", "body"), FREE.items())
def test_what_the_engine_has_no_part_in_has_no_tokens(pair: Pair, path: str, body: dict[str, object]) -> None:
    call = pair.call(path, body)
    assert (call.answer.status, call.body) == (200, call.sent)
    assert call.record["outcome"] == "completed"
    assert call.counts == call.logged == (0, 0, 0)
    assert call.record["unpriced_reason"] is None  # it takes a seat for its time, and that is all it costs


@pytest.mark.parametrize("path", GENERATING)
def test_cached_tokens_are_a_part_of_the_prompt(pair: Pair, path: str) -> None:
    long = "Weigh this load and write the ticket. " * 20
    body = GENERATING[path] | (
        {"prompt": long} if "prompt" in GENERATING[path] else {"input": long}
        if "input" in GENERATING[path] else {"messages": [{"role": "user", "content": long}]}
    )  # fmt: skip
    pair.call(path, body)
    for stream in (False, True):
        call = pair.call(path, body, stream=stream)
        assert call.counts == call.logged
        assert call.counts[0] > call.counts[1] > 0


@pytest.mark.parametrize(("path", "body"), [*GENERATING.items(), *READING.items(), *FREE.items()])
def test_a_backends_failure_is_told_in_the_apis_own_shape(
    pair: Pair, path: str, body: dict[str, object]
) -> None:
    pair.backend.arm("error_500", times=2)
    try:
        call = pair.call(path, body)
    finally:
        pair.backend.disarm()
    assert call.answer.status == 502
    assert ("request-id" in call.answer.headers) is (path in ANTHROPIC)
    assert call.record["outcome"] == "backend_failed"
    assert_shape(path, call.body)


@pytest.mark.parametrize(("path", "body"), [*GENERATING.items(), *READING.items(), *FREE.items()])
def test_an_unknown_model_is_told_in_the_apis_own_shape(
    pair: Pair, path: str, body: dict[str, object]
) -> None:
    answer = pair.gateway.post(path, body | {"model": "no-such-model"})
    assert answer.status == 404
    assert_shape(path, answer.read())


def assert_shape(path: str, body: bytes) -> None:
    told = json.loads(body)
    if path in ANTHROPIC:
        assert told["type"] == "error"
        assert {"type", "message"} <= told["error"].keys()
    else:
        assert told["error"].keys() >= {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", [*GENERATING, *READING, *FREE])
def test_each_answer_has_the_requests_id_where_its_client_looks_for_it(pair: Pair, path: str) -> None:
    asked = (GENERATING | READING | FREE)[path]
    wholes = [asked, asked | {"stream": True}] if path in GENERATING else [asked]
    for body in (*wholes, asked | {"model": "no-such-model"}, b"{"):
        answer = pair.gateway.post(path, body, x_request_id="mine-1")
        answer.read()
        assert answer.headers["x-request-id"] == "mine-1"
        assert answer.headers.get("request-id") == ("mine-1" if path in ANTHROPIC else None)


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("kind", ["die", "error_500", "garbage"])
def test_a_stream_that_breaks_is_billed_by_what_came(pair: Pair, path: str, kind: str) -> None:
    pair.backend.arm(kind, after_events=7)
    call = pair.call(path, GENERATING[path] | {"max_tokens": 40, "max_output_tokens": 40}, stream=True)
    assert call.entry["outcome"] == f"faulted:{kind}"
    assert call.record["outcome"] == "backend_failed"
    assert call.record["usage"]["source"] == "counted"
    assert call.record["usage"]["completion_tokens"] == call.entry["completion_tokens_sent"]
    assert b"error" in call.body[len(call.body) // 2 :]


@pytest.mark.parametrize("path", GENERATING)
def test_a_client_that_leaves_ends_the_backends_work(pair: Pair, path: str) -> None:
    pair.backend.arm("stall", after_events=7)
    body = {"model": MODEL, "stream": True} | GENERATING[path] | {"max_tokens": 40, "max_output_tokens": 40}
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {pair.gateway.keys['acme']}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", pair.gateway.port), timeout=10) as client:
        client.sendall(head.encode() + data)
        got = b""
        while got.count(b"data: ") < 7:
            got += client.recv(65_536)
    call_id = next(
        line.partition(b": ")[2].decode()
        for line in got.split(b"\r\n")
        if line.lower().startswith(b"x-weighbridge-call-id")
    )
    record = pair.record(call_id)
    entry = eventually(lambda: (e := pair.backend.log()[-1])["outcome"] != "open" and e)
    assert record["outcome"] == "client_gone"
    # It stalls with its next token, and that may not have been due when the client left.
    assert entry["outcome"] in ("faulted:stall", "aborted")
    assert record["usage"]["source"] == "counted"
    assert record["usage"]["completion_tokens"] == entry["completion_tokens_sent"]
    assert pair.backend.value("vllm:num_requests_running") == 0
