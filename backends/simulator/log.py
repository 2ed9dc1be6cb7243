"""What a simulated server saw and sent, call by call: the outside oracle of tests. Pure.

It shares no code with the gateway or its metering, so that the two can be compared. One entry for each request to
a path of an API, as a JSON line (`GET /_sim/log`):

    n                        from 1, in the order in which requests were complete
    received_ns              wall clock, ns since 1970; so are first_event_ns and ended_ns
    request_id               the request's x-request-id, or null
    path, model, stream      as asked; null where the body could not be read
    body_bytes, body_sha256  of the request
    prompt_tokens, cached_tokens    null where the request was refused; cached null before the first token;
                             prompt_tokens 0 where the engine has nothing to read
    completion_tokens        generated, whether or not they could be sent
    completion_tokens_sent   handed to the connection
    events, bytes_sent, sent_sha256    of the answer's body, without chunk framing
    status                   of the answer; null: no head was sent
    fault                    the fault it was given, or null
    raw                      only with ?raw=1: the answer's body in base64; null where it is no longer kept
    outcome                  completed | aborted | refused | faulted:<kind> | open (not ended yet)
"""

import hashlib
from collections import deque
from collections.abc import Iterator

import msgspec


class Entry(msgspec.Struct, kw_only=True):
    """One call, as it is shown; it changes while the call goes on."""

    n: int
    received_ns: int
    request_id: str | None
    path: str
    model: str | None = None
    stream: bool | None = None
    body_bytes: int
    body_sha256: str
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int = 0
    completion_tokens_sent: int = 0
    events: int = 0
    bytes_sent: int = 0
    sent_sha256: str = ""
    status: int | None = None
    fault: str | None = None
    outcome: str = "open"
    first_event_ns: int | None = None
    ended_ns: int | None = None
    raw: bytes | msgspec.UnsetType | None = msgspec.UNSET


class Recording:
    """An entry and the answer's body that belongs to it. pieces: None once they were thrown away."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.pieces: list[bytes] | None = []
        self._digest = hashlib.sha256()

    def sent(self, body: bytes) -> None:
        """A piece of the answer's body went to the connection."""
        self.entry.bytes_sent += len(body)
        self._digest.update(body)
        if self.pieces is not None:
            self.pieces.append(body)

    def encode(self, *, raw: bool) -> bytes:
        entry = msgspec.structs.replace(self.entry, sent_sha256=self._digest.hexdigest())
        if raw:
            entry.raw = None if self.pieces is None else b"".join(self.pieces)
        return msgspec.json.encode(entry) + b"\n"


class Log:
    """The last `entries_max` entries; of their bodies, the last `raw_bytes_max` of calls that have ended."""

    def __init__(self, entries_max: int, raw_bytes_max: int) -> None:
        self._recordings: deque[Recording] = deque(maxlen=entries_max)
        self._raw_bytes_max = raw_bytes_max
        self._with_raw: deque[Recording] = deque()
        self._raw_bytes = 0
        self._n = 0

    def open(self, received_ns: int, request_id: str | None, path: str, body: bytes) -> Recording:
        self._n += 1
        entry = Entry(
            n=self._n,
            received_ns=received_ns,
            request_id=request_id,
            path=path,
            body_bytes=len(body),
            body_sha256=hashlib.sha256(body).hexdigest(),
        )
        recording = Recording(entry)
        self._recordings.append(recording)
        return recording

    def close(self, recording: Recording, outcome: str, ended_ns: int) -> None:
        """The call has ended; nothing more is sent for it."""
        assert recording.entry.outcome == "open"
        recording.entry.outcome = outcome
        recording.entry.ended_ns = ended_ns
        self._with_raw.append(recording)
        self._raw_bytes += recording.entry.bytes_sent
        while self._raw_bytes > self._raw_bytes_max:
            oldest = self._with_raw.popleft()
            self._raw_bytes -= oldest.entry.bytes_sent
            oldest.pieces = None

    def clear(self) -> None:
        """Forget all entries; numbers go on."""
        self._recordings.clear()
        self._with_raw.clear()
        self._raw_bytes = 0

    def dump(self, *, since: int, raw: bool) -> Iterator[bytes]:
        """Entries with n ≥ `since` as JSON lines, the oldest first; `raw` adds bodies in base64."""
        return (each.encode(raw=raw) for each in self._recordings if each.entry.n >= since)
