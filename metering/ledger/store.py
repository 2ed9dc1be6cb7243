"""The ledger's store: what it holds, under which keys, and how that is asked for and changed.

    wb:1:epoch                      text  this life of the store
    wb:1:writers                    hash  writer → what is known of it (JSON)
    wb:1:anchors                    hash  writer → its journal's newest signed note
    wb:1:backends                   hash  gateway|backend|address → what it has metered of that server
    wb:1:{<tenant>}:m               hash  writer → mark (`seq:leaf`)
    wb:1:{<tenant>}:meta            hash  epoch, ready, floor
    wb:1:{<tenant>}:h:<yyyymmddhh>  hash  project|model|family|unit → integer
    wb:1:{<tenant>}:w:<yyyymmddhh>  hash  writer|unit → integer: the same amounts, by whose records they are
    wb:1:{<tenant>}:l, :lw, :l:*    hash  what calls under way hold of limits (metering/limits/limiter.py)
    wb:1:{<tenant>}:b:<window>      hash  scope → integer: costs, by the month, the day and the hour of admission

Batches go in by one script (metering/data/post.lua), so a mark and the sums it stands for are written in
one step, and fall together when the store loses its last seconds. A failure is never hidden by another
try: who folds the journal knows what to send again. Keys and answers: deploy/reference/ledger.md.
"""

import hashlib
import re
import types
from collections.abc import AsyncIterator, Container, Iterable, Mapping, Sequence
from typing import Any

from metering.ledger import epochs, metered_elsewhere
from metering.ledger.epochs import NO_EPOCH, Meta, Writer
from metering.ledger.ledger import (
    START,
    UNITS,
    Account,
    Amounts,
    Batch,
    Done,
    Gap,
    Held,
    Mark,
    Posted,
    Refused,
    Reply,
    by_writer,
    field_parts,
    hour_number,
    hour_text,
)
from metering.ledger.metered_elsewhere import Statement
from metering.ledger.scripts import lua
from metering.ledger.servers import Command, ErrorReply, open_servers
from metering.ledger.servers import StoreUnavailable as StoreUnavailable
from metering.limits import pools

CONNECT_TIMEOUT_S = 2.0
REPLY_TIMEOUT_S = 5.0
EVICTION_WANTED = "noeviction"
_PIPELINE_KEYS = 200
_EPOCH_KEY = "wb:1:epoch"
_REGISTER_KEY = "wb:1:writers"
_ANCHORS_KEY = "wb:1:anchors"
_BACKENDS_KEY = "wb:1:backends"
_HOUR_PATTERN = re.compile(r"wb:1:\{([^{}]+)\}:h:([0-9]{10})")
_WINDOW_PATTERN = re.compile(r"wb:1:\{([^{}]+)\}:b:((?:[0-9]{2}){3,5})")
_MARKS_PATTERN = re.compile(r"wb:1:\{([^{}]+)\}:m")


