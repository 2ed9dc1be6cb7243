"""Answers through the gateway are what OpenAI's schemas say, but for a named list of what vLLM does otherwise.

Recorded answers of the real vLLM (tests/data/vllm-0.32.0) pass through the gateway; what arrives is judged by
OpenAI's own schemas (tests/data/openai). Answers that are the gateway's own have no exceptions.
"""

import dataclasses
import json
import pathlib
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
VECTORS, RESPONSE, EVENT = "CreateEmbeddingResponse", "Response", "ResponseStreamEvent"


@dataclasses.dataclass(frozen=True)
class Schemas:
    """Names of the schemas of a path: of a sized answer, and of an event of a stream. done: `[DONE]` ends it."""

    answer: str
    event: str | None = None
    done: bool = True


PATHS = {
    "/v1/chat/completions": Schemas(CHAT, CHUNK),
    "/v1/completions": Schemas(TEXT, TEXT),
    "/v1/embeddings": Schemas(VECTORS),
    "/v1/responses": Schemas(RESPONSE, EVENT, done=False),
}
NOT_OPENAI = {
    "/v1/messages": "Anthropic's",
    "/v1/messages/count_tokens": "Anthropic's",
    "/v1/rerank": "Jina's", "/v2/rerank": "Cohere's", "/rerank": "vLLM's own",
    "/v1/score": "vLLM's own", "/score": "vLLM's own",
    "/pooling": "vLLM's own", "/classify": "vLLM's own",
    "/tokenize": "vLLM's own", "/detokenize": "vLLM's own",
    "/v1/no-such-path": "none", "/v1/responses/resp_0": "not served",
    "/v1/models": "answered by the gateway itself", "/version": "as well", "/health": "as well", "/ping": "as well",
}  # fmt: skip
"""Recorded paths of whose answers OpenAI says nothing, or that are not relayed."""
NOT_JSON = {"pooling/embeddings_bytes": "vectors as bare bytes, an encoding of vLLM's own"}

