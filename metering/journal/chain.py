"""Lines of the journal and the chain that holds them. Pure.

    +---------------------------------------------------------------------------+
    | {"at_ns":…,"kind":"call",…,"prev":"<leaf of the line before>","seq":7,…} \\n |
    +---------------------------------------------------------------------------+

A line is canonical JSON: keys sorted, no spaces, no floats. Its leaf is
SHA-256(0x00 || line without its newline), as in RFC 6962 section 2.1, so one hash
serves the chain and a Merkle tree. The first line has seq 1 and a prev of 64 zeros.

A line belongs to the journal if it has its newline, is a JSON object with the next
seq and the leaf of the line before, and, where its kind is known, reads as that kind.
The journal ends before the first byte that does not: what follows is the torn tail.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec

from metering import record
from metering.record import RECORD_BYTES_MAX

Part = TypeVar("Part", bound=record.Billed)

ZEROS = "0" * 64
"""`prev` of a journal's first line."""

_CUT_COUNT_BYTES = 16
"""Room for the digits of `Plan.cut`, and for the comma that a list's last entry lacks."""


class Link(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The part of a line that every kind has."""

    at_ns: int
    kind: str
    prev: str
    seq: int
    v: int


class NotALine(ValueError):
    """These bytes are no line of a journal, or say of themselves a kind that they are not."""


class Chained(NamedTuple):
    """A line at its place. `line` is None where the kind, or its version, is not known to this reader."""

    data: bytes  # without its newline
    line: record.Line | None
    at_ns: int
    seq: int
    leaf: str


class Scan(NamedTuple):
    """What `scan` found: good lines, the offset just past them, and seq and leaf of the last one."""

    lines: list[Chained]
    offset: int
    seq: int
    prev: str


class Place(NamedTuple):
    """A place between two lines: seq and leaf of the one before."""

    seq: int
    leaf: str


START = Place(0, ZEROS)
"""Before a journal's first line."""


class Linked(NamedTuple):
    """A line as `linked` reads it: its bytes without the newline, the fields that every kind has, its leaf."""

    data: bytes
    link: Link
    leaf: str


class Segment(NamedTuple):
    """One file of a directory: the seq that its name gives to its first line; its bytes, cut anywhere."""

    first_seq: int
    blocks: Iterable[bytes]


_ENCODER = msgspec.json.Encoder(order="deterministic")
_encode, _sha256 = _ENCODER.encode, hashlib.sha256
_LINK = msgspec.json.Decoder(Link)
_BILLED = msgspec.json.Decoder(record.Billed)
_METERED = msgspec.json.Decoder(record.Metered)
_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(type_) for kind, type_ in record.KINDS.items()
}
_FIRST_KEY_BYTES = 9
_BY_FIRST_KEY = {b'{"adapter': _DECODERS["call"], b'{"admitte': _DECODERS["admitted"]}


Read = Callable[[bytes], tuple[Any, Any]]
"""Reads a line: what holds it in the chain (a `Link`), and what `Chained.line` is to be. Raises NotALine."""


def leaf(line: bytes) -> str:
    """Hash of one line without its newline, as 64 hex digits."""
    return hashlib.sha256(b"\x00" + line).hexdigest()


def encode(line: record.Line) -> bytes:
    """The line's bytes, its newline included; see `encode_bare`."""
    return encode_bare(line) + b"\n"


def encode_bare(line: record.Line) -> bytes:
    """The line's bytes without its newline.

    A call's record is kept within RECORD_BYTES_MAX: entries of its plan are dropped from
    the end and counted in `Plan.cut`. Whoever fills the other fields bounds them.
    """
    data = _ENCODER.encode(line)
    over = len(data) + 1 - RECORD_BYTES_MAX
    if over > 0 and isinstance(line, record.CallRecord) and line.plan is not None:
        data = _ENCODER.encode(msgspec.structs.replace(line, plan=_cut(line.plan, over)))
    return data


def encode_linked(line: record.Line) -> tuple[bytes, str]:
    """The line's bytes without its newline, and its leaf: `encode_bare` and `leaf` in one, for who writes lines."""
    data = _encode(line)
    if len(data) >= RECORD_BYTES_MAX:
        data = encode_bare(line)
    return data, _sha256(b"\x00" + data).hexdigest()


