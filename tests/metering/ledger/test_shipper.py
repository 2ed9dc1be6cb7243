"""A live writer's records into a store that fails, forgets and goes back in time."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

import pytest

from metering.ledger import epochs, folder, ledger, shipper
from metering.ledger.epochs import Writer
from metering.ledger.folder import Folder
from metering.ledger.ledger import RANGE_MAX, Balances, Mark
from metering.ledger.shipper import Shipper
from metering.ledger.store import StoreUnavailable
from metering.record import Line
from tests.support import lines
from tests.support.ledgers import (
    BalancesStore,
    MemoryDirectory,
    WithoutPredecessor,
    folded,
    is_above,
    random_directory,
    random_line,
)

HOUR = ledger.hour_text(lines.AT_NS // 3_600_000_000_000)
CALLS = "|llama|inf2|calls"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small bounds meet often; a short backoff keeps tests short."""
    monkeypatch.setattr(folder, "CHUNK_RECORDS", 4)
    monkeypatch.setattr(shipper, "BATCH_RECORDS_MAX", 3)
    monkeypatch.setattr(shipper, "READ_AGAIN_RECORDS", 4)
    monkeypatch.setattr(shipper, "WINDOW_RECORDS_MAX", 8)
    monkeypatch.setattr(shipper, "BACKOFF_MIN_S", 0.001)
    monkeypatch.setattr(shipper, "BACKOFF_MAX_S", 0.004)
    monkeypatch.setattr(shipper, "STOP_S", 0.5)


class Live:
    """A live writer: its directory, and its shipper into a store."""

    def __init__(self, store: BalancesStore, on_behind: Callable[[], None] = lambda: None) -> None:
        self.store = store
        self.directory = MemoryDirectory("wlive")
        self.shipper = Shipper(store, self.directory, host="h", on_behind=on_behind)

    def write(self, line: Line | None = None, **fields: object) -> None:
        self.shipper.fold(*self.directory.add(line or lines.call(**fields)))
        self.shipper.turn(self.seq, "")

    @property
    def seq(self) -> int:
        return len(self.directory.lines)

    def sync(self) -> None:
        self.shipper.synced(self.seq)

    def is_shipped(self) -> bool:
        return self.shipper.lag() == 0 and self.store.sums() == folded([self.directory])


