"""Files that commands write: there whole, or not at all."""

import contextlib
import errno
import glob
import os
import pathlib
from collections.abc import Iterator
from typing import BinaryIO

from metering import files


@contextlib.contextmanager
def whole(out: pathlib.Path) -> Iterator[BinaryIO]:
    """A file to write to; it gets its name, durably, when the block has ended well.

    What one that was killed has left beside it is deleted. Raises OSError, naming `out`.
    """
    if out.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(out))
    for leftover in out.parent.glob(f".{glob.escape(out.name)}.*.part"):
        files.clear_leftover(leftover)
    part = files.part_of(out)
    try:
        with part.open("xb") as file:
            yield file
            settle(file)
        part.replace(out)
    except OSError as error:
        if error.filename in (None, str(part)):
            error.filename, error.filename2 = str(out), None
        raise
    finally:
        part.unlink(missing_ok=True)


def settle(file: BinaryIO) -> None:
    """Make durable what was written so far: to be called before it is said that this file is there. Raises OSError."""
    file.flush()
    os.fsync(file.fileno())