def _cut(plan: record.Plan, over: int) -> record.Plan:
    """Drop at least `over` bytes of the plan: first of those left out, then of the last to be tried."""
    left_out, able, cut = list(plan.left_out), list(plan.able), plan.cut
    over += _CUT_COUNT_BYTES
    while over > 0 and (left_out or able):
        dropped = left_out.pop() if left_out else able.pop()
        over -= len(_ENCODER.encode(dropped)) + 1  # its comma
        cut += 1
    return record.Plan(able=tuple(able), cut=cut, left_out=tuple(left_out))


def decode(line: bytes) -> record.Line | None:
    """One line as its type; None for a kind, or a newer version of one, that is not known here.

    line: with or without its newline. Raises NotALine.
    """
    return _read(line)[1]


def link(line: bytes) -> Link:
    """The part of one line that holds it in the chain. Raises NotALine."""
    return _read(line)[0]


def typed(line: bytes) -> record.Line | Link:
    """One line as its type, and of a kind or version that is not known the part that every line has.

    line: without its newline. Raises NotALine. The kinds that nearly all lines are of are known by their first key
    and read once, not twice: for who reads millions of lines.
    """
    decoder = _BY_FIRST_KEY.get(line[:_FIRST_KEY_BYTES])
    if decoder is not None:
        try:
            found: record.Line = decoder.decode(line)
            if found.v <= record.VERSIONS[found.kind]:
                return found
        except (msgspec.DecodeError, UnicodeDecodeError, AssertionError, RecursionError):
            pass  # of another kind or version after all, or no line: the slow way says which
    link, known = _read(line)
    return link if known is None else known


def _read(line: bytes) -> tuple[Link, record.Line | None]:
    # AssertionError: the types assert what they may hold (a Usage its parts), also while decoding.
    try:
        found = _LINK.decode(line)
        decoder = _DECODERS.get(found.kind) if found.v <= record.VERSIONS.get(found.kind, 0) else None
        return found, None if decoder is None else decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, AssertionError, RecursionError) as error:
        raise NotALine(str(error)) from error


def read_billed(line: bytes) -> tuple[Any, Any]:
    """As `scan` reads a line, for who needs postings alone: half the time. `Billed` of a call, None of other kinds.

    Of fields that the ledger has no use for it is not seen whether they are what they should be: a writer's
    lines are, and where a writer has died, the salvage says where its good ones end. Raises NotALine.
    """
    found = _read_part(_BILLED, line)
    return found, found if found.kind == "call" and _is_call(found) else None


def read_metered(line: bytes) -> tuple[Any, Any]:
    """The same, for who counts: `Metered` of a call and of a refusal, None of other kinds. Raises NotALine."""
    found = _read_part(_METERED, line)
    if found.kind == "refused":
        return found, found if found.v <= record.VERSIONS["refused"] else None
    return found, found if found.kind == "call" and _is_call(found) else None


def _read_part(decoder: msgspec.json.Decoder[Part], line: bytes) -> Part:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotALine(str(error)) from error


def _is_call(found: record.Billed) -> bool:
    """False: of a version that is not known. Raises NotALine: it lacks what every call has."""
    if found.v > record.VERSIONS["call"]:
        return False
    if found.tenant is None or found.model is None or found.finished_ns is None:
        raise NotALine("a call of nobody, of no model, or without an end")
    return True


def scan(segment: bytes, seq: int = 0, prev: str = ZEROS, read: Read = _read) -> Scan:
    """Read whole, chained lines from the front of a segment.

    seq, prev: of the line before; 0 and ZEROS at a journal's start. read: the link of a line and the line.
    returns: if the offset is short of len(segment), the rest is unfinished, torn or altered;
        whether to wait, to salvage or to refuse is the caller's decision.
    """
    lines: list[Chained] = []
    offset = 0
    while (end := segment.find(b"\n", offset)) >= 0:
        data = segment[offset:end]
        try:
            found, line = read(data)
        except NotALine:
            break
        if found.seq != seq + 1 or found.prev != prev:
            break
        seq, prev, offset = found.seq, leaf(data), end + 1
        lines.append(Chained(data, line, found.at_ns, seq, prev))
    return Scan(lines, offset, seq, prev)


