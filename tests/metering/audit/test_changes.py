"""Event lines page by page: together the pages are what a plain reading gives, in one order."""

import json
import pathlib
import random
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metering import record
from metering.archive.archive import Archive
from metering.archive.trimming import Trimmer
from metering.audit import changes
from metering.audit.changes import Place
from metering.journal import sealing
from metering.journal.journal import directories
from metering.units import NS_PER_HOUR, NS_PER_S
from tests.support import archives, journals
from tests.support.journals import AT_NS, Make


def event(topic: str, *, at_ns: int, size: int = 1) -> Make:
    return lambda seq, prev: record.Event(
        actor=None, at_ns=at_ns, data={"x": "x" * size}, prev=prev, seq=seq, topic=topic
    )


def writer(number: int) -> str:
    return "w" + "abcdefgh"[number] * 16


def write(root: pathlib.Path, rng: random.Random) -> None:
    """A few journals, each with events among other lines, over some days."""
    for number in range(rng.randrange(4)):
        at_ns = AT_NS + rng.randrange(3) * NS_PER_HOUR
        makes = [journals.start(writer=writer(number), at_ns=at_ns)]
        for _ in range(rng.randrange(12)):
            at_ns += rng.choice([0, NS_PER_S, NS_PER_HOUR, 20 * NS_PER_HOUR])
            make = rng.choice([journals.tick, lambda *, at_ns: event(rng.choice("ab"), at_ns=at_ns)])
            makes.append(make(at_ns=at_ns))
        journals.write_directory(root, makes, writer=writer(number), per_segment=rng.randrange(1, 6))


def plain(root: pathlib.Path, from_ns: int, to_ns: int, topic: str | None) -> list[Place]:
    """The same by reading all."""
    found = [
        Place(line["at_ns"], file.parent.name, line["seq"])
        for file in root.glob("*/*.jsonl")
        for line in map(json.loads, file.read_bytes().split(b"\n")[:-1])
        if line["kind"] == "event" and from_ns <= line["at_ns"] < to_ns and topic in (None, line["topic"])
    ]
    return sorted(found)


@settings(max_examples=40, deadline=None)
@given(
    st.randoms(use_true_random=False), st.integers(1, 7), st.integers(-2, 60), st.sampled_from([None, "a"])
)
def test_the_pages_are_all_of_it_in_order(
    rng: random.Random, count: int, hours: int, topic: str | None
) -> None:
    with tempfile.TemporaryDirectory() as path:
        root = pathlib.Path(path)
        write(root, rng)
        from_ns, to_ns = AT_NS + hours * NS_PER_HOUR, AT_NS + (hours + 50) * NS_PER_HOUR
        found: list[Place] = []
        after = None
        while True:
            page = changes.page(root, from_ns=from_ns, to_ns=to_ns, topic=topic, after=after, count=count)
            assert len(page.changes) <= count
            found += [change.place for change in page.changes]
            if page.next is None:
                break
            after = page.next
        assert found == plain(root, from_ns, to_ns, topic)


def test_long_lines_make_short_pages(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "PAGE_BYTES_MAX", 100)
    makes = [journals.start(), *(event("a", at_ns=AT_NS + n, size=80) for n in range(3))]
    journals.write_directory(tmp_path, makes)
    page = changes.page(tmp_path, from_ns=0, to_ns=2 * AT_NS, count=10)
    assert len(page.changes) == 1
    assert page.next == page.changes[0].place


def test_what_is_no_line_any_more_is_left_out(tmp_path: pathlib.Path) -> None:
    path = journals.write_directory(
        tmp_path, [journals.start(), event("a", at_ns=AT_NS), event("b", at_ns=AT_NS)]
    )
    (segment,) = path.glob("*.jsonl")
    segment.write_bytes(segment.read_bytes().replace(b'"topic":"a"', b'"topic":1'))
    (found,) = changes.page(tmp_path, from_ns=0, to_ns=2 * AT_NS, count=10).changes
    assert found.event.topic == "b"
    segment.write_bytes(b"")
    assert changes.page(tmp_path, from_ns=0, to_ns=2 * AT_NS, count=10).changes == []


def trim(root: pathlib.Path) -> Archive:
    """Have all but the last segments of these journals in an archive alone, as a clerk does."""
    place = archives.Place(root.parent)
    archiver = place.archiver()
    found = directories(root)
    for directory in found:
        for _, path in directory.segment_paths()[:-1]:
            sealing.seal(path)
        archives.make_facts(place.maker, directory)
        archiver.archive(directory)
    Trimmer(place.archive, archiver, place.maker).trim(found, 1 << 60, [one.writer for one in found])
    return place.archive


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 7), st.integers(-2, 60), st.booleans())
def test_the_pages_are_the_same_when_the_archive_has_most_of_it(
    rng: random.Random, count: int, hours: int, bounded: bool
) -> None:
    """Also where a page may fetch next to nothing: it is shorter then, and the next one goes on."""
    with tempfile.TemporaryDirectory() as path, pytest.MonkeyPatch.context() as patched:
        root = pathlib.Path(path) / "journal"
        root.mkdir()
        write(root, rng)
        from_ns, to_ns = AT_NS + hours * NS_PER_HOUR, AT_NS + (hours + 50) * NS_PER_HOUR
        wanted = plain(root, from_ns, to_ns, None)
        archive = trim(root)
        patched.setattr(changes, "FETCHED_BYTES_MAX", 1 if bounded else 1 << 60)
        found: list[Place] = []
        after = None
        for _ in range(10_000):
            page = changes.page(root, from_ns=from_ns, to_ns=to_ns, after=after, count=count, archive=archive)
            found += [change.place for change in page.changes]
            assert page.next is None or after is None or page.next > after
            after = page.next
            if after is None:
                break
        assert found == wanted


def test_a_page_that_may_fetch_no_more_says_where_to_go_on(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "journal"
    days = range(1, 9)
    makes = [journals.start(at_ns=AT_NS)]
    makes += [event("a", at_ns=AT_NS + day * 24 * NS_PER_HOUR) for day in days]
    journals.write_directory(root, makes, per_segment=1)
    archive = trim(root)
    monkeypatch.setattr(changes, "FETCHED_BYTES_MAX", 1)
    first = changes.page(root, from_ns=0, to_ns=2 * AT_NS, count=100, archive=archive)
    assert (len(first.changes), first.next is None) == (0, False)
    pages = [first]
    while pages[-1].next is not None:
        pages.append(
            changes.page(root, from_ns=0, to_ns=2 * AT_NS, count=100, archive=archive, after=pages[-1].next)
        )
    assert [len(page.changes) for page in pages if page.changes] == [1] * (len(days) - 2) + [2]


def test_the_law_sees_a_page_of_this_disk_alone(tmp_path: pathlib.Path) -> None:
    """The mutant: the archive is not asked."""
    root = tmp_path / "journal"
    makes = [journals.start(), *(event("a", at_ns=AT_NS + n) for n in range(6))]
    journals.write_directory(root, makes, per_segment=2)
    wanted = plain(root, 0, 2 * AT_NS, None)
    archive = trim(root)
    for given_archive, is_whole in ((archive, True), (None, False)):
        page = changes.page(root, from_ns=0, to_ns=2 * AT_NS, count=100, archive=given_archive)
        assert ([change.place for change in page.changes] == wanted) == is_whole
