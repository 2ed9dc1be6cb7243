"""Files that commands write: there whole, or not at all."""

import contextlib
import errno
import os
import pathlib
import secrets
from collections.abc import Iterator
from typing import BinaryIO


@contextlib.contextmanager
def whole(out: pathlib.Path) -> Iterator[BinaryIO]:
    """A file to write to; it gets its name, durably, when the block has ended well.

    Raises OSError, naming `out`.
    """
    if out.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(out))
    part = out.with_name(f".{out.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(out)
    except OSError as error:
        if error.filename in (None, str(part)):
            error.filename, error.filename2 = str(out), None
        raise
    finally:
        part.unlink(missing_ok=True)
