"""Errors a client can see, and the shapes that APIs give them. One table, one renderer. Pure."""

import enum
import http

import msgspec

from backends import dialects
from backends.errors import BackendError, BackendRejected, BackendTimeout, BackendUnavailable

CODE_CHARACTERS_MAX = 64
"""A backend's own code stands in the record, which is bounded."""


class Shape(enum.Enum):
    """How an API words its errors."""

    OPENAI = "openai"  # {"error": {"message", "type", "param", "code"}}
    RESPONSES = (
        "responses"  # the same; in a stream an event of the type `error`, the four fields beside it too
    )
    ANTHROPIC = "anthropic"  # {"type": "error", "error": {"type", "message"}}


def shown(text: str) -> str:
    """A client's text for a message to that client: bounded."""
    return repr(text if len(text) <= 100 else text[:100] + "…")


def shown_bytes(value: bytes) -> str:
    """The same of a header's value."""
    return shown(value.decode("latin-1"))


class GatewayError(Exception):
    """Base of all errors shown to clients; subclasses fill in the table.

    message: fit for a client: no host, no port, no key. param: the request's field at fault. limit: the tenant's limit
    that refused it, as a `refused` line names it.
    """

    status: int = http.HTTPStatus.INTERNAL_SERVER_ERROR
    type = "server_error"
    code: str | None = None
    limit: str | None = None

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def retry_headers(self) -> list[tuple[bytes, bytes]]:
        """What tells a client when to try again, and whether to."""
        if self.retry_after_s is None:
            return []
        return [(b"retry-after", b"%d" % self.retry_after_s)]


class InvalidRequest(GatewayError):
    """The request itself is at fault; sending it again will not help."""

    status, type = http.HTTPStatus.BAD_REQUEST, "invalid_request_error"


class ContextTooLong(InvalidRequest):
    """Prompt and max_tokens do not fit any backend's compiled length.

    The message has the code too: langchain-openai looks for it there, and the OpenAI SDK's text of an error has
    nothing but the message.
    """

    code = "context_length_exceeded"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(f"{message} ({self.code})", param=param)


class BodyTooLarge(InvalidRequest):
    """The body is above the bound."""

    status = http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class HeadTooLarge(InvalidRequest):
    """The request's head is above the bound."""

    status = http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE


class TooSlow(InvalidRequest):
    """The request came too slowly."""

    status = http.HTTPStatus.REQUEST_TIMEOUT


class WrongMediaType(InvalidRequest):
    """Not JSON, or in an encoding we do not read."""

    status = http.HTTPStatus.UNSUPPORTED_MEDIA_TYPE


class EncodingUnknown(WrongMediaType):
    """A body in an encoding that is not read here."""


class UnknownKey(GatewayError):
    """No key, or one we do not know."""

    status, type = http.HTTPStatus.UNAUTHORIZED, "invalid_request_error"
    code = "invalid_api_key"


class KeyBarred(UnknownKey):
    """A key that was good once, or will be again."""


class DirectoryStale(GatewayError):
    """A key of the directory, which could not be compared with the other gateways' for too long."""

    status, code = http.HTTPStatus.SERVICE_UNAVAILABLE, "directory_stale"


class ScopeMissing(GatewayError):
    """A known key without the scope that this path needs."""

    status, type = http.HTTPStatus.FORBIDDEN, "invalid_request_error"


class OutOfBounds(ScopeMissing):
    """A known key, used from where or for what it may not be used."""


class HostNotAllowed(GatewayError):
    """A request to an address of this machine by a name that is none of its: a page's, by DNS rebinding."""

    status, type = http.HTTPStatus.MISDIRECTED_REQUEST, "invalid_request_error"


class OriginNotAllowed(GatewayError):
    """A page of an origin that the configuration does not name."""

    status, type = http.HTTPStatus.FORBIDDEN, "invalid_request_error"


class NotFound(GatewayError):
    """No such path."""

    status, type = http.HTTPStatus.NOT_FOUND, "invalid_request_error"


class ModelNotFound(NotFound):
    """No model of this name is served here."""

    code = "model_not_found"


class ResponseNotFound(NotFound):
    """No response of this id, or another tenant's: both are told the same, in vLLM's words."""

    def __init__(self, response_id: str, *, param: str) -> None:
        super().__init__(f"Response with id {shown(response_id)} not found.", param=param)


