"""The Merkle tree of RFC 6962 over a journal's leaves: roots, and proofs that a leaf is in it. Pure.

    leaf_0   leaf_1   leaf_2   leaf_3   leaf_4          leaf = SHA-256(0x00 || line)   (metering/journal/chain.py)
       └──┬──┘           └──┬──┘          │             node = SHA-256(0x01 || left || right)
          └───────┬─────────┘             │             the frontier of five leaves: [node_0-3, leaf_4]
                  └───────────┬───────────┘
                            root

A tree is kept as its frontier: the roots of its whole subtrees, from left to right, the largest first.
That is enough to let it grow and to say its root.
"""

import hashlib
from collections.abc import Iterable, Sequence

HASH_BYTES = 32
EMPTY_ROOT = hashlib.sha256(b"").digest()
"""The root of a tree without leaves."""

_NODE = b"\x01"


class Tree:
    """A tree that grows. size: leaves so far.

    frontier: as `frontier` of another tree gave it, to go on from there; of `size` leaves.
    """

    def __init__(self, size: int = 0, frontier: Sequence[bytes] = ()) -> None:
        if len(frontier) != size.bit_count():
            raise ValueError(f"a tree of {size} leaves has no frontier of {len(frontier)} nodes")
        self.size = size
        self._frontier = list(frontier)

    @property
    def frontier(self) -> tuple[bytes, ...]:
        """Roots of the whole subtrees, the largest first: one for each bit that is set in `size`."""
        return tuple(self._frontier)

    def extend(self, leaves: Iterable[bytes]) -> None:
        """Put leaves (32 bytes each) behind those that are there: about one hash for each.

        A level at a time: the whole subtree that is left of a level's nodes goes before them, their pairs make the
        level above, and one without a partner stays in the frontier.
        """
        sha256, level, above = hashlib.sha256, list(leaves), self.size
        self.size += len(level)
        alone: list[bytes] = []
        while level:
            if above & 1:
                level.insert(0, self._frontier.pop())
            if len(level) & 1:
                alone.append(level.pop())
            nodes = iter(level)
            level = [sha256(_NODE + left + right).digest() for left, right in zip(nodes, nodes, strict=True)]
            above >>= 1
        self._frontier += reversed(alone)

    def root(self) -> bytes:
        """The root of all leaves so far, 32 bytes."""
        if not self._frontier:
            return EMPTY_ROOT
        *lefts, root = self._frontier
        for left in reversed(lefts):
            root = _node(left, root)
        return root


def root(leaves: Iterable[bytes]) -> bytes:
    """The root of these leaves."""
    tree = Tree()
    tree.extend(leaves)
    return tree.root()


def inclusion(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """The proof that leaf `index` (from 0) is in the tree of all `leaves`: RFC 6962, section 2.1.1.

    returns: the roots of the subtrees beside its path, from the leaf up.
    """
    return [root(leaves[beside.start : beside.stop]) for beside in path(index, len(leaves))]


def path(index: int, size: int) -> list[range]:
    """Which leaves lie below each node of the proof that leaf `index` is in a tree of `size` leaves.

    returns: from the leaf up, as the proof has them. All but the leaf itself are below one of them.
    """
    if not 0 <= index < size:
        raise IndexError(f"no leaf {index} among {size}")
    first, end = 0, size
    nodes: list[range] = []
    while end - first > 1:
        middle = first + _split(end - first)
        if index < middle:
            nodes.append(range(middle, end))
            end = middle
        else:
            nodes.append(range(first, middle))
            first = middle
    return nodes[::-1]


def root_from(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bytes | None:
    """The root of a tree of `size` leaves that has `leaf` at `index`, as this proof gives it.

    returns: None if no proof of this length can belong to such a tree. RFC 9162, section 2.1.3.2.
    """
    if not 0 <= index < size:
        return None
    node, last = leaf, size - 1
    for beside in path:
        if last == 0:
            return None
        if index & 1 or index == last:
            node = _node(beside, node)
            while not index & 1 and index:
                index, last = index >> 1, last >> 1
        else:
            node = _node(node, beside)
        index, last = index >> 1, last >> 1
    return node if last == 0 else None


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_NODE + left + right).digest()


def _split(size: int) -> int:
    """The largest power of two below `size`."""
    return 1 << (size - 1).bit_length() - 1
