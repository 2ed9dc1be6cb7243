"""What becomes of the counters of dead writers."""

import pathlib
import random

import pytest

from metering.journal import journal
from metering.pages import families, gone, metrics, pages
from metering.pages.families import ATTEMPTS, CALLS, IN_FLIGHT, Families, Series, Totals
from metering.pages.pages import PageError
from tests.support import lines, writers
from tests.support.writers import Worker

ACME = Series(CALLS.name, ("acme", "llama", "inf2", "completed"))
LOST = Series(CALLS.name, ("acme", "llama", "unknown", "lost"))


@pytest.fixture
def rng() -> random.Random:
    return random.Random(7)


@pytest.fixture
def worker(tmp_path: pathlib.Path, rng: random.Random) -> Worker:
    return Worker(tmp_path, rng)


def retire(state_dir: pathlib.Path) -> list[str]:
    journal.salvage_dead(state_dir / "journal")
    return gone.retire(state_dir / "pages", state_dir / "journal")


def fold_of_journals(state_dir: pathlib.Path) -> Totals:
    whole = Families()
    for line in writers.journalled(state_dir):
        whole.observe(line)
    return whole.cells.totals()


def scraped(state_dir: pathlib.Path) -> Totals:
    return families.counters(metrics.scrape(state_dir / "pages").totals)


def test_a_first_start_makes_an_empty_page(tmp_path: pathlib.Path) -> None:
    with pytest.raises(PageError, match="there is no gone page"):
        gone.load(tmp_path / "pages")
    assert retire(tmp_path) == []
    assert gone.load(tmp_path / "pages") == gone.Gone(frozenset(), {})


def test_a_killed_writer_leaves_its_page_the_lines_behind_it_and_the_calls_it_lost(
    tmp_path: pathlib.Path, worker: Worker
) -> None:
    worker.turn(lines.call, lines.call)
    worker.write(lines.call, lines.admitted)  # in the journal; the page was not published any more
    worker.kill()
    assert retire(tmp_path) == [worker.writer]
    assert not worker.path.exists()
    assert gone.load(tmp_path / "pages").writers == {worker.writer}
    assert scraped(tmp_path)[ACME] == (3,)
    assert scraped(tmp_path)[LOST] == (1,)
    assert scraped(tmp_path) == fold_of_journals(tmp_path)


def test_a_writer_is_retired_once(tmp_path: pathlib.Path, worker: Worker) -> None:
    worker.turn(lines.call)
    worker.stop()
    assert retire(tmp_path) == [worker.writer]
    assert retire(tmp_path) == []
    assert scraped(tmp_path)[ACME] == (1,)


def test_the_living_and_the_not_yet_closed_are_left_alone(
    tmp_path: pathlib.Path, worker: Worker, rng: random.Random
) -> None:
    worker.turn(lines.call)
    killed = Worker(tmp_path, rng)
    killed.turn(lines.call)
    killed.kill()
    assert gone.retire(tmp_path / "pages", tmp_path / "journal") == []  # without a salvage before it
    assert killed.path.exists()
    assert scraped(tmp_path)[ACME] == (2,)
    assert retire(tmp_path) == [killed.writer]
    assert worker.path.exists()
    assert scraped(tmp_path)[ACME] == (2,)
    worker.kill()


def test_the_dead_have_no_gauges(tmp_path: pathlib.Path, worker: Worker) -> None:
    worker.page.gauges.in_flight("b1", 3)
    worker.turn(lines.call)
    retire(tmp_path)
    in_flight = Series(IN_FLIGHT.name, ("b1",))
    assert metrics.scrape(tmp_path / "pages").totals[in_flight] == (3,)
    assert metrics.scrape(tmp_path / "pages").heads == {worker.writer: 2}
    worker.kill()
    assert in_flight not in metrics.scrape(tmp_path / "pages").totals
    assert metrics.scrape(tmp_path / "pages").heads == {}
    assert scraped(tmp_path)[ACME] == (1,)  # its counters hold, retired or not
    retire(tmp_path)
    assert in_flight not in metrics.scrape(tmp_path / "pages").totals
    assert scraped(tmp_path)[ACME] == (1,)


def test_a_page_ahead_of_its_journal_is_not_believed(tmp_path: pathlib.Path, worker: Worker) -> None:
    """A crash of the host may keep the page and lose the journal's last lines."""
    worker.turn(lines.call)
    (segment,) = worker.directory().segment_paths()
    kept = segment[1].read_bytes()
    worker.turn(lines.call, lines.call)
    worker.kill()
    segment[1].write_bytes(kept)
    retire(tmp_path)
    assert scraped(tmp_path)[ACME] == (1,)
    assert scraped(tmp_path) == fold_of_journals(tmp_path)