class MethodNotAllowed(GatewayError):
    """The path exists, the method does not."""

    status, type = http.HTTPStatus.METHOD_NOT_ALLOWED, "invalid_request_error"


class Conflict(GatewayError):
    """What is asked for is not possible with what there is."""

    status, type = http.HTTPStatus.CONFLICT, "invalid_request_error"


class VersionDiffers(GatewayError):
    """Somebody has changed it since the version that the request is about."""

    status, type = http.HTTPStatus.PRECONDITION_FAILED, "invalid_request_error"


class NoBackend(GatewayError):
    """Nobody able, or no room in time."""

    status, code = http.HTTPStatus.SERVICE_UNAVAILABLE, "no_backend"


class BackendsBusy(NoBackend):
    """Everybody able said 429: too many calls, theirs to bound; it is no limit of the gateway's."""

    status = http.HTTPStatus.TOO_MANY_REQUESTS


class QueueFull(NoBackend):
    """As many calls of the model wait as may; this one would wait in vain."""


class NoTurn(NoBackend):
    """As fast as the line moves, this call's turn would come after its time in it."""


class Overloaded(GatewayError):
    """The gateway itself is late with everything; what it has begun goes first."""

    status, code = http.HTTPStatus.SERVICE_UNAVAILABLE, "overloaded"


class ShuttingDown(GatewayError):
    """The gateway stops and cannot wait for the answer's end."""

    status, code = http.HTTPStatus.SERVICE_UNAVAILABLE, "shutdown"


class Fault(GatewayError):
    """A mistake of ours; the log has the cause."""

    code = "internal_error"


class JournalFull(GatewayError):
    """The call could not be recorded, so it is not admitted."""

    status, code = http.HTTPStatus.SERVICE_UNAVAILABLE, "journal_full"


class GatewayUnreachable(GatewayError):
    """Another gateway may have it, and could not be asked."""

    status, code = http.HTTPStatus.SERVICE_UNAVAILABLE, "gateway_unreachable"


class ArchiveUnreadable(GatewayError):
    """Closed hours or prices could not be read where they are kept."""

    status, code = http.HTTPStatus.SERVICE_UNAVAILABLE, "archive_unreadable"


