"""A call whose content is kept, encrypted, for a tenant that wants it: what such a call does besides.

    prompt    the request's body as it was received, unpacked if it came packed; before anything was put into it
    answer    the bytes of the answer's body as they go to the client: of a stream all its events, comments and
              errors of ours among them; without the framing of chunks (both as for digests, gateway/calls/digested.py)

    the end is known ─▶ content is kept, in a thread ─▶ record ─▶ the end leaves

A call of a tenant that wants none never comes here.
"""

from collections.abc import Callable, Mapping

import msgspec

from gateway.api import errors
from gateway.calls.call import Call
from gateway.calls.relay import Client, NewRelay, Recording, Relay, Request, Services
from metering.capture.keeper import Content, Keeper, Wanted
from metering.journal.turns import Entry
from metering.record import CallRecord, Capture, Line


class _Keeping:
    """A client that keeps the front of what it is given to send on. bytes: of all that it was given."""

    write_chunk: Callable[[bytes], None] | None = None  # each byte comes by `write`, without its framing

    def __init__(self, client: Client, bytes_max: int) -> None:
        self.kept = bytearray()
        self.bytes = 0
        self._client = client
        self._bytes_max = bytes_max

    def open(self, status: int, lines: bytes) -> None:
        """As the client's."""
        self._client.open(status, lines)

    def write(self, data: bytes) -> None:
        """As the client's."""
        self.take(data)
        self._client.write(data)

    def finish(self, data: bytes) -> None:
        """As the client's. These bytes are kept already: their record was written before they leave."""
        self._client.finish(data)

    def reply(self, status: int, lines: bytes, data: bytes) -> None:
        """The same."""
        self._client.reply(status, lines, data)

    def take(self, data: bytes) -> None:
        """Keep these, as far as there is room."""
        self.bytes += len(data)
        if (room := self._bytes_max - len(self.kept)) > 0:
            self.kept += data[:room]


class _Detour:
    """The way of one call's lines into the journal: that of its record goes by its content.

    It stands for the call there, and adds to its record what has become of the content.
    """

    def __init__(
        self, recorder: Recording, keeper: Keeper, wanted: Wanted, call: Call, body: bytes, client: _Keeping
    ) -> None:
        self._recorder = recorder
        self._keeper = keeper
        self._wanted = wanted
        self._call = call
        self._body = body
        self._client = client
        self._is_admitted = False
        self._entry: Entry | None = None  # from its end until its record is written
        self._capture: Capture | None = None

    def append(self, entry: Entry) -> None:
        """First comes its admission, then its record."""
        if not self._is_admitted:
            self._is_admitted = True
            self._recorder.append(entry)
            return
        self._entry = entry
        client, body, facts = self._client, self._body, self._call.facts
        client.take(self._call.tail)
        content = Content(
            call_id=facts.call_id,
            tenant=facts.tenant,
            prompt=body[: self._wanted.bytes_max],
            prompt_bytes=len(body),
            answer=bytes(client.kept),
            answer_bytes=client.bytes,
        )
        self._keeper.keep(self._wanted, content, self._kept)

    def _kept(self, capture: Capture) -> None:
        self._capture = capture
        self._recorder.append(self)

    def line(self, seq: int, prev: str) -> Line:
        """The record, which says where the content is."""
        assert self._entry is not None and self._capture is not None  # noqa: PT018
        line = self._entry.line(seq, prev)
        assert isinstance(line, CallRecord)
        return msgspec.structs.replace(line, capture=self._capture)

    def written(self) -> None:
        """As the call's."""
        self._let_go().written()

    def failed(self, error: OSError) -> None:
        """As the call's."""
        self._let_go().failed(error)

    def _let_go(self) -> Entry:
        """Of the call, which leads back here: it is freed at its end."""
        entry, self._entry = self._entry, None
        assert entry is not None
        return entry


def maker(wanted: Mapping[str, Wanted], keeper: Keeper, otherwise: NewRelay) -> NewRelay:
    """Makes calls: those of tenants whose content is kept, by name; all others as `otherwise` does.

    Raises JournalFull for a tenant that has its calls refused while their content can't be kept.
    """

    def new(services: Services, call: Call, request: Request, client: Client) -> Relay:
        kept = wanted.get(call.facts.tenant)
        if kept is None:
            return otherwise(services, call, request, client)
        if kept.required and not keeper.takes:
            raise errors.JournalFull("the content of calls cannot be kept now", retry_after_s=30)
        keeping = _Keeping(client, kept.bytes_max)
        relay = otherwise(services, call, request, keeping)
        relay.record_by(_Detour(services.recorder, keeper, kept, call, request.body, keeping))
        return relay

    return new
