"""What the archive says it holds: a manifest for each segment, an end for each directory that is complete. Pure.

    manifests/<writer>/0000000000004711.json      put last, and once: from then on that segment is archived
    manifests/<writer>/end.json                   put once all segments are: nothing follows

A reader believes only what these name. Both are canonical JSON (metering/journal/chain.py); hashes are SHA-256 in hex.
"""

import msgspec

from metering.audit import merkle
from metering.journal.chain import Linked, Place

VERSION = 1
_ENCODER = msgspec.json.Encoder(order="deterministic")


class NotAManifest(ValueError):
    """These bytes are no manifest of this form; the message says why."""


class Object(msgspec.Struct, frozen=True, kw_only=True):
    """An object of the archive: its length, where it is, its digest."""

    bytes: int
    path: str
    sha256: str


class FactsObject(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file of a segment, likewise; how many rows it has."""

    bytes: int
    path: str
    rows: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One segment. Its chained lines are last_seq - lines + 1 to last_seq.

    lines: that continue the chain; of a torn segment fewer than it holds, perhaps none.
    prev: leaf of the line before them; leaf: of the last of them, or prev.
    frontier: of the Merkle tree of all lines before them (metering/audit/merkle.py), in hex.
    first_ns, last_ns: when the first and the last of them were made; None: there are none.
    made_ns: when this was written; two who archive the same differ in nothing else.
    """

    facts: tuple[FactsObject, ...]
    first_ns: int | None
    first_seq: int
    frontier: tuple[str, ...]
    last_ns: int | None
    last_seq: int
    leaf: str
    lines: int
    made_ns: int
    prev: str
    segment: Object
    v: int = VERSION
    writer: str


_MANIFESTS = msgspec.json.Decoder(Manifest)
"""Made here: msgspec learns a type at its first use, and crashes if two threads do so at once."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """A complete directory: its last line, how many segments it has, the files beside them, facts of the salvage.

    last_ns: when the last line was made; None: there is no line.
    """

    beside: tuple[Object, ...]
    facts: tuple[FactsObject, ...]
    last_ns: int | None
    last_seq: int
    leaf: str
    made_ns: int
    segments: int
    v: int = VERSION
    writer: str


_ENDS = msgspec.json.Decoder(End)


class Passage:
    """A way along a writer's lines, segment by segment: where it is, and the tree up to there."""

    def __init__(self, place: Place, frontier: tuple[str, ...]) -> None:
        """frontier: of the tree of the `place.seq` lines before. Raises NotAManifest if it can't be of as many."""
        self.place = place
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.lines = 0
        try:
            self._tree = merkle.Tree(place.seq, [bytes.fromhex(node) for node in frontier])
        except ValueError as error:
            raise NotAManifest(str(error)) from error

    @property
    def frontier(self) -> tuple[str, ...]:
        """Of the tree of all lines so far, in hex."""
        return tuple(node.hex() for node in self._tree.frontier)

    def enter(self) -> None:
        """A segment begins."""
        self.first_ns = self.last_ns = None
        self.lines = 0

    def add(self, line: Linked) -> None:
        """The next line."""
        assert line.link.seq == self.place.seq + 1
        if self.first_ns is None:
            self.first_ns = line.link.at_ns
        self.last_ns = line.link.at_ns
        self.lines += 1
        self.place = Place(line.link.seq, line.leaf)
        self._tree.extend([bytes.fromhex(line.leaf)])


def encode(one: Manifest | End) -> bytes:
    """As it stands in the archive, with a newline at its end."""
    return _ENCODER.encode(one) + b"\n"


def decode_manifest(data: bytes) -> Manifest:
    """Raises NotAManifest."""
    try:
        return _MANIFESTS.decode(data)
    except msgspec.MsgspecError as error:
        raise NotAManifest(str(error)) from error


def decode_end(data: bytes) -> End:
    """Raises NotAManifest."""
    try:
        return _ENDS.decode(data)
    except msgspec.MsgspecError as error:
        raise NotAManifest(str(error)) from error


def say_the_same(one: Manifest | End, other: Manifest | End) -> bool:
    """Do they differ in nothing but when they were made?"""
    return msgspec.structs.replace(one, made_ns=0) == msgspec.structs.replace(other, made_ns=0)
