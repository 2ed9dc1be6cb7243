"""Small files that are replaced as a whole: a reader sees the old one or the new one, and so does a power cut."""

import os
import pathlib
import secrets


def put(path: pathlib.Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write `data` under a name of its own, make it durable, and put it in the place of `path`. Raises OSError."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
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
