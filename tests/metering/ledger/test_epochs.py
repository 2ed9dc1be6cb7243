"""Which life of the store it is, and who is ready in it: never too early, and at last."""

import asyncio
import itertools
import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metering.ledger import epochs, ledger
from metering.ledger.epochs import Meta, Writer
from metering.ledger.folder import Folder
from metering.ledger.ledger import Balances
from metering.ledger.register import Register, new_epoch, raise_floor
from metering.ledger.store import StoreUnavailable
from metering.ledger.upkeep import Upkeep
from metering.units import NS_PER_HOUR
from tests.support.ledgers import (
    HOUR,
    TENANTS,
    BalancesStore,
    MemoryDirectory,
    Sums,
    folded,
    is_above,
    random_directory,
)

OPEN = Writer(host="h1", seen_ns=1, seq=7, state="open", epoch="e1")
CLOSED = Writer(host="h2", seen_ns=1, seq=9, state="closed", epoch="e1", hour="2026092114", behind=("acme",))


@pytest.mark.parametrize(
    ("epoch", "meta", "ready"),
    [
        ("e1", Meta(epoch="e1", ready="e1"), True),
        ("e1", Meta(epoch="e1"), False),
        ("e1", Meta(epoch="e1", ready="e0"), False),
        ("e2", Meta(epoch="e1", ready="e1"), False),  # the epoch is another one since
        ("", Meta(), False),
        ("", Meta(epoch="", ready=""), False),
    ],
)
def test_who_is_ready(epoch: str, meta: Meta, ready: bool) -> None:
    assert epochs.is_ready(epoch, meta) == ready


def test_who_keeps_a_tenant_from_being_ready() -> None:
    writers = {"w1": OPEN, "w2": CLOSED, "w3": Writer(host="h3", seen_ns=1, seq=0, state="open")}
    assert epochs.unfolded("e1", writers, "acme") == ["w2", "w3"]
    assert epochs.unfolded("e1", writers, "globex") == ["w3"]
    assert epochs.unfolded("e2", writers, "globex") == ["w1", "w2", "w3"]


def test_for_whom_somebody_has_answered() -> None:
    gone = Writer(host="h3", seen_ns=1, seq=0, state="gone")
    writers = {"w1": OPEN, "w2": CLOSED, "w3": gone, "w4": Writer(host="h4", seen_ns=1, seq=0, state="open")}
    assert epochs.answered("e1", writers) == {"w1", "w2", "w3"}
    assert epochs.answered("e2", writers) == {"w3"}
    assert epochs.answered("", writers) == {"w3"}


def test_entries_read_back_and_what_is_none_was_never_folded() -> None:
    assert epochs.decode({"w": epochs.encode(CLOSED)}) == {"w": CLOSED}
    for text in ("", "{}", "[]", "rubbish", "\ufffd"):
        assert epochs.unfolded("e1", epochs.decode({"w": text}), "acme") == ["w"]


def test_news_is_more_than_another_time() -> None:
    later = Writer(host="h1", seen_ns=2, seq=7, state="open", epoch="e1")
    assert epochs.news({"w1": later, "w2": CLOSED}, {"w1": OPEN}) == {"w2": CLOSED}
    assert epochs.news({"w1": later}, {"w1": CLOSED}) == {"w1": later}


SEEN_NS = ledger.hour_number("2026092114") * NS_PER_HOUR
IN_OCTOBER_NS = ledger.hour_number("2026100100") * NS_PER_HOUR
NEXT_MONTH = ledger.hour_text(HOUR + 31 * 24)


def test_who_was_given_up_without_a_date_gets_the_newest_that_anybody_knows() -> None:
    gone = Writer(host="", seen_ns=0, seq=0, state="gone")
    dated = msgspec.structs.replace(gone, seen_ns=3)
    assert epochs.undated({"w": gone, "x": dated, "y": OPEN}, 9) == {
        "w": msgspec.structs.replace(gone, seen_ns=9)
    }
    newest = msgspec.structs.replace(OPEN, seen_ns=12)
    assert epochs.undated({"w": gone, "y": newest}, 9) == {"w": msgspec.structs.replace(gone, seen_ns=12)}
    assert epochs.undated({}, 9) == {}


