"""The directory in the store: read where it has changed, and changed one entry at a time.

    wb:1:directory        hash  <kind>:<name> → entry (JSON)
                                revision      → <life>:<number of the newest change>
                                change:<n>    → the field that the change n was of, for the newest CHANGES_KEPT
    wb:1:directory:lock   text  who is making a change by a person's wish; it expires

A reader asks for the revision alone, many times a second, and for the entries of the changes that it has not seen. One
that finds another life, or that was away for too long, reads all. A store that has lost the hash has no revision.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from metering.ledger.scripts import lua
from metering.ledger.servers import Command, ErrorReply, Servers, StoreUnavailable, open_servers

KEY = "wb:1:directory"
LOCK_KEY = "wb:1:directory:lock"
LOCK_MS = 10_000
"""A change takes some milliseconds; who dies in its midst keeps the others waiting for this long."""
CHANGES_KEPT = 1_000
NO_REVISION = ""
_PIPELINE = 200
_LIFE_BYTES = 8
_CONNECT_TIMEOUT_S = 1.0
_REPLY_TIMEOUT_S = 2.0


class Changed(NamedTuple):
    """What was read. revision: up to which; texts: entries by field; whole: these are all that there are."""

    revision: str
    texts: Mapping[str, str]
    whole: bool


class DirectoryStore:
    """A client of it. One caller at a time. All but `close` raise StoreUnavailable."""

    def __init__(self, url: str) -> None:
        """url: as metering/ledger/servers.py has them. Connects when it is first asked."""
        self._put = lua("directory")
        self._unlock = lua("unlock")
        self._servers: Servers = open_servers(
            url, connect_timeout_s=_CONNECT_TIMEOUT_S, reply_timeout_s=_REPLY_TIMEOUT_S
        )

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        await self._servers.close()

    async def changed(self, seen: str) -> Changed:
        """What has changed since the revision that was seen; NO_REVISION: all that there is."""
        (revision,) = await self._ask([("HGET", KEY, "revision")])
        revision = revision or NO_REVISION
        if revision == seen:
            return Changed(revision, {}, whole=False)
        numbers = _between(seen, revision)
        if numbers is not None:
            (fields,) = await self._ask([("HMGET", KEY, *(f"change:{number}" for number in numbers))])
            if all(fields):
                fields = list(dict.fromkeys(fields))
                (texts,) = await self._ask([("HMGET", KEY, *fields)])
                if all(texts):
                    return Changed(revision, dict(zip(fields, texts, strict=True)), whole=False)
        (everything,) = await self._ask([("HGETALL", KEY)])
        return Changed(
            everything.get("revision", NO_REVISION),
            {name: text for name, text in everything.items() if name != "revision" and name[:7] != "change:"},
            whole=True,
        )

    async def get(self, fields: Sequence[str]) -> dict[str, str]:
        """These entries; those that are not there are left out."""
        (texts,) = await self._ask([("HMGET", KEY, *fields)])
        return {field: text for field, text in zip(fields, texts, strict=True) if text}

    async def put(self, entries: Mapping[str, tuple[str, str]]) -> dict[str, str]:
        """Replace entries, each if it is still the one that was seen. returns: those that are there now.

        entries: by field, the one that was seen ("": none) and the one to put.
        """
        now: dict[str, str] = {}
        fields = list(entries)
        for start in range(0, len(fields), _PIPELINE):
            cut = fields[start : start + _PIPELINE]
            replies = await self._ask([self._command(field, *entries[field]) for field in cut])
            now.update(zip(cut, map(str, replies), strict=True))
        return now

    def _command(self, field: str, before: str, after: str) -> Command:
        life = secrets.token_hex(_LIFE_BYTES)
        return ("EVAL", self._put, "1", KEY, field, before, after, life, str(CHANGES_KEPT))

    async def lock(self, holder: str) -> bool:
        """Take the lock for LOCK_MS. False: somebody else holds it."""
        (reply,) = await self._ask([("SET", LOCK_KEY, holder, "NX", "PX", str(LOCK_MS))])
        return bool(reply)

    async def unlock(self, holder: str) -> None:
        """Let go of it, if it is still this one's."""
        await self._ask([("EVAL", self._unlock, "1", LOCK_KEY, holder)])

    async def _ask(self, commands: Sequence[Command]) -> list[Any]:
        replies = await self._servers.ask(commands)
        for reply in replies:
            if isinstance(reply, ErrorReply):
                raise StoreUnavailable(reply.reason)
        return replies


def _between(seen: str, now: str) -> range | None:
    """The numbers of the changes behind `seen` up to `now`; None: that cannot be told, or they are not all kept."""
    life, _, number = seen.partition(":")
    life_now, _, number_now = now.partition(":")
    if life != life_now or not (number.isdecimal() and number_now.isdecimal()):
        return None
    numbers = range(int(number) + 1, int(number_now) + 1)
    return numbers if 0 < len(numbers) <= CHANGES_KEPT else None