NULL_DETAILS = "vLLM writes null for details that it does not count, OpenAI leaves them out"
NULL_UNUSED = "vLLM writes null for parts of a message that it does not have, OpenAI leaves them out"
NO_REFUSAL = "vLLM has no logprobs of refusals: its models do not tell a refusal from text"
NULL_LOGPROBS = "vLLM writes null where no logprobs were asked for, OpenAI an empty list"
NULL_TOOL = "vLLM writes null for what a tool or its call does not have, OpenAI leaves it out"
NULL_ECHO = "vLLM repeats what was not asked for as null, OpenAI fills in the default or leaves it out"
NO_ERROR = "vLLM leaves out the error of a response that has none, OpenAI writes null"
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
    Violation(VECTORS, "data[].embedding", "string"): (
        "the schema knows vectors as numbers only; OpenAI itself sends a string to who asks for base64"
    ),
    Violation(RESPONSE, "error", "missing"): NO_ERROR,
    Violation(RESPONSE, "output[].content[].logprobs", "null"): NULL_LOGPROBS,
    Violation(RESPONSE, "output[].namespace", "null"): NULL_TOOL,
    Violation(RESPONSE, "text", "null"): NULL_ECHO,
    Violation(RESPONSE, "text.format.description", "null"): NULL_ECHO,
    Violation(RESPONSE, "tools[].defer_loading", "null"): NULL_TOOL,
    Violation(RESPONSE, "user", "null"): NULL_ECHO,
    Violation(EVENT, "item.content[].logprobs", "null"): NULL_LOGPROBS,
    Violation(EVENT, "item.namespace", "null"): NULL_TOOL,
    Violation(EVENT, "part.logprobs", "null"): NULL_LOGPROBS,
    Violation(EVENT, "response.error", "missing"): NO_ERROR,
    Violation(EVENT, "response.output[].content[].logprobs", "null"): NULL_LOGPROBS,
    Violation(EVENT, "response.output[].namespace", "null"): NULL_TOOL,
    Violation(EVENT, "response.text", "null"): NULL_ECHO,
    Violation(EVENT, "response.tools[].defer_loading", "null"): NULL_TOOL,
    Violation(
        EVENT, "response.usage", "null"
    ): "vLLM writes null before usage is known, OpenAI leaves it out",
    Violation(EVENT, "response.user", "null"): NULL_ECHO,
    Violation(
        ERROR, "error.code", "integer"
    ): "vLLM repeats the status as a number; its 4xx pass as they came",
}
"""What vLLM does otherwise, field by field, each with its reason. One that is not needed any more fails."""


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A recorded exchange: its name (with the directory, below the first one), and its entry of the index."""

    name: str
    directory: pathlib.Path
    entry: dict

    @property
    def exchange(self) -> captures.Exchange:
        return captures.load(self.name.rpartition("/")[2], self.directory)

    @property
    def answer(self) -> bytes:
        return (self.directory / f"{self.name.rpartition('/')[2]}.response.http").read_bytes()


def recorded() -> list[Recorded]:
    """All recorded exchanges."""
    return [
        Recorded(prefix + name, directory, entry)
        for prefix, directory in captures.SUITES.items()
        for name, entry in captures.index(directory).items()
    ]


def relayed_ones() -> list[Recorded]:
    """Those that go through the gateway and are judged."""
    return [
        one for one in recorded()
        if one.entry["method"] == "POST" and one.entry["path"] in PATHS and one.name not in NOT_JSON
    ]  # fmt: skip


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
    for one in relayed_ones():
        relayed.backend.script[:] = [one.answer]
        answer = relayed.gateway.post(one.entry["path"], one.exchange.request_body)
        body = answer.read()
        assert answer.status == one.entry["status"], (one.name, body)
        found[one.name] = judge(PATHS[one.entry["path"]], answer.status, body, stream=one.entry["stream"])
    relayed.backend.script.clear()
    return Judged(found)


def judge(schemas: Schemas, status: int, body: bytes, *, stream: bool) -> set[Violation]:
    """Violations of an answer, of a stream those of all its events."""
    if status != 200:
        return violations(ERROR, json.loads(body))
    if not stream:
        return violations(schemas.answer, json.loads(body))
    events = captures.events(body)
    if schemas.done:
        assert events.pop() == b"[DONE]"
    assert schemas.event is not None
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
    """Sized and streamed, of all paths, and errors: none fell out of the loop unseen."""
    kinds = {(one.entry["path"], one.entry["stream"], one.entry["status"]) for one in relayed_ones()}
    assert kinds >= {(path, False, 200) for path in PATHS}
    assert kinds >= {(path, True, 200) for path, schemas in PATHS.items() if schemas.event is not None}
    assert kinds >= {(path, False, 400) for path in PATHS} | {(path, False, 404) for path in PATHS}
    assert judged.by_capture.keys() == {one.name for one in relayed_ones()}


def test_each_recorded_path_is_judged_or_has_a_reason() -> None:
    assert {one.entry["path"] for one in recorded()} == PATHS.keys() | NOT_OPENAI.keys()
    assert NOT_JSON.keys() <= {one.name for one in recorded()}


ASK = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
REFUSED = {
    "no body": (b"", {}, 400),
    "not an object": ([], {}, 400),
    "no model": ({"messages": []}, {}, 400),
    "unknown model": (ASK | {"model": "nope"}, {}, 404),
    "wrong key": (ASK, {"authorization": "Bearer wb-nope"}, 401),
    "not json": (ASK, {"content-type": "text/plain"}, 415),
    "a model that is no name": (ASK | {"model": 7}, {}, 400),
}
LENGTHS = {
    "/v1/chat/completions": "max_completion_tokens",
    "/v1/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_errors_as_the_schema_says(relayed: Relayed, case: str, path: str) -> None:
    body, headers, status = REFUSED[case]
    answer = relayed.gateway.post(path, body, **headers)
    assert answer.status == status
    assert violations(ERROR, json.loads(answer.read())) == set()


@pytest.mark.parametrize("path", LENGTHS)
def test_too_many_tokens_are_an_error_that_names_the_field(relayed: Relayed, path: str) -> None:
    answer = relayed.gateway.post(path, {"model": MODEL, LENGTHS[path]: 5000})
    body = json.loads(answer.read())
    assert (answer.status, body["error"]["param"]) == (400, LENGTHS[path])
    assert violations(ERROR, body) == set()


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


def test_an_error_in_a_stream_of_a_response_is_an_event_of_it(relayed: Relayed) -> None:
    """And it is what clients look for: they know an error by its field `error`."""
    recorded_events = captures.streams(captures.VLLM_APIS)["responses_stream"].split(b"\n\n")[:6]
    whole = chunked(*(event + b"\n\n" for event in recorded_events))
    relayed.backend.script[:] = [whole.removesuffix(b"0\r\n\r\n") + b"garbage\r\n"]
    answer = relayed.gateway.post("/v1/responses", {"model": MODEL, "input": "hi", "stream": True})
    *_, last = captures.events(answer.read())
    error = json.loads(last)
    assert violations(EVENT, error) == set()
    assert violations(ERROR, {"error": error["error"]}) == set()


def test_models_are_as_the_schema_says(relayed: Relayed) -> None:
    key = relayed.gateway.keys["acme"]
    _, listed = relayed.gateway.get("/v1/models", key)
    assert violations("ListModelsResponse", json.loads(listed)) == set()
    _, one = relayed.gateway.get(f"/v1/models/{MODEL}", key)
    assert violations("Model", json.loads(one)) == set()
