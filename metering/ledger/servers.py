"""A Redis or a Valkey, or a Cluster of either, as the store asks it. The only module that knows redis-py.

    redis://host:port/0                         one server
    rediss://host:port?ssl_ca_certs=/ca.pem     the same over TLS
    unix:///path/to/socket                      one server on this machine
    redis://a:7000,b:7000,c:7000?cluster=true   a Cluster, found by any of these nodes

Nothing is hidden by another try: a reply that did not come is an error, and who asked decides. A
command whose asker was cancelled takes its connection with it, so its reply goes to nobody else.
"""

import asyncio
import urllib.parse
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple, Protocol

from redis import exceptions
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import AbstractConnection, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

SCAN_COUNT = 1_000

# What a person should read of an error, with no address in it; the first that fits.
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.AuthenticationError, "wrong credentials"),
    (exceptions.AuthorizationError, "wrong credentials"),
    (exceptions.NoPermissionError, "not permitted"),
    (exceptions.BusyLoadingError, "still loading its data"),
    (exceptions.ReadOnlyError, "read-only"),
    (exceptions.OutOfMemoryError, "out of memory"),
    (exceptions.ClusterDownError, "a part of the cluster is down"),
    (exceptions.SlotNotCoveredError, "a part of the cluster is down"),
    (exceptions.TimeoutError, "no answer in time"),
    (exceptions.ConnectionError, "no connection"),
    (OSError, "no connection"),
    (exceptions.ResponseError, "refused the command"),
    (exceptions.RedisClusterException, "no connection to the cluster"),
)
_ERRORS = (exceptions.RedisError, exceptions.RedisClusterException, OSError)
# After these the slots may be elsewhere.
_LOST_NODE = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ClusterDownError, OSError)

Command = tuple[str, ...]


class StoreUnavailable(Exception):
    """The store can't be reached, or can't answer now. The same may be asked again later.

    reason: a short fixed phrase with no address.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the ledger's store: {reason}")
        self.reason = reason


class ErrorReply(NamedTuple):
    """Stands where a reply would. code: the reply's first word (WRONGTYPE, NOSCRIPT, …); "" if none came.

    text: the server's own; reason: a short fixed phrase with no address.
    """

    code: str
    reason: str
    text: str = ""


class Servers(Protocol):
    """What the store asks. All raise StoreUnavailable where nobody could be asked at all.

    is_cluster: are there several, of which one may be away alone?
    """

    is_cluster: bool

    @property
    def connections(self) -> int:
        """How many were made so far."""

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Replies to commands sent in one go, each to who holds its key; an ErrorReply in its command's place."""

    async def ask_apart(self, commands: Sequence[tuple[str, Command]]) -> list[Any]:
        """Replies to commands, each with its key, sent one by one: a server that is away costs the others nothing.

        An ErrorReply in the place of one that could not be answered; of a server that is away only the first is tried.
        """

    async def each(self, *command: str) -> list[Any]:
        """The reply of each server that holds keys, to one command that concerns no key."""

    def keys(self, pattern: str) -> AsyncIterator[str]:
        """Keys of a pattern, on all servers; one may come twice."""

    async def close(self) -> None:
        """Close all connections. Idempotent."""


def open_servers(url: str, *, connect_timeout_s: float, reply_timeout_s: float) -> Servers:
    """Connects when it is first asked. Raises ValueError if the URL is none of those above."""
    options = {
        "decode_responses": True,
        "encoding_errors": "replace",
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "socket_connect_timeout": connect_timeout_s,
        "socket_timeout": reply_timeout_s,
    }
    plain, seeds = split_seeds(url)
    return _Cluster(plain, seeds, options) if seeds else _Single(plain, options)


def split_seeds(url: str) -> tuple[str, list[tuple[str, int]]]:
    """The URL with its first host alone and without `cluster`; the hosts and ports of a Cluster, none of a server.

    Raises ValueError: several hosts without `cluster=true`, or a Cluster on a unix socket.
    """
    parts = urllib.parse.urlsplit(url)
    options = urllib.parse.parse_qsl(parts.query, keep_blank_values=True)
    cluster = [value for name, value in options if name == "cluster"]
    credentials, at, hosts = parts.netloc.rpartition("@")
    first, *others = hosts.split(",")
    query = "&".join(part for part in parts.query.split("&") if part.partition("=")[0] != "cluster")
    plain = urllib.parse.urlunsplit(parts._replace(netloc=credentials + at + first, query=query))
    if any(value not in ("true", "false") for value in cluster):
        raise ValueError("cluster must be true or false")
    if cluster[-1:] != ["true"]:
        if others:
            raise ValueError("several hosts are a cluster's: add ?cluster=true")
        return plain, []
    if parts.scheme == "unix":
        raise ValueError("a cluster is not on a unix socket")
    return plain, [_host_and_port(parts.scheme, host) for host in (first, *others)]


def _host_and_port(scheme: str, host: str) -> tuple[str, int]:
    parts = urllib.parse.urlsplit(f"{scheme}://{host}")
    if not parts.hostname:
        raise ValueError("a host is missing")
    return parts.hostname, parts.port or 6379


