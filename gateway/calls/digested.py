"""A call whose record has digests of its prompt and answer: the one way in which such a call differs.

    prompt    the request's body as it was received, unpacked if it came packed; before anything was put into it
    answer    the bytes of the answer's body as they went to the client: of a stream all its events, comments and
              errors of ours among them; without the framing of chunks

A call of a tenant that wants no digests never comes here.
"""

from collections.abc import Callable

import msgspec

from gateway.calls.call import Call
from gateway.calls.relay import Client, NewRelay, Relay, Request, Services
from metering.journal.digests import DigestKey, Running, TenantKeys, shown
from metering.record import CallRecord, Line


class _Reading:
    """A client that takes a digest of what it is given to send on."""

    write_chunk: Callable[[bytes], None] | None = None  # each byte comes by `write`, without its framing

    def __init__(self, client: Client, answer: Running) -> None:
        self._client = client
        self._answer = answer

    def open(self, status: int, lines: bytes) -> None:
        """As the client's."""
        self._client.open(status, lines)

    def write(self, data: bytes) -> None:
        """As the client's."""
        self._answer.update(data)
        self._client.write(data)

    def finish(self, data: bytes) -> None:
        """As the client's. These bytes are in the record's digest already: it was written before they leave."""
        self._client.finish(data)

    def reply(self, status: int, lines: bytes, data: bytes) -> None:
        """The same."""
        self._client.reply(status, lines, data)


class DigestedRelay(Relay):
    """A call whose record is to have digests."""

    __slots__ = ("_answer", "_key")

    def __init__(
        self, services: Services, call: Call, request: Request, client: Client, key: DigestKey
    ) -> None:
        self._key = key
        self._answer = key.begin()
        super().__init__(services, call, request, _Reading(client, self._answer))

    def line(self, seq: int, prev: str) -> Line:
        """The line that is waited for; a record with its digests."""
        line = super().line(seq, prev)
        if not isinstance(line, CallRecord):
            return line
        answer = self._answer.copy()
        answer.update(self.call.tail)
        digests = {"answer": shown(answer), "key": self._key.id, "prompt": self._key.of(self._request.body)}
        return msgspec.structs.replace(line, digests=digests)


def maker(keys: TenantKeys) -> NewRelay:
    """Makes calls: those of tenants that have a key with digests, all others as they always are."""

    def new(services: Services, call: Call, request: Request, client: Client) -> Relay:
        key = keys.get(call.facts.tenant)
        if key is None:
            return Relay(services, call, request, client)
        return DigestedRelay(services, call, request, client, key)

    return new
