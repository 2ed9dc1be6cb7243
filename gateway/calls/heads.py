"""What a client gets that is not a backend's: heads, errors, and comments that keep a stream alive. Pure.

Heads are made as the lines that go on the wire: one for each call, and most of their bytes are always the same.
"""

from gateway.api import errors
from gateway.api.errors import GatewayError
from gateway.calls.events import Headers, Open, header_lines
from gateway.calls.tally import Facts, Tally

KEEPALIVE = b": keepalive\n\n"
"""A comment: every parser of event streams skips it (WHATWG HTML §9.2)."""

_JSON = b"content-type: application/json\r\n"
_STREAM = header_lines(
    [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
    ]
)


def waiting_head(facts: Facts) -> Open:
    """The head of a stream before it is known who will serve it."""
    return Open(200, _STREAM + _ids(facts))


def stream_head(facts: Facts, tally: Tally) -> Open:
    """The head of a stream that a backend serves."""
    return Open(200, _STREAM + _ids(facts) + _origin(tally))


def sized_head(status: int, facts: Facts, tally: Tally, length: int, kind: Headers | None = None) -> Open:
    """The head of a backend's answer of `length` bytes. kind: what describes it, if it is not JSON."""
    described = _JSON if kind is None else header_lines(kind)
    return Open(status, b"%b%bcontent-length: %d\r\n%b" % (described, _ids(facts), length, _origin(tally)))


def error(error: GatewayError, facts: Facts) -> tuple[Open, bytes]:
    """An error of ours as an answer: head and body."""
    return _error(error, facts, _ids(facts))


def refusal(error: GatewayError, facts: Facts) -> tuple[Open, bytes]:
    """The same for a request that is no call: it has no call's id."""
    return _error(error, facts, _request_ids(facts))


def _error(error: GatewayError, facts: Facts, ids: bytes) -> tuple[Open, bytes]:
    body = errors.error_body(error, facts.operation.errors)
    lines = b"%b%bcontent-length: %d\r\n" % (_JSON, ids, len(body))
    return Open(int(error.status), lines + header_lines(error.retry_headers)), body


def _ids(facts: Facts) -> bytes:
    ids = f"x-request-id: {facts.request_id}\r\nx-weighbridge-call-id: {facts.call_id}\r\n".encode()
    name = facts.operation.id_header
    return ids if name is None else b"%b%b: %b\r\n" % (ids, name, facts.request_id.encode())


def _request_ids(facts: Facts) -> bytes:
    request_id = facts.request_id.encode()
    lines = b"x-request-id: %b\r\n" % request_id
    name = facts.operation.id_header
    return lines if name is None else b"%b%b: %b\r\n" % (lines, name, request_id)


def _origin(tally: Tally) -> bytes:
    """Who served the call, and why not somebody else."""
    assert tally.target is not None
    lines = tally.target.served_by
    if tally.fallback is not None:
        lines += b"x-weighbridge-fallback: %b\r\n" % tally.fallback.encode()
    if tally.spill is not None:
        lines += b"x-weighbridge-spill: %b\r\n" % tally.spill.encode()
    if tally.facts.keys and (ignored := tally.ignored()):
        lines += b"x-weighbridge-ignored: %b\r\n" % ",".join(ignored).encode()
    return lines
