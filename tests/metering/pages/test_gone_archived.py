"""Counters of dead writers whose journal's front is in the archive alone."""

import pathlib
import random

import pytest

from metering.archive.objects import ArchiveError, ArchiveUnavailable, LocalObjects
from metering.archive.trimming import Trimmer
from metering.journal import journal
from metering.journal.journal import directories
from metering.journal.readable import Readable
from metering.pages import families, gone, metrics, pages
from metering.pages.families import Families, Totals
from metering.pages.pages import PageError
from tests.support import lines
from tests.support.archives import Place, make_facts, seal_all
from tests.support.writers import Worker

SEGMENT_BYTES = 4_000


class Away(LocalObjects):
    """An archive that is not to be reached."""

    def list(self, prefix: str) -> list:
        raise ArchiveUnavailable(f"{prefix}: no connection")


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def worker(tmp_path: pathlib.Path) -> Worker:
    return Worker(tmp_path, random.Random(7), segment_bytes_max=SEGMENT_BYTES)


def fold(readable: Readable) -> Totals:
    whole = Families()
    for line, _, _ in readable.records():
        whole.observe(line)
    return whole.cells.totals()


def trimmed_and_dead(place: Place, worker: Worker, *, old_page: bool = False) -> Totals:
    """A writer whose front was trimmed while it lived, and who was killed. returns: all that it has counted.

    old_page: what is left of its page is from before the lines that are here.
    """
    worker.turn(lines.call)
    early = worker.path.read_bytes()
    for _ in range(30):
        worker.turn(lines.call)
    directory = worker.directory()
    seal_all(directory)
    make_facts(place.maker, directory)
    archiver = place.archiver()
    archiver.archive(directory)
    assert Trimmer(place.archive, archiver, place.maker).trim([directory], 1 << 60, ()) > 0
    assert directory.starts_after > 1
    worker.turn(lines.call, lines.admitted)
    worker.kill()
    if old_page:
        worker.path.write_bytes(early)
    journal.salvage_dead(place.journals)
    return fold(place.archive.whole(directory))


def retire(place: Place, objects: LocalObjects | None) -> list[str]:
    archive = None if objects is None else Place(place.journals.parent, objects).archive
    return gone.retire(place.journals.parent / "pages", place.journals, archive)


def counters(place: Place) -> Totals:
    return families.counters(metrics.scrape(place.journals.parent / "pages").totals)


def damage(worker: Worker) -> None:
    worker.path.write_bytes(b"WBPAGE1\n" + b"\xff" * 5_000)


def objects(place: Place) -> LocalObjects:
    assert isinstance(place.objects, LocalObjects)
    return place.objects


@pytest.mark.parametrize("page", ["damaged", "removed", "old", "whole"])
def test_what_a_dead_writer_has_counted_is_whole(place: Place, worker: Worker, page: str) -> None:
    retire(place, None)
    whole = trimmed_and_dead(place, worker, old_page=page == "old")
    if page == "damaged":
        damage(worker)
    elif page == "removed":
        worker.path.unlink()
    assert retire(place, objects(place)) == [worker.writer]
    assert counters(place) == whole
    assert not worker.path.exists()


def test_a_page_that_stands_for_no_line_of_a_trimmed_journal(place: Place, worker: Worker) -> None:
    whole = trimmed_and_dead(place, worker)
    worker.path.unlink()
    pages.Page(worker.path.parent, worker.writer, on_stuck=lambda _: None).close()
    assert retire(place, objects(place)) == [worker.writer]
    assert counters(place) == whole


@pytest.mark.parametrize("away", [True, False])
def test_while_the_archive_cannot_be_asked_the_others_are_taken_in_and_nothing_falls(
    place: Place, worker: Worker, tmp_path: pathlib.Path, away: bool
) -> None:
    retire(place, None)
    whole = trimmed_and_dead(place, worker)
    damage(worker)
    other = Worker(tmp_path, random.Random(8))
    other.turn(lines.call)
    other.stop()
    families.merge(whole, fold(other.directory()))
    with pytest.raises(ArchiveError, match="no connection" if away else "is in the archive alone"):
        retire(place, Away(tmp_path / "archive") if away else None)
    assert gone.load(tmp_path / "pages").writers == {other.writer}
    assert worker.path.exists()
    with pytest.raises(PageError):
        metrics.scrape(tmp_path / "pages")  # no figures rather than smaller ones
    assert retire(place, objects(place)) == [worker.writer]
    assert counters(place) == whole


def test_a_new_gone_page_is_not_made_while_one_is_lacking(
    place: Place, worker: Worker, tmp_path: pathlib.Path
) -> None:
    retire(place, None)
    whole = trimmed_and_dead(place, worker)
    assert retire(place, objects(place)) == [worker.writer]
    (tmp_path / "pages" / gone.NAME).unlink()
    with pytest.raises(ArchiveError):
        retire(place, None)
    with pytest.raises(PageError, match="there is no gone page"):
        gone.load(tmp_path / "pages")
    assert retire(place, objects(place)) == [worker.writer]
    assert counters(place) == whole


def test_an_archive_that_lacks_the_front_is_named(
    place: Place, worker: Worker, tmp_path: pathlib.Path
) -> None:
    trimmed_and_dead(place, worker)
    damage(worker)
    for one in place.objects.list("manifests/"):
        place.objects.delete(one.path)
    with pytest.raises(ArchiveError, match=rf"the archive has {worker.writer} up to seq 0 only"):
        retire(place, objects(place))


def test_the_laws_see_a_count_of_what_is_here_alone(
    place: Place, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: it folds the lines of this disk."""
    monkeypatch.setattr(gone, "_whole", lambda directory, _archive: directory)
    retire(place, None)
    whole = trimmed_and_dead(place, worker)
    damage(worker)
    assert retire(place, objects(place)) == [worker.writer]
    assert counters(place) != whole
    assert len(directories(place.journals)) == 1