class _Client:
    """What one server and a Cluster have in common."""

    _redis: Redis | RedisCluster

    def __init__(self) -> None:
        self.connections = 0

    async def _connected(self, connection: AbstractConnection) -> None:
        await connection.on_connect()
        self.connections += 1

    async def _send(self, commands: Sequence[Command]) -> list[Any]:
        """The client's replies, errors in their places. Raises _ERRORS."""
        if not commands:
            return []
        pipeline = self._redis.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        return list(await pipeline.execute(raise_on_error=False))


class _Single(_Client):
    is_cluster = False
    _redis: Redis

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        super().__init__()
        self._redis = Redis.from_url(url, max_connections=1, redis_connect_func=self._connected, **options)

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        try:
            return list(map(_reply, await self._send(commands)))
        except _ERRORS as error:
            raise StoreUnavailable(_reason(error)) from error

    async def ask_apart(self, commands: Sequence[tuple[str, Command]]) -> list[Any]:
        return await self.ask([command for _, command in commands])

    async def each(self, *command: str) -> list[Any]:
        return await self.ask([command])

    async def keys(self, pattern: str) -> AsyncIterator[str]:
        try:
            async for key in self._redis.scan_iter(match=pattern, count=SCAN_COUNT):
                yield key
        except _ERRORS as error:
            raise StoreUnavailable(_reason(error)) from error

    async def close(self) -> None:
        await self._redis.aclose()


class _Cluster(_Client):
    is_cluster = True
    _redis: RedisCluster

    def __init__(self, url: str, seeds: Sequence[tuple[str, int]], options: dict[str, Any]) -> None:
        known: dict[str, Any] = dict(parse_url(url))
        tls = known.pop("connection_class", None) is SSLConnection
        for name in ("host", "port"):
            known.pop(name, None)
        super().__init__()
        try:
            self._redis = RedisCluster(
                startup_nodes=[ClusterNode(host, port) for host, port in seeds],
                ssl=tls,
                **known,
                **options,
            )
        except exceptions.RedisClusterException as error:
            raise ValueError(str(error)) from error
        # Every node that the seeds name is made with these.
        self._redis.get_connection_kwargs()["redis_connect_func"] = self._connected

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        try:
            replies = await self._send(commands)
        except _ERRORS as error:
            await self._forget_places()
            raise StoreUnavailable(_reason(error)) from error
        if any(isinstance(reply, _LOST_NODE) for reply in replies):
            await self._forget_places()
        return list(map(_reply, replies))

    async def ask_apart(self, commands: Sequence[tuple[str, Command]]) -> list[Any]:
        replies: list[Any] = []
        away: dict[str, Any] = {}  # what each node that is away has answered
        for key, command in commands:
            try:
                await self._redis.initialize()
                node = self._redis.get_node_from_key(key)
            except _ERRORS as error:
                raise StoreUnavailable(_reason(error)) from error
            name = node.name if node is not None else ""
            if name in away:
                replies.append(away[name])
            elif node is None:
                replies.append(ErrorReply("", "a part of the cluster is down"))
            else:
                try:
                    replies.append(_reply(await node.execute_command(*command)))
                except _ERRORS as error:
                    replies.append(_reply(error))
                    if isinstance(error, _LOST_NODE):
                        away[name] = replies[-1]
        return replies

    async def each(self, *command: str) -> list[Any]:
        try:
            await self._redis.initialize()
            replies = await asyncio.gather(
                *(node.execute_command(*command) for node in self._redis.get_primaries()),
                return_exceptions=True,
            )
        except _ERRORS as error:
            raise StoreUnavailable(_reason(error)) from error
        if any(isinstance(reply, _LOST_NODE) for reply in replies):
            await self._forget_places()
        return list(map(_reply, replies))

    async def keys(self, pattern: str) -> AsyncIterator[str]:
        try:
            await self._redis.initialize()
            for node in self._redis.get_primaries():
                cursor = "0"
                while True:
                    words = ("SCAN", cursor, "MATCH", pattern, "COUNT", str(SCAN_COUNT))
                    cursor, keys = await node.execute_command(*words)
                    for key in keys:
                        yield key
                    if str(cursor) == "0":
                        break
        except _ERRORS as error:
            await self._forget_places()
            raise StoreUnavailable(_reason(error)) from error

    async def _forget_places(self) -> None:
        """Ask the nodes again, at the next command, which of them holds what."""
        await self._redis.aclose()

    async def close(self) -> None:
        await self._redis.aclose()


def _reply(reply: Any) -> Any:
    if isinstance(reply, asyncio.CancelledError):
        raise reply
    if not isinstance(reply, Exception):
        return reply
    if isinstance(reply, exceptions.NoScriptError):
        return ErrorReply("NOSCRIPT", "lacks the script")  # redis-py takes the word off
    code = str(reply).partition(" ")[0] if isinstance(reply, exceptions.ResponseError) else ""
    return ErrorReply(code, _reason(reply), str(reply))


def _reason(error: BaseException) -> str:
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), "failed")
