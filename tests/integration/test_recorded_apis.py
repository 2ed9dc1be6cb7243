"""What vLLM 0.32 was recorded to answer, sent through the gateway: the client gets its bytes, the record its counts."""

import asyncio
import contextlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import captures
from tests.support.gateway import eventually
from tests.support.rawbackend import Asked
from tests.support.stage import RS, SLOTS, Stage, staged

pytestmark = pytest.mark.integration

NOT_GENERATED = ("/tokenize", "/detokenize", "/v1/messages/count_tokens")
PATHS = {
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
    "/v1/embeddings", "/tokenize", "/detokenize", "/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score",
    "/pooling", "/classify",
}  # fmt: skip


def recorded(status: range) -> list[str]:
    """Names of the exchanges with such a status, and whose request reaches a backend as it is."""
    names = []
    for prefix, directory in captures.SUITES.items():
        for name, entry in captures.index(directory).items():
            body = captures.load(name, directory).request_body
            if (
                entry["path"] in PATHS
                and entry["method"] == "POST"
                and entry["status"] in status
                and _has_model(body)
            ):
                names.append(prefix + name)
    return names


def _has_model(body: bytes) -> bool:
    try:
        return "model" in json.loads(body)
    except ValueError:
        return False


def load(name: str) -> tuple[captures.Exchange, str, dict[str, Any]]:
    """An exchange, its path, and its request for the model `m1`."""
    prefix, _, rest = name.rpartition("/")
    directory = captures.SUITES[f"{prefix}/" if prefix else ""]
    exchange = captures.load(rest, directory)
    return (
        exchange,
        captures.index(directory)[rest]["path"],
        json.loads(exchange.request_body) | {"model": "m1"},
    )


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("recorded")) as built:
        yield built
        built.check()


def raw_response(name: str) -> bytes:
    prefix, _, rest = name.rpartition("/")
    directory = captures.SUITES[f"{prefix}/" if prefix else ""]
    return pathlib.Path(directory / f"{rest}.response.http").read_bytes()


def counts(path: str, value: dict[str, Any]) -> tuple[int, int]:
    """Prompt and completion tokens of a recorded answer, by the API's own rule."""
    if path in NOT_GENERATED:
        return 0, 0
    usage = value["usage"]
    if path == "/v1/messages":
        return usage["input_tokens"] + usage["cache_read_input_tokens"], usage["output_tokens"]
    if path == "/v1/responses":
        return usage["input_tokens"], usage["output_tokens"]
    return usage["prompt_tokens"], usage.get("completion_tokens", 0)


def final(path: str, body: bytes) -> dict[str, Any] | None:
    """The part of a recorded stream that has its usage; None: it told none."""
    values = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
    if path == "/v1/responses":
        return dict(values[-1]["response"])
    return next((value for value in reversed(values) if value.get("usage")), None)


@pytest.mark.parametrize(
    "name", [name for name in recorded(range(200, 300)) if not load(name)[0].response.is_stream]
)
def test_a_sized_answer_passes_byte_for_byte_and_is_recorded(stage: Stage, name: str) -> None:
    exchange, path, body = load(name)
    stage.b1.asked.clear()
    stage.b1.default = raw_response(name)
    reply = stage.post(body, path=path)
    headers = dict(exchange.response.headers)
    assert reply.status == 200, reply.body
    assert reply.body == exchange.response.body
    assert reply.headers["content-type"] == headers["content-type"]
    assert reply.headers.get("metadata") == headers.get("metadata")
    (asked,) = stage.b1.asked
    sent = json.loads(asked.body)
    named = sent.pop("request_id", None)  # what the gateway calls a response that may be kept
    assert (asked.path, sent, named is not None) == (path, body, path == "/v1/responses")
    record = stage.record(reply.call_id)
    shown = headers.get("metadata", exchange.response.body)
    usage = record["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == counts(path, json.loads(shown))
    assert (usage["source"], record["outcome"], record["unpriced_reason"]) == ("reported", "completed", None)
    assert (record["cost_pusd"] == 0) is (path in NOT_GENERATED)


@pytest.mark.parametrize(
    "name", [name for name in recorded(range(200, 300)) if load(name)[0].response.is_stream]
)
def test_a_stream_passes_byte_for_byte_and_is_recorded(stage: Stage, name: str) -> None:
    exchange, path, body = load(name)
    stage.b1.default = raw_response(name)
    reply = stage.post(body, path=path)
    assert (reply.status, reply.complete, reply.body) == (200, True, exchange.response.body)
    record = stage.record(reply.call_id)
    assert (record["outcome"], record["mended"] == []) == (
        "completed",
        record["usage"]["source"] == "reported",
    )
    told = final(path, exchange.response.body)
    if told is None:
        assert (record["usage"]["source"], record["mended"]) == ("counted", ["prompt_estimated"])
    else:
        assert (record["usage"]["prompt_tokens"], record["usage"]["completion_tokens"]) == counts(path, told)


@pytest.mark.parametrize("name", ["pooling/embeddings_bytes", "pooling/pooling_bytes"])
def test_bare_numbers_that_tell_no_usage_pass_and_are_estimated(stage: Stage, name: str) -> None:
    """As with vLLM's `bytes_only`."""
    exchange, path, body = load(name)
    head, _, rest = raw_response(name).partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"metadata:")]
    stage.b1.default = b"\r\n".join(lines) + b"\r\n\r\n" + rest
    reply = stage.post(body | {"encoding_format": "bytes_only"}, path=path)
    assert (reply.status, reply.body) == (200, exchange.response.body)
    assert "metadata" not in reply.headers
    record = stage.record(reply.call_id)
    assert (record["outcome"], record["mended"]) == ("completed", ["prompt_estimated"])
    assert (record["usage"]["source"], record["usage"]["completion_tokens"]) == ("estimated", 0)
    assert record["cost_pusd"] > 0


