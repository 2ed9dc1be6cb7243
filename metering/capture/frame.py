"""The content of one call as it lies in a file: what may be read by anybody, and a box that only the tenant can open.

    +--------+---------------+------------+----------------------------+------------------------------------------+
    | "WBC1" | header length | box length | header: canonical JSON     | box: 32 bytes of a key made for this     |
    |        | 4 bytes, big- | 4 bytes,   | whose, which call, how     | call, the prompt and the answer          |
    |        | endian        | likewise   | long, what was cut         | encrypted, 16 bytes that authenticate    |
    +--------+---------------+------------+----------------------------+------------------------------------------+

Frames stand in a file one behind the other. The record in the journal says where one begins, and has its SHA-256.
The box is HPKE (RFC 9180, single shot) with everything before it as `info`: under another header it does not open.
Pure; the box is made and opened in metering/capture/envelope.py.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

MAGIC = b"WBC1"
VERSION = 1
HEADER_BYTES_MAX = 4 * 1024
BOX_EXTRA_BYTES = 48
"""A box is so much longer than what is in it."""

_LENGTHS = struct.Struct(">4sII")
_ENCODER = msgspec.json.Encoder(order="deterministic")


class NotAFrame(ValueError):
    """These bytes are no frame, or not all of one; the message says why."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of a call's content without a key: nothing that its record does not tell.

    key: the id of the public key; prompt_bytes, answer_bytes: how long they were; *_kept_bytes: how much of their
    fronts is in the box. Less than all: it was cut.
    """

    answer_bytes: int
    answer_kept_bytes: int
    call_id: str
    key: str
    prompt_bytes: int
    prompt_kept_bytes: int
    tenant: str
    v: int = VERSION

    @property
    def box_bytes(self) -> int:
        """How long its box is."""
        return self.prompt_kept_bytes + self.answer_kept_bytes + BOX_EXTRA_BYTES

    @property
    def is_cut(self) -> bool:
        """Is less in the box than there was?"""
        return self.prompt_kept_bytes < self.prompt_bytes or self.answer_kept_bytes < self.answer_bytes


_HEADERS = msgspec.json.Decoder(Header)


class Frame(NamedTuple):
    """One frame. front: all before its box, which is bound to it."""

    header: Header
    front: bytes
    box: bytes


def front(header: Header) -> bytes:
    """All of a frame but its box."""
    told = _ENCODER.encode(header)
    assert len(told) <= HEADER_BYTES_MAX
    return _LENGTHS.pack(MAGIC, len(told), header.box_bytes) + told


def parse(data: bytes) -> Frame:
    """Read a frame: all of these bytes are it. Raises NotAFrame."""
    length, header = _measure(data)
    if length != len(data):
        raise NotAFrame(f"{len(data)} bytes are not the {length} that the frame says it has")
    box_at = length - header.box_bytes
    return Frame(header, data[:box_at], data[box_at:])


def scan(data: bytes) -> Iterator[tuple[int, Frame]]:
    """The whole frames at the front of a file, each with where it begins. What a crash has torn off ends it."""
    at = 0
    while at < len(data):
        try:
            length, _ = _measure(data[at : at + _LENGTHS.size + HEADER_BYTES_MAX])
            found = parse(data[at : at + length])
        except NotAFrame:
            return
        yield at, found
        at += length


def _measure(data: bytes) -> tuple[int, Header]:
    """Length and header of the frame that begins here."""
    if len(data) < _LENGTHS.size:
        raise NotAFrame("it ends within its lengths")
    magic, header_bytes, box_bytes = _LENGTHS.unpack_from(data)
    if magic != MAGIC or header_bytes > HEADER_BYTES_MAX:
        raise NotAFrame("it does not begin as a frame does")
    box_at = _LENGTHS.size + header_bytes
    try:
        header = _HEADERS.decode(data[_LENGTHS.size : box_at])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NotAFrame(f"its header cannot be read: {error}") from None
    if header.v != VERSION:
        raise NotAFrame(f"it is of version {header.v}, which is not known here")
    kept = header.prompt_kept_bytes, header.answer_kept_bytes
    if min(kept) < 0 or box_bytes != header.box_bytes:
        raise NotAFrame("its lengths contradict each other")
    return box_at + box_bytes, header
