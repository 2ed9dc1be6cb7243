"""Manifests: canonical, read back as they were, and sure of the tree they go on from."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.archive import manifest
from metering.archive.manifest import End, FactsObject, Manifest, NotAManifest, Object, Passage
from metering.audit import merkle
from metering.journal import chain
from metering.journal.chain import Place
from tests.support.journals import WRITER, encoded, start, tick

hexes = st.binary(min_size=32, max_size=32).map(bytes.hex)
numbers = st.integers(0, 2**63 - 1)
objects = st.builds(Object, bytes=numbers, path=st.text(), sha256=hexes)
facts = st.builds(FactsObject, bytes=numbers, path=st.text(), rows=numbers, sha256=hexes).map(
    lambda one: (one,)
)
manifests = st.builds(
    Manifest, facts=facts, first_ns=numbers | st.none(), first_seq=numbers, frontier=st.tuples(hexes), last_ns=numbers,
    last_seq=numbers, leaf=hexes, lines=numbers, made_ns=numbers, prev=hexes, segment=objects, writer=st.just(WRITER),
)  # fmt: skip
ends = st.builds(
    End, beside=st.tuples(objects), facts=facts, last_ns=numbers | st.none(), last_seq=numbers, leaf=hexes,
    made_ns=numbers, segments=numbers, writer=st.just(WRITER),
)  # fmt: skip


@given(manifests)
def test_a_manifest_reads_back_and_is_canonical(one: Manifest) -> None:
    data = manifest.encode(one)
    assert manifest.decode_manifest(data) == one
    assert data == json.dumps(
        json.loads(data), sort_keys=True, separators=(",", ":"), ensure_ascii=False
    ).encode() + b"\n"  # fmt: skip


@given(ends, numbers)
def test_an_end_reads_back_and_the_time_of_its_making_is_no_difference(one: End, made_ns: int) -> None:
    assert manifest.decode_end(manifest.encode(one)) == one
    fields = json.loads(manifest.encode(one)) | {"made_ns": made_ns}
    other = manifest.decode_end(json.dumps(fields).encode())
    assert manifest.say_the_same(one, other)
    fields["last_seq"] += 1
    assert not manifest.say_the_same(one, manifest.decode_end(json.dumps(fields).encode()))


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"last_seq":"x"}'])
def test_what_is_none_is_refused(data: bytes) -> None:
    for decode in (manifest.decode_manifest, manifest.decode_end):
        with pytest.raises(NotAManifest):
            decode(data)


@given(st.integers(0, 40), st.integers(0, 40))
def test_a_passage_that_is_resumed_ends_where_one_that_was_not_does(first: int, more: int) -> None:
    lines = list(
        chain.linked([b"".join(encoded([start(), *[tick() for _ in range(first + more)]]))], chain.START)
    )
    whole, begun = Passage(chain.START, ()), Passage(chain.START, ())
    for line in lines:
        whole.add(line)
    for line in lines[:first]:
        begun.add(line)
    resumed = Passage(begun.place, begun.frontier)
    resumed.enter()
    for line in lines[first:]:
        resumed.add(line)
    assert (resumed.place, resumed.frontier) == (whole.place, whole.frontier)
    assert resumed.lines == len(lines) - first
    tree = merkle.Tree(len(lines), [bytes.fromhex(node) for node in whole.frontier])
    assert tree.root() == merkle.root(bytes.fromhex(line.leaf) for line in lines)


@pytest.mark.parametrize(("seq", "frontier"), [(0, ("00" * 32,)), (3, ()), (1, ("no hex",))])
def test_a_frontier_that_cannot_be_of_so_many_lines_is_refused(seq: int, frontier: tuple[str, ...]) -> None:
    with pytest.raises(NotAManifest):
        Passage(Place(seq, chain.ZEROS), frontier)
