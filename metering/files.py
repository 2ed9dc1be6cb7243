"""Small files that are replaced as a whole: a reader sees the old one or the new one, and so does a power cut."""

import contextlib
import os
import pathlib
import re
import secrets
import time

LEFTOVER_S = 60.0
"""A part that was not written to for so long is of a process that was killed."""
_PART_PATTERN = re.compile(r"\..+\.[0-9a-f]{8}\.part")


def part_of(path: pathlib.Path) -> pathlib.Path:
    """A hidden name of its own beside this one, for what is not whole yet."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


def clear_leftovers(root: pathlib.Path, older_than_s: float = LEFTOVER_S) -> None:
    """Delete the parts below `root` that nobody writes to any more. What can't be deleted stays."""
    for path, _, names in os.walk(root):
        for name in names:
            clear_leftover(pathlib.Path(path, name), older_than_s)


def clear_leftover(path: pathlib.Path, older_than_s: float = LEFTOVER_S) -> None:
    """Delete a part that nobody writes to any more; leave anything else."""
    if _PART_PATTERN.fullmatch(path.name):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > older_than_s:
                path.unlink()


def put(path: pathlib.Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write `data` under a name of its own, make it durable, and put it in the place of `path`. Raises OSError."""
    part = part_of(path)
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk names no file of itself
        raise
    finally:
        part.unlink(missing_ok=True)
    sync_directory(path.parent)


def give_to_owner(directory: pathlib.Path, *paths: pathlib.Path) -> None:
    """What root has made becomes its directory's owner's: a command that root runs must not lock the gateway out.

    Does nothing for anybody else. Raises OSError.
    """
    if os.geteuid() == 0:
        owner = directory.stat()
        for path in paths:
            os.chown(path, owner.st_uid, owner.st_gid)


def sync_directory(path: pathlib.Path) -> None:
    """Make durable which names a directory has. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
