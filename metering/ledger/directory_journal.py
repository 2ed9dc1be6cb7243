"""The directory out of the journals that it is a fold of: for a gateway that has lost its copy and its store.

every `directory` line of every writer here, in any order ─▶ join ─▶ the directory
"""

import pathlib
from collections.abc import Iterator

from metering.audit import search
from metering.journal import chain
from metering.journal.journal import directories
from metering.record import DirectoryChange, Entry


def entries(root: pathlib.Path) -> Iterator[Entry]:
    """What the journals on this disk say, whatever their order. root: <state_dir>/journal. Raises OSError.

    Whether the chain holds these lines says `audit verify`.
    """
    for directory in directories(root):
        for segment in (*directory.segments(), *filter(None, [directory.salvaged()])):
            rest = b""
            for block in segment.blocks:
                data = rest + block
                whole = data.rfind(b"\n") + 1
                for line in search.lines_with(data[:whole], search.DIRECTORY):
                    if (entry := _entry(line)) is not None:
                        yield entry
                rest = data[whole:]


def _entry(line: bytes) -> Entry | None:
    try:
        found = chain.decode(line)
    except chain.NotALine:
        return None  # torn or altered; `audit verify` tells of it
    return found.entry if isinstance(found, DirectoryChange) else None
