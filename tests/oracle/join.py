"""The join of three logs: what clients read, what backends saw, what the journal says.

    backend's log ──request_id──▶ `admitted` ──call_id──▶ `call` ◀──request_id── client's log

A client's entry is described in tests/support/streamload.py, a backend's in backends/simulator/log.py. All are
read here as plain JSON. Callers never use a request id twice.
"""

import collections
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tests.oracle.faults import Fault, Kind
from tests.oracle.journal import Line, Writer

Entry = dict[str, Any]
_COUNTS = ("prompt_tokens", "cached_prompt_tokens", "completion_tokens")


def check(clients: Sequence[Entry], backends: Sequence[Entry], writers: Iterable[Writer]) -> list[Fault]:
    """All faults. backends: the entries of all of them; order does not matter."""
    lines = [line for writer in writers for line in writer.lines]
    admitted = [line for line in lines if line["kind"] == "admitted"]
    calls = [line for line in lines if line["kind"] == "call"]
    by_request = collections.defaultdict(list)
    for line in calls:
        by_request[line["request_id"]].append(line)
    served = collections.defaultdict(list)
    for entry in backends:
        served[entry["request_id"]].append(entry)
    return [
        *_pairs(admitted, calls),
        *_admissions(backends, admitted),
        *(fault for entry in clients for fault in _read_to_the_end(entry, by_request[entry["request_id"]])),
        *(fault for call in calls for fault in _as_the_backend_says(call, served[call["request_id"]])),
    ]


def _pairs(admitted: list[Line], calls: list[Line]) -> Iterator[Fault]:
    """One `admitted` and one `call` for each call id, and in the same writer's journal."""
    opened = collections.Counter(line["call_id"] for line in admitted)
    ended = collections.Counter(line["call_id"] for line in calls)
    for call_id in sorted(opened.keys() | ended.keys()):
        if opened[call_id] > 1 or ended[call_id] > 1:
            what = f"{opened[call_id]} times admitted, {ended[call_id]} records"
            yield Fault(Kind.DOUBLED, call_id, what)
        elif not ended[call_id]:
            yield Fault(Kind.NO_RECORD, call_id, "admitted, but it has no record")
        elif not opened[call_id]:
            yield Fault(Kind.UNADMITTED, call_id, "a record of a call that was not admitted")


def _admissions(backends: Sequence[Entry], admitted: list[Line]) -> Iterator[Fault]:
    """A backend may see a request several times (attempts); it was admitted once."""
    times = collections.Counter(line["request_id"] for line in admitted)
    for request_id in sorted({str(entry["request_id"]) for entry in backends}):
        if times[request_id] != 1:
            yield Fault(Kind.UNADMITTED, request_id, f"a backend saw it, admitted {times[request_id]} times")


def _read_to_the_end(client: Entry, calls: list[Line]) -> Iterator[Fault]:
    """Whoever has read the end of a good answer has a `completed` record with the same counts."""
    if not client["ended"]:
        return
    where = client["request_id"]
    completed = [call for call in calls if call["outcome"] == "completed"]
    if len(completed) != 1:
        outcomes = [call["outcome"] for call in calls]
        yield Fault(Kind.NOT_COMPLETED, where, f"the client read the end, the records say {outcomes}")
        return
    call = completed[0]
    if client["call_id"] != call["call_id"]:
        yield Fault(
            Kind.NOT_COMPLETED, where, f"{client['call_id']} to the client, {call['call_id']} in the record"
        )
    recorded = {name: call["usage"][name] for name in _COUNTS}
    if client["usage"] is not None and client["usage"] != recorded:
        yield Fault(Kind.TOKENS, where, f"the client was told {client['usage']}, the record says {recorded}")
    if client["stream"] and client["tokens"] != recorded["completion_tokens"]:
        what = f"the client read {client['tokens']} tokens, the record says {recorded['completion_tokens']}"
        yield Fault(Kind.TOKENS, where, what)


def _as_the_backend_says(call: Line, served: list[Entry]) -> Iterator[Fault]:
    """A completed call was completed by a backend too, with the same counts; by several only in as many attempts.

    A backend that the gateway has left may not know it yet, and count what it answers.
    """
    if call["outcome"] != "completed":
        return
    by_backend = [
        (entry["prompt_tokens"], entry["cached_tokens"], entry["completion_tokens"])
        for entry in served
        if entry["outcome"] == "completed"
    ]
    recorded = tuple(call["usage"][name] for name in _COUNTS)
    asked = sum(1 + attempt["reconnected"] for attempt in call["attempts"])
    if set(by_backend) != {recorded} or len(by_backend) > asked:
        yield Fault(
            Kind.TOKENS, call["request_id"], f"the backends say {by_backend}, the record says {recorded}"
        )
