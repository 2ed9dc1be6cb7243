"""A gateway's own copy of the directory, under its state directory.

    directory.json          an entry a line; replaced as a whole
    directory.confirmed     its time of modification: until then the copy is known to hold what the store holds
    directory.lock          held by who joins entries into the copy
    directory.change.lock   held by who makes a change by a person's wish

The copy is what the gateway starts with when the store is away, and how its workers hear of each other then. Who writes
it joins what is there with what he has, so nothing in it is ever lost.
"""

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from metering import files
from metering.ledger.directory import Copy
from metering.record import Entry

FILE = "directory.json"
CONFIRMED = "directory.confirmed"
LOCK = "directory.lock"
CHANGE_LOCK = "directory.change.lock"
_OWNER_ONLY = 0o600


class Stamp(NamedTuple):
    """What tells one state of the copy from the next."""

    inode: int
    modified_ns: int
    bytes: int


class DirectoryFile:
    """Of one state directory, which is there. All block, and raise OSError."""

    def __init__(self, state_dir: pathlib.Path) -> None:
        self.path = state_dir / FILE
        self._confirmed = state_dir / CONFIRMED
        self._lock = state_dir / LOCK
        self._change_lock = state_dir / CHANGE_LOCK

    def stamp(self) -> Stamp | None:
        """The state of the copy; None: there is none."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return Stamp(found.st_ino, found.st_mtime_ns, found.st_size)

    def confirmed_ns(self) -> int:
        """Until when it is known to have been what the store holds: nanoseconds since 1970; 0: never."""
        try:
            return self._confirmed.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def confirm(self, now_ns: int) -> None:
        """It was seen to be what the store holds."""
        with contextlib.closing(_Opened(self._confirmed)) as opened:
            os.utime(opened.fd, ns=(now_ns, now_ns))

    def read(self) -> list[str]:
        """The texts of all entries."""
        try:
            return self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []

    def join(self, entries: Iterable[Entry]) -> None:
        """Join these into the copy; durable on return."""
        with contextlib.closing(_Opened(self._lock)) as opened:
            fcntl.flock(opened.fd, fcntl.LOCK_EX)
            copy = Copy()
            copy.take(copy.unread(self.read()))
            if copy.take(entries):
                lines = "".join(f"{copy.texts[field]}\n" for field in sorted(copy.texts))
                files.put(self.path, lines.encode(), mode=_OWNER_ONLY)
                files.give_to_owner(self.path.parent, self.path)

    def ensure(self, entries: Callable[[], Iterable[Entry]]) -> None:
        """Make the copy of these, if there is none."""
        if self.stamp() is None:
            self.join(entries())
            if self.stamp() is None:
                files.put(self.path, b"", mode=_OWNER_ONLY)

    @contextlib.contextmanager
    def change_lock_if_free(self) -> Iterator[bool]:
        """Take the lock of changes for the block. False: another one holds it."""
        with contextlib.closing(_Opened(self._change_lock)) as opened:
            try:
                fcntl.flock(opened.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True


class _Opened:
    """A file that is only there to be locked or dated."""

    def __init__(self, path: pathlib.Path) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT, _OWNER_ONLY)
        files.give_to_owner(path.parent, path)

    def close(self) -> None:
        """The lock goes with it."""
        os.close(self.fd)
