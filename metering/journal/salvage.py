"""The closing of a dead writer's directory. Pure.

A process that died leaves calls admitted but without a record, and perhaps half a line.
`close` makes the lines that end such a directory: a `lost` record for each open admission,
in the order of admission, and a `stop`. No clock, no chance, no look-up: it is a function of
the directory's bytes, so two copies of one directory close to the same bytes and count once.
"""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from metering import record
from metering.journal import chain
from metering.journal.chain import Chained, Place

_NULS_BYTES = 64 * 1024

_VERSION_OF_BASES = 2
"""Of `call`: the first whose price basis may have all that a card prices."""


class Closed(NamedTuple):
    """The end of a dead directory: the bytes of its salvage.jsonl and what they say."""

    data: bytes
    lost: int
    torn_bytes: int


class _TornTail:
    """Length and digest of the torn tail less its trailing NULs.

    A file system that lost power may leave NULs past the last byte it kept; how many says nothing.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._nuls = 0  # seen, and not yet known to be trailing
        self._hash = hashlib.sha256()

    def add(self, data: bytes) -> None:
        kept = data.rstrip(b"\0")
        if kept:
            while self._nuls:
                nuls = min(self._nuls, _NULS_BYTES)
                self._hash.update(bytes(nuls))
                self.bytes += nuls
                self._nuls -= nuls
            self._hash.update(kept)
            self.bytes += len(kept)
        self._nuls += len(data) - len(kept)

    def digest(self) -> str | None:
        return f"sha256:{self._hash.hexdigest()}" if self.bytes else None


def close(pieces: Iterable[Chained | bytes], begin: Place = chain.START) -> Closed:
    """Make the end of a dead directory, one that its writer did not end with a `stop`.

    pieces: the directory as `chain.walk` gives it: good lines, then the torn tail as bytes. begin: where it was
    trimmed, if it was; no call was open there (metering/archive/trimming.py), so its end is what it would be untrimmed.

    All times are `at_ns` of the last good line, or 0 if there is none: the writer lived at least
    until then, and nothing else is known. No call ends before its admission, whatever the clock did.
    """
    seq, prev, at_ns = begin.seq, begin.leaf, 0
    open_calls: dict[str, record.Admitted] = {}
    torn = _TornTail()
    for piece in pieces:
        if isinstance(piece, bytes):
            torn.add(piece)
            continue
        seq, prev, at_ns, line = piece.seq, piece.leaf, piece.at_ns, piece.line
        if isinstance(line, record.Admitted):
            open_calls[line.call_id] = line
        elif isinstance(line, record.CallRecord):
            open_calls.pop(line.call_id, None)

    written: list[bytes] = []
    for admitted in open_calls.values():
        seq += 1
        written.append(chain.encode(lost(admitted, at_ns=at_ns, seq=seq, prev=prev)))
        prev = chain.leaf(written[-1][:-1])
    stop = record.Stop(
        at_ns=at_ns,
        lost=len(open_calls),
        prev=prev,
        reason="salvaged",
        seq=seq + 1,
        torn_bytes=torn.bytes,
        torn_digest=torn.digest(),
    )
    written.append(chain.encode(stop))
    return Closed(b"".join(written), len(open_calls), torn.bytes)


def is_end(data: bytes, pieces: Iterable[Chained | bytes]) -> bool:
    """Is this the end of a dead directory, what `close` makes of these pieces of it?

    The lines must say the same; their bytes may be an older version's, whose lines had fewer fields.
    """
    return _told(data) == _told(close(pieces).data)


def _told(data: bytes) -> list[record.Line | None] | None:
    """What lines say, but for the version and the chain; None: one of them says nothing."""
    told = []
    for line in data.split(b"\n")[:-1]:
        try:
            found = chain.decode(line)
        except chain.NotALine:
            return None
        told.append(found and msgspec.structs.replace(found, prev="", v=0))
    return told


def lost(admitted: record.Admitted, *, at_ns: int, seq: int, prev: str) -> record.CallRecord:
    """The record of a call whose process died before its end.

    What the backend did with it is not known: no attempt, no status. It costs its tenant nothing, and its usage is
    unknown; or, where its admission says what was expected of it, that.
    """
    made = _free(admitted, at_ns=at_ns, seq=seq, prev=prev)
    expected = admitted.expected
    if isinstance(expected, msgspec.UnsetType):
        return made
    return msgspec.structs.replace(
        made,
        cost_pusd=expected.cost_pusd,
        price_basis=expected.price_basis,
        rate_card=expected.rate_card,
        unpriced_reason=expected.unpriced_reason,
        usage=expected.usage,
        v=_VERSION_OF_BASES,
    )


def _free(admitted: record.Admitted, *, at_ns: int, seq: int, prev: str) -> record.CallRecord:
    return record.CallRecord(
        admitted_ns=admitted.admitted_ns,
        at_ns=at_ns,
        body_bytes=admitted.body_bytes,
        call_id=admitted.call_id,
        cost_pusd=0,
        finished_ns=max(at_ns, admitted.admitted_ns),  # the clock may have been set back between the two
        key_id=admitted.key_id,
        model=admitted.model,
        model_requested=admitted.model_requested,
        operation=admitted.operation,
        outcome=record.Outcome.LOST,
        params=admitted.params,
        prev=prev,
        project=admitted.project,
        received_ns=admitted.received_ns,
        request_id=admitted.request_id,
        seq=seq,
        stream=admitted.stream,
        tags=admitted.tags,
        tenant=admitted.tenant,
        trace_id=admitted.trace_id,
        v=record.VERSION,  # it has nothing that a later one brought: every release closes to the same bytes
    )