async def eventually(check: Callable[[], bool], *, within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not check():
            await asyncio.sleep(0)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(scenario())


def test_what_is_durable_is_shipped() -> None:
    async def scenario() -> None:
        live = Live(BalancesStore())
        async with live.shipper:
            for tenant in ("acme", "globex", "acme"):
                live.write(tenant=tenant)
            live.write(lines.admitted())
            live.sync()
            await eventually(live.is_shipped)
            assert live.directory.reads == 0  # out of memory

    run(scenario)


def test_what_is_not_durable_is_not_shipped() -> None:
    async def scenario() -> None:
        live = Live(BalancesStore())
        async with live.shipper:
            live.write()
            durable_seq = live.seq
            live.sync()
            live.write()
            live.write()
            assert live.shipper.lag() == 3
            await eventually(lambda: live.shipper.lag() == 2)
        assert max(batch.last.seq for batch in live.store.posted) == durable_seq
        assert live.store.sums()["acme", HOUR, CALLS] == 1

    run(scenario)


def test_power_takes_only_what_was_never_shipped() -> None:
    """The law behind it: after a power cut the store has nothing that the journal has not."""

    async def scenario() -> None:
        for seed in range(20):
            rng, live = random.Random(seed), Live(BalancesStore())
            synced_seq = 0
            async with live.shipper:
                for _ in range(30):
                    live.write(random_line(rng))
                    if rng.random() < 0.3:
                        live.sync()
                        synced_seq = live.seq
                    await asyncio.sleep(0)
            del live.directory.lines[synced_seq:]
            live.directory.complete = True
            assert not is_above(live.store.sums(), folded([live.directory]))
            assert await Folder(live.store).fold([live.directory]) == 0
            assert live.store.sums() == folded([live.directory])

    run(scenario)


def test_power_shows_a_shipper_that_does_not_wait_for_the_disk() -> None:
    """The mutant of the test above: told that all is durable as soon as it is written."""

    async def scenario() -> None:
        live = Live(BalancesStore())
        async with live.shipper:
            live.write()
            live.shipper.synced(live.seq)
            await eventually(lambda: live.shipper.lag() == 0)
        del live.directory.lines[:]  # nothing of it had reached the disk
        live.directory.complete = True
        assert is_above(live.store.sums(), folded([live.directory]))

    run(scenario)


def test_what_memory_does_not_hold_is_read_from_the_journal() -> None:
    async def scenario() -> None:
        live = Live(BalancesStore())
        for _ in range(50):  # far above the bound; nobody ships yet
            live.write(random_line(random.Random(1)))
            live.write(tenant="globex")
        live.sync()
        async with live.shipper:
            await eventually(live.is_shipped)
            assert live.directory.reads > 0
            reads = live.directory.reads
            live.write()
            live.sync()
            await eventually(live.is_shipped)
            assert live.directory.reads == reads  # memory is enough again

    run(scenario)


def test_memory_dropped_before_it_was_durable_waits_without_a_busy_loop() -> None:
    async def scenario() -> None:
        live = Live(BalancesStore())
        async with live.shipper:
            for _ in range(20):
                live.write()
            live.shipper.synced(4)
            await eventually(lambda: live.store.sums().get(("acme", HOUR, CALLS)) == 4)
            await eventually(lambda: live.directory.reads == 2)  # the second finds nothing more
            for _ in range(20):
                await asyncio.to_thread(lambda: None)  # turns of the thread that would read
            assert live.directory.reads == 2
            live.sync()
            await eventually(live.is_shipped)

    run(scenario)


@pytest.mark.parametrize("fault", ["lost", "unanswered"])
def test_a_store_that_is_gone_gets_it_when_it_is_back(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        live = Live(BalancesStore())
        async with live.shipper:
            live.store.faults = [fault] * 4
            live.write()
            live.sync()
            await eventually(lambda: live.shipper.store_gone)
            assert live.shipper.lag() == 1
            live.write()
            live.sync()
            await eventually(live.is_shipped)
            await eventually(lambda: not live.shipper.store_gone)

    with caplog.at_level(logging.INFO):
        run(scenario)
    events = [record.getMessage() for record in caplog.records if record.name == "weighbridge.ledger"]
    assert events == ["ledger store is gone", "ledger store is back"]


class Unreachable(BalancesStore):
    """A store that can't be connected to until `refusals` more attempts have failed."""

    refusals = 5

    async def ping(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise StoreUnavailable("no connection")
        self.connections = 1


def test_a_store_that_was_not_reached_is_not_back_although_there_is_nothing_to_send(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        store = Unreachable()
        store.connections = 0
        live = Live(store)
        async with live.shipper:
            await eventually(lambda: live.shipper.store_gone)
            await eventually(lambda: not live.shipper.store_gone)
            assert store.refusals == 0

    with caplog.at_level(logging.INFO):
        run(scenario)
    events = [record.getMessage() for record in caplog.records if record.name == "weighbridge.ledger"]
    assert events == ["ledger store is gone", "ledger store is back"]


def test_the_end_does_not_wait_for_a_store_that_is_gone() -> None:
    async def scenario() -> None:
        live = Live(BalancesStore())
        live.store.faults = ["lost"] * 1_000_000
        live.write()
        live.sync()
        async with asyncio.timeout(5):
            async with live.shipper:
                await eventually(lambda: live.shipper.store_gone)

    run(scenario)


def test_the_end_sends_what_is_durable() -> None:
    async def scenario() -> None:
        live = Live(BalancesStore())
        async with live.shipper:
            for _ in range(10):
                live.write()
            live.sync()
        assert live.is_shipped()

    run(scenario)


def test_a_store_that_lost_records_is_told_at_once_for_all_tenants() -> None:
    async def scenario() -> None:
        behind: list[int] = []
        store = BalancesStore()
        live = Live(store, on_behind=lambda: behind.append(1))
        async with live.shipper:
            for tenant in ("acme", "globex", "initech"):
                live.write(tenant=tenant)
            live.sync()
            await eventually(live.is_shipped)
            assert behind == []
            store.balances = Balances()  # FLUSHALL
            live.write(tenant="acme")  # the only one with news
            live.sync()
            await eventually(live.is_shipped)
            assert behind

    run(scenario)


def test_a_loss_is_told_again_when_it_is_mended_for_more_may_be_lost_in_between() -> None:
    async def scenario() -> None:
        seen: list[bool] = []

        def on_behind() -> None:
            seen.append(live.store.sums() == folded([live.directory]))
            if len(seen) == 1:
                store.balances = Balances()  # again, and before this writer has sent anything anew

        store = BalancesStore()
        live = Live(store, on_behind=on_behind)
        async with live.shipper:
            for _ in range(7):
                live.write()
            live.sync()
            await eventually(live.is_shipped)
            store.balances = Balances()
            live.write()
            live.sync()
            await eventually(lambda: live.is_shipped() and len(seen) == 2)
            assert seen == [False, True]
            live.write()
            live.sync()
            await eventually(live.is_shipped)
            assert len(seen) == 2

    run(scenario)


def test_a_new_connection_is_a_reason_to_ask() -> None:
    async def scenario() -> None:
        live = Live(BalancesStore())
        async with live.shipper:
            live.write()
            live.sync()
            await eventually(live.is_shipped)
            live.store.balances = Balances()
            live.store.reconnect()
            live.shipper.synced(live.seq)  # nothing new: only a reason to look
            await eventually(live.is_shipped)

    run(scenario)


def test_who_is_told_of_a_loss_asks_at_once() -> None:
    async def scenario() -> None:
        live = Live(BalancesStore())
        async with live.shipper:
            live.write()
            live.sync()
            await eventually(live.is_shipped)
            live.store.balances = Balances()
            live.shipper.compare()
            await eventually(live.is_shipped)

    run(scenario)


def test_each_probe_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipper, "PROBE_S", 0.01)

    async def scenario() -> None:
        live = Live(BalancesStore())
        async with live.shipper:
            live.write()
            live.sync()
            await eventually(live.is_shipped)
            live.store.balances = Balances()
            await eventually(live.is_shipped)

    run(scenario)


def test_a_mark_that_is_not_ours_is_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipper, "PROBE_S", 0.01)

    async def scenario() -> None:
        live = Live(BalancesStore())
        live.store.balances.marks["acme", "wlive"] = str(
            Mark(7, "f" * 16)
        )  # a copy of ours, closed elsewhere
        async with live.shipper:
            live.write(tenant="acme")
            live.write(tenant="globex")
            live.sync()
            await eventually(lambda: bool(live.shipper.stopped))
            (stop,) = live.shipper.stopped
            assert (stop.tenant, stop.reason, stop.where) == ("acme", "FORK", "7:ffffffffffffffff")
            await eventually(lambda: live.shipper.lag() == 1)
            for _ in range(20):
                live.write(tenant="acme")
            live.write(tenant="globex")
            live.sync()
            await eventually(lambda: live.shipper.lag() == 21)
            assert {key[0] for key in live.store.sums()} == {"globex"}
            # The cure: the tenant's keys are deleted, marks included.
            live.store.restore(Balances(), tenant="acme")
            await eventually(live.is_shipped)
            assert live.shipper.stopped == []

    run(scenario)


def test_a_refused_batch_stops_its_stream_until_it_is_cured(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shipper, "PROBE_S", 0.01)

    async def scenario() -> None:
        live = Live(BalancesStore())
        live.store.balances.values["acme", HOUR, CALLS] = str(RANGE_MAX)
        async with live.shipper:
            live.write(tenant="acme")
            live.write(tenant="globex")
            live.sync()
            await eventually(lambda: len(live.shipper.stopped) == 1 and live.shipper.lag() == 1)
            (stop,) = live.shipper.stopped
            assert (stop.tenant, stop.reason, stop.where) == ("acme", "RANGE", CALLS)
            tried = len(live.store.posted)
            await eventually(lambda: len(live.store.posted) > tried + 5)  # probes try it again
            del live.store.balances.values["acme", HOUR, CALLS]
            await eventually(live.is_shipped)
            assert live.shipper.stopped == []

    with caplog.at_level(logging.ERROR):
        run(scenario)
    assert [record.getMessage() for record in caplog.records] == ["ledger stream stopped"]


def test_a_mark_that_is_none_stops_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipper, "PROBE_S", 0.01)

    async def scenario() -> None:
        live = Live(BalancesStore())
        live.store.balances.marks["acme", "wlive"] = "rubbish"
        async with live.shipper:
            live.write(tenant="acme")
            live.sync()
            await eventually(lambda: bool(live.shipper.stopped))
            assert live.shipper.stopped[0].reason == "FORM"
            await eventually(lambda: live.store.asked > 2)
            live.store.restore(Balances(), tenant="acme")
            await eventually(live.is_shipped)

    run(scenario)


def test_a_journal_that_cannot_be_read_is_named_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    class Unreadable(MemoryDirectory):
        broken = True

        def billed(self, after_seq: int = 0):  # type: ignore[no-untyped-def]
            if self.broken:
                raise PermissionError(13, "Permission denied")
            return super().billed(after_seq)

    async def scenario() -> None:
        live = Live(BalancesStore())
        live.directory = Unreadable("wlive")
        live.shipper = Shipper(live.store, live.directory, host="h", on_behind=lambda: None)
        for _ in range(20):
            live.write()
        live.sync()
        async with live.shipper:
            await eventually(lambda: live.shipper.store_gone)
            live.directory.broken = False
            await eventually(live.is_shipped)

    with caplog.at_level(logging.ERROR):
        run(scenario)
    assert [record.getMessage() for record in caplog.records] == ["journal cannot be read again"]


def test_a_fault_of_our_own_is_reported_and_does_not_end_the_shipping() -> None:
    class Faulty(BalancesStore):
        async def ping(self) -> None:
            if not told:
                raise RuntimeError("ours")

    told: list[dict[str, object]] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        live = Live(Faulty())
        async with live.shipper:
            live.write()
            live.sync()
            await eventually(live.is_shipped)
        assert [str(context["exception"]) for context in told] == ["ours"]

    run(scenario)


class World:
    """A live writer, dead ones, a folder that is called when the store fell behind, and a store's troubles."""

    def __init__(self, seed: int, empty: type[Balances] = Balances) -> None:
        self.rng = random.Random(seed)
        self.store = BalancesStore(empty())
        self.dead = [random_directory(self.rng, f"wdead{index}", 12) for index in range(2)]
        self.live = Live(self.store, on_behind=self.fold)
        self.folding: set[asyncio.Task[None]] = set()
        self.copies = [self.store.saved()]
        self.above = False

    def law(self) -> dict[tuple[str, str, str], int]:
        return folded([self.live.directory, *self.dead])

    def fold(self) -> None:
        task = asyncio.create_task(self._fold_now())
        self.folding.add(task)
        task.add_done_callback(self.folding.discard)

    async def _fold_now(self) -> None:
        try:
            await Folder(self.store).fold(self.dead)
        except StoreUnavailable:
            self.fold()

    def trouble(self) -> None:
        match self.rng.randrange(6):
            case 0:
                self.store.restore(Balances())
            case 1:
                self.store.restore(self.rng.choice(self.copies))
            case 2:
                self.store.restore(self.rng.choice(self.copies), tenant=self.rng.choice(["acme", "globex"]))
            case 3:
                self.store.restore(Balances(), tenant=self.rng.choice(["acme", "globex"]))
            case 4:
                self.store.faults = [self.rng.choice(["lost", "unanswered"]) for _ in range(3)]
            case 5:
                self.copies.append(self.store.saved())
        self.store.reconnect()

    def step(self) -> None:
        for _ in range(self.rng.randrange(4)):
            self.live.write(random_line(self.rng))
        if self.rng.random() < 0.5:
            self.live.sync()
        if self.rng.random() < 0.1:
            self.trouble()
        if self.rng.random() < 0.1:
            self.fold()
        self.above |= is_above(self.store.sums(), self.law())


async def live_through(world: World, *, within_s: float) -> None:
    """60 steps, then quiet. Raises TimeoutError if the store does not come to what the journals say."""
    async with world.live.shipper:
        for _ in range(60):
            world.step()
            for _ in range(world.rng.randrange(6)):
                await asyncio.sleep(0)
        world.store.reconnect()
        world.live.sync()
        world.fold()
        await eventually(
            lambda: not world.folding and world.live.shipper.lag() == 0 and world.store.sums() == world.law(),
            within_s=within_s,
        )
        assert world.live.shipper.stopped == []


@pytest.mark.parametrize("seed", range(30))
def test_whatever_the_store_does_it_ends_with_what_the_journals_say(seed: int) -> None:
    world = World(seed)
    asyncio.run(live_through(world, within_s=10))
    assert not world.above


def test_it_does_not_with_a_script_that_checks_no_predecessor() -> None:
    world = World(1, WithoutPredecessor)
    with pytest.raises(TimeoutError):
        asyncio.run(live_through(world, within_s=0.5))


def stated(live: Live) -> Writer:
    return epochs.decode(live.store.balances.writers)["wlive"]


def test_a_writer_is_registered_at_the_start_and_again_in_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipper, "EPOCH_S", 0.01)

    async def scenario() -> None:
        live = Live(BalancesStore())
        for epoch in ("e1", "e2"):
            live.store.balances.epoch = epoch
            live.store.balances.epochs = dict.fromkeys(("acme", "globex"), epoch)
        async with live.shipper:
            await eventually(lambda: "wlive" in live.store.balances.writers)
            assert (stated(live).state, stated(live).host, stated(live).epoch) == ("open", "h", "e2")
            live.write(tenant="acme")
            live.sync()
            await eventually(live.is_shipped)
            live.store.balances = Balances()  # all of it, the list of writers too
            live.store.balances.epoch = "e3"
            live.store.balances.epochs = {"acme": "e3"}
            await eventually(lambda: "wlive" in live.store.balances.writers)
            assert (stated(live).epoch, stated(live).seq, stated(live).behind) == ("e3", 1, ())
            assert live.is_shipped()  # first folded, then stated

    run(scenario)


