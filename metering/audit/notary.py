"""What a writer signs of its own journal: the tree of its lines, and the checkpoints of it. Pure.

    leaf of each written line ─▶ tree ─▶ size and root, signed: a `checkpoint` line, and at the end `end.note`

The leaves are those of the chain, so a line costs one more hash, of two nodes. They are taken into the
tree some hundred at a time: that is cheaper, and no turn of the loop has to take in a thousand.
"""

from collections.abc import Iterable
from typing import NamedTuple

from metering.audit import checkpoint
from metering.audit.checkpoint import Head, NotANote, Signer
from metering.audit.merkle import HASH_BYTES, Tree

CHUNK_LEAVES = 256
"""Taken into the tree in one go: 0.15 ms."""


class SigningKey(NamedTuple):
    """A key to sign with. from_ns: it does not count before, so what it signs is never dated before."""

    signer: Signer
    from_ns: int


class Signed(NamedTuple):
    """A checkpoint that was signed. key_id: 8 hex digits; note: the signed note."""

    head: Head
    key_id: str
    note: str


class Notary:
    """Signs for one writer. tree: of the lines before those that are added. key: None: there is none yet (`succeed`).

    unsigned: written lines behind the last checkpoint; 0 without a key.
    """

    def __init__(self, writer: str, key: SigningKey | None, tree: Tree | None = None) -> None:
        self.unsigned = 0
        self._writer = writer
        self._key = key
        self._successor: SigningKey | None = None
        self._signed_ns = 0  # the time of what was signed last
        self._tree = tree or Tree()
        self._leaves: list[str] = []  # written, and not in the tree yet

    @property
    def size(self) -> int:
        """Lines written so far."""
        return self._tree.size + len(self._leaves)

    def add(self, leaves: Iterable[str]) -> None:
        """Take in the leaves (64 hex digits each) of lines that were written."""
        before = len(self._leaves)
        self._leaves.extend(leaves)
        now = len(self._leaves)
        if self._key is not None:
            self.unsigned += now - before
        if now >= CHUNK_LEAVES:
            self._take_in()

    def succeed(self, key: SigningKey, *, at_once: bool) -> None:
        """Sign with this key: at once, or from the next checkpoint but one on.

        The next one is then the old key's last: it holds the line that names the new key. The first key there is
        signs at once.
        """
        if self._key is None:
            self._key, self.unsigned = key, self.size
        elif at_once:
            self._key, self._successor = key, None
        else:
            self._successor = key

    def checkpoint(self, at_ns: int) -> Signed:
        """Sign all lines written so far. The line that holds this has the next seq."""
        assert self._key is not None
        signed = self._sign(self._key, at_ns)
        if self._successor is not None:
            self._key, self._successor = self._successor, None
        self.unsigned = -1  # a checkpoint's own line calls for no other one
        return signed

    @property
    def has_key(self) -> bool:
        """Can it sign?"""
        return self._key is not None

    def end(self, at_ns: int) -> Signed:
        """Sign the whole journal, its `stop` line included."""
        assert self._key is not None
        return self._sign(self._successor or self._key, at_ns)

    def agrees(self, note: str) -> bool:
        """Is this a checkpoint of just the lines so far? Its signature is not looked at."""
        try:
            head = checkpoint.parse(note).head
        except NotANote:
            return False
        self._take_in()
        return (head.writer, head.size, head.root) == (self._writer, self._tree.size, self._tree.root())

    def _sign(self, key: SigningKey, at_ns: int) -> Signed:
        self._take_in()
        signer = key.signer
        self._signed_ns = max(at_ns, self._signed_ns, key.from_ns)
        head = Head(self._writer, self._tree.size, self._tree.root(), self._signed_ns)
        return Signed(head, signer.verifier.key_id.hex(), signer.sign(head))

    def _take_in(self) -> None:
        leaves = bytes.fromhex("".join(self._leaves))
        self._tree.extend(leaves[at : at + HASH_BYTES] for at in range(0, len(leaves), HASH_BYTES))
        self._leaves.clear()
