"""The tree against RFC 6962's own recursive definition, written down here again."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.audit import merkle

LEAVES = [hashlib.sha256(bytes([0, number])).digest() for number in range(70)]
# Roots of the first n of the reference log's leaves, as Certificate Transparency's own tests have them.
REFERENCE = {
    0: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
}
REFERENCE_DATA = [
    "",
    "00",
    "10",
    "2021",
    "3031",
    "40414243",
    "5051525354555657",
    "606162636465666768696a6b6c6d6e6f",
]


def mth(leaves: list[bytes]) -> bytes:
    """MTH of RFC 6962, section 2.1, over leaf hashes."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + mth(leaves[:k]) + mth(leaves[k:])).digest()


def path(index: int, leaves: list[bytes]) -> list[bytes]:
    """PATH of section 2.1.1."""
    if len(leaves) == 1:
        return []
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    if index < k:
        return [*path(index, leaves[:k]), mth(leaves[k:])]
    return [*path(index - k, leaves[k:]), mth(leaves[:k])]


@pytest.mark.parametrize(("size", "root"), REFERENCE.items())
def test_root_is_the_reference_logs(size: int, root: str) -> None:
    leaves = [hashlib.sha256(b"\x00" + bytes.fromhex(data)).digest() for data in REFERENCE_DATA[:size]]
    assert merkle.root(leaves).hex() == root


@pytest.mark.parametrize("size", range(len(LEAVES)))
def test_root_is_the_definitions(size: int) -> None:
    assert merkle.root(LEAVES[:size]) == mth(LEAVES[:size])


@given(st.lists(st.integers(0, 20), max_size=6))
def test_a_tree_goes_on_from_its_frontier(steps: list[int]) -> None:
    tree, done = merkle.Tree(), 0
    for step in steps:
        leaves = [hashlib.sha256(b"%d" % number).digest() for number in range(done, done + step)]
        tree = merkle.Tree(tree.size, tree.frontier)
        tree.extend(leaves)
        done += step
    assert tree.size == done
    assert tree.root() == mth([hashlib.sha256(b"%d" % number).digest() for number in range(done)])


def test_a_frontier_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="3 leaves"):
        merkle.Tree(3, [LEAVES[0]])


@pytest.mark.parametrize("size", range(1, 34))
def test_every_leaf_is_proven_and_nothing_else(size: int) -> None:
    leaves = LEAVES[:size]
    root = mth(leaves)
    for index in range(size):
        proof = merkle.inclusion(leaves, index)
        assert proof == path(index, leaves)
        assert merkle.root_from(leaves[index], index, size, proof) == root
        assert merkle.root_from(LEAVES[-1], index, size, proof) != root
        if proof:
            assert merkle.root_from(leaves[index], index, size, proof[:-1]) != root
        assert merkle.root_from(leaves[index], index, size, [*proof, LEAVES[-1]]) != root
        for other in range(size):
            assert other == index or merkle.root_from(leaves[index], other, size, proof) != root


@pytest.mark.parametrize(("index", "size"), [(-1, 4), (4, 4), (0, 0)])
def test_a_leaf_outside_the_tree_has_no_proof(index: int, size: int) -> None:
    assert merkle.root_from(LEAVES[0], index, size, []) is None
    with pytest.raises(IndexError):
        merkle.inclusion(LEAVES[:size], index)
