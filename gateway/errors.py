"""Errors a client can see, and their OpenAI shape. One table, one renderer. Pure."""

import http

import msgspec

from backends import dialects
from backends.errors import BackendError, BackendRejected, BackendTimeout, BackendUnavailable

CODE_CHARACTERS_MAX = 64
"""A backend's own code stands in the record, which is bounded."""


class GatewayError(Exception):
    """Base of all errors shown to clients; subclasses fill in the table.

    message: fit for a client: no host, no port, no key. param: the request's field at fault.
    """

    status: int = http.HTTPStatus.INTERNAL_SERVER_ERROR
    type = "server_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class InvalidRequest(GatewayError):
    """The request itself is at fault; sending it again will not help."""

    status, type = http.HTTPStatus.BAD_REQUEST, "invalid_request_error"


class ContextTooLong(InvalidRequest):
    """Prompt and max_tokens do not fit any backend's compiled length."""

    code = "context_length_exceeded"


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


class UnknownKey(GatewayError):
    """No key, or one we do not know."""

    status, type = http.HTTPStatus.UNAUTHORIZED, "invalid_request_error"
    code = "invalid_api_key"


class ScopeMissing(GatewayError):
    """A known key without the scope that this path needs."""

    status, type = http.HTTPStatus.FORBIDDEN, "invalid_request_error"


class NotFound(GatewayError):
    """No such path."""

    status, type = http.HTTPStatus.NOT_FOUND, "invalid_request_error"


class ModelNotFound(NotFound):
    """No model of this name is served here."""

    code = "model_not_found"


class MethodNotAllowed(GatewayError):
    """The path exists, the method does not."""

    status, type = http.HTTPStatus.METHOD_NOT_ALLOWED, "invalid_request_error"


class NoBackend(GatewayError):
    """Nobody able, or no room in time."""

    status, code = http.HTTPStatus.SERVICE_UNAVAILABLE, "no_backend"


class QueueFull(NoBackend):
    """As many calls of the model wait as may; this one would wait in vain."""


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


def rejected(status: int, body: bytes) -> tuple[bytes, str | None]:
    """A backend's own 4xx for the client, and its code for the record.

    It passes as it came if it is an OpenAI error object; a «context length» gets its code, other shapes become ours.
    """
    shape = dialects.error_of(body)
    if dialects.is_context_length(status, body):
        return error_body(ContextTooLong(shape.message, param=shape.param)), ContextTooLong.code
    if shape.openai:
        return body, shape.code and shape.code[:CODE_CHARACTERS_MAX]
    return error_body(InvalidRequest(shape.message, param=shape.param)), None


def error_body(error: GatewayError) -> bytes:
    """The OpenAI error object as JSON: `message`, `type`, `param`, `code`, all four always there."""
    body = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return msgspec.json.encode({"error": body})


def error_event(error: GatewayError) -> bytes:
    """The same as an SSE event, for a stream whose head is long sent."""
    return b"data: " + error_body(error) + b"\n\n"
