"""Journal lines for tests: valid ones with plain values, any field of which a test may choose.

Uses the product's types of lines, and its encoding to put them into files.
"""

from typing import Any

from metering.journal import chain
from metering.record import (
    Admitted,
    AttemptOutcome,
    AttemptRecord,
    CallRecord,
    Line,
    Outcome,
    Params,
    Refused,
    Start,
    Stop,
)
from metering.usage import Usage, UsageSource

AT_NS = 1_790_000_000_000_000_000


def usage(prompt: int, cached: int | None, completion: int) -> Usage:
    return Usage(
        source=UsageSource.REPORTED,
        prompt_tokens=prompt,
        cached_prompt_tokens=cached,
        completion_tokens=completion,
    )


def attempt(backend: str, outcome: AttemptOutcome = AttemptOutcome.COMPLETED, **fields: Any) -> AttemptRecord:
    times = {"started_ns": AT_NS, "ended_ns": AT_NS + 5, "slot_ns": 5}
    return AttemptRecord(backend=backend, outcome=outcome, **(times | fields))


def call(seq: int = 2, prev: str = chain.ZEROS, **fields: Any) -> CallRecord:
    """A completed call of tenant acme on model llama, served by backend b1 of family inf2."""
    plain = {
        "admitted_ns": AT_NS,
        "at_ns": AT_NS + 9_000,
        "attempts": (attempt("b1"),),
        "backend": "b1",
        "backend_ended_ns": AT_NS + 8_000,
        "body_bytes": 100,
        "call_id": f"call-{seq}",
        "cost_pusd": 12_345_678,
        "dispatched_ns": AT_NS + 2_000,
        "finished_ns": AT_NS + 9_000,
        "instance_family": "inf2",
        "key_id": "k1",
        "model": "llama",
        "model_requested": "llama",
        "operation": "chat",
        "outcome": Outcome.COMPLETED,
        "params": Params(),
        "project": None,
        "queue_wait_ns": 500,
        "received_ns": AT_NS,
        "request_id": "r",
        "stream": True,
        "tags": {},
        "tenant": "acme",
        "tpot_ns": 12_000_000,
        "ttft_ns": 80_000_000,
        "usage": usage(10, 4, 7),
    }
    return CallRecord(seq=seq, prev=prev, **(plain | fields))


def admitted(seq: int = 2, prev: str = chain.ZEROS, **fields: Any) -> Admitted:
    plain = {
        "admitted_ns": AT_NS,
        "at_ns": AT_NS,
        "body_bytes": 100,
        "call_id": f"call-{seq}",
        "key_id": "k1",
        "model": "llama",
        "model_requested": "llama",
        "operation": "chat",
        "params": Params(),
        "project": None,
        "received_ns": AT_NS,
        "request_id": "r",
        "stream": True,
        "tags": {},
        "tenant": "acme",
        "trace_id": None,
        "v": 2 if "expected" in fields else 1,
    }
    return Admitted(seq=seq, prev=prev, **(plain | fields))


def refused(seq: int = 2, prev: str = chain.ZEROS, **fields: Any) -> Refused:
    """A request without a valid key."""
    plain = {
        "at_ns": AT_NS,
        "error_code": "invalid_api_key",
        "key_id": None,
        "model": None,
        "operation": "chat",
        "reason": "unknown key",
        "request_id": "r",
        "status": 401,
        "tenant": None,
    }
    return Refused(seq=seq, prev=prev, **(plain | fields))


def start(writer: str, seq: int = 1, prev: str = chain.ZEROS) -> Start:
    return Start(
        at_ns=AT_NS, config_digest="sha256:0", pid=1, prev=prev, seq=seq, version="0", worker=0, writer=writer
    )


def stop(seq: int = 2, prev: str = chain.ZEROS) -> Stop:
    return Stop(at_ns=AT_NS, prev=prev, reason="shutdown", seq=seq)


def leaf_of(line: Line) -> str:
    return chain.leaf(chain.encode(line).removesuffix(b"\n"))
