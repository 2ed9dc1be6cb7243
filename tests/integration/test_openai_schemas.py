"""Answers through the gateway are what OpenAI's schemas say, but for a named list of what vLLM does otherwise.

Recorded answers of the real vLLM (tests/data/vllm-0.32.0) pass through the gateway; what arrives is judged by
OpenAI's own schemas (tests/data/openai). Answers that are the gateway's own have no exceptions.
"""

import dataclasses
import json
from collections.abc import Iterator

import pytest

from tests.support import captures
from tests.support.gateway import Gateway, running
from tests.support.openai_schemas import Violation, violations
from tests.support.rawbackend import Scripted, chunked, sized

pytestmark = pytest.mark.integration

MODEL = "smollm2-135m"
ERROR = "ErrorResponse"
CHAT, CHUNK, TEXT = (
    "CreateChatCompletionResponse",
    "CreateChatCompletionStreamResponse",
    "CreateCompletionResponse",
)


@dataclasses.dataclass(frozen=True)
class Schemas:
    """Names of the schemas of a path: of a sized answer, and of an event of a stream."""

    answer: str
    event: str


PATHS = {
    "/v1/chat/completions": Schemas(CHAT, CHUNK),
    "/v1/completions": Schemas(TEXT, TEXT),
}

NULL_DETAILS = "vLLM writes null for details that it does not count, OpenAI leaves them out"
NULL_UNUSED = "vLLM writes null for parts of a message that it does not have, OpenAI leaves them out"
NO_REFUSAL = "vLLM has no logprobs of refusals: its models do not tell a refusal from text"
EXCEPTIONS = {
    Violation(CHAT, "choices[].logprobs.refusal", "missing"): NO_REFUSAL,
    Violation(CHAT, "choices[].message.annotations", "null"): NULL_UNUSED,
    Violation(CHAT, "choices[].message.function_call", "null"): NULL_UNUSED,
    Violation(CHAT, "usage.completion_tokens_details", "null"): NULL_DETAILS,
    Violation(CHUNK, "choices[].logprobs.refusal", "missing"): NO_REFUSAL,
    Violation(CHUNK, "usage.completion_tokens_details", "null"): NULL_DETAILS,
    Violation(TEXT, "choices[].finish_reason", "null"): (
        "the schema is that of a sized answer; before the end of a stream OpenAI itself sends null"
    ),
    Violation(TEXT, "usage.completion_tokens_details", "null"): NULL_DETAILS,
    Violation(
        ERROR, "error.code", "integer"
    ): "vLLM repeats the status as a number; its 4xx pass as they came",
}
"""What vLLM does otherwise, field by field, each with its reason. One that is not needed any more fails."""


class Relayed:
    """The gateway before a backend that sends what is put into its script."""

    def __init__(self, gateway: Gateway, backend: Scripted) -> None:
        self.gateway = gateway
        self.backend = backend


@pytest.fixture(scope="module")
def relayed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relayed]:
    backend = Scripted(sized(b"{}"))
    backends = [
        {"name": "b1", "url": f"http://127.0.0.1:{backend.port}", "model": "m1", "slots": 2,
         "instance_type": "inf2.xlarge"}
    ]  # fmt: skip
    try:
        with running(tmp_path_factory.mktemp("schemas"), backends, model=MODEL) as gateway:
            yield Relayed(gateway, backend)
    finally:
        backend.stop()


@dataclasses.dataclass(frozen=True)
class Judged:
    """What was found over all recorded exchanges. by_capture: names with their violations."""

    by_capture: dict[str, set[Violation]]

    @property
    def all(self) -> set[Violation]:
        return set().union(*self.by_capture.values())


@pytest.fixture(scope="module")
def judged(relayed: Relayed) -> Judged:
    """Every recorded POST to one of PATHS, sent again, its recorded answer relayed, what arrived judged."""
    found = {}
    for name, entry in captures.index().items():
        if entry["method"] != "POST" or entry["path"] not in PATHS:
            continue
        recorded = captures.load(name)
        relayed.backend.script[:] = [(captures.VLLM / f"{name}.response.http").read_bytes()]
        answer = relayed.gateway.post(entry["path"], recorded.request_body)
        body = answer.read()
        assert answer.status == entry["status"], (name, body)
        found[name] = judge(PATHS[entry["path"]], answer.status, body, stream=entry["stream"])
    relayed.backend.script.clear()
    return Judged(found)


