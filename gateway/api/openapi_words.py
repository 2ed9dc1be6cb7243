"""What /openapi.json says to people: of each operation, of the errors, of the headers. Pure."""

from typing import Any, NamedTuple

from gateway.admission import ratelimit_headers
from gateway.api import errors
from gateway.api.errors import Shape

Json = dict[str, Any]


class Words(NamedTuple):
    """The name of an operation for a list of them, and what there is to know of it."""

    summary: str
    description: str


_USAGE = "The usage of a stream is in it if `stream_options.include_usage` asks for it."
_FORM = (
    "The body is a form; the answer comes whole or with `stream` as events that end with `[DONE]`, and have the usage "
    "if `stream_include_usage` asks for it."
)
_WHOLE = "It is answered whole, and metered by the usage that the server reports."

OPERATION_WORDS = {
    "chat": Words(
        "Answer a conversation",
        f"OpenAI's chat completions, whole or with `stream` as events that end with `[DONE]`. {_USAGE}",
    ),
    "completions": Words(
        "Continue a text",
        f"OpenAI's completions, whole or with `stream` as events that end with `[DONE]`. {_USAGE}",
    ),
    "responses": Words(
        "Create a response",
        "OpenAI's responses, whole or with `stream` as named events, of which the last carries the response and its "
        "usage.",
    ),
    "responses.retrieve": Words(
        "Show a response again", "One that the model's server keeps, and that this tenant created."
    ),
    "responses.cancel": Words(
        "Cancel a response",
        "One that the model's server keeps, and that this tenant created; the server says whether it still can be.",
    ),
    "messages": Words(
        "Answer a conversation, in Anthropic's form",
        "Anthropic's messages, whole or with `stream` as named events that end with `message_stop`; errors are in "
        "Anthropic's form too.",
    ),
    "count_tokens": Words(
        "Count the tokens of a conversation, in Anthropic's form",
        "Nothing is generated, so it costs nothing; errors are in Anthropic's form.",
    ),
    "transcriptions": Words("Write down speech", f"OpenAI's transcriptions of an audio file. {_FORM}"),
    "translations": Words("Write down speech in English", f"OpenAI's translations of an audio file. {_FORM}"),
    "embeddings": Words(
        "Embed texts", f"OpenAI's embeddings, in any `encoding_format` of the server. {_WHOLE}"
    ),
    "pooling": Words("Pool texts", f"vLLM's pooling, in any `encoding_format` of the server. {_WHOLE}"),
    "classify": Words("Classify texts", f"vLLM's classification: a label and its probabilities. {_WHOLE}"),
    "score": Words("Score pairs of texts", f"vLLM's scores: how near each text is to another one. {_WHOLE}"),
    "rerank": Words("Rank documents by a query", f"The form of Jina and Cohere, as vLLM serves it. {_WHOLE}"),
    "tokenize": Words(
        "Turn a text into tokens", "The model's own tokenizer; nothing is generated, nothing is charged."
    ),
    "detokenize": Words(
        "Turn tokens into a text", "The model's own tokenizer; nothing is generated, nothing is charged."
    ),
}
"""By the name of the operation."""

_HEADERS = {
    "x-request-id": "The request's id: the client's own if that is 1 to 128 of `A-Z a-z 0-9 . _ -`, else a new one.",
    "request-id": "The same as `x-request-id`, where Anthropic's clients look for it.",
    "x-weighbridge-call-id": "The call's record in the journal; absent if it was refused before its admission.",
    "x-weighbridge-served-by": "The instance family of the server, as in `inf2`, or `unknown`.",
    "x-weighbridge-fallback": "Why it was another server than the first: a failure, or a state.",
    "x-weighbridge-spill": "`full`: the first tier had no free slot in time.",
    "x-weighbridge-ignored": "Parameters asked for that the serving hardware is documented not to apply.",
    "x-ratelimit-limit-requests": "Requests a minute, of the tightest limit that the key has; absent if it has none.",
    "x-ratelimit-remaining-requests": "How many of them are left now.",
    "x-ratelimit-reset-requests": "When all of them will be, as in `1s` or `6m0s`.",
    "x-ratelimit-limit-tokens": "Tokens a minute, likewise.",
    "x-ratelimit-remaining-tokens": "How many of them are left now.",
    "x-ratelimit-reset-tokens": "When all of them will be.",
    "retry-after": "When another try may help, in seconds.",
    "retry-after-ms": "The same in milliseconds, of a limit of the tenant's own.",
    "x-should-retry": "`false`: no try will help before a budget's window is over. OpenAI's SDKs obey it.",
    "www-authenticate": "`Bearer`.",
    "accept-encoding": "`gzip`, if the body came in another encoding.",
}
_OF_A_CALL = ("x-request-id", "x-weighbridge-call-id")
_OF_LIMITS = ratelimit_headers.NAMES
_OF_A_SERVER = (
    "x-weighbridge-served-by",
    "x-weighbridge-fallback",
    "x-weighbridge-spill",
    "x-weighbridge-ignored",
)


