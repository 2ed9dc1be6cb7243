"""The ledger's store: a Redis or a Valkey. The only module that knows redis-py.

    wb:1:{<tenant>}:m               hash  writer → mark (`seq:leaf`)
    wb:1:{<tenant>}:h:<yyyymmddhh>  hash  project|model|family|unit → integer

Batches go in by one script (metering/data/post.lua), so a mark and the sums it stands for are written in
one step, and fall together when the store loses its last seconds. A failure is never hidden by another
try: who folds the journal knows what to send again. Keys and answers: deploy/reference/ledger.md.
"""

import importlib.resources
import re
import types
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from metering.ledger import START, Batch, Done, Gap, Mark, Posted, Refused, Reply, hour_number

CONNECT_TIMEOUT_S = 2.0
REPLY_TIMEOUT_S = 5.0
EVICTION_WANTED = "noeviction"
_PIPELINE_KEYS = 200
_HOUR_PATTERN = re.compile(r"wb:1:\{([^{}]+)\}:h:([0-9]{10})")

# What a person should read of an error, with no address in it; the first that fits.
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.AuthenticationError, "wrong credentials"),
    (exceptions.AuthorizationError, "wrong credentials"),
    (exceptions.NoPermissionError, "not permitted"),
    (exceptions.BusyLoadingError, "still loading its data"),
    (exceptions.ReadOnlyError, "read-only"),
    (exceptions.OutOfMemoryError, "out of memory"),
    (exceptions.TimeoutError, "no answer in time"),
    (exceptions.ConnectionError, "no connection"),
    (OSError, "no connection"),
    (exceptions.ResponseError, "refused the command"),
)