@pytest.mark.parametrize(
    ("changes", "goes"),
    [
        ({}, True),
        ({"state": "open"}, False),
        ({"behind": ("acme",)}, False),
        ({"epoch": ""}, False),
        ({"hour": "2026093023"}, True),
        ({"hour": "2026100100"}, False),
        ({"hour": ""}, True),
        ({"state": "gone", "seen_ns": SEEN_NS}, True),
        ({"state": "gone", "seen_ns": IN_OCTOBER_NS}, False),
        ({"state": "gone", "seen_ns": 0}, False),
        ({"state": "gone", "seen_ns": 2**70}, False),
    ],
)
def test_whose_marks_can_go(changes: dict[str, object], goes: bool) -> None:
    plain = {"host": "h", "seen_ns": 1, "seq": 9, "state": "closed", "epoch": "e1", "hour": "2026092114"}
    assert epochs.below({"w": Writer(**(plain | changes))}, "2026100101") == (["w"] if goes else [])


def test_a_mark_is_kept_until_the_month_is_closed() -> None:
    """What was spent in a month is not to be folded twice, though the hours of these records are closed."""
    plain = Writer(host="h", seen_ns=SEEN_NS, seq=9, state="closed", epoch="e1", hour="2026092114")
    gone = msgspec.structs.replace(plain, state="gone")
    assert epochs.below({"w": plain, "x": gone}, "2026093023") == []
    assert epochs.below({"w": plain, "x": gone}, "2026100100") == ["w", "x"]


def test_a_name_is_not_made_twice() -> None:
    assert new_epoch() != new_epoch()


class Gateway:
    """One of several on a store: its directories, and its upkeep of the ledger, step by step between others'."""

    def __init__(self, store: BalancesStore, name: str) -> None:
        self.upkeep = Upkeep(store, tenants=TENANTS, host=name)
        numbers = itertools.count()
        self.upkeep.register = Register(
            store, host=name, clock=lambda: 1, name=lambda: f"{name}-{next(numbers)}"
        )
        self.directories: list[MemoryDirectory] = []

    @property
    def folder(self) -> Folder:
        return self.upkeep.folder

    @property
    def register(self) -> Register:
        return self.upkeep.register

    async def round(self) -> None:
        await self.upkeep.round(self.directories)


class TooEarly(Register):
    """The mutant that does not ask who has been folded."""

    async def settle(self, tenants: object) -> None:
        await self._store.set_ready(TENANTS, self.epoch)


class NotAgain(Register):
    """The mutant that keeps no list of writers, so that a new life of the store knows of none that is away."""

    async def _look(self) -> None:
        self._writers = await self._store.writers()


def premature(store: BalancesStore, limit: Sums) -> list[str]:
    """Tenants that are called ready though the store has not all that the journals say."""
    balances = store.balances
    if not any(ready == balances.epoch for ready in balances.ready.values()):
        return []
    held = store.sums()
    return [
        tenant
        for tenant in TENANTS
        if epochs.is_ready(
            balances.epoch,
            Meta(epoch=balances.epochs.get(tenant, ""), ready=balances.ready.get(tenant, "")),
        )
        and any(held.get(key, 0) != amount for key, amount in limit.items() if key[0] == tenant)
    ]


