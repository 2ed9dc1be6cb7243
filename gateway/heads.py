"""What a client gets that is not a backend's: heads, errors, and comments that keep a stream alive. Pure."""

from gateway import errors
from gateway.errors import GatewayError
from gateway.events import Headers, Open
from gateway.tally import Facts, Tally

KEEPALIVE = b": keepalive\n\n"
"""A comment: every parser of event streams skips it (WHATWG HTML §9.2)."""

_JSON = (b"content-type", b"application/json")
_STREAM = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def waiting_head(facts: Facts) -> Open:
    """The head of a stream before it is known who will serve it."""
    return Open(200, (*_STREAM, *_ids(facts)))


def stream_head(facts: Facts, tally: Tally) -> Open:
    """The head of a stream that a backend serves."""
    return Open(200, (*_STREAM, *_ids(facts), *_origin(tally)))


def sized_head(status: int, facts: Facts, tally: Tally, length: int, kind: Headers | None = None) -> Open:
    """The head of a backend's answer of `length` bytes. kind: what describes it, if it is not JSON."""
    return Open(status, (*(kind or (_JSON,)), *_ids(facts), _length(length), *_origin(tally)))


def error(error: GatewayError, facts: Facts) -> tuple[Open, bytes]:
    """An error of ours as an answer: head and body."""
    body = errors.error_body(error, facts.operation.errors)
    headers = [_JSON, *_ids(facts), _length(len(body))]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    return Open(int(error.status), headers), body


def _ids(facts: Facts) -> Headers:
    request_id = facts.request_id.encode()
    ids = ((b"x-request-id", request_id), (b"x-weighbridge-call-id", facts.call_id.encode()))
    name = facts.operation.id_header
    return ids if name is None else (*ids, (name, request_id))


def _length(length: int) -> tuple[bytes, bytes]:
    return b"content-length", b"%d" % length


def _origin(tally: Tally) -> Headers:
    """Who served the call, and why not somebody else."""
    assert tally.target is not None
    family = tally.target.host.instance_family or "unknown"
    headers = [(b"x-weighbridge-served-by", family.encode())]
    if tally.fallback is not None:
        headers.append((b"x-weighbridge-fallback", tally.fallback.encode()))
    if tally.spill is not None:
        headers.append((b"x-weighbridge-spill", tally.spill.encode()))
    if ignored := tally.ignored():
        headers.append((b"x-weighbridge-ignored", ",".join(ignored).encode()))
    return headers
