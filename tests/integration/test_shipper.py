"""The ledger as a whole: a real journal, a real Valkey, and the store lost under load."""

import asyncio
import contextlib
import pathlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from metering.journal.journal import Directory, Journal, directories, new_writer_id, salvage_dead
from metering.journal.recorder import Recorder
from metering.ledger import embedded, ledger
from metering.ledger.embedded import Embedded
from metering.ledger.folder import Folder
from metering.ledger.ledger import Mark
from metering.ledger.shipper import Shipper
from metering.ledger.store import Store, StoreUnavailable
from metering.record import CallRecord, Line
from tests.support import journals, signing
from tests.support.ledgers import Sums, is_above
from tests.support.valkey import Valkey

pytestmark = pytest.mark.integration

TENANTS = ("acme", "globex", "initech")


@pytest.fixture
def running(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Embedded]:
    monkeypatch.setattr(embedded, "RESTART_S", 0.0)
    with contextlib.closing(Embedded.start(tmp_path)) as store:
        yield store


def held(url: str) -> Sums:
    """All balances in the store."""
    sums: Sums = {}
    with Valkey(url) as valkey:
        for key in valkey.ask("KEYS", "wb:1:{*}:h:*"):
            flat = valkey.ask("HGETALL", key)
            tenant = key.partition("{")[2].partition("}")[0]
            for field, value in zip(flat[::2], flat[1::2], strict=True):
                sums[tenant, key[-10:], field] = int(value)
    return sums


class Law:
    """What the store must come to: a fold of the journals, the live one as it is written."""

    def __init__(self, dead: list[Directory]) -> None:
        self.sums: Sums = {}
        for directory in dead:
            for line, seq, leaf in directory.records():
                self.fold(line, seq, leaf)

    def fold(self, line: Line, seq: int, leaf: str) -> None:
        if isinstance(line, CallRecord):
            for (hour, field), amount in ledger.postings(line).items():
                key = (line.tenant, hour, field)
                self.sums[key] = self.sums.get(key, 0) + amount

    def turn(self, seq: int) -> None:
        pass


