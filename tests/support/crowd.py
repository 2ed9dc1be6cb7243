"""Clients that always have a call under way, each on a connection of its own; and what a simulated server saw of them.

It imports nothing of the product. A call's request id begins with its tenant's name.

A gateway that breaks a call off closes its connection and has a slot more from then on. The server sees both, that
close and the next call's request, on different connections, and not always in this order: until it has noticed, it has
one call more. So of a call that was broken off the end is what its gateway says (`broken_off`), for causes that are
known, call by call; of all others, and of one that nobody broke off, it is the server's.
"""

import asyncio
import contextlib
import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.support.gateway import Gateway

SECOND_NS = 1_000_000_000

NOTICED_NS_MAX = 2 * SECOND_NS
"""That a connection was closed a server that has a core sees in 0.1 to 20 ms; one that waits for a core, later."""


class Crowd:
    """deep: connections for each tenant and gateway; max_tokens are by chance. statuses: of answers, by number.

    stay_s: they leave after a time between these, wherever their call is, and come again; None: they stay.
    """

    def __init__(
        self,
        gateways: Sequence[Gateway],
        tenants: Sequence[str],
        *,
        deep: int,
        body: dict[str, Any],
        stay_s: tuple[float, float] | None = None,
    ) -> None:
        self._bodies = [json.dumps(body | {"max_tokens": tokens}).encode() for tokens in range(2, 15)]
        self._tasks: list[asyncio.Task[None]] = []
        self._places = [(one, tenant) for one in gateways for tenant in tenants for _ in range(deep)]
        self._numbers = itertools.count()
        self._stay_s = stay_s
        self.statuses: dict[int, int] = {}

    async def __aenter__(self) -> "Crowd":
        self._tasks = [asyncio.create_task(self._client(*place)) for place in self._places]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _client(self, gateway: Gateway, tenant: str) -> None:
        while True:
            # An end before the answer's: its worker was killed, or it has had enough. It comes again.
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                async with asyncio.timeout(random.uniform(*self._stay_s) if self._stay_s else None):
                    await self._calls(gateway, tenant)
            await asyncio.sleep(0.1)

    async def _calls(self, gateway: Gateway, tenant: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        try:
            while True:
                body = random.choice(self._bodies)
                head = (
                    f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {gateway.keys[tenant]}\r\n"
                    f"x-request-id: {tenant}-{next(self._numbers)}\r\ncontent-type: application/json\r\n"
                    f"content-length: {len(body)}\r\n\r\n"
                )
                writer.write(head.encode() + body)
                answer = (await reader.readuntil(b"\r\n\r\n")).lower()
                status = int(answer[9:12])
                self.statuses[status] = self.statuses.get(status, 0) + 1
                length = int(answer.partition(b"content-length:")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
        finally:
            writer.close()


def broken_off(gateways: Sequence[Gateway], killed: Mapping[str, int] | None = None) -> dict[str, int]:
    """When calls were broken off, by request id, and why that is known: their client left, or their worker was killed.

    killed: when, by the worker's writer. Times are ns since 1970.
    """
    found: dict[str, int] = {}
    for record in (line for one in gateways for line in one.lines("call")):
        if record["outcome"] == "client_gone" and record["attempts"]:
            found[record["request_id"]] = record["attempts"][-1]["ended_ns"]
        elif record["outcome"] == "lost":
            found[record["request_id"]] = (killed or {})[record["call_id"].rpartition("-")[0]]
    return found


class Seen:
    """What a simulated server has of each call: its tenant, when it came and ended, and its work (1 and 4 a token).

    late_ns: by request id of the calls that were broken off, how long the server took to see it; finished: of these,
    those that it had ended by then, as if nothing were. Raises AssertionError for a call that ended early and that
    nobody broke off.
    """

    def __init__(self, log: list[dict[str, Any]], broken_off: Mapping[str, int]) -> None:
        now_ns = max(entry["ended_ns"] or entry["received_ns"] for entry in log)
        self.late_ns: dict[str, int] = {}
        self.finished: set[str] = set()
        self.spans = [
            (
                entry["received_ns"],
                self._ended_ns(entry, entry["ended_ns"] or now_ns, broken_off.get(entry["request_id"])),
                entry["request_id"].partition("-")[0],
                work(entry),
            )
            for entry in log
        ]

    def _ended_ns(self, entry: dict[str, Any], ended_ns: int, broken_ns: int | None) -> int:
        request_id = entry["request_id"]
        if broken_ns is None:
            assert entry["outcome"] != "aborted", f"nobody is known to have broken off {request_id}"
            return ended_ns
        if entry["outcome"] == "completed":
            self.finished.add(request_id)
        self.late_ns[request_id] = ended_ns - broken_ns
        return max(entry["received_ns"], min(ended_ns, broken_ns))

    def in_flight(self) -> Iterator[tuple[int, int]]:
        """How many there were from each moment on."""
        changes = [(came, 1) for came, *_ in self.spans] + [(ended, -1) for _, ended, *_ in self.spans]
        count = 0
        for at_ns, change in sorted(changes):
            count += change
            yield at_ns, count

    def most(self) -> int:
        return max(count for _, count in self.in_flight())

    def busy(self, from_ns: int, until_ns: int) -> float:
        """The mean number of calls between two moments."""
        held = sum(max(0, min(ended, until_ns) - max(came, from_ns)) for came, ended, *_ in self.spans)
        return held / (until_ns - from_ns)

    def ended(self, from_ns: int, until_ns: int) -> dict[str, list[float]]:
        """The work of each tenant's calls that ended between two moments."""
        found: dict[str, list[float]] = {}
        for _, ended, tenant, took in self.spans:
            if from_ns <= ended < until_ns:
                found.setdefault(tenant, []).append(took)
        return found


def work(entry: dict[str, Any]) -> float:
    cached = entry["cached_tokens"] or 0
    return (entry["prompt_tokens"] or 0) - 0.9 * cached + 4 * entry["completion_tokens"]