class RateLimited(GatewayError):
    """A limit of the tenant's own has no room: requests or tokens a minute, or calls at once.

    limit: its name. wait_ms: when there may be room; None: nobody knows, or never. `type` is `requests` or `tokens`, as
    OpenAI has it. The SDKs of OpenAI and Anthropic read all three of the headers, `x-should-retry` first: without it
    they would try again what has no room for hours.
    """

    status, type = http.HTTPStatus.TOO_MANY_REQUESTS, "requests"
    code = "rate_limit_exceeded"
    again = True

    def __init__(
        self, message: str, *, limit: str | None = None, wait_ms: int | None = None, of: str | None = None
    ) -> None:
        super().__init__(message, retry_after_s=None if wait_ms is None else max(1, -(-wait_ms // 1000)))
        self.limit = limit
        self.wait_ms = wait_ms
        self.type = of or self.type

    @property
    def retry_headers(self) -> list[tuple[bytes, bytes]]:
        """The wait in seconds and in milliseconds, and whether it is worth it."""
        again = self.again and self.wait_ms is not None
        headers = [*super().retry_headers, (b"x-should-retry", b"true" if again else b"false")]
        if self.wait_ms is not None:
            headers.append((b"retry-after-ms", b"%d" % self.wait_ms))
        return headers


class TooManyAttempts(RateLimited):
    """Too many keys that are not known came from one address."""


class OutOfBudget(RateLimited):
    """The money of a budget's window is spent, or held by calls under way."""

    type = code = "insufficient_quota"
    again = False


class LimitsUnavailable(GatewayError):
    """Whether there is room cannot be known: the store that counts is away, and the tenant's policy is `closed`."""

    status, code = http.HTTPStatus.SERVICE_UNAVAILABLE, "limits_unavailable"


class BackendBroke(GatewayError):
    """The last attempt failed."""

    status, code = http.HTTPStatus.BAD_GATEWAY, "backend_failed"


class TimedOut(GatewayError):
    """A deadline passed."""

    status, code = http.HTTPStatus.GATEWAY_TIMEOUT, "timeout"


def from_backend(error: BackendError) -> GatewayError:
    """The last failed attempt in words fit for a client: no hosts, no ports."""
    assert not isinstance(error, BackendRejected)  # a 4xx is rendered from its own answer
    if isinstance(error, BackendTimeout):
        return TimedOut("the model did not answer in time")
    if isinstance(error, BackendUnavailable):
        return NoBackend("no server of this model can take the call now; try again", retry_after_s=1)
    return BackendBroke("the model's server failed; try again")


def rejected(status: int, body: bytes, shape: Shape = Shape.OPENAI) -> tuple[bytes, str | None]:
    """A backend's own 4xx for the client, and its code for the record.

    It passes as it came if it is an error object of this API; a «context length» gets its code, others become ours.
    """
    found = dialects.error_of(body)
    if dialects.is_context_length(status, body):
        # In Anthropic's words, which have no code: by them its clients know that they should shorten the prompt.
        words = "prompt is too long: " if shape is Shape.ANTHROPIC else ""
        error = ContextTooLong(words + found.message, param=found.param)
        return error_body(error, shape), error.code
    code = found.code and found.code[:CODE_CHARACTERS_MAX]
    if shape is Shape.ANTHROPIC:
        type_ = found.type if found.type in set(_ANTHROPIC_TYPES.values()) else None
        return _anthropic_body(type_ or anthropic_type(status), found.message), code
    if found.openai:
        return body, code
    return error_body(InvalidRequest(found.message, param=found.param), shape), None


def rejection(status: int, body: bytes) -> GatewayError:
    """The same as an error of ours, for a stream whose head is long sent."""
    found = dialects.error_of(body)
    if dialects.is_context_length(status, body):
        return ContextTooLong(found.message, param=found.param)
    error: GatewayError = InvalidRequest(found.message, param=found.param)
    error.status = status
    error.type = found.type or error.type
    error.code = found.code and found.code[:CODE_CHARACTERS_MAX]
    return error


def error_body(error: GatewayError, shape: Shape = Shape.OPENAI) -> bytes:
    """An error as JSON, in its shape. OpenAI's `message`, `type`, `param`, `code` are all four always there."""
    if shape is Shape.ANTHROPIC:
        return _anthropic_body(anthropic_type(error.status), error.message)
    return msgspec.json.encode({"error": _fields(error)})


def error_event(error: GatewayError, shape: Shape = Shape.OPENAI, *, sequence: int = 0) -> bytes:
    """The same as an SSE event, for a stream whose head is long sent. sequence: its number, where they have one."""
    match shape:
        case Shape.ANTHROPIC:
            return b"event: error\ndata: " + error_body(error, shape) + b"\n\n"
        case Shape.RESPONSES:  # their clients look for `error`, their schema has the fields at the top
            fields = {"message": error.message, "param": error.param, "code": error.code}
            more = {"sequence_number": sequence, "error": _fields(error)}
            body = msgspec.json.encode({"type": "error", **fields, **more})
            return b"event: error\ndata: " + body + b"\n\n"
    return b"data: " + error_body(error) + b"\n\n"


def _fields(error: GatewayError) -> dict[str, str | None]:
    return {"message": error.message, "type": error.type, "param": error.param, "code": error.code}


# -- Anthropic's

_ANTHROPIC_TYPES: dict[int, str] = {
    http.HTTPStatus.BAD_REQUEST: "invalid_request_error",
    http.HTTPStatus.UNAUTHORIZED: "authentication_error",
    http.HTTPStatus.FORBIDDEN: "permission_error",
    http.HTTPStatus.NOT_FOUND: "not_found_error",
    http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    http.HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    http.HTTPStatus.INTERNAL_SERVER_ERROR: "api_error",
    http.HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
    http.HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}
"""By status; source: Anthropic's API reference, «Errors»."""


def anthropic_type(status: int) -> str:
    """What Anthropic's API calls an error of this status."""
    return _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")


def _anthropic_body(type_: str, message: str) -> bytes:
    return msgspec.json.encode({"type": "error", "error": {"type": type_, "message": message}})