class Site:
    """A state directory with journals of an earlier run and of a killed writer, and a live writer."""

    def __init__(self, root: pathlib.Path, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self.rng = random.Random(1)
        self.url = url
        for last in (journals.stop(), journals.admitted("open")):
            makes = [journals.start(), *(self.call(str(n)) for n in range(300)), last]
            journals.write_directory(
                root, makes, writer=new_writer_id(self.rng.randbytes(10)), per_segment=100
            )
        salvage_dead(root)
        self.dead = directories(root)
        self.law = Law(self.dead)
        self.store = Store(url)
        self.folding: set[asyncio.Task[None]] = set()
        self.behind = 0
        writer = new_writer_id(self.rng.randbytes(10))
        self.journal = Journal.create(root, writer=writer, segment_bytes_max=200_000)
        self.shipper = Shipper(self.store, Directory(self.journal.path), host="h", on_behind=self.on_behind)
        self.recorder = Recorder(
            self.journal,
            (self.shipper, self.law),
            signing.notary(writer),
            loop=loop,
            clock=lambda: journals.AT_NS,
            bytes_max=1_000_000_000,
            fsync="interval",
            fsync_interval_ms=5,
            on_dead=lambda error: pytest.fail(str(error)),
            unwritten=pytest.fail,
        )
        self.recorder.on_synced(self.shipper.synced)

    def call(self, call_id: str) -> journals.Make:
        return journals.call(call_id, tenant=self.rng.choice(TENANTS), cost_pusd=self.rng.randrange(10**9))

    def on_behind(self) -> None:
        """As the supervisor does it: look at the directories of the dead, until the store has all of them."""
        self.behind += 1
        task = asyncio.get_running_loop().create_task(self.fold_dead())
        self.folding.add(task)
        task.add_done_callback(self.folding.discard)

    async def fold_dead(self) -> None:
        async with Store(self.url) as store:
            folder, left = Folder(store), 1
            while left:
                with contextlib.suppress(StoreUnavailable):
                    left = await folder.fold(self.dead)
                await asyncio.sleep(0)

    async def serve(self, calls: int, step: Callable[[int], None]) -> None:
        """Write so many records, a few a turn; `step` is called between turns, and the disk waited for at times."""
        for n in range(calls):
            self.recorder.note(self.call(f"live-{n}"))
            if n % 10 == 9:
                await asyncio.sleep(0)
                step(n)
            if n % 50 == 49:
                await eventually(lambda: self.recorder.synced_seq == self.recorder.seq)

    def is_caught_up(self) -> bool:
        return not self.folding and self.shipper.lag() == 0 and held(self.url) == self.law.sums

    async def __aenter__(self) -> "Site":
        await self.recorder.start(config_digest="sha256:0", ended=(), pid=1, version="0", worker=0)
        await self.shipper.__aenter__()
        self.on_behind()
        return self

    async def __aexit__(self, *error: Any) -> None:
        for task in self.folding:
            task.cancel()
        await asyncio.gather(*self.folding, return_exceptions=True)
        await self.shipper.__aexit__(*error)
        await self.recorder.stop()
        await self.store.close()


async def eventually(check: Callable[[], bool], *, within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not check():
            await asyncio.sleep(0)


def test_all_that_is_lost_under_load_is_there_again(tmp_path: pathlib.Path, running: Embedded) -> None:
    """FLUSHALL, an older copy, both of one tenant's keys alone. Never above the journal."""

    async def scenario() -> None:
        site = Site(tmp_path / "journal", running.url, asyncio.get_running_loop())
        copies: dict[str, bytes] = {}
        above: list[int] = []

        def trouble(valkey: Valkey, n: int) -> None:
            match n:
                case 499 | 1499 | 2499:
                    valkey.ask("FLUSHALL")
                case 799:
                    copies.update(valkey.copy("*"))
                case 1799:
                    valkey.put_back("wb:1:{acme}*", copies)
                case 2099:
                    valkey.put_back("*", copies)
                case 2799:
                    valkey.put_back("wb:1:{globex}*", {})

        with Valkey(running.url) as valkey:

            def step(n: int) -> None:
                trouble(valkey, n)
                if n % 100 == 99 and is_above(held(running.url), site.law.sums):
                    above.append(n)

            async with site:
                await site.serve(3_000, step)
                await eventually(site.is_caught_up)
                assert above == []
                assert site.behind > 1
                assert site.shipper.stopped == []

    asyncio.run(scenario())


def test_a_store_that_is_killed_under_load(tmp_path: pathlib.Path, running: Embedded) -> None:
    async def scenario() -> None:
        site = Site(tmp_path / "journal", running.url, asyncio.get_running_loop())

        def step(n: int) -> None:
            if n in (499, 1_199):
                running._child.kill()
                running._child.wait()
            if n in (899, 1_399):
                running.keep_up()

        async with site:
            await site.serve(1_500, step)
            await eventually(site.is_caught_up)

    asyncio.run(scenario())


def test_a_writer_that_died_with_calls_open_is_folded_once(tmp_path: pathlib.Path, running: Embedded) -> None:
    async def scenario() -> None:
        async with Site(tmp_path / "journal", running.url, asyncio.get_running_loop()) as site:
            await site.serve(200, lambda n: None)
            site.recorder.note(journals.admitted("live-lost", tenant="acme"))
            await eventually(site.is_caught_up)
        # A call was open: there is no `stop`, as after a death.
        assert len(salvage_dead(tmp_path / "journal")) == 1
        everything = directories(tmp_path / "journal")
        async with contextlib.AsyncExitStack() as stack:
            stores = [await stack.enter_async_context(Store(running.url)) for _ in range(3)]
            assert await asyncio.gather(*(Folder(store).fold(everything) for store in stores)) == [0, 0, 0]
        law = Law(everything)
        assert held(running.url) == law.sums
        assert sum(amount for (_, _, field), amount in law.sums.items() if field.endswith("|calls")) == 802

    asyncio.run(scenario())


def test_a_copy_of_a_live_directory_that_was_closed_elsewhere_is_a_fork(
    tmp_path: pathlib.Path, running: Embedded
) -> None:
    async def scenario() -> None:
        makes = [journals.start(), *(journals.call(str(n)) for n in range(5)), journals.admitted("open")]
        for name, more in (("here", [journals.call("open"), journals.stop()]), ("elsewhere", [])):
            journals.write_directory(tmp_path / name, [*makes, *more])
            salvage_dead(tmp_path / name)
        (here,), (elsewhere,) = directories(tmp_path / "here"), directories(tmp_path / "elsewhere")
        async with Store(running.url) as store:
            assert await Folder(store).fold([elsewhere]) == 0
            before = held(running.url)
            folder = Folder(store)
            assert await folder.fold([here]) == 1
            (stop,) = folder.stopped.values()
            assert stop.reason == "FORK"
            assert Mark.parse(stop.where).seq == 8
            assert held(running.url) == before

    asyncio.run(scenario())
