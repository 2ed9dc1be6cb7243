"""The control's reading of journals: what is in the archive alone counts as it did here."""

import asyncio
import pathlib
from collections.abc import Mapping

import pytest

from metering import gone, ledger
from metering.control import JOURNAL_LEDGER, JOURNAL_METRICS, Ledgered
from metering.controller import Controller
from metering.epochs import Writer
from metering.journal import Directory
from metering.ledger import Held
from metering.record import CallRecord
from metering.trimming import Trimmer
from tests.support.archives import Place
from tests.support.journals import WRITER

TENANT = "acme"
EVERYTHING = 1 << 60


class Ledger:
    """A store that holds just what one journal says."""

    def __init__(self, directory: Directory) -> None:
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
        by_writer = {(account.hour, WRITER): amounts for account, amounts in self._sums.items()}
        return Held({WRITER: self._at}, self._sums, by_writer, 0)

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
