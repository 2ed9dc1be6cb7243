"""Event lines page by page: together the pages are what a plain reading gives, in one order."""

import json
import pathlib
import random
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metering import changes, record
from metering.changes import Place
from metering.units import NS_PER_HOUR, NS_PER_S
from tests.support import journals
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