async def simulate(rng: random.Random, kind: type[Register] = Register) -> int:
    """Gateways, each with directories, on one store that loses all or a tenant's keys at any moment.

    returns: how often a tenant was seen to be called ready too early.
    """
    store = BalancesStore()
    gateways = [Gateway(store, f"g{number}") for number in range(3)]
    for gateway in gateways:
        gateway.register.__class__ = kind
        for number in range(rng.randrange(1, 3)):
            writer = f"{gateway.register._host}w{number}"
            gateway.directories.append(random_directory(rng, writer, rng.randrange(1, 25)))
    everything = [one for gateway in gateways for one in gateway.directories]
    limit = folded(everything)
    for gateway in gateways * 2:  # all writers are known to all
        await gateway.round()
    early = 0
    for _ in range(rng.randrange(1, 8)):
        rounds = [asyncio.create_task(one.round()) for one in rng.sample(gateways, rng.randrange(1, 4))]
        loss_at, lost = rng.randrange(100), rng.choice([None, *TENANTS])
        for step in range(1_000_000):
            early += len(premature(store, limit))
            over = all(task.done() for task in rounds)
            if step == loss_at or (over and step < loss_at):
                store.restore(Balances(), tenant=lost)
            if over:
                break
            await asyncio.sleep(0)
        await asyncio.gather(*rounds)
        assert not is_above(store.sums(), limit)
    for gateway in gateways * 6:
        await gateway.round()
        early += len(premature(store, limit))
    assert store.sums() == limit
    assert [gateway.register.unready for gateway in gateways] == [[], [], []]
    return early


@settings(deadline=None, max_examples=60)
@given(st.randoms(use_true_random=False))
def test_nobody_is_ready_too_early_and_all_are_at_last(rng: random.Random) -> None:
    assert asyncio.run(simulate(rng)) == 0


@pytest.mark.parametrize("mutant", [TooEarly, NotAgain])
def test_the_law_sees_who_is_called_ready_too_early(mutant: type[Register]) -> None:
    assert sum(asyncio.run(simulate(random.Random(seed), mutant)) for seed in range(20)) > 5


def two_gateways(seed: int = 1) -> tuple[BalancesStore, Gateway, Gateway]:
    """On one store, with two directories each."""
    store, rng = BalancesStore(), random.Random(seed)
    made = [Gateway(store, name) for name in ("g1", "g2")]
    for one in made:
        one.directories += [random_directory(rng, f"{one.register._host}w{n}", 15) for n in range(2)]
    return store, *made


def test_a_writer_whose_gateway_is_away_is_named_until_it_is_folded() -> None:
    async def scenario() -> None:
        store, g1, g2 = two_gateways()
        for gateway in (g1, g2, g1, g2):
            await gateway.round()
        assert g1.register.unready == g2.register.unready == []
        store.balances = Balances()
        for _ in range(3):  # g2 is away
            await g1.round()
        assert set(g1.register.unready) == set(TENANTS)
        writers = await store.writers()
        assert epochs.unfolded(g1.register.epoch, writers, "acme") == ["g2w0", "g2w1"]
        assert [writers[name].host for name in ("g2w0", "g2w1")] == ["g2", "g2"]
        for gateway in (g2, g1):
            await gateway.round()
        assert g1.register.unready == g2.register.unready == []
        assert store.sums() == folded(g1.directories + g2.directories)

    asyncio.run(scenario())


def test_a_writer_that_a_person_has_given_up_is_waited_for_no_more() -> None:
    async def scenario() -> None:
        store, g1, g2 = two_gateways()
        for gateway in (g1, g2, g1):
            await gateway.round()
        store.balances = Balances()
        await g1.round()
        for name in ("g2w0", "g2w1"):
            store.balances.writers[name] = '{"host":"","seen_ns":0,"seq":0,"state":"gone"}'
        await g1.round()
        assert g1.register.unready == []

    asyncio.run(scenario())


def test_a_stream_that_is_stopped_keeps_its_tenant_alone_from_being_ready() -> None:
    async def scenario() -> None:
        store, g1, g2 = two_gateways()
        store.balances.marks["acme", "g1w0"] = "rubbish"
        for gateway in (g1, g2, g1):
            await gateway.round()
        assert g1.register.unready == ["acme"]
        assert epochs.unfolded(g1.register.epoch, await store.writers(), "acme") == ["g1w0"]
        del store.balances.marks["acme", "g1w0"]
        await g1.round()
        assert g1.register.unready == []

    asyncio.run(scenario())


