"""Clients that always have a call under way, each on a connection of its own; and what a simulated server saw of them.

It imports nothing of the product. A call's request id begins with its tenant's name.
"""

import asyncio
import contextlib
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

from tests.support.gateway import Gateway

SECOND_NS = 1_000_000_000

NOTICE_NS = SECOND_NS // 10
"""A call that was broken off ended when its connection was closed; the server may see that only behind a request that
came later, on another connection."""


class Crowd:
    """deep: connections for each tenant and gateway; max_tokens are by chance. statuses: of answers, by number."""

    def __init__(
        self, gateways: Sequence[Gateway], tenants: Sequence[str], *, deep: int, body: dict[str, Any]
    ) -> None:
        self._bodies = [json.dumps(body | {"max_tokens": tokens}).encode() for tokens in range(2, 15)]
        self._tasks: list[asyncio.Task[None]] = []
        self._places = [(one, tenant) for one in gateways for tenant in tenants for _ in range(deep)]
        self._numbers = itertools.count()
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
            with contextlib.suppress(
                OSError, asyncio.IncompleteReadError
            ):  # its worker was killed: come again
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


class Seen:
    """What a simulated server has of each call: its tenant, when it came and ended, and its work (1 and 4 a token)."""

    def __init__(self, log: list[dict[str, Any]]) -> None:
        now_ns = max(entry["ended_ns"] or entry["received_ns"] for entry in log)
        self.spans = [
            (
                entry["received_ns"],
                ended_ns(entry, now_ns),
                entry["request_id"].partition("-")[0],
                work(entry),
            )
            for entry in log
        ]

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


def ended_ns(entry: dict[str, Any], now_ns: int) -> int:
    ended: int = entry["ended_ns"] or now_ns
    if entry["outcome"] == "aborted":
        return max(entry["received_ns"], ended - NOTICE_NS)
    return ended


def work(entry: dict[str, Any]) -> float:
    cached = entry["cached_tokens"] or 0
    return (entry["prompt_tokens"] or 0) - 0.9 * cached + 4 * entry["completion_tokens"]
