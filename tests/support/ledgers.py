"""Journals in memory and stores for tests of the ledger.

`MemoryDirectory` stands for a writer's directory on disk; `BalancesStore` for the client of a store, with
the Python model of the script in it and faults on demand.
"""

import asyncio
import copy
import hashlib
import random
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import msgspec

from metering.journal.replay import NOTHING
from metering.ledger import epochs, ledger
from metering.ledger.epochs import Meta, Writer
from metering.ledger.ledger import START, Balances, Batch, Done, Mark, Refused, Reply
from metering.ledger.store import StoreUnavailable
from metering.record import Billed, CallRecord, Line, Outcome
from metering.units import NS_PER_HOUR
from metering.usage import UNKNOWN
from tests.support import lines

HOUR = lines.AT_NS // NS_PER_HOUR
TENANTS = ("acme", "globex", "initech")
Sums = dict[tuple[str, str, str], int]
"""(tenant, hour, field) → amount."""


def billed(lines: Iterable[tuple[Line, int, str]]) -> Iterator[tuple[Billed, int, str]]:
    """The records among these lines, as a reader of the journal gives them to the ledger."""
    for line, seq, leaf in lines:
        if isinstance(line, CallRecord):
            yield msgspec.json.decode(msgspec.json.encode(line), type=Billed), seq, leaf


class MemoryDirectory:
    """A writer's directory: lines with their seq and leaf. A copy may be closed by other lines."""

    def __init__(self, writer: str) -> None:
        self.writer = writer
        self.complete = False
        self.lines: list[tuple[Line, int, str]] = []
        self.reads = 0
        self.trimmed = NOTHING

    def add(self, line: Line, salt: str = "") -> tuple[Line, int, str]:
        seq = len(self.lines) + 1
        leaf = hashlib.sha256(f"{self.writer} {seq} {salt}".encode()).hexdigest()
        self.lines.append((line, seq, leaf))
        return self.lines[-1]

    def records(self, after_seq: int = 0) -> Iterator[tuple[Line, int, str]]:
        return iter(self.lines[after_seq:])

    def billed(self, after_seq: int = 0) -> Iterator[tuple[Billed, int, str]]:
        self.reads += 1
        return billed(self.lines[after_seq:])

    def marks(self, tenant: str) -> list[Mark]:
        """The marks of a tenant's records, in order."""
        return [
            ledger.mark(seq, leaf)
            for line, seq, leaf in self.lines
            if isinstance(line, CallRecord) and line.tenant == tenant
        ]

    def copy(self) -> "MemoryDirectory":
        twin = MemoryDirectory(self.writer)
        twin.lines, twin.complete = list(self.lines), self.complete
        return twin


def random_line(rng: random.Random, tenants: Sequence[str] = TENANTS) -> Line:
    """A record of a random tenant, or, at times, a line that is none."""
    if rng.random() < 0.2:
        return lines.admitted(tenant=rng.choice(tenants))
    unpriced = rng.random() < 0.2
    return lines.call(
        tenant=rng.choice(tenants),
        project=rng.choice([None, "web"]),
        model=rng.choice(["llama", "qwen"]),
        instance_family=rng.choice([None, "inf2", "trn1"]),
        finished_ns=lines.AT_NS + rng.randrange(3) * NS_PER_HOUR,
        cost_pusd=None if unpriced else rng.randrange(10**12),
        outcome=Outcome.COMPLETED,
        usage=UNKNOWN if unpriced else lines.usage(rng.randrange(100), None, rng.randrange(100)),
    )


def random_directory(rng: random.Random, writer: str, length: int) -> MemoryDirectory:
    """A closed directory."""
    directory = MemoryDirectory(writer)
    for _ in range(length):
        directory.add(random_line(rng))
    directory.add(lines.stop())
    directory.complete = True
    return directory


def folded(directories: Iterable[MemoryDirectory]) -> Sums:
    """The law: what a store must hold once it has all of these journals."""
    sums: Sums = {}
    for directory in directories:
        for line, _, _ in directory.lines:
            if isinstance(line, CallRecord):
                for (hour, field), amount in ledger.postings(line).items():
                    key = (line.tenant, hour, field)
                    sums[key] = sums.get(key, 0) + amount
    return sums


def is_above(sums: Sums, limit: Sums) -> bool:
    """Does any balance exceed what the journals say?"""
    return any(amount > limit.get(key, 0) for key, amount in sums.items())