def test_a_store_that_went_back_begins_a_new_epoch() -> None:
    """As a replica that lagged does it: no key is missing, and marks are behind."""

    async def scenario() -> None:
        store, g1, g2 = two_gateways()
        later, g2.directories = g2.directories, []
        for gateway in (g1, g2, g1):
            await gateway.round()
        assert g1.register.unready == []
        saved = store.saved()
        g2.directories = later
        for gateway in (g2, g1):
            await gateway.round()
        before = store.balances.epoch
        store.restore(saved)
        await g2.round()
        for gateway in (g1, g2, g1, g2):
            await gateway.round()
        assert store.balances.epoch != before
        assert g1.register.unready == []
        assert store.sums() == folded(g1.directories + g2.directories)

    asyncio.run(scenario())


def test_a_writer_that_the_floor_has_let_go_is_not_put_back() -> None:
    async def scenario() -> None:
        store, g1, g2 = two_gateways()
        for gateway in (g1, g2, g1):
            await gateway.round()
        await raise_floor(store, TENANTS, NEXT_MONTH)
        assert store.balances.writers == {}
        g1.directories = []
        await g1.round()  # it remembers them all
        assert store.balances.writers == {}
        assert g1.register.unready == []

    asyncio.run(scenario())


def test_who_was_given_up_is_dropped_once_the_floor_has_passed_that_hour() -> None:
    async def scenario() -> None:
        store, g1, _ = two_gateways()
        lost = Writer(host="", seen_ns=0, seq=0, state="gone")
        await store.put_writers({"w-lost": lost})
        await g1.round()
        seen_ns = (await store.writers())["w-lost"].seen_ns
        assert seen_ns > 0
        hour = seen_ns // NS_PER_HOUR
        await raise_floor(store, TENANTS, ledger.hour_text(hour))
        assert "w-lost" in store.balances.writers
        await raise_floor(store, TENANTS, ledger.hour_text(hour + 31 * 24))
        await g1.round()  # it remembers it
        assert "w-lost" not in store.balances.writers

    asyncio.run(scenario())


def test_a_round_in_a_store_that_begins_epoch_after_epoch_is_given_up() -> None:
    class Restless(BalancesStore):
        async def renew(self, seen: str, new: str) -> str:
            self.balances.epoch = f"after {self.balances.epoch}"
            return self.balances.epoch

    async def scenario() -> None:
        _, g1, _ = two_gateways()
        upkeep = Upkeep(Restless(), tenants=TENANTS, host="g1")
        assert not await upkeep.round(g1.directories)

    asyncio.run(scenario())


class Contended(BalancesStore):
    """A store where somebody else is quicker to begin an epoch, or that is away, each once."""

    quicker = True
    away = False

    async def renew(self, seen: str, new: str) -> str:
        if self.quicker:
            self.quicker, self.balances.epoch = False, "theirs"
        return await super().renew(seen, new)

    async def epoch(self) -> str:
        if self.away:
            self.away = False
            raise StoreUnavailable("no connection")
        return await super().epoch()


def test_who_is_second_to_begin_an_epoch_looks_again() -> None:
    async def scenario() -> None:
        store = Contended()
        g1 = Gateway(store, "g1")
        assert await g1.register.begin(TENANTS) == ""
        await g1.register.settle(TENANTS)
        assert set(g1.register.unready) == set(TENANTS)
        assert await g1.upkeep.round([])  # in an epoch of ours: no tenant was in theirs
        assert store.balances.epoch.startswith("g1-")
        assert g1.register.unready == []

    asyncio.run(scenario())


def test_a_loss_that_was_seen_is_not_forgotten_while_the_store_is_away() -> None:
    async def scenario() -> None:
        store = Contended()
        store.quicker = False
        g1 = Gateway(store, "g1")
        assert await g1.upkeep.round([])
        before = store.balances.epoch
        g1.upkeep.lost, store.away = True, True
        with pytest.raises(StoreUnavailable):
            await g1.upkeep.round([])
        assert await g1.upkeep.round([])
        assert store.balances.epoch != before
        assert not g1.upkeep.lost

    asyncio.run(scenario())