def judge(schemas: Schemas, status: int, body: bytes, *, stream: bool) -> set[Violation]:
    """Violations of an answer, of a stream those of all its events."""
    if status != 200:
        return violations(ERROR, json.loads(body))
    if not stream:
        return violations(schemas.answer, json.loads(body))
    *events, done = captures.events(body)
    assert done == b"[DONE]"
    return set().union(*(violations(schemas.event, json.loads(data)) for data in events))


def test_recorded_answers_are_as_the_schemas_say_or_named_exceptions(judged: Judged) -> None:
    surprises = {
        name: left for name, found in judged.by_capture.items() if (left := sorted(found - EXCEPTIONS.keys()))
    }
    assert surprises == {}


@pytest.mark.parametrize("exception", sorted(EXCEPTIONS), ids=lambda one: f"{one.schema}:{one.field}")
def test_each_exception_is_still_needed(judged: Judged, exception: Violation) -> None:
    assert exception in judged.all


def test_answers_of_every_kind_were_judged(judged: Judged) -> None:
    """Sized and streamed, of both paths, and errors: none fell out of the loop unseen."""
    index = captures.index()
    kinds = {
        (index[name]["path"], index[name]["stream"], index[name]["status"]) for name in judged.by_capture
    }
    assert kinds >= {(path, stream, 200) for path in PATHS for stream in (False, True)}
    assert {status for _, _, status in kinds} >= {400, 404}


ASK = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
REFUSED = {
    "no body": (b"", {}, 400),
    "not an object": ([], {}, 400),
    "no model": ({"messages": []}, {}, 400),
    "unknown model": (ASK | {"model": "nope"}, {}, 404),
    "wrong key": (ASK, {"authorization": "Bearer wb-nope"}, 401),
    "not json": (ASK, {"content-type": "text/plain"}, 415),
    "too many tokens": (ASK | {"max_tokens": 5000}, {}, 400),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_errors_as_the_schema_says(relayed: Relayed, case: str) -> None:
    body, headers, status = REFUSED[case]
    answer = relayed.gateway.post("/v1/chat/completions", body, **headers)
    assert answer.status == status
    assert violations(ERROR, json.loads(answer.read())) == set()


def test_pages_that_are_not_there_are_errors_as_the_schema_says(relayed: Relayed) -> None:
    key = relayed.gateway.keys["acme"]
    for path, status in (("/v1/nope", 404), ("/v1/models/nope", 404), ("/v1/chat/completions", 405)):
        found, body = relayed.gateway.get(path, key)
        assert found == status
        assert violations(ERROR, json.loads(body)) == set()


def test_a_failed_backend_is_an_error_as_the_schema_says(relayed: Relayed) -> None:
    relayed.backend.script[:] = [sized(b"<html>", "500 Internal Server Error", "text/html")] * 3
    answer = relayed.gateway.post("/v1/chat/completions", ASK)
    relayed.backend.script.clear()
    assert answer.status == 502
    assert violations(ERROR, json.loads(answer.read())) == set()


def test_an_error_in_a_stream_is_an_error_as_the_schema_says(relayed: Relayed) -> None:
    first = captures.events(captures.streams()["chat_stream"])[0]
    whole = chunked(b"data: " + first + b"\n\n")
    relayed.backend.script[:] = [whole.removesuffix(b"0\r\n\r\n") + b"garbage\r\n"]
    answer = relayed.gateway.post("/v1/chat/completions", ASK | {"stream": True})
    events = captures.events(answer.read())
    (error,) = (json.loads(data) for data in events if b'"error"' in data)
    assert violations(ERROR, error) == set()


def test_models_are_as_the_schema_says(relayed: Relayed) -> None:
    key = relayed.gateway.keys["acme"]
    _, listed = relayed.gateway.get("/v1/models", key)
    assert violations("ListModelsResponse", json.loads(listed)) == set()
    _, one = relayed.gateway.get(f"/v1/models/{MODEL}", key)
    assert violations("Model", json.loads(one)) == set()
