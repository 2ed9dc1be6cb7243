"""Dead directories into a store: what is read, what is remembered, what is named."""

import asyncio
import logging
import random
from collections.abc import Iterable, Sequence

import pytest

from metering.journal.replay import Trimmed
from metering.ledger import folder
from metering.ledger.folder import Folder
from metering.ledger.ledger import Balances, Batch, Mark, Reply, mark
from metering.ledger.store import StoreUnavailable
from tests.support import lines
from tests.support.ledgers import (
    BalancesStore,
    MemoryDirectory,
    Sums,
    folded,
    is_above,
    random_directory,
)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "CHUNK_RECORDS", 4)


def random_directories(seed: int, count: int) -> list[MemoryDirectory]:
    rng = random.Random(seed)
    return [random_directory(rng, f"w{index}", rng.randrange(1, 40)) for index in range(count)]


async def fold_all(store: BalancesStore, directories: Iterable[MemoryDirectory]) -> None:
    assert await Folder(store).fold(directories) == 0


def test_the_store_gets_what_the_journals_say() -> None:
    store, directories = BalancesStore(), random_directories(1, 5)
    asyncio.run(fold_all(store, directories))
    assert store.sums() == folded(directories)


def test_a_live_directory_is_left_alone() -> None:
    store, (live,) = BalancesStore(), random_directories(2, 1)
    live.complete = False
    asyncio.run(fold_all(store, [live]))
    assert store.sums() == {}


def test_a_directory_is_read_again_only_where_the_store_is_behind() -> None:
    async def scenario() -> None:
        store, directories = BalancesStore(), random_directories(3, 3)
        folding = Folder(store)
        await folding.fold(directories)
        reads = [directory.reads for directory in directories]
        await folding.fold(directories)
        assert [directory.reads for directory in directories] == reads
        for key in [key for key in store.balances.marks if key[1] == "w1"]:
            del store.balances.marks[key]
        await folding.fold(directories)
        assert [directory.reads for directory in directories] == [reads[0], reads[1] + 1, reads[2]]

    asyncio.run(scenario())


def test_no_directories() -> None:
    asyncio.run(fold_all(BalancesStore(), []))


def test_a_fork_is_named_once_and_nothing_of_it_is_applied(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        store, (ours,) = BalancesStore(), random_directories(4, 1)
        foreign = Mark(1, "f" * 16)
        store.balances.marks["acme", ours.writer] = str(foreign)
        folding = Folder(store)
        assert await folding.fold([ours]) == 1
        assert await folding.fold([ours]) == 1
        (stop,) = folding.stopped.values()
        assert (stop.tenant, stop.writer, stop.reason) == ("acme", "w0", "FORK")
        assert {key[0] for key in store.sums()} == {"globex", "initech"}
        # The cure: the tenant's keys are deleted, marks included.
        del store.balances.marks["acme", ours.writer]
        assert await folding.fold([ours]) == 0
        assert folding.stopped == {}
        assert store.sums() == folded([ours])

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records] == ["ledger stream stopped"]


def test_a_mark_that_is_none_stops_its_stream_only() -> None:
    async def scenario() -> None:
        store, (ours,) = BalancesStore(), random_directories(5, 1)
        store.balances.marks["acme", ours.writer] = "rubbish"
        folding = Folder(store)
        await folding.fold([ours])
        assert folding.stopped["acme", "w0"].reason == "FORM"
        assert {key[0] for key in store.sums()} == {"globex", "initech"}

    asyncio.run(scenario())


def test_a_store_that_may_evict_is_named(caplog: pytest.LogCaptureFixture) -> None:
    class Evicting(BalancesStore):
        async def eviction(self) -> str | None:
            return "allkeys-lru"

    async def scenario() -> None:
        folding = Folder(Evicting())
        await folding.fold([])
        await folding.fold([])

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records] == ["the store may evict the ledger"]


