"""Which connection leads to a tenant's keys: of one server the one, of a Cluster that of the shard with its slot."""

import asyncio
import contextlib
from collections.abc import Callable

import hiredis
import msgspec

from metering.ledger.servers import split_seeds
from metering.limits.connection import BACKOFF_S_MAX, LOST, Link, Server, command, masters, server_of, slot_of

Place = tuple[str, int]


class Links:
    """Connections of one worker to a store. on_up, on_down: told which link; after_replies: as of a link.

    Raises ValueError if the store can't be at `url`.
    """

    def __init__(
        self,
        url: str,
        *,
        on_up: Callable[[Link], None],
        on_down: Callable[[Link], None],
        after_replies: Callable[[], None],
    ) -> None:
        plain, self._seeds = split_seeds(url)
        self._server = server_of(plain)
        self._on_up = on_up
        self._on_down = on_down
        self._after_replies = after_replies
        self._only: Link | None = None  # where there is no Cluster
        self._links: dict[Place, Link] = {}
        self._slots: list[tuple[int, int, Place]] = []
        self._of_tags: dict[str, Link | None] = {}
        self._finder: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()

    @property
    def all(self) -> list[Link]:
        """All there are now."""
        return list(self._links.values())

    @property
    def are_up(self) -> bool:
        """Can all keys be asked for?"""
        known = self._only is not None or bool(self._slots)
        return known and all(link.up for link in self._links.values())

    def start(self) -> None:
        """Begin to connect."""
        if self._seeds:
            self._lost.set()
            self._finder = asyncio.create_task(self._find(), name="limits-shards")
        else:
            self._only = self._open(("", 0), self._server)

    async def close(self) -> None:
        """Let go of all. Idempotent."""
        if self._finder is not None:
            self._finder.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._finder
        for link in self.all:
            await link.close()

    def of(self, tag: str) -> Link | None:
        """Where keys with this hash tag are; None: nobody knows now. It need not be up."""
        if self._only is not None:
            return self._only
        if tag not in self._of_tags:
            slot = slot_of(tag)
            places = [place for first, last, place in self._slots if first <= slot <= last]
            self._of_tags[tag] = self._links[places[0]] if places else None
        return self._of_tags[tag]

    def moved(self) -> None:
        """A server said that it has not got a slot, or cannot be asked: look where they are now."""
        self._lost.set()

    def _open(self, place: Place, server: Server) -> Link:
        link = Link(
            server,
            on_up=lambda: self._on_up(link),
            on_down=lambda: self._on_down(link),
            after_replies=self._after_replies,
        )
        self._links[place] = link
        link.start()
        return link

    async def _find(self) -> None:
        """Of a Cluster: ask again and again, whenever something has moved, who has which slots."""
        while True:
            await self._lost.wait()
            self._lost.clear()
            for place in [*self._links, *self._seeds]:
                link = self._links.get(place) or self._open(place, self._at(place))
                found = await self._ask(link)
                if found:
                    await self._take(found)
                    break
            else:
                self._lost.set()
            await asyncio.sleep(BACKOFF_S_MAX / 4)

    async def _ask(self, link: Link) -> list[tuple[int, int, str, int]]:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + 1.0
        while not link.up and loop.time() < deadline_s:
            await asyncio.sleep(0.02)
        if not link.up:
            return []
        answer = await link.ask(command("CLUSTER", "SLOTS"))
        if answer is LOST or isinstance(answer, hiredis.ReplyError):
            return []
        return masters(answer)

    async def _take(self, found: list[tuple[int, int, str, int]]) -> None:
        self._slots = [(first, last, (host, port)) for first, last, host, port in found]
        for _, _, place in self._slots:
            if place not in self._links:
                self._open(place, self._at(place))
        self._of_tags.clear()
        masters = {place for _, _, place in self._slots}
        for place in [place for place in self._links if place not in masters]:
            await self._links.pop(place).close()

    def _at(self, place: Place) -> Server:
        return msgspec.structs.replace(self._server, host=place[0], port=place[1])
