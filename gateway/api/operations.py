"""What may be asked of a model: the paths of the API that a model serves, and how they differ. Pure.

The paths are those of vLLM's server, 0.32: what is OpenAI's stands under /v1, the tokenizer, pooling and classify at
the root only, and scores and rankings wherever one of their inventors put them. Whatever is not named here of a
request passes untouched.
"""

from collections.abc import Iterable

import msgspec

from backends.answers import Answer
from gateway.api.errors import Shape

INCLUDE_USAGE_FIELD = "stream_include_usage"
"""What `stream_options.include_usage` is called in a form."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One path of the API that is served by a model, and the few fields of its requests that are acted on.

    name: as records and metrics call it. answer: how its answers are read. streams: `stream` asks for a stream.
    keeps: an answer may be kept by the server that made it, to be asked for, or continued, later. form: its
    bodies are forms (multipart/form-data), not JSON. usage_option: a stream tells its usage only if
    `stream_options.include_usage`, of a form `stream_include_usage`, asks for it. choices: `n` says how many
    answers there are. lengths: what bounds the answer, in tokens; the first that is given wins. salted:
    `cache_salt` keeps its prompt apart from equal ones of others (vLLM from 0.9 on). errors: how its errors are
    worded. headers: names of the client's that go on to the backend. id_header: the name by which this API's
    clients look for the id of a request, besides `x-request-id`. acted_on: the keys of all these, which may stand
    once only (derived).
    """

    name: str
    path: str
    answer: Answer
    method: str = "POST"
    streams: bool = False
    form: bool = False
    keeps: bool = False
    usage_option: bool = False
    choices: bool = False
    lengths: tuple[str, ...] = ()
    salted: bool = False
    errors: Shape = Shape.OPENAI
    headers: tuple[bytes, ...] = ()
    id_header: bytes | None = None
    acted_on: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        usage = INCLUDE_USAGE_FIELD if self.form else "stream_options"
        used = {
            "stream": self.streams, usage: self.usage_option, "n": self.choices, "cache_salt": self.salted,
        }  # fmt: skip
        names = {"model", *self.lengths, *(name for name, is_used in used.items() if is_used)}
        if self.keeps:
            names |= {"background", "previous_response_id", "request_id", "store"}
        msgspec.structs.force_setattr(self, "acted_on", frozenset(names))


_ANTHROPIC = (b"anthropic-version", b"anthropic-beta")
_ANTHROPIC_ID = b"request-id"  # source: Anthropic's API reference, «Request IDs»; its SDKs' `_request_id`


def _operations() -> Iterable[Operation]:
    yield Operation(
        name="chat",
        path="/v1/chat/completions",
        answer=Answer.CHAT,
        streams=True,
        usage_option=True,
        choices=True,
        lengths=("max_completion_tokens", "max_tokens"),
        salted=True,
    )
    yield Operation(
        name="completions",
        path="/v1/completions",
        answer=Answer.COMPLETIONS,
        streams=True,
        usage_option=True,
        choices=True,
        lengths=("max_tokens",),
        salted=True,
    )
    yield Operation(
        name="responses",
        path="/v1/responses",
        answer=Answer.RESPONSES,
        streams=True,
        keeps=True,
        lengths=("max_output_tokens",),
        salted=True,
        errors=Shape.RESPONSES,
    )
    yield Operation(
        name="messages",
        path="/v1/messages",
        answer=Answer.MESSAGES,
        streams=True,
        lengths=("max_tokens",),
        salted=True,
        errors=Shape.ANTHROPIC,
        headers=_ANTHROPIC,
        id_header=_ANTHROPIC_ID,
    )
    yield Operation(
        name="count_tokens",
        path="/v1/messages/count_tokens",
        answer=Answer.TOKEN_COUNT,
        errors=Shape.ANTHROPIC,
        headers=_ANTHROPIC,
        id_header=_ANTHROPIC_ID,
    )
    for name in ("transcriptions", "translations"):
        yield Operation(
            name=name,
            path=f"/v1/audio/{name}",
            answer=Answer.TRANSCRIPT,
            streams=True,
            form=True,
            usage_option=True,
            lengths=("max_completion_tokens",),
            headers=(b"content-type",),
        )
    yield Operation(name="embeddings", path="/v1/embeddings", answer=Answer.EMBEDDINGS)
    yield Operation(name="tokenize", path="/tokenize", answer=Answer.TOKENS)
    yield Operation(name="detokenize", path="/detokenize", answer=Answer.TEXT)
    for path in ("/v1/score", "/score"):
        yield Operation(name="score", path=path, answer=Answer.SCORE)
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        yield Operation(name="rerank", path=path, answer=Answer.RERANK)
    yield Operation(name="pooling", path="/pooling", answer=Answer.POOLING)
    yield Operation(name="classify", path="/classify", answer=Answer.CLASSIFY)


OPERATIONS = {operation.path: operation for operation in _operations()}
"""By path, the client's and the backend's: those that name a model."""

RETRIEVE = Operation(
    name="responses.retrieve",
    path="/v1/responses/{response_id}",
    method="GET",
    answer=Answer.KEPT,
    errors=Shape.RESPONSES,
)
CANCEL = Operation(
    name="responses.cancel",
    path="/v1/responses/{response_id}/cancel",
    answer=Answer.KEPT,
    errors=Shape.RESPONSES,
)

ALL_OPERATIONS = OPERATIONS | {RETRIEVE.path: RETRIEVE, CANCEL.path: CANCEL}
"""With those whose path holds an id."""