class Interrupted(BalancesStore):
    """Loses its connection, or its answers, at random; shares its balances with others' clients."""

    def __init__(self, shared: BalancesStore, rng: random.Random) -> None:
        super().__init__(shared.balances)
        self._rng = rng

    async def post(self, batches: Sequence[Batch]) -> list[Reply]:
        if self._rng.random() < 0.3:
            self.faults = [self._rng.choice(["lost", "unanswered"])]
        for _ in range(self._rng.randrange(4)):
            await asyncio.sleep(0)
        return await super().post(batches)


async def fold_until_done(store: BalancesStore, directories: Iterable[MemoryDirectory]) -> None:
    folding = Folder(store)
    while True:
        try:
            if await folding.fold(directories) == 0:
                return
        except StoreUnavailable:
            continue


@pytest.mark.parametrize("seed", range(30))
def test_three_interrupted_folders_are_as_one(seed: int) -> None:
    rng = random.Random(seed)
    store, directories = BalancesStore(), random_directories(seed, 3)
    limit = folded(directories)

    async def watch(seen: list[Sums]) -> None:
        while True:
            seen.append(store.sums())
            await asyncio.sleep(0)

    async def scenario() -> None:
        seen: list[Sums] = []
        watching = asyncio.create_task(watch(seen))
        await asyncio.gather(*(fold_until_done(Interrupted(store, rng), directories) for _ in range(3)))
        watching.cancel()
        assert not any(is_above(sums, limit) for sums in seen)

    asyncio.run(scenario())
    assert store.sums() == limit


class Forgetful(BalancesStore):
    """Loses everything after each of its first so many posts."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._times = times

    async def post(self, batches: Sequence[Batch]) -> list[Reply]:
        replies = await super().post(batches)
        if self._times:
            self._times -= 1
            self.balances = Balances()
        return replies


def test_a_store_that_forgets_meanwhile_is_read_for_again() -> None:
    store, directories = Forgetful(2), random_directories(6, 1)
    asyncio.run(fold_all(store, directories))
    assert store.sums() == folded(directories)


def test_a_store_that_forgets_always_is_given_up_until_the_next_time() -> None:
    async def scenario() -> None:
        store, directories = Forgetful(40), random_directories(6, 1)
        folding = Folder(store)
        assert await folding.fold(directories) > 0
        while await folding.fold(directories):
            pass
        assert store.sums() == folded(directories)

    asyncio.run(scenario())


def test_a_record_of_nobody_known_is_learnt() -> None:
    store, directory = BalancesStore(), MemoryDirectory("w")
    directory.add(lines.call(tenant="newcomer"))
    directory.add(lines.stop())
    directory.complete = True
    asyncio.run(fold_all(store, [directory]))
    assert store.sums() == folded([directory])


def trimmed(directory: MemoryDirectory, last_seq: int) -> None:
    """As if these lines were in the archive alone."""
    marks = {}
    for record, seq, leaf in directory.billed():
        if seq <= last_seq and record.tenant is not None:
            marks[record.tenant] = mark(seq, leaf)
    directory.trimmed = Trimmed(last_seq, marks)


@pytest.mark.parametrize("seed", range(20))
def test_a_trimmed_journal_goes_on_where_the_store_is(seed: int) -> None:
    """Whoever comes anew, a tenant that lacks something of the front is named, and nobody else is stopped."""

    async def scenario() -> None:
        store, (directory,) = BalancesStore(), random_directories(seed, 1)
        await fold_all(store, [directory])
        whole = store.sums()
        trimmed(directory, len(directory.lines) // 2)
        assert await Folder(store).fold([directory]) == 0
        lacking = next(iter(directory.trimmed.marks or {}), None)
        if lacking is None:
            return
        for key in [key for key in store.balances.marks if key[0] == lacking]:
            del store.balances.marks[key]
        folding = Folder(store)
        assert await folding.fold([directory]) == 1
        ((tenant, _),) = folding.stopped
        assert (tenant, folding.stopped[tenant, "w0"].reason) == (lacking, "ARCHIVED")
        assert store.sums() == whole

    asyncio.run(scenario())