class Store:
    """A client of the store. Connects when it is first asked; one caller at a time.

    url: as metering/ledger/servers.py has them. Raises ValueError if it is none of these.
    All that asks the store raises StoreUnavailable; whether the store had done its part is then unknown.
    """

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        reply_timeout_s: float = REPLY_TIMEOUT_S,
    ) -> None:
        self._script = lua("post")
        self._held = lua("held")
        self._servers = open_servers(
            url, connect_timeout_s=connect_timeout_s, reply_timeout_s=reply_timeout_s
        )

    @property
    def connections(self) -> int:
        """How many were made so far. Who sees it grow has a new connection, perhaps to another store."""
        return self._servers.connections

    @property
    def is_cluster(self) -> bool:
        """May a part of it be away?"""
        return self._servers.is_cluster

    async def __aenter__(self) -> "Store":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        await self._servers.close()

    async def ping(self) -> None:
        """Return if the store answers: of a Cluster, each shard."""
        _unwrap(await self._servers.each("PING"))

    async def eviction(self) -> str | None:
        """The store's maxmemory-policy; None where it may not be asked. A ledger needs EVICTION_WANTED.

        Of a Cluster: the first one that is not that, if there is one.
        """
        policies = set()
        for reply in await self._servers.each("CONFIG GET", "maxmemory-policy"):
            if isinstance(reply, ErrorReply) and reply.code:
                continue
            policy = _unwrap([reply])[0].get("maxmemory-policy")  # redis-py makes a dict of it
            if policy:
                policies.add(str(policy))
        return min(policies, key=lambda policy: (policy == EVICTION_WANTED, policy), default=None)

    # Epochs, tenants, writers (metering/ledger/epochs.py)

    async def epoch(self) -> str:
        """This life of the store; NO_EPOCH if nobody has begun one."""
        (reply,) = _unwrap(await self._servers.ask([("GET", _EPOCH_KEY)]))
        return reply or NO_EPOCH

    async def renew(self, seen: str, new: str) -> str:
        """Begin the epoch `new`, unless it is not `seen` any more. returns: the one that is now."""
        (reply,) = _unwrap(await self._servers.ask([("EVAL", lua("renew"), "1", _EPOCH_KEY, seen, new)]))
        return str(reply)

    async def metas(self, tenants: Iterable[str]) -> dict[str, Meta]:
        """What is kept of each tenant beside its balances; tenants with a key of another type there are left out."""
        names = list(tenants)
        replies = await self._servers.ask(
            [("HMGET", _meta_key(tenant), "epoch", "floor", "ready") for tenant in names]
        )
        found = {}
        for tenant, reply in zip(names, replies, strict=True):
            if _is_wrong_type(reply):
                continue
            epoch, floor, ready = (value or "" for value in _unwrap([reply])[0])
            found[tenant] = Meta(epoch=epoch, floor=floor, ready=ready)
        return found

    async def begin(self, tenants: Iterable[str], epoch: str) -> None:
        """Take tenants into an epoch; none of them is ready in it yet."""
        await self._each_meta("begin", tenants, epoch)

    async def set_ready(self, tenants: Iterable[str], epoch: str) -> None:
        """Say that tenants are ready, those that are in this epoch."""
        await self._each_meta("ready", tenants, epoch)

    async def set_floor(self, tenants: Iterable[str], hour: str) -> None:
        """Raise the floor of tenants to `yyyymmddhh`; one that is higher stays."""
        await self._each_meta("floor", tenants, hour)

    async def _each_meta(self, script: str, tenants: Iterable[str], word: str) -> None:
        text = lua(script)
        replies = await self._servers.ask(
            [("EVAL", text, "1", _meta_key(tenant), word) for tenant in tenants]
        )
        _unwrap([reply for reply in replies if not _is_wrong_type(reply)])

    async def writers(self) -> dict[str, Writer]:
        """All writers that any gateway has registered."""
        (reply,) = _unwrap(await self._servers.ask([("HGETALL", _REGISTER_KEY)]))
        return epochs.decode(reply)

    async def put_writers(self, writers: Mapping[str, Writer], *, if_absent: bool = False) -> None:
        """Register writers. if_absent: leave those alone that are there."""
        command = "HSETNX" if if_absent else "HSET"
        _unwrap(
            await self._servers.ask(
                [(command, _REGISTER_KEY, name, epochs.encode(one)) for name, one in writers.items()]
            )
        )

    async def drop_writers(self, names: Sequence[str], tenants: Iterable[str]) -> None:
        """Forget writers, and their marks at these tenants."""
        if names:
            keys = [*map(_marks_key, tenants), _REGISTER_KEY]
            _unwrap(await self._servers.ask([("HDEL", key, *names) for key in keys]))

    async def drop_hours(self, tenants: Container[str], floor: int) -> None:
        """Delete the balances of these tenants' hours (since 1970, UTC) below `floor`, and what was spent in windows
        that are wholly below."""
        keys = [one for one in await self._hour_keys(range(floor)) if one[0] in tenants]
        for cut in _cut(keys, _PIPELINE_KEYS):
            _unwrap(await self._servers.ask([("DEL", _hour_key(*one), _writers_key(*one)) for one in cut]))
        text = hour_text(floor)
        windows = [one async for one in self._windows() if one[0] in tenants and one[1] < text[: len(one[1])]]
        for cut in _cut(windows, _PIPELINE_KEYS):
            _unwrap(await self._servers.ask([("DEL", _spent_key(*one)) for one in cut]))

    async def spent(self, tenant: str, windows: Sequence[str]) -> list[dict[str, int]]:
        """What was spent of budgets in each of these windows, picodollars by scope (metering/limits/terms.py)."""
        replies = await self._servers.ask([("HGETALL", _spent_key(tenant, window)) for window in windows])
        return [
            {scope: int(amount) for scope, amount in reply.items() if not scope.startswith(_TOLD)}
            for reply in _unwrap(replies)
        ]

    async def drop_tenant(self, tenant: str) -> int:
        """Delete all keys of a tenant, in one step. returns: how many there were."""
        found = {key async for key in self._servers.keys(f"wb:1:{{{tenant}}}:*")}
        if found:  # they share a slot. Sums that stayed behind their marks would be counted again
            _unwrap(await self._servers.ask([("DEL", *sorted(found))]))
        return len(found)

    # What each gateway has metered of which server (metering/ledger/metered_elsewhere.py)

    async def metered(self) -> list[Statement]:
        """The statements of all gateways."""
        (reply,) = _unwrap(await self._servers.ask([("HGETALL", _BACKENDS_KEY)]))
        return metered_elsewhere.parse(reply)

    async def state_metered(self, statements: Iterable[Statement], gone: Iterable[str] = ()) -> None:
        """State ours; drop the fields of those that are gone."""
        commands: list[Command] = [("HSET", _BACKENDS_KEY, one.field, one.value) for one in statements]
        commands += [("HDEL", _BACKENDS_KEY, field) for field in gone]
        if commands:
            _unwrap(await self._servers.ask(commands))

    # Anchors (metering/audit/anchors.py)

    async def put_anchors(self, notes: Mapping[str, str]) -> None:
        """Keep the newest note of each of these writers; a key of another type there is left alone."""
        if not notes:
            return
        replies = await self._servers.ask(
            [("HSET", _ANCHORS_KEY, writer, note) for writer, note in notes.items()]
        )
        _unwrap([reply for reply in replies if not _is_wrong_type(reply)])

    async def drop_anchors(self, writers: Sequence[str]) -> None:
        """Forget the notes of these writers."""
        if writers:
            _unwrap(await self._servers.ask([("HDEL", _ANCHORS_KEY, *writers)]))

    async def anchors(self) -> dict[str, str]:
        """The newest note of each writer, as it was put there by whoever."""
        (reply,) = _unwrap(await self._servers.ask([("HGETALL", _ANCHORS_KEY)]))
        return dict(reply)

    # What workers hold of limits (metering/limits/limiter.py)

    async def limit_workers(self, tenants: Iterable[str]) -> dict[str, list[str]]:
        """The workers that hold something of each tenant's limits, or did; of tenants that have any such."""
        names = list(tenants)
        replies = await self._servers.ask([("HGETALL", f"{_limits_key(tenant)}w") for tenant in names])
        found = zip(names, replies, strict=True)
        return {
            tenant: [*_unwrap([reply])[0]] for tenant, reply in found if reply and not _is_wrong_type(reply)
        }

    async def clear_limits(self, dead: Sequence[tuple[str, str]], *, with_held: bool) -> None:
        """Nothing is under way of these workers, each (tenant, writer). with_held: nor is anything held."""
        text, commands = lua("limits_sums") + lua("limits_clear"), []
        for tenant, writer in dead:
            key = _limits_key(tenant)
            keys = (key, f"{key}w", f"{key}:{writer}")
            commands.append(("EVAL", text, "3", *keys, writer, str(int(with_held))))
        replies = await self._servers.ask(commands)
        _unwrap([reply for reply in replies if not _is_wrong_type(reply)])

    # Pools (metering/limits/pools.py)

    async def drop_members(self, backends: Iterable[str], names: Sequence[str]) -> None:
        """These workers are dead: what they held of these backends' slots is free."""
        text = pools.script()
        replies = await self._servers.ask(
            [("EVAL", text, "1", pools.key(backend), "", *names) for backend in backends]
        )
        _unwrap([reply for reply in replies if not _is_wrong_type(reply)])

    # Batches and marks

    async def post(self, batches: Sequence[Batch]) -> list[Reply]:
        """Send batches in one go; an answer for each, in order."""
        if not batches:
            return []
        sha = hashlib.sha1(self._script.encode(), usedforsecurity=False).hexdigest()
        replies = await self._servers.ask([_post("EVALSHA", sha, batch) for batch in batches])
        missing = [index for index, reply in enumerate(replies) if _lacks_script(reply)]
        if missing:  # the store was started anew, or is another one; it keeps what it is sent
            again = [_post("EVAL", self._script, batches[index]) for index in missing]
            for index, reply in zip(missing, await self._servers.ask(again), strict=True):
                replies[index] = reply
        return [_reply(reply) for reply in _unwrap(replies)]

    async def post_each(self, batches: Sequence[Batch]) -> list[Reply | None]:
        """As `post`; None for a batch whose server can't be reached, or can't answer now, while others can."""
        commands = [(_marks_key(batch.tenant), _post("EVAL", self._script, batch)) for batch in batches]
        replies = await self._servers.ask_apart(commands)
        return [None if isinstance(reply, ErrorReply) else _reply(reply) for reply in replies]

    async def marks(self, asked: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], Mark | Refused]:
        """The marks of writers, by (tenant, writer); START where the store has none.

        asked: the writers of each tenant, at least one. Refused: what the store holds there is no mark.
        """
        replies = await self._servers.ask(
            [("HMGET", _marks_key(tenant), *writers) for tenant, writers in asked.items()]
        )
        found: dict[tuple[str, str], Mark | Refused] = {}
        for (tenant, writers), reply in zip(asked.items(), replies, strict=True):
            if _is_wrong_type(reply):
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
                await self._servers.ask([("HGETALL", _hour_key(tenant, text)) for tenant, text in keys])
            )
            for (tenant, text), fields in zip(keys, replies, strict=True):
                yield tenant, hour_number(text), fields

    # For the control

    async def tenants(self) -> list[str]:
        """Tenants that the store has marks of, by name."""
        matches = [_MARKS_PATTERN.fullmatch(key) async for key in self._servers.keys("wb:1:{*}:m")]
        return sorted({match[1] for match in matches if match})

    async def held(self, tenant: str, from_hour: int = 0) -> Held:
        """All of one tenant from this hour on (since 1970, UTC), at one moment; hours below it are as below the floor.

        Raises ValueError if something there is no mark, floor or balance.
        """
        hours = sorted({hour async for hour in self._tenant_hours(tenant) if hour >= from_hour})
        # An hour that begins between the two looks is asked for too.
        hours += [hours[-1] + 1, hours[-1] + 2] if hours else []
        keys = [_marks_key(tenant), _meta_key(tenant)]
        keys += [key(tenant, hour_text(hour)) for hour in hours for key in (_hour_key, _writers_key)]
        (found,) = _unwrap(await self._servers.ask([("EVAL", self._held, str(len(keys)), *keys)]))
        marks, meta, *sums = (dict(zip(flat[::2], flat[1::2], strict=True)) for flat in found)
        by_account: dict[Account, Amounts] = {}
        of_writers: dict[tuple[int, str], Amounts] = {}
        for hour, balances, writers in zip(hours, sums[::2], sums[1::2], strict=True):
            for field, value in balances.items():
                account, unit = field_parts(hour, field)
                if unit in UNITS:  # a later version may keep more
                    by_account.setdefault(account, [0] * len(UNITS))[UNITS.index(unit)] = int(value)
            for field, value in writers.items():
                writer, _, unit = field.partition("|")
                if unit in UNITS:
                    of_writers.setdefault((hour, writer), [0] * len(UNITS))[UNITS.index(unit)] = int(value)
        floor = hour_number(meta["floor"]) if "floor" in meta else 0
        places = {writer: Mark.parse(text) for writer, text in marks.items()}
        return Held(places, by_account, of_writers, max(floor, from_hour))

    async def _tenant_hours(self, tenant: str) -> AsyncIterator[int]:
        async for key in self._servers.keys(f"wb:1:{{{tenant}}}:h:*"):
            match = _HOUR_PATTERN.fullmatch(key)
            if match:
                yield hour_number(match[2])

    async def _windows(self) -> AsyncIterator[tuple[str, str]]:
        async for key in self._servers.keys("wb:1:{*}:b:*"):
            if match := _WINDOW_PATTERN.fullmatch(key):
                yield match[1], match[2]

    async def _hour_keys(self, hours: range) -> list[tuple[str, str]]:
        found: set[tuple[str, str]] = set()  # SCAN may name a key twice
        async for key in self._servers.keys("wb:1:{*}:h:*"):
            match = _HOUR_PATTERN.fullmatch(key)
            if match and _is_in(match[2], hours):
                found.add((match[1], match[2]))
        return sorted(found)