class BalancesStore:
    """The client of a store that is a `Balances`. One connection: `reconnect` stands for a new one."""

    def __init__(self, balances: Balances | None = None) -> None:
        self.balances = balances or Balances()
        self.connections = 1
        self.is_cluster = False
        self.away: set[str] = set()  # tenants whose shard is; of a cluster
        self.faults: list[str] = []  # for the next posts: "lost" (before it is taken), "unanswered" (after)
        self.posted: list[Batch] = []
        self.asked = 0  # how often for marks

    def sums(self) -> Sums:
        return {key: int(value) for key, value in self.balances.values.items()}

    def saved(self) -> Balances:
        return copy.deepcopy(self.balances)

    def restore(self, saved: Balances, *, tenant: str | None = None) -> None:
        """Be as once: all of it, or one tenant's keys."""
        if tenant is None:
            self.balances = copy.deepcopy(saved)
            return
        for name in ("values", "by_writer", "marks"):
            now, then = getattr(self.balances, name), getattr(saved, name)
            for key in [key for key in now if key[0] == tenant]:
                del now[key]
            now.update({key: value for key, value in then.items() if key[0] == tenant})
        for name in ("epochs", "ready", "floors"):
            getattr(self.balances, name).pop(tenant, None)
            if tenant in getattr(saved, name):
                getattr(self.balances, name)[tenant] = getattr(saved, name)[tenant]

    def reconnect(self) -> None:
        self.connections += 1

    async def ping(self) -> None:
        await asyncio.sleep(0)

    async def eviction(self) -> str | None:
        return "noeviction"

    async def epoch(self) -> str:
        await asyncio.sleep(0)
        return self.balances.epoch

    async def renew(self, seen: str, new: str) -> str:
        await asyncio.sleep(0)
        return self.balances.renew(seen, new)

    async def metas(self, tenants: Iterable[str]) -> dict[str, Meta]:
        await asyncio.sleep(0)
        held = self.balances
        return {
            name: Meta(
                epoch=held.epochs.get(name, ""),
                floor=held.floors.get(name, ""),
                ready=held.ready.get(name, ""),
            )
            for name in tenants
        }

    async def begin(self, tenants: Iterable[str], epoch: str) -> None:
        for tenant in tenants:
            await asyncio.sleep(0)
            self.balances.begin(tenant, epoch)

    async def set_ready(self, tenants: Iterable[str], epoch: str) -> None:
        for tenant in tenants:
            await asyncio.sleep(0)
            self.balances.set_ready(tenant, epoch)

    async def set_floor(self, tenants: Iterable[str], hour: str) -> None:
        for tenant in tenants:
            await asyncio.sleep(0)
            self.balances.set_floor(tenant, hour)

    async def writers(self) -> dict[str, Writer]:
        await asyncio.sleep(0)
        return epochs.decode(self.balances.writers)

    async def put_writers(self, writers: Mapping[str, Writer], *, if_absent: bool = False) -> None:
        for name, one in writers.items():
            await asyncio.sleep(0)
            if not if_absent or name not in self.balances.writers:
                self.balances.writers[name] = epochs.encode(one)

    async def drop_writers(self, names: Sequence[str], tenants: Iterable[str]) -> None:
        held = self.balances
        await asyncio.sleep(0)
        for name in names:
            held.writers.pop(name, None)
            for tenant in tenants:
                held.marks.pop((tenant, name), None)

    async def drop_hours(self, tenants: Container[str], floor: int) -> None:
        await asyncio.sleep(0)
        for values in (self.balances.values, self.balances.by_writer):
            for key in [key for key in values if key[0] in tenants]:
                if ledger.hour_number(key[1]) < floor:
                    del values[key]
        text = ledger.hour_text(floor)
        for key in [key for key in self.balances.spent if key[0] in tenants]:
            if key[1] < text[: len(key[1])]:
                del self.balances.spent[key]

    async def marks(self, asked: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], Mark | Refused]:
        self.asked += bool(asked)
        await asyncio.sleep(0)
        found: dict[tuple[str, str], Mark | Refused] = {}
        for tenant, writers in asked.items():
            for writer in writers:
                text = self.balances.marks.get((tenant, writer), str(START))
                try:
                    found[tenant, writer] = Mark.parse(text)
                except ValueError:
                    found[tenant, writer] = Refused("FORM", writer)
        return found

    async def post_each(self, batches: Sequence[Batch]) -> list[Reply | None]:
        return [None if one.tenant in self.away else (await self.post([one]))[0] for one in batches]

    async def post(self, batches: Sequence[Batch]) -> list[Reply]:
        if not batches:
            return []
        if any(batch.tenant in self.away for batch in batches):
            raise StoreUnavailable("no connection")
        await asyncio.sleep(0)
        fault = self.faults.pop(0) if self.faults else None
        if fault == "lost":
            raise StoreUnavailable("no connection")
        self.posted += batches
        replies = [self.balances.post(batch) for batch in batches]
        await asyncio.sleep(0)
        if fault == "unanswered":
            raise StoreUnavailable("no answer in time")
        return replies


class WithoutPredecessor(Balances):
    """The mutant that takes any batch which ends above the mark."""

    def post(self, batch: Batch) -> Reply:
        at = Mark.parse(self.marks.get((batch.tenant, batch.writer), str(START)))
        if at.seq >= batch.last.seq:
            return Done(at)
        self.marks[batch.tenant, batch.writer] = str(batch.prev)
        return super().post(batch)