class StoreUnavailable(Exception):
    """The store can't be reached, or can't answer now. The same may be asked again later.

    reason: a short fixed phrase with no address.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the ledger's store: {reason}")
        self.reason = reason


class Store:
    """A client of the store. Connects when it is first asked; one caller at a time.

    url: redis://, rediss:// or unix://. Raises ValueError if it is none of these.
    All that asks the store raises StoreUnavailable; whether the store had done its part is then unknown.
    """

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        reply_timeout_s: float = REPLY_TIMEOUT_S,
    ) -> None:
        self.connections = 0
        """How many were made so far. Who sees it grow has a new connection, perhaps to another store."""
        self._script = importlib.resources.files("metering").joinpath("data/post.lua").read_text("utf-8")
        self._sha = ""
        self._redis: Redis = Redis.from_url(
            url,
            decode_responses=True,
            encoding_errors="replace",
            max_connections=1,
            protocol=2,
            redis_connect_func=self._connected,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=connect_timeout_s,
            socket_timeout=reply_timeout_s,
        )

    async def _connected(self, connection: AbstractConnection) -> None:
        await connection.on_connect()
        self.connections += 1

    async def __aenter__(self) -> "Store":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        await self._redis.aclose()

    async def ping(self) -> None:
        """Return if the store answers."""
        _unwrap(await self._ask([("PING",)]))

    async def eviction(self) -> str | None:
        """The store's maxmemory-policy; None where it may not be asked. A ledger needs EVICTION_WANTED."""
        (reply,) = await self._ask([("CONFIG GET", "maxmemory-policy")])
        if isinstance(reply, exceptions.ResponseError):
            return None
        policy = _unwrap([reply])[0].get("maxmemory-policy")  # redis-py makes a dict of it
        return str(policy) if policy else None

    async def post(self, batches: Sequence[Batch]) -> list[Reply]:
        """Send batches in one go; an answer for each, in order."""
        if not batches:
            return []
        if not self._sha:
            await self._load()
        replies = await self._ask([self._call(batch) for batch in batches])
        if any(isinstance(reply, exceptions.NoScriptError) for reply in replies):
            # The store was restarted, or is another one: what was taken is answered with DONE now.
            await self._load()
            replies = await self._ask([self._call(batch) for batch in batches])
        return [_reply(reply) for reply in _unwrap(replies)]

    def _call(self, batch: Batch) -> tuple[str, ...]:
        hours = {
            hour: index for index, hour in enumerate(dict.fromkeys(hour for hour, _ in batch.sums), start=2)
        }
        keys = [_marks_key(batch.tenant), *(_hour_key(batch.tenant, hour) for hour in hours)]
        words = [batch.writer, str(batch.prev), str(batch.last)]
        for (hour, field), amount in batch.sums.items():
            words += (str(hours[hour]), field, str(amount))
        return ("EVALSHA", self._sha, str(len(keys)), *keys, *words)

    async def _load(self) -> None:
        (self._sha,) = _unwrap(await self._ask([("SCRIPT LOAD", self._script)]))

    async def marks(self, asked: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], Mark | Refused]:
        """The marks of writers, by (tenant, writer); START where the store has none.

        asked: the writers of each tenant, at least one. Refused: what the store holds there is no mark.
        """
        replies = await self._ask(
            [("HMGET", _marks_key(tenant), *writers) for tenant, writers in asked.items()]
        )
        found: dict[tuple[str, str], Mark | Refused] = {}
        for (tenant, writers), reply in zip(asked.items(), replies, strict=True):
            if isinstance(reply, exceptions.ResponseError) and str(reply).startswith("WRONGTYPE"):
                found |= {(tenant, writer): Refused("TYPE", _marks_key(tenant)) for writer in writers}
                continue
            (texts,) = _unwrap([reply])
            for writer, text in zip(writers, texts, strict=True):
                found[tenant, writer] = _mark_or_refused(writer, text)
        return found

    async def balances(self, hours: range) -> AsyncIterator[tuple[str, int, dict[str, str]]]:
        """All balances of these hours (since 1970, UTC): tenant, hour, field → integer as text.

        In no order. While others write, each hash is read whole, but not all at one moment.
        """
        for keys in _cut(await self._hour_keys(hours), _PIPELINE_KEYS):
            replies = _unwrap(
                await self._ask([("HGETALL", _hour_key(tenant, text)) for tenant, text in keys])
            )
            for (tenant, text), fields in zip(keys, replies, strict=True):
                yield tenant, hour_number(text), fields

    async def _hour_keys(self, hours: range) -> list[tuple[str, str]]:
        found: set[tuple[str, str]] = set()  # SCAN may name a key twice
        try:
            async for key in self._redis.scan_iter(match="wb:1:{*}:h:*", count=1_000):
                match = _HOUR_PATTERN.fullmatch(key)
                if match and _is_in(match[2], hours):
                    found.add((match[1], match[2]))
        except (exceptions.RedisError, OSError) as error:
            raise StoreUnavailable(_reason(error)) from error
        return sorted(found)

    async def _ask(self, commands: Sequence[tuple[str, ...]]) -> list[Any]:
        """Replies to commands sent in one go; an error reply stands in its command's place."""
        pipeline = self._redis.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        try:
            return list(await pipeline.execute(raise_on_error=False))
        except (exceptions.RedisError, OSError) as error:
            raise StoreUnavailable(_reason(error)) from error


def _marks_key(tenant: str) -> str:
    return f"wb:1:{{{tenant}}}:m"


def _hour_key(tenant: str, hour: str) -> str:
    return f"wb:1:{{{tenant}}}:h:{hour}"


def _reason(error: Exception) -> str:
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), "failed")


def _unwrap(replies: list[Any]) -> list[Any]:
    for reply in replies:
        if isinstance(reply, Exception):
            raise StoreUnavailable(_reason(reply)) from reply
    return replies


def _reply(answer: Sequence[str]) -> Reply:
    kind, *words = answer
    match kind:
        case "POSTED":
            return Posted()
        case "DONE":
            return Done(Mark.parse(words[0]))
        case "GAP":
            return Gap(Mark.parse(words[0]))
        case _:
            return Refused(kind, words[0])


def _mark_or_refused(writer: str, text: str | None) -> Mark | Refused:
    if text is None:
        return START
    try:
        return Mark.parse(text)
    except ValueError:
        return Refused("FORM", writer)


def _is_in(text: str, hours: range) -> bool:
    try:
        return hour_number(text) in hours
    except ValueError:
        return False  # ten digits, but no hour: nothing of ours


def _cut(items: Sequence[tuple[str, str]], size: int) -> Iterable[Sequence[tuple[str, str]]]:
    return (items[start : start + size] for start in range(0, len(items), size))