@pytest.mark.parametrize("name", recorded(range(400, 500)))
def test_a_refusal_keeps_its_status_and_has_the_apis_shape(stage: Stage, name: str) -> None:
    exchange, path, body = load(name)
    stage.b1.default = raw_response(name)
    reply = stage.post(body, path=path)
    shown, theirs = json.loads(reply.body), json.loads(exchange.response.body)
    assert reply.status == exchange.response.status
    if path.startswith("/v1/messages"):
        assert shown.keys() == {"type", "error"}
        assert shown["error"].keys() == {"type", "message"}
        assert shown["error"]["type"] in ("invalid_request_error", "not_found_error")
    else:
        assert shown["error"].keys() == {"message", "type", "param", "code"}
    if "x-weighbridge-call-id" in reply.headers:  # else the gateway saw the fault first
        record = stage.record(reply.call_id)
        assert (record["outcome"], record["cost_pusd"], record["usage"]["source"]) == (
            "refused",
            0,
            "unknown",
        )
        said = theirs["error"]["message"] if "error" in theirs else theirs["detail"]
        assert said in shown["error"]["message"]


def test_headers_of_anthropics_clients(stage: Stage) -> None:
    _, path, body = load("apis/messages")
    stage.b1.default = raw_response("apis/messages")
    stage.b1.asked.clear()
    sent = {
        "anthropic_version": "2023-06-01",
        "anthropic_beta": "x-1",
        "x_api_key": stage.gateway.keys["acme"],
    }
    reply = stage.post(body, path=path, **{name.replace("_", "-"): value for name, value in sent.items()})
    assert reply.status == 200
    (asked,) = stage.b1.asked
    assert (asked.headers["anthropic-version"], asked.headers["anthropic-beta"]) == ("2023-06-01", "x-1")
    assert "x-api-key" not in asked.headers
    assert "authorization" not in asked.headers
    stage.b1.asked.clear()
    stage.b1.default = raw_response("chat")
    assert stage.post(load("chat")[2], **{"anthropic-version": "2023-06-01"}).status == 200
    assert "anthropic-version" not in stage.b1.asked[0].headers


def test_another_key_beside_the_first_is_refused_in_anthropics_words(stage: Stage) -> None:
    reply = stage.post(load("apis/messages")[2], path="/v1/messages", **{"x-api-key": "wb-other"})
    assert reply.status == 401
    assert json.loads(reply.body)["error"]["type"] == "authentication_error"


def test_the_tokenizer_needs_no_seat_and_costs_nothing(stage: Stage) -> None:
    async def stall_but_tokenize(
        asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if asked.path == "/tokenize":
            writer.write(raw_response("apis/tokenize"))
        else:
            await reader.read()  # until the client leaves

    stage.b1.default = stall_but_tokenize
    with contextlib.ExitStack() as stack:
        for _ in range(SLOTS):
            stack.enter_context(stage.open(RS))
        eventually(lambda: stage.in_flight("b1") == SLOTS)
        reply = stage.post(load("apis/tokenize")[2], path="/tokenize")
        assert reply.status == 200
        assert stage.in_flight("b1") == SLOTS
    record = stage.record(reply.call_id)
    assert (record["cost_pusd"], record["slot_ns"], record["unpriced_reason"]) == (0, 0, None)
    assert record["usage"]["other"] == {"tokenized_tokens": 4}
    eventually(lambda: stage.in_flight("b1") == 0)


def test_the_description_of_the_api_needs_a_key(stage: Stage) -> None:
    status, body = stage.gateway.get("/openapi.json")
    assert (status, json.loads(body)["error"]["code"]) == (401, "invalid_api_key")
    status, body = stage.gateway.get("/openapi.json", stage.gateway.keys["acme"])
    assert status == 200
    assert json.loads(body)["paths"].keys() > PATHS
