"""Whole journals for tests: makers of each kind of line, chained, and put into a directory as files."""

import pathlib
from collections.abc import Callable, Iterable
from typing import Any

from metering import record
from metering.journal import chain
from metering.journal.journal import LOCK, segment_name
from metering.record import Line
from metering.units import NS_PER_S
from metering.usage import Usage, UsageSource

WRITER = "w" + "a" * 16
AT_NS = 1_767_225_600 * NS_PER_S  # 2026-01-01T00:00:00Z

Make = Callable[[int, str], Line]
"""Makes a line for a seq and the leaf before."""


def start(*, writer: str = WRITER, at_ns: int = AT_NS) -> Make:
    return lambda seq, prev: record.Start(
        at_ns=at_ns, config_digest="sha256:0", pid=1, prev=prev, seq=seq, version="0", worker=0, writer=writer
    )


def _ask(call_id: str, at_ns: int) -> dict[str, Any]:
    """What `admitted` and the record have in common."""
    return {
        "admitted_ns": at_ns,
        "at_ns": at_ns,
        "body_bytes": 312,
        "call_id": call_id,
        "key_id": "0123456789ab",
        "model": "llama",
        "model_requested": "llama",
        "operation": "chat",
        "params": record.Params(max_tokens=100),
        "project": "web",
        "received_ns": at_ns,
        "request_id": f"req-{call_id}",
        "stream": True,
        "tags": {"team": "search", "cost_centre": "1234"},
        "tenant": "acme",
        "trace_id": None,
    }


def admitted(call_id: str, *, at_ns: int = AT_NS, **fields: Any) -> Make:
    values = _ask(call_id, at_ns) | {"v": 2 if "expected" in fields else 1} | fields
    return lambda seq, prev: record.Admitted(**values, seq=seq, prev=prev)


def call(call_id: str, *, at_ns: int = AT_NS, **fields: Any) -> Make:
    usage = Usage(
        source=UsageSource.REPORTED, prompt_tokens=100, cached_prompt_tokens=0, completion_tokens=50
    )
    end = {
        "cost_pusd": 22_500_000,
        "finished_ns": at_ns,
        "instance_family": "inf2",
        "outcome": record.Outcome.COMPLETED,
        "status": 200,
        "usage": usage,
    }
    values = _ask(call_id, at_ns) | end | fields
    return lambda seq, prev: record.CallRecord(**values, seq=seq, prev=prev)


def refused(*, at_ns: int = AT_NS, count: int = 1) -> Make:
    return lambda seq, prev: record.Refused(
        at_ns=at_ns,
        count=count,
        error_code="invalid_api_key",
        key_id=None,
        model=None,
        operation="chat",
        prev=prev,
        reason="invalid_api_key",
        request_id="req",
        seq=seq,
        status=401,
        tenant=None,
    )


def tick(*, at_ns: int = AT_NS) -> Make:
    return lambda seq, prev: record.Tick(
        at_ns=at_ns, oldest_admitted_ns=None, open_calls=0, prev=prev, seq=seq
    )


def stop(*, at_ns: int = AT_NS) -> Make:
    return lambda seq, prev: record.Stop(at_ns=at_ns, prev=prev, reason="shutdown", seq=seq)


def encoded(makes: Iterable[Make], seq: int = 0, prev: str = chain.ZEROS) -> list[bytes]:
    """The lines' bytes, chained, each with its newline."""
    lines = []
    for make in makes:
        seq += 1
        lines.append(chain.encode(make(seq, prev)))
        prev = chain.leaf(lines[-1][:-1])
    return lines


def write_directory(
    root: pathlib.Path, makes: Iterable[Make], *, writer: str = WRITER, per_segment: int = 1_000_000
) -> pathlib.Path:
    """A writer's directory as a dead process leaves it, with so many lines in each segment."""
    lines = encoded(makes)
    path = root / writer
    path.mkdir(parents=True)
    (path / LOCK).touch()
    for first in range(0, max(1, len(lines)), per_segment):
        (path / segment_name(first + 1)).write_bytes(b"".join(lines[first : first + per_segment]))
    return path