def test_no_epoch_is_stated_that_a_tenant_is_not_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever begins an epoch takes its tenants into it; what is compared before that may be lost unseen."""
    monkeypatch.setattr(shipper, "EPOCH_S", 0.01)

    async def scenario() -> None:
        live = Live(BalancesStore())
        live.store.balances.epoch = "e1"
        live.write(tenant="acme")
        live.sync()
        async with live.shipper:
            await eventually(lambda: "wlive" in live.store.balances.writers)
            assert stated(live).epoch == ""
            live.store.balances.begin("acme", "e1")
            await eventually(lambda: stated(live).epoch == "e1")

    run(scenario)


def test_a_stream_that_rests_is_stated_as_behind() -> None:
    async def scenario() -> None:
        live = Live(BalancesStore())
        live.store.balances.marks["acme", "wlive"] = "rubbish"
        live.write(tenant="acme")
        live.write(tenant="globex")
        live.sync()
        async with live.shipper:
            await eventually(lambda: "wlive" in live.store.balances.writers)
            live.shipper.compare()
            await eventually(lambda: stated(live).behind == ("acme",))

    run(scenario)


def test_what_an_operator_should_see_to_is_told() -> None:
    class Evicting(BalancesStore):
        async def eviction(self) -> str | None:
            return "allkeys-lru"

    async def scenario() -> None:
        live = Live(Evicting())
        live.store.balances.marks["acme", "wlive"] = "rubbish"
        assert live.shipper.warnings() == []
        async with live.shipper:
            live.write(tenant="acme")
            live.sync()
            evicts = "the ledger's store may evict: its maxmemory-policy is allkeys-lru"
            stopped = "the ledger's stream of acme is stopped: FORM"
            await eventually(lambda: live.shipper.warnings() == [evicts, stopped])
            live.store.faults = ["lost"] * 1_000_000
            live.write(tenant="globex")
            live.sync()
            await eventually(lambda: len(live.shipper.warnings()) == 3)
            assert live.shipper.warnings()[0].startswith("the ledger's store cannot be reached")

    run(scenario)


def counted(store: BalancesStore, tenant: str) -> int:
    return store.sums().get((tenant, HOUR, CALLS), 0)


@pytest.mark.parametrize("is_cluster", [True, False])
def test_a_shard_that_is_away_keeps_only_its_own_tenants_waiting(is_cluster: bool) -> None:
    """More of them than memory holds. With the mutant, a store that is asked as one, all wait."""

    async def scenario() -> None:
        live = Live(BalancesStore())
        live.store.is_cluster = is_cluster
        async with live.shipper:
            for tenant in ("acme", "globex"):
                live.write(tenant=tenant)
            live.sync()
            await eventually(live.is_shipped)
            live.store.away = {"acme"}
            for number in range(1, 30):
                live.write(tenant="acme")
                live.write(tenant="globex")
                live.sync()
                if is_cluster:
                    await eventually(lambda number=number: counted(live.store, "globex") == number + 1)
            await eventually(lambda: live.shipper.store_gone)
            assert counted(live.store, "acme") == 1
            assert counted(live.store, "globex") == (30 if is_cluster else 1)
            assert live.shipper.lag() > 0
            live.store.away = set()
            await eventually(live.is_shipped)

    run(scenario)