def test_a_page_of_another_history_is_not_believed(tmp_path: pathlib.Path, worker: Worker) -> None:
    """The same, and the salvage has written other lines at the seqs that the page stands for."""
    worker.turn(lines.admitted)
    (segment,) = worker.directory().segment_paths()
    kept = segment[1].read_bytes()
    worker.turn(lambda seq, prev: lines.call(seq, prev, call_id="call-2"))
    worker.kill()
    segment[1].write_bytes(kept)
    retire(tmp_path)
    assert ACME not in scraped(tmp_path)
    assert scraped(tmp_path)[LOST] == (1,)


@pytest.mark.parametrize("damage", ["removed", "damaged"])
def test_without_its_page_a_writer_is_counted_from_its_journal(
    tmp_path: pathlib.Path, worker: Worker, damage: str
) -> None:
    worker.turn(lines.call, lines.refused)
    worker.kill()
    if damage == "removed":
        worker.path.unlink()
    else:
        worker.path.write_bytes(b"WBPAGE1\n" + b"\xff" * 5_000)
    retire(tmp_path)
    assert scraped(tmp_path) == fold_of_journals(tmp_path)


def test_a_page_that_was_never_published_after_its_start(tmp_path: pathlib.Path, rng: random.Random) -> None:
    """Killed between making the page and the first turn: the page stands for no line."""
    worker = Worker(tmp_path, rng)
    data = worker.path.read_bytes()
    worker.write(lines.call)
    worker.kill()
    empty = pages.Page(tmp_path / "other", worker.writer, on_stuck=lambda _: None)
    empty.close()
    worker.path.write_bytes(pages.path_of(tmp_path / "other", worker.writer).read_bytes())
    assert worker.path.read_bytes() != data
    retire(tmp_path)
    assert scraped(tmp_path)[ACME] == (1,)


def test_a_supervisor_that_died_before_it_removed_the_page(tmp_path: pathlib.Path, worker: Worker) -> None:
    """The page and the gone page both hold the writer: counted once, and the page is removed later."""
    worker.turn(lines.call)
    worker.kill()
    page = worker.path.read_bytes()
    retire(tmp_path)
    worker.path.write_bytes(page)
    assert scraped(tmp_path)[ACME] == (1,)
    assert retire(tmp_path) == []
    assert not worker.path.exists()
    assert scraped(tmp_path)[ACME] == (1,)


@pytest.mark.parametrize("damage", ["missing", "cut", "altered", "of another layout"])
def test_the_gone_page_is_made_again_from_the_journals(
    tmp_path: pathlib.Path, rng: random.Random, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        worker = Worker(tmp_path, rng)
        worker.turn(lines.call, lines.call)
        worker.kill()
        retire(tmp_path)
    before = scraped(tmp_path)
    path = tmp_path / "pages" / "gone"
    sound = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(sound[:-3])
    elif damage == "altered":
        path.write_bytes(sound.replace(b",[6]", b",[7]"))
    else:
        with monkeypatch.context() as patched:
            patched.setattr(families, "shapes", lambda: "an older one")
            retire(tmp_path)
    assert damage == "missing" or path.read_bytes() != sound
    with pytest.raises(PageError, match="gone page"):
        metrics.scrape(tmp_path / "pages")  # no figures rather than smaller ones
    assert len(retire(tmp_path)) == 3
    assert scraped(tmp_path) == before == fold_of_journals(tmp_path)


def test_a_page_whose_journal_was_removed_goes_too(tmp_path: pathlib.Path, rng: random.Random) -> None:
    live, dead = Worker(tmp_path, rng), Worker(tmp_path, rng)
    dead.turn(lines.call)
    dead.kill()
    for worker in (live, dead):
        worker.journal.path.rename(tmp_path / worker.writer)
    retire(tmp_path)
    assert live.path.exists()
    assert not dead.path.exists()
    live.kill()


def test_what_a_kill_left_of_a_growing_page_is_removed(tmp_path: pathlib.Path, worker: Worker) -> None:
    half_made = worker.path.with_suffix(".tmp")
    half_made.write_bytes(b"half")
    worker.stop()
    retire(tmp_path)
    assert not half_made.exists()


def test_amounts_above_64_bits_come_back(tmp_path: pathlib.Path, rng: random.Random) -> None:
    for _ in range(2):
        worker = Worker(tmp_path, rng)
        worker.turn(*[lambda seq, prev: lines.call(seq, prev, cost_pusd=2**63 - 1)] * 3)
        worker.kill()
        retire(tmp_path)
    assert gone.load(tmp_path / "pages").totals[Series(families.COST.name, ("acme", "llama", "inf2"))] == (
        6 * (2**63 - 1),
    )
    assert gone.load(tmp_path / "pages").totals[Series(ATTEMPTS.name, ("b1", "completed"))] == (6,)
