"""A copy of each journal line for whoever collects the gateway's stdout (`journal.mirror: stdout`).

    turn written ─▶ put ─▶ buffer ─▶ a thread ─▶ stdout

A copy follows its line: what is in it is in the journal, unless that was lost since. It must never hold up a call: a
reader that is slow fills the buffer, and then whole turns are left out and counted. A gap shows in `seq`.
Workers share one stdout: they take turns by a lock, so that lines stay whole. Each begins with a newline, for one that
was killed may have left half a line; readers pass over the empty one.
"""

import contextlib
import fcntl
import logging
import os
import pathlib
import queue
import select
import threading
from collections.abc import Callable, Iterator

from metering.logs import log

BUFFER_BYTES_MAX = 8 * 1024 * 1024
CLOSE_S = 2.0
LOCK = "mirror.lock"

logger = logging.getLogger("weighbridge.mirror")


class Mirror:
    """One worker's. `put` on one thread only."""

    def __init__(
        self,
        fd: int,
        lock: pathlib.Path,
        dropped: Callable[[int], None],
        *,
        bytes_max: int = BUFFER_BYTES_MAX,
    ) -> None:
        """fd: where to; lock: a file that all who write there share; dropped: told how many lines were left out."""
        self._fd = fd
        self._dropped = dropped
        self._bytes_max = bytes_max
        self._lock_fd = -1
        with contextlib.suppress(OSError):  # on a broken disk: lines of two workers may then mix
            self._lock_fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._put_bytes = 0  # by `put` alone
        self._written_bytes = 0  # by the thread alone
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()

    def put(self, data: bytes) -> None:
        """Copy whole lines, or leave all of them out."""
        if self._closed or self._put_bytes - self._written_bytes + len(data) > self._bytes_max:
            self._dropped(data.count(b"\n"))
            return
        self._put_bytes += len(data)
        self._queue.put(data)

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Write what is in the buffer, if the reader takes it in time."""
        self._queue.put(None)
        self._thread.join(wait_s)

    def _run(self) -> None:
        try:
            self._write(b"\n")
            while (data := self._queue.get()) is not None:
                self._write(data)
                self._written_bytes += len(data)
        except OSError as error:
            self._closed = True
            log(
                logger,
                logging.ERROR,
                "mirror cannot be written, no line is copied any more",
                error=error.strerror,
            )

    def _write(self, data: bytes) -> None:
        with self._alone():
            view = memoryview(data)
            while view:
                try:
                    view = view[os.write(self._fd, view) :]
                except BlockingIOError:  # stdout is what the gateway was given
                    select.select([], [self._fd], [])

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if self._lock_fd < 0:
            yield
            return
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock_fd, fcntl.LOCK_UN)