class Broken(NamedTuple):
    """A directory that is closed, and whose chain ends before its end. at_seq: the last line of the chain.

    A line is proven by the one behind it, so this one may itself be what was altered.
    """

    writer: str
    at_seq: int

    def __str__(self) -> str:
        return (
            f"the journal of {self.writer} is broken at seq {self.at_seq}: this line or the next one was "
            "altered, dropped or moved, and nothing behind it counts"
        )


def walk(
    segments: Iterable[Segment], seq: int = 0, prev: str = ZEROS, read: Read = _read
) -> Iterator[Chained | bytes]:
    """Follow the chain through segments: its lines in order, then, as bytes, all that does not continue it.

    Once something does not, nothing after it does, later segments included: a line is held by the
    ones before it. A segment whose name is not the next seq does not continue the chain either.
    """
    torn = False
    for segment in segments:
        torn = torn or segment.first_seq != seq + 1
        rest = b""
        for block in segment.blocks:
            if torn:
                yield block
                continue
            data = rest + block
            found = scan(data, seq, prev, read)
            yield from found.lines
            seq, prev, rest = found.seq, found.prev, data[found.offset :]
            if b"\n" in rest:
                torn = True
                yield rest
                rest = b""
        if rest:
            torn = True
            yield rest


def follow(
    segments: Iterable[Segment],
    salvaged: Segment | None,
    after_seq: int = 0,
    begin: Place = START,
    read: Read = _read,
) -> Iterator[Chained]:
    """The lines of a directory above `after_seq`, to where its chain ends.

    segments: in order; salvaged: the lines that were written for its end. begin: where the directory begins;
    segments of lines before that are left out. Segments that end at or before `after_seq` are passed over by their
    names; from there on seq and chain are verified.
    """
    end_seq = salvaged.first_seq if salvaged else None  # what is there from here on is torn
    segments = [
        one for one in segments if one.first_seq > begin.seq and (end_seq is None or one.first_seq < end_seq)
    ]
    started = [one for one in segments if one.first_seq <= after_seq]
    if salvaged and salvaged.first_seq <= after_seq:
        started, segments = [salvaged], []
    elif started:
        segments = segments[len(started) - 1 :]
    seq, leaf_before = before(started[-1]) if started else begin

    for piece in walk(segments, seq, leaf_before, read):
        if isinstance(piece, bytes) or piece.seq == end_seq:
            break
        seq, leaf_before = piece.seq, piece.leaf
        if seq > after_seq:
            yield piece
    for piece in walk([salvaged] if salvaged else [], seq, leaf_before, read):
        if isinstance(piece, bytes):
            break
        if piece.seq > after_seq:
            yield piece


def before(segment: Segment) -> Place:
    """The place that the segment's first line says it follows."""
    try:
        return Place(segment.first_seq - 1, link(first_line(segment.blocks)).prev)
    except NotALine:
        return Place(segment.first_seq - 1, "")  # nothing continues this


def first_line(blocks: Iterable[bytes]) -> bytes:
    """The first line, without its newline; or what there is, if that is no whole line."""
    line = b""
    for block in blocks:
        line += block
        if b"\n" in block:
            break
    return line.partition(b"\n")[0]


def linked(blocks: Iterable[bytes], begin: Place) -> Iterator[Linked]:
    """The lines that continue the chain from `begin`, up to the first that does not.

    For who needs lines, not fields: a sixth of the time of `walk`, since kinds are not read.
    """
    seq, prev, rest = *begin, b""
    decode, made = _LINK.decode, tuple.__new__  # a named tuple's own `__new__` is a function of Python
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        for data in lines:
            try:
                found = decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return
            if found.seq != seq + 1 or found.prev != prev:
                return
            seq, prev = found.seq, _sha256(b"\x00" + data).hexdigest()
            yield made(Linked, (data, found, prev))