class _Failure(NamedTuple):
    """What a status means; the codes that OpenAI's form may carry with it; the headers that only it has."""

    words: str
    codes: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()


_RETRY = ("retry-after",)
_FAILURES = {
    400: _Failure("The request is at fault, and the message says how.", ("context_length_exceeded",)),
    401: _Failure("There is no key, or one that is not known.", ("invalid_api_key",), ("www-authenticate",)),
    403: _Failure("The key lacks the scope that this path needs, or may not be used for it, or from here."),
    404: _Failure(
        "No model of this name is served here, or no response of this id is kept.", ("model_not_found",)
    ),
    408: _Failure("The body came too slowly."),
    413: _Failure("The body is larger than the gateway takes."),
    415: _Failure(
        "The body is not what this path takes; the message names what came.", (), ("accept-encoding",)
    ),
    429: _Failure(
        "A limit of the tenant's own has no room, or all servers of the model are busy.",
        ("rate_limit_exceeded", "insufficient_quota", "no_backend"),
        (*_RETRY, "retry-after-ms", "x-should-retry", *_OF_LIMITS),
    ),
    500: _Failure("A mistake of the gateway's; its log has it under the id.", ("internal_error",)),
    502: _Failure("The last server that was tried has failed.", ("backend_failed",)),
    503: _Failure(
        "No server is able or free, or the gateway cannot take the call.",
        ("no_backend", "overloaded", "journal_full", "limits_unavailable", "directory_stale", "shutdown"),
        _RETRY,
    ),
    504: _Failure("No server answered in time.", ("timeout",)),
}
_OF_A_BODY = ("408", "413", "415")
_ELSE = "4XX"
_SCHEMAS = {Shape.OPENAI: "Error", Shape.RESPONSES: "Error", Shape.ANTHROPIC: "AnthropicError"}


def header_components() -> Json:
    """For `components.headers`."""
    return {name: {"description": words, "schema": {"type": "string"}} for name, words in _HEADERS.items()}


def response_components() -> Json:
    """For `components.responses`: each failure in each form of errors."""
    return {
        f"{_SCHEMAS[shape]}{status}": answer
        for shape in (Shape.OPENAI, Shape.ANTHROPIC)
        for status, answer in _failures(shape).items()
    }


def failures(shape: Shape) -> Json:
    """The failures of an operation by status, as references to the components."""
    return {
        status: {"$ref": f"#/components/responses/{_SCHEMAS[shape]}{status}"}
        for status in (*map(str, _FAILURES), _ELSE)
    }


def failures_without_body(shape: Shape) -> Json:
    """Those of an operation whose requests have no body."""
    return {status: failure for status, failure in failures(shape).items() if status not in _OF_A_BODY}


def served_headers(shape: Shape) -> Json:
    """The headers of a server's answer."""
    return _headers(shape, *_OF_A_CALL, *_OF_A_SERVER, *_OF_LIMITS)


def refusals() -> Json:
    """The failures of a page that needs a key."""
    known = failures(Shape.OPENAI)
    return {status: known[status] for status in ("401", "403", _ELSE)}


def _failures(shape: Shape) -> Json:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{_SCHEMAS[shape]}"}}}
    found: Json = {
        str(status): {
            "description": f"{failure.words} {_named(shape, status, failure.codes)}".rstrip(),
            "headers": _headers(shape, *_OF_A_CALL, *failure.headers),
            "content": content,
        }
        for status, failure in _FAILURES.items()
    }
    own = "Refused for another reason: by the server, with its own message, or for its method or its head."
    return found | {_ELSE: {"description": own, "headers": served_headers(shape), "content": content}}


def _named(shape: Shape, status: int, codes: tuple[str, ...]) -> str:
    """How the error's body names the failure."""
    if shape is Shape.ANTHROPIC:
        return f"Type: `{errors.anthropic_type(status)}`."
    return f"Code: {', '.join(f'`{code}`' for code in codes)}." if codes else ""


def _headers(shape: Shape, *names: str) -> Json:
    also = ("request-id",) if shape is Shape.ANTHROPIC else ()
    return {name: {"$ref": f"#/components/headers/{name}"} for name in (*names, *also)}