def _post(command: str, script: str, batch: Batch) -> Command:
    hours = list(dict.fromkeys(hour for hour, _ in batch.sums))
    keys = [_marks_key(batch.tenant), _meta_key(batch.tenant)]
    keys += [key(batch.tenant, hour) for hour in hours for key in (_hour_key, _writers_key)]
    places = {hour: 3 + 2 * index for index, hour in enumerate(hours)}  # from 1, as Lua counts
    windows = {
        window: len(keys) + 1 + at for at, window in enumerate(dict.fromkeys(w for w, _ in batch.spent))
    }
    keys += [_spent_key(batch.tenant, window) for window in windows]
    words = [batch.writer, str(batch.prev), str(batch.last)]
    for (hour, field), amount in batch.sums.items():
        words += (str(places[hour]), field, str(amount))
    for (hour, field), amount in by_writer(batch).items():
        words += (str(places[hour] + 1), field, str(amount))
    for (window, scope), amount in batch.spent.items():
        words += (str(windows[window]), scope, str(amount))
    return (command, script, str(len(keys)), *keys, *words)


def _limits_key(tenant: str) -> str:
    return f"wb:1:{{{tenant}}}:l"


def _marks_key(tenant: str) -> str:
    return f"wb:1:{{{tenant}}}:m"


def _meta_key(tenant: str) -> str:
    return f"wb:1:{{{tenant}}}:meta"


def _hour_key(tenant: str, hour: str) -> str:
    return f"wb:1:{{{tenant}}}:h:{hour}"


def _writers_key(tenant: str, hour: str) -> str:
    return f"wb:1:{{{tenant}}}:w:{hour}"


_TOLD = "told|"
"""How the fields of such a hash begin that are no scope's: who has told of a threshold."""


def _spent_key(tenant: str, window: str) -> str:
    return f"wb:1:{{{tenant}}}:b:{window}"


def _is_wrong_type(reply: Any) -> bool:
    """A key of another type is named where it matters: by `post`, for it stops a stream."""
    return isinstance(reply, ErrorReply) and (reply.code == "WRONGTYPE" or "WRONGTYPE" in reply.text)


def _lacks_script(reply: Any) -> bool:
    return isinstance(reply, ErrorReply) and reply.code == "NOSCRIPT"


def _unwrap(replies: list[Any]) -> list[Any]:
    for reply in replies:
        if isinstance(reply, ErrorReply):
            raise StoreUnavailable(reply.reason)
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
