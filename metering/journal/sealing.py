"""Sealing: a segment that grows no more becomes one zstd frame of the same bytes.

    4711.jsonl ─▶ .4711.jsonl.zst ─▶ read back, compared ─▶ synced ─▶ renamed to 4711.jsonl.zst ─▶ directory synced
                                                                                     └─▶ 4711.jsonl is deleted

A crash at any step leaves a directory that reads as before: a hidden name is nobody's, and where both forms are
there the plain one counts (metering/journal/segments.py). `zstd -dc` gives the very bytes back.
One process at a time seals in a state directory.
"""

import os
import pathlib

import zstandard

from metering.files import sync_directory
from metering.journal import segments
from metering.journal.journal import Directory
from metering.journal.segments import Blocks, is_sealed, sealed_path
from metering.units import NS_PER_S

LEVEL = 1
"""Of these lines it makes less than level 3, by a seventh, in half the time."""
QUIET_NS = 60 * NS_PER_S
"""How long nobody has written to a segment that is sealed: who follows or folds it then has read it as it was."""


class SealError(Exception):
    """What was packed did not read back as what it was made of; nothing was replaced. The message names the file."""


def due(directory: Directory, now_ns: int) -> list[pathlib.Path]:
    """Segments of a directory that are to be sealed, in order. Raises OSError.

    now_ns: wall clock. The last segment may still grow unless the directory is complete; one whose writer died
    and is not salvaged yet counts as growing.
    """
    paths = [path for _, path in directory.segment_paths()]
    plain = [path for path in paths if not is_sealed(path)]
    if not plain:
        return []
    if plain[-1] == paths[-1] and not directory.complete:
        plain.pop()
    return [path for path in plain if now_ns - segments.modified_ns(path) >= QUIET_NS]


def seal(path: pathlib.Path) -> pathlib.Path:
    """Seal one plain segment; its sealed form on return. Again after a crash is harmless.

    The new file keeps the old one's time of change. Raises OSError, SealError.
    """
    assert not is_sealed(path), path
    sealed = sealed_path(path)
    if not (sealed.exists() and _holds(sealed, path)):  # else a crash came before the plain one's end
        hidden = sealed.with_name(f".{sealed.name}")
        try:
            _pack(path, hidden)
            if not _holds(hidden, path):
                raise SealError(f"{path} was packed, and did not read back as it was")
            hidden.rename(sealed)
        except BaseException:
            hidden.unlink(missing_ok=True)
            raise
    sync_directory(path.parent)
    path.unlink()
    return sealed


def _pack(path: pathlib.Path, packed: pathlib.Path) -> None:
    stat = path.stat()
    packer = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    with open(path, "rb") as source, open(packed, "wb") as out:
        packer.copy_stream(source, out, size=stat.st_size)
        out.flush()
        os.utime(out.fileno(), ns=(stat.st_atime_ns, stat.st_mtime_ns))
        os.fsync(out.fileno())


def _holds(packed: pathlib.Path, path: pathlib.Path) -> bool:
    """Does a sealed file read back as the plain one?"""
    blocks = Blocks(packed)
    with open(path, "rb") as file:
        same = all(file.read(len(block)) == block for block in blocks)
        return same and not blocks.damaged and not file.read(1)
