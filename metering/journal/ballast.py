"""Room on the disk for the records of calls under way: a file that is really allocated, and given back when it is full.

    <writer>/ballast    BASE_BYTES for the lines of no call, and 16 KiB for each call that may be open

An admitted call's record must be written whatever becomes of the disk. So its room is taken before it is admitted,
and when a write finds the disk full, as much of it is given back as the write needs.
"""

import contextlib
import errno
import os
import pathlib
import threading

from metering.record import RECORD_BYTES_MAX

NAME = "ballast"
BASE_BYTES = 256 * 1024
"""For what is written beside records while the disk is full: identities, events, checkpoints, `stop`."""
START_BYTES = 16 * 1024 * 1024
"""Of a ballast at its start, where the disk has that much: the records of 1,008 calls."""
STEP_BYTES = 1024 * 1024
FREE_SHARE = 4
"""The ballasts of all writers together take at most a quarter of what is free without them: on a small disk the rest
is for lines. Each takes no more than an equal part of that, of what is free without itself: none need know another."""
_BLOCK_BYTES = 4096
_NOT_POSSIBLE = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}
# Not everywhere (macOS); there, as on file systems that cannot allocate, zeros are written.
_allocate = getattr(os, "posix_fallocate", None)


class Ballast:
    """One writer's ballast. `resize` in any thread, one at a time; `release` at once, beside it."""

    def __init__(self, directory: pathlib.Path, writers: int = 1) -> None:
        """The file is made when it first grows. writers: so many share the disk."""
        self.calls = 0  # whose records it has room for
        self._path = directory / NAME
        self._share = FREE_SHARE * writers
        self._fd = -1
        self._closed = False
        self._bytes = 0
        self._released = 0  # how often; who is growing it then stops
        self._lock = threading.Lock()  # held for one step at a time

    def resize(self, wanted_bytes: int) -> bool:
        """Grow or shrink to `wanted_bytes`, or to what the disk affords. False: it is smaller. Raises OSError.

        What it had when a step fails, or when some of it is released meanwhile, it keeps.
        """
        released = self._released
        affordable = (self._bytes + self._free_bytes()) // self._share // _BLOCK_BYTES * _BLOCK_BYTES
        to_bytes = min(wanted_bytes, max(self._bytes, affordable))
        while True:
            with self._lock:
                if self._closed or self._released != released:
                    return False
                if self._bytes == to_bytes:
                    return to_bytes == wanted_bytes
                self._now(min(to_bytes, self._bytes + STEP_BYTES))

    def regain(self, wanted_bytes: int) -> bool:
        """As `resize`, on a disk that was full. Raises OSError if it has no room for a step beyond the ballast.

        To take that and to give it back is the only sure way to know: a quota does not show in what is free.
        """
        with self._lock:
            if not self._closed:
                self._now(self._bytes + STEP_BYTES)
                self._now(self._bytes - STEP_BYTES)
        return self.resize(wanted_bytes)

    def release(self, needed_bytes: int) -> bool:
        """Give back room for so many bytes. False: there is none left. Raises OSError."""
        with self._lock:
            self._released += 1
            if self._bytes == 0:
                return False
            blocks = -(-needed_bytes // _BLOCK_BYTES)
            self._now(max(0, self._bytes - blocks * _BLOCK_BYTES))
            return True

    def close(self) -> None:
        """Give all of it back; the file is gone. Idempotent; who cannot remove it leaves it to the salvage."""
        with self._lock:
            self._closed = True
            if self._fd >= 0:
                with contextlib.suppress(OSError):
                    self._path.unlink()
                os.close(self._fd)
                self._fd, self._bytes, self.calls = -1, 0, 0

    def _free_bytes(self) -> int:
        free = os.statvfs(self._path.parent)
        return free.f_bavail * free.f_frsize

    def _now(self, size: int) -> None:
        """Make it so long, with the lock held. Raises OSError; it is then as it was."""
        if self._fd < 0:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if size > self._bytes:
            try:
                self._allocate(size)
            except OSError:
                os.ftruncate(self._fd, self._bytes)
                raise
        else:
            os.ftruncate(self._fd, size)
        self._bytes = size
        self.calls = max(0, size - BASE_BYTES) // RECORD_BYTES_MAX

    def _allocate(self, size: int) -> None:
        if _allocate is not None:
            try:
                _allocate(self._fd, self._bytes, size - self._bytes)
                return
            except OSError as error:
                if error.errno not in _NOT_POSSIBLE:
                    raise
        at = self._bytes
        while at < size:
            at += os.pwrite(self._fd, bytes(size - at), at)


def bytes_for(calls: int) -> int:
    """How long a ballast is that holds room for so many calls."""
    return BASE_BYTES + calls * RECORD_BYTES_MAX
