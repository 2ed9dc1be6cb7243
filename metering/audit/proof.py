"""The proof that a line is in a journal that was signed. Pure.

    line ─▶ leaf ─┬─ path[0] ─┬─ path[1] … ─▶ root ─▶ the note's text ─▶ signature ─▶ vkey

It is checked with the note's key and SHA-256 alone, without the journal: deploy/reference/check_proof.py does.
"""

from collections.abc import Sequence

import msgspec

from metering.audit import merkle
from metering.audit.inspection import Front


class ProvenLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line without its newline; its place among the leaves, from 0; the nodes beside its way up, in hex."""

    index: int
    line: str
    path: tuple[str, ...]


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The lines of a call, all proven by one note. vkey: the key that has signed it; None: none that is known here."""

    call_id: str
    lines: tuple[ProvenLine, ...]
    note: str
    v: int = 1
    vkey: str | None
    writer: str


class PathBuilder:
    """The path of one leaf, from leaves that pass by once, in order.

    index: of the leaf, from 0; size: of the tree. front: leaves that are not here: the roots of their subtrees are
    enough, unless the leaf is one of them (ValueError).
    """

    def __init__(self, index: int, size: int, front: Front) -> None:
        if index < front.size:
            raise ValueError(f"leaf {index} is one of the {front.size} that are not here")
        self._nodes = merkle.path(index, size)
        self._trees = {node.start: _begun(node, front) for node in self._nodes}
        self._at = front.size

    def add(self, leaves: Sequence[bytes]) -> None:
        """The next leaves."""
        first, self._at = self._at, self._at + len(leaves)
        for node in self._nodes:
            if node.start < self._at and node.stop > first:
                begin, end = max(node.start, first) - first, min(node.stop, self._at) - first
                self._trees[node.start].extend(leaves[begin:end])

    def path(self) -> list[bytes]:
        """All leaves of the tree have been added."""
        assert all(self._trees[node.start].size == len(node) for node in self._nodes)
        return [self._trees[node.start].root() for node in self._nodes]


def _begun(node: range, front: Front) -> merkle.Tree:
    """The tree below a node, as far as it lies in the front: of whole subtrees, which the frontier ends with or has."""
    position = 0
    inside: list[bytes] = []
    covered = 0
    for power, root in zip(_powers(front.size), front.frontier, strict=True):
        if node.start <= position and position + power <= node.stop:
            inside.append(root)
            covered += power
        position += power
    return merkle.Tree(covered, inside)


def _powers(size: int) -> list[int]:
    """Leaves below each node of a frontier: the powers of two in `size`, the largest first."""
    return [1 << bit for bit in range(size.bit_length() - 1, -1, -1) if size >> bit & 1]