def test_nobody_is_ready_in_a_store_that_always_forgets() -> None:
    class Forgetful(BalancesStore):
        async def post(self, batches: Sequence[ledger.Batch]) -> list[ledger.Reply]:
            replies = await super().post(batches)
            self.balances = Balances()
            return replies

    async def scenario() -> None:
        _, g1, _ = two_gateways()
        store = Forgetful()
        upkeep = Upkeep(store, tenants=TENANTS, host="g1")
        await upkeep.round(g1.directories)
        assert upkeep.folder.left
        assert store.balances.ready == {}

    asyncio.run(scenario())


def test_a_new_tenant_joins_the_epoch_that_there_is() -> None:
    """Nobody's limits are left unchecked because somebody came; who is known and missed ends the epoch still."""

    async def scenario() -> None:
        store, g1, g2 = two_gateways()
        for gateway in (g1, g2, g1):
            await gateway.round()
        epoch = store.balances.epoch
        g1.upkeep.know(["newcomer", TENANTS[0]])
        assert await g1.upkeep.round(g1.directories)
        assert store.balances.epoch == epoch
        assert store.balances.ready["newcomer"] == epoch
        assert store.balances.epochs["newcomer"] == epoch
        del store.balances.epochs["newcomer"]  # its shard has lost it
        assert await g1.upkeep.round(g1.directories)
        assert store.balances.epoch != epoch

    asyncio.run(scenario())


def hours_of(store: BalancesStore) -> set[str]:
    return {hour for _, hour, _ in store.sums()}


def test_the_floor_closes_hours_for_ever() -> None:
    async def scenario() -> None:
        store, g1, g2 = two_gateways()
        for gateway in (g1, g2):
            await gateway.round()
        every = [ledger.hour_text(HOUR + n) for n in range(3)]
        assert hours_of(store) == set(every)
        await raise_floor(store, TENANTS, every[1])
        await raise_floor(store, TENANTS, every[0])  # it never falls
        for gateway in (g1, g2):
            await gateway.round()
        assert hours_of(store) == set(every[1:])
        assert len(store.balances.writers) == 4  # their last hours are open
        store.balances = Balances()  # the floor is remembered, and put back before any fold
        for gateway in (g1, g2, g1):
            await gateway.round()
        assert hours_of(store) == set(every[1:])
        assert set(store.balances.floors.values()) == {every[1]}

    asyncio.run(scenario())


def test_the_floor_is_there_before_anything_is_folded() -> None:
    """Also on a store that has lost it, and with nobody who remembers."""

    async def scenario() -> None:
        store, g1, _ = two_gateways()
        every = [ledger.hour_text(HOUR + n) for n in range(3)]
        upkeep = Upkeep(store, tenants=TENANTS, host="g", floor=lambda: every[2])
        assert await upkeep.round(g1.directories)
        assert hours_of(store) == {every[2]}
        assert set(store.balances.floors.values()) == {every[2]}
        assert upkeep.register.unready == []

    asyncio.run(scenario())


def test_a_mark_goes_when_its_writer_is_closed_and_all_its_hours_are() -> None:
    async def scenario() -> None:
        store, g1, g2 = two_gateways()
        g2.directories[0].complete = False
        for gateway in (g1, g2):
            await gateway.round()
        await raise_floor(store, TENANTS, NEXT_MONTH)
        assert store.sums() == {}
        assert {name for _, name in store.balances.marks} == set()
        assert set(store.balances.writers) == {"g2w0"}  # it is not closed
        g2.directories[0].complete = True
        # What is folded again, by anybody, adds nothing.
        assert await Folder(store).fold(g1.directories + g2.directories) == 0
        assert store.sums() == {}

    asyncio.run(scenario())


def test_a_journal_with_another_floor_is_lines_of_the_same_calls() -> None:
    """The mutant of the floor: a script that does not look at it brings closed hours back."""

    class WithoutFloor(Balances):
        def post(self, batch: ledger.Batch) -> ledger.Reply:
            self.floors = {}
            return super().post(batch)

    async def scenario() -> None:
        store, g1, _ = two_gateways()
        store.balances = WithoutFloor()
        await g1.round()
        await raise_floor(store, TENANTS, NEXT_MONTH)
        await Folder(store).fold(g1.directories)
        assert store.sums() != {}

    asyncio.run(scenario())
