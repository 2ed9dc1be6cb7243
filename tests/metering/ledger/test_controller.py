"""The control's reading of journals: what is in the archive alone counts as it did here."""

import asyncio
import pathlib
import shutil
from collections.abc import Mapping

import pytest

from metering.archive.trimming import Trimmer
from metering.journal.journal import Directory
from metering.ledger import ledger
from metering.ledger.control import JOURNAL_LEDGER, JOURNAL_METRICS, Counted, Difference, Ledgered
from metering.ledger.control_kept import ControlKept
from metering.ledger.controller import Controller
from metering.ledger.epochs import Writer
from metering.ledger.ledger import Held
from metering.pages import gone
from metering.record import CallRecord
from tests.support.archives import Place
from tests.support.journals import WRITER

TENANT = "acme"
EVERYTHING = 1 << 60


class Ledger:
    """A store that holds just what one journal says, or, once it is closed, nothing more of it."""

    def __init__(self, directory: Directory) -> None:
        self.floor = 0
        self.marked = True
        self._at = ledger.START
        found = Ledgered()
        for line, seq, leaf in directory.records():
            if isinstance(line, CallRecord):
                self._at = ledger.mark(seq, leaf)
                found.add(line, seq, leaf, {TENANT: seq})
        self._sums = found.sums[TENANT]

    async def tenants(self) -> list[str]:
        return [TENANT]

    async def held(self, _tenant: str, _from_hour: int = 0) -> Held:
        sums = {account: amounts for account, amounts in self._sums.items() if account.hour >= self.floor}
        by_writer = {(account.hour, WRITER): amounts for account, amounts in sums.items()}
        return Held({WRITER: self._at} if self.marked else {}, sums, by_writer, self.floor)

    async def epoch(self) -> str:
        return ""

    async def writers(self) -> Mapping[str, Writer]:
        return {}


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Place:
    return Place(tmp_path)


def test_a_front_that_the_archive_alone_has_is_read_there(place: Place, tmp_path: pathlib.Path) -> None:
    directory = place.closed()
    store = Ledger(directory)
    gone.retire(tmp_path / "pages", place.journals)
    archiver = place.archiver()
    archiver.archive(directory)
    Trimmer(place.archive, archiver, place.maker).trim([directory], EVERYTHING, {WRITER})
    assert directory.starts_after > 0
    look = Controller(tmp_path, archive=place.archive, keep=False).look
    assert asyncio.run(look(store)) == []
    without = asyncio.run(Controller(tmp_path, keep=False).look(store))
    assert {one.pair for one in without} == {JOURNAL_LEDGER, JOURNAL_METRICS}


def test_what_was_read_before_the_front_was_deleted_need_not_be_read_again(
    place: Place, tmp_path: pathlib.Path
) -> None:
    directory = place.closed()
    store = Ledger(directory)
    gone.retire(tmp_path / "pages", place.journals)
    keeper = Controller(tmp_path)
    assert asyncio.run(keeper.look(store)) == []
    archiver = place.archiver()
    archiver.archive(directory)
    Trimmer(place.archive, archiver, place.maker).trim([directory], EVERYTHING, {WRITER})
    assert asyncio.run(keeper.look(store)) == []
    assert asyncio.run(Controller(tmp_path).look(store)) == []  # by what the first has kept


def kept(state_dir: pathlib.Path) -> list[str]:
    return sorted(path.name for path in (state_dir / "control").iterdir())


def looked(state_dir: pathlib.Path, store: Ledger) -> tuple[list[Difference], dict[str, int]]:
    """By a process that has just been started."""
    keeper = Controller(state_dir)
    return asyncio.run(keeper.look(store)), keeper.backends


def closed_and_deleted(place: Place, state_dir: pathlib.Path) -> Ledger:
    """A journal that was compared, whose hours the ledger has closed, and that is no longer here."""
    directory = place.closed()
    store = Ledger(directory)
    gone.retire(state_dir / "pages", place.journals)
    assert looked(state_dir, store)[0] == []
    shutil.rmtree(directory.path)
    store.floor, store.marked = 1 << 30, False
    return store


def test_of_what_the_ledger_has_closed_the_sum_alone_is_kept(place: Place, tmp_path: pathlib.Path) -> None:
    store = closed_and_deleted(place, tmp_path)
    assert kept(tmp_path) == [f"{WRITER}.json"]
    before = Controller(tmp_path)
    asyncio.run(before.look(store, 1))
    for _ in range(2):
        assert looked(tmp_path, store) == ([], before.backends)
        assert kept(tmp_path) == ["past.json"]


@pytest.mark.parametrize(
    "reason", ["a mark", "an open hour", "not retired", "still here", "part of the hours"]
)
def test_it_is_kept_as_long_as_anything_asks_for_it(
    place: Place, tmp_path: pathlib.Path, reason: str
) -> None:
    store = closed_and_deleted(place, tmp_path)
    keeper = Controller(tmp_path)
    match reason:
        case "a mark":
            store.marked = True
        case "an open hour":
            store.floor = 0
            store.marked = True
        case "not retired":
            gone._store(tmp_path / "pages", gone.Gone(frozenset(), {}))
        case "still here":
            place.closed()
        case "part of the hours":  # as the looks between the hours see it
            asyncio.run(keeper.look(store, 1))
            assert kept(tmp_path) == [f"{WRITER}.json"]
            return
    assert asyncio.run(keeper.look(store)) == []
    assert kept(tmp_path) == [f"{WRITER}.json"]


def test_a_crash_between_the_sum_and_the_deletion_counts_nothing_twice(
    place: Place, tmp_path: pathlib.Path
) -> None:
    store = closed_and_deleted(place, tmp_path)
    file = tmp_path / "control" / f"{WRITER}.json"
    data = file.read_bytes()
    looked(tmp_path, store)
    file.write_bytes(data)
    assert looked(tmp_path, store)[0] == []
    ControlKept(tmp_path).add_to_past([(WRITER, Counted(sums={TENANT: [1] * 6}))])
    assert kept(tmp_path) == ["past.json"]
    assert looked(tmp_path, store)[0] == []


def test_a_directory_that_comes_back_is_not_counted_beside_the_sum(
    place: Place, tmp_path: pathlib.Path
) -> None:
    store = closed_and_deleted(place, tmp_path)
    looked(tmp_path, store)
    place.closed()
    gone.retire(tmp_path / "pages", place.journals)
    assert looked(tmp_path, store)[0] == []


def test_a_gone_page_that_was_made_again_has_none_of_it(place: Place, tmp_path: pathlib.Path) -> None:
    store = closed_and_deleted(place, tmp_path)
    looked(tmp_path, store)
    (tmp_path / "pages" / gone.NAME).unlink()
    gone.retire(tmp_path / "pages", place.journals)
    assert looked(tmp_path, store)[0] == []


def test_the_law_sees_what_is_forgotten(
    place: Place, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: the file is deleted, and nothing added up."""
    store = closed_and_deleted(place, tmp_path)
    monkeypatch.setattr(
        ControlKept, "add_to_past", lambda kept, past: [kept._file(one).unlink() for one, _ in past]
    )
    looked(tmp_path, store)
    assert {one.pair for one in looked(tmp_path, store)[0]} == {JOURNAL_METRICS}
