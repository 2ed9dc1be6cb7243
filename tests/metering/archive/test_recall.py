"""A call from the archive: found with what shows it, and with no more than that."""

import pathlib
import random

import pytest

from metering.archive.recall import recall
from metering.audit import audit
from metering.audit.audit import NotFound
from metering.journal.journal import SALVAGE, Directory, salvage_dead
from metering.journal.segments import read_archived
from metering.record import CallRecord, Host, Identity, Outcome
from tests.support.archives import Place, seal_all
from tests.support.journals import AT_NS, WRITER, Make, admitted, call, start, stop, tick, write_directory

DIGEST = "sha256:" + "5" * 64
HOST = Host(backend="b", identity_source="config", model="llama", served_model="llama")


def identity() -> Make:
    return lambda seq, prev: Identity(at_ns=AT_NS, digest=DIGEST, host=HOST, prev=prev, seq=seq)


def overlapping(rng: random.Random, calls: int) -> list[Make]:
    """Calls in the order of their numbers, that end in another; ticks between them."""
    makes, running = [start(), identity()], []
    for n in range(1, calls + 1):
        makes.append(admitted(f"{WRITER}-{n}"))
        running.append(n)
        while running and rng.random() < 0.5:
            ended = running.pop(rng.randrange(len(running)))
            makes.append(call(f"{WRITER}-{ended}", identity_digest=DIGEST, cost_pusd=ended))
        makes += [tick() for _ in range(rng.randrange(3))]
    return makes + [call(f"{WRITER}-{n}", identity_digest=DIGEST, cost_pusd=n) for n in running]


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Place:
    return Place(tmp_path)


def journal(place: Place, makes: list[Make], *, per_segment: int = 4) -> Directory:
    return Directory(write_directory(place.journals, makes, per_segment=per_segment))


def archive(place: Place, directory: Directory) -> None:
    """Without facts: they have no part in this, and take their time."""
    seal_all(directory)
    place.archiver().archive(directory)


@pytest.mark.parametrize("per_segment", [2, 3, 5, 40, 1_000])
def test_every_call_is_found_with_its_place_and_host(
    place: Place, tmp_path: pathlib.Path, per_segment: int
) -> None:
    directory = journal(
        place, [*overlapping(random.Random(per_segment), 30), stop()], per_segment=per_segment
    )
    archive(place, directory)
    for n in range(1, 31):
        root = tmp_path / f"recalled-{n}"
        assert recall(place.archive, f"{WRITER}-{n}", root) == root / WRITER
        found = audit.find(root, f"{WRITER}-{n}")
        here = audit.find(place.journals, f"{WRITER}-{n}")
        assert isinstance(found.line, CallRecord)
        assert (found.line, found.host, found.leaf) == (here.line, HOST, here.leaf)
        assert found.line.cost_pusd == n
        assert found.file.name == here.file.name


def test_no_more_is_fetched_than_shows_it(place: Place, tmp_path: pathlib.Path) -> None:
    makes = [
        start(),
        *[make for n in range(1, 101) for make in (admitted(f"{WRITER}-{n}"), call(f"{WRITER}-{n}"))],
    ]
    archive(place, journal(place, [*makes, stop()], per_segment=4))
    path = recall(place.archive, f"{WRITER}-59", tmp_path / "recalled")
    assert path is not None
    names = sorted(one.name for one in path.iterdir())
    assert len(names) == 4, "the first, the call's, the one behind, and where they begin"
    before = read_archived(path)
    assert before is not None
    assert before.last_seq == int(names[1][:16]) - 1 == 116


def test_a_lost_call_is_found_in_the_salvage(place: Place, tmp_path: pathlib.Path) -> None:
    directory = journal(
        place, [start(), admitted(f"{WRITER}-1"), *[tick() for _ in range(20)]], per_segment=4
    )
    salvage_dead(place.journals)
    archive(place, directory)
    path = recall(place.archive, f"{WRITER}-1", tmp_path / "recalled")
    assert path is not None
    found = audit.find(tmp_path / "recalled", f"{WRITER}-1")
    assert isinstance(found.line, CallRecord)
    assert (found.line.outcome, found.file.name) == (Outcome.LOST, SALVAGE)


def test_what_is_not_there_is_none(place: Place, tmp_path: pathlib.Path) -> None:
    archive(place, journal(place, [*overlapping(random.Random(1), 5), stop()]))
    assert recall(place.archive, "w" + "b" * 16 + "-1", tmp_path / "a") is None
    assert recall(place.archive, f"{WRITER}-x", tmp_path / "a") is None
    assert recall(place.archive, "../../x-1", tmp_path / "a") is None
    for number in (0, 6, 10**9):
        root = tmp_path / f"r{number}"
        recall(place.archive, f"{WRITER}-{number}", root)
        with pytest.raises(NotFound):
            audit.find(root, f"{WRITER}-{number}")
