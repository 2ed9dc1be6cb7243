"""Segment files of a writer's directory, in either form, and where a trimmed directory begins.

    0000000000004711.jsonl         plain: it grows, or has only just ceased to
    0000000000004711.jsonl.zst     sealed: the same bytes as one zstd frame with a checksum (journal/sealing.py)
    archived.json                  only if the front was deleted here: the archive has it (metering/archive/trimming.py)

Where both forms are there the plain one counts: the other may not be whole. A reader that finds the plain one
gone meanwhile goes on with the sealed one.
"""

import contextlib
import os
import pathlib
import re
from collections.abc import Generator, Iterator
from typing import BinaryIO

import msgspec
import zstandard

SEALED_SUFFIX = ".zst"
ARCHIVED = "archived.json"

_PATTERN = re.compile(r"([0-9]{16})\.jsonl(\.zst)?")
_BLOCK_BYTES = 256 * 1024
_TAIL_BYTES = 64 * 1024


class Archived(msgspec.Struct, frozen=True, kw_only=True):
    """`archived.json`: the lines up to `last_seq` are in the archive and no longer here.

    leaf: of the line at last_seq; frontier: of the Merkle tree of all leaves up to it (audit/merkle.py), in hex.
    marks: of each tenant's last record among them, `seq:leaf` (metering/ledger/ledger.py); None: not known.
    """

    frontier: tuple[str, ...]
    last_seq: int
    leaf: str
    marks: dict[str, str] | None = None
    v: int = 1


_ARCHIVED = msgspec.json.Decoder(Archived)


def segment_name(first_seq: int) -> str:
    """The file name of the segment that begins with this seq, while it is plain."""
    return f"{first_seq:016d}.jsonl"


def sealed_name(first_seq: int) -> str:
    """The same, once it is sealed."""
    return segment_name(first_seq) + SEALED_SUFFIX


def sealed_path(path: pathlib.Path) -> pathlib.Path:
    """Of a segment in either form: where its sealed form is."""
    return path if is_sealed(path) else path.with_name(path.name + SEALED_SUFFIX)


def is_sealed(path: pathlib.Path) -> bool:
    """Is this the sealed form?"""
    return path.name.endswith(SEALED_SUFFIX)


def paths(directory: pathlib.Path) -> list[tuple[int, pathlib.Path]]:
    """Files of the segments in order, each with the seq of its first line; of two forms the plain one."""
    found: dict[int, str] = {}
    for name in sorted(_names(directory)):  # the sealed name is the longer one and comes second
        if match := _PATTERN.fullmatch(name):
            found.setdefault(int(match[1]), name)
    return [(first_seq, directory / name) for first_seq, name in sorted(found.items())]


def _names(directory: pathlib.Path) -> list[str]:
    """Names at one moment. A long directory is listed in several reads: of a segment sealed just then
    the first might miss the new name, and the next the old one."""
    names = os.listdir(directory)
    while sorted(again := os.listdir(directory)) != sorted(names):
        names = again
    return names


class Blocks:
    """A segment's bytes in blocks, from the start each time it is iterated, whichever form it has by then.

    A sealed form that was altered ends where it can't be unpacked: what follows is missing in the chain. damaged: so it
    was in the last reading; or all of it could be unpacked, and is not what it was by the frame's checksum.
    """

    def __init__(self, path: pathlib.Path, offset: int = 0) -> None:
        """offset: so many bytes at the start are left out."""
        self.damaged = False
        self._path = path
        self._offset = offset

    def __iter__(self) -> Iterator[bytes]:
        """Raises OSError; FileNotFoundError if neither form is there."""
        if is_sealed(self._path):
            yield from self._unpacked(self._path)
            return
        try:
            file = open(self._path, "rb", buffering=0)  # noqa: SIM115  closed below
        except FileNotFoundError:
            if not _PATTERN.fullmatch(self._path.name):
                raise
            yield from self._unpacked(sealed_path(self._path))
            return
        with file:
            file.seek(self._offset)
            while block := file.read(_BLOCK_BYTES):
                yield block

    def _unpacked(self, path: pathlib.Path) -> Iterator[bytes]:
        with open(path, "rb") as file:
            self.damaged = yield from unpacked(file, self._offset)


def unpacked(file: BinaryIO, offset: int = 0) -> Generator[bytes, None, bool]:
    """Blocks of what a zstd file holds, up to its end or to where it is damaged; returns whether it is.

    offset: so many bytes at the start are left out.
    """
    reader = zstandard.ZstdDecompressor().stream_reader(file, read_size=_BLOCK_BYTES)
    while True:
        try:
            block = reader.read(min(offset, _BLOCK_BYTES) or _BLOCK_BYTES)
        except zstandard.ZstdError:
            return True
        if not block:
            return False
        if offset:
            offset -= len(block)
            continue
        yield block


def modified_ns(path: pathlib.Path) -> int:
    """When a segment was last written to: sealing keeps that time. Raises OSError."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return sealed_path(path).stat().st_mtime_ns


def size(path: pathlib.Path) -> int:
    """Bytes that a segment takes; 0 if it is no longer here. Raises OSError."""
    for one in (path, sealed_path(path)):
        with contextlib.suppress(FileNotFoundError):
            return one.stat().st_size
    return 0


def read(path: pathlib.Path) -> bytes:
    """All of a segment's bytes. Raises OSError."""
    return b"".join(Blocks(path))


def last_line(path: pathlib.Path) -> bytes | None:
    """The last line that has its newline, without it; None if there is none. Raises OSError."""
    if is_sealed(path):
        return _last_of_blocks(path)
    try:
        file = open(path, "rb")  # noqa: SIM115  closed below
    except FileNotFoundError:
        return _last_of_blocks(path)
    with file:
        size = file.seek(0, os.SEEK_END)
        length = min(size, _TAIL_BYTES)
        while length:
            file.seek(size - length)
            data = file.read(length)
            line = _last_of(data, whole=length == size)
            if line is not None or length == size:
                return line
            length = min(size, 2 * length)
    return None


def _last_of_blocks(path: pathlib.Path) -> bytes | None:
    """Of a sealed segment: it has to be unpacked from its start."""
    kept, rest = None, b""
    for block in Blocks(path):
        rest += block
        if (end := rest.rfind(b"\n")) >= 0:
            kept = rest[rest.rfind(b"\n", 0, end) + 1 : end]
            rest = rest[end + 1 :]
    return kept


def _last_of(data: bytes, *, whole: bool) -> bytes | None:
    """The last line in the end of a file, if it is there from its start. whole: the data is the whole file."""
    end = data.rfind(b"\n")
    start = data.rfind(b"\n", 0, end) if end > 0 else -1
    return data[start + 1 : end] if end >= 0 and (start >= 0 or whole) else None


def read_archived(directory: pathlib.Path) -> Archived | None:
    """Where a trimmed directory begins; None if it has all its lines.

    One that can't be read is none: then the lines that are left continue nothing, which the chain shows.
    """
    try:
        return _ARCHIVED.decode((directory / ARCHIVED).read_bytes())
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
