"""The directory's entries: however copies meet, they become the same, and what is revoked stays so."""

import itertools
import json
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.ledger import directory
from metering.ledger.directory import Copy, join
from metering.record import Entry


def entry(
    version: int = 1, at_ns: int = 1, mark: str = "a", *, name: str = "k1", revoked: bool = False
) -> Entry:
    data = msgspec.Raw(json.dumps({"mark": mark}).encode())
    return Entry(at_ns=at_ns, data=data, kind="key", name=name, revoked=revoked, version=version)


VERSIONS = st.integers(1, 3)
ENTRIES = st.builds(
    entry,
    VERSIONS,
    VERSIONS,
    st.sampled_from("ab"),
    name=st.sampled_from(["k1", "k2"]),
    revoked=st.booleans(),
)


def expected(entries: list[Entry]) -> dict[str, tuple[int, int, str, bool]]:
    """What they come to by the words of the reference page, from their texts alone."""
    found: dict[str, tuple[int, int, str, bool]] = {}
    told = [json.loads(directory.encode(one)) for one in entries]
    for name in {one["name"] for one in told}:
        same = [one for one in told if one["name"] == name]
        newest = max((one["version"], one["at_ns"], one["data"]["mark"]) for one in same)
        found[f"key:{name}"] = (*newest, any(one["revoked"] for one in same))
    return found


def shown(copy: Copy) -> dict[str, tuple[int, int, str, bool]]:
    told = {field: json.loads(text) for field, text in copy.texts.items()}
    return {
        field: (one["version"], one["at_ns"], one["data"]["mark"], one["revoked"])
        for field, one in told.items()
    }


@given(st.lists(ENTRIES, max_size=8), st.randoms())
def test_copies_become_the_same_in_any_order_and_grouping(entries: list[Entry], rng: random.Random) -> None:
    one, other = Copy(), Copy()
    one.take(entries)
    again = [*entries, *rng.sample(entries, rng.randint(0, len(entries)))]
    rng.shuffle(again)
    while again:
        cut = rng.randint(1, len(again))
        other.take(again[:cut])
        again = again[cut:]
    assert shown(one) == shown(other) == expected(entries)


@given(ENTRIES, ENTRIES, ENTRIES)
def test_joining_is_of_no_order_no_grouping_and_no_repeats(a: Entry, b: Entry, c: Entry) -> None:
    a, b, c = (msgspec.structs.replace(one, name="k1") for one in (a, b, c))
    assert join(a, a) == a
    assert join(a, b) == join(b, a)
    assert join(a, join(b, c)) == join(join(a, b), c)


def test_what_is_revoked_stays_so_whatever_comes() -> None:
    for versions in itertools.permutations([entry(1), entry(2, revoked=True), entry(3), entry(9, at_ns=9)]):
        copy = Copy()
        for one in versions:
            copy.take([one])
        found = copy.get("key", "k1")
        assert found is not None
        assert (found.version, found.revoked) == (9, True)


def test_a_copy_says_what_has_changed_and_only_that() -> None:
    copy = Copy()
    assert [one.version for one in copy.take([entry(2), entry(1), entry(1, name="k2")])] == [2, 1]
    assert copy.take([entry(2), entry(1)]) == []
    assert copy.text("key:k1") == directory.encode(entry(2))
    assert (copy.text("key:k3"), copy.get("tenant", "k1")) == ("", None)
    assert [one.name for one in copy.entries("key")] == ["k1", "k2"]
    assert copy.entries("tenant") == []
    assert len(copy) == 2


def test_texts_that_stand_there_are_not_read_again() -> None:
    copy = Copy()
    copy.take([entry(1)])
    known, other = directory.encode(entry(1)), directory.encode(entry(2))
    assert list(copy.unread([known, other, "{", '{"kind":"price"}'])) == [entry(2)]


@given(ENTRIES)
def test_an_entry_is_one_line_of_sorted_json_and_comes_back(one: Entry) -> None:
    text = directory.encode(one)
    assert directory.decode(text) == directory.decode(text.encode()) == one
    assert list(json.loads(text)) == sorted(json.loads(text))
    assert "\n" not in text


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "null", '{"at_ns":1}',
        '{"at_ns":1,"data":{},"kind":"price","name":"x","version":1}',
        '{"at_ns":1,"data":{},"kind":"key","name":"x","version":0}',
        '{"at_ns":1,"data":[],"kind":"key","name":"x","version":1}',
    ],
)  # fmt: skip
def test_what_is_no_entry_is_none(text: str) -> None:
    assert directory.decode(text) is None
    assert directory.decode(b"\xff") is None
