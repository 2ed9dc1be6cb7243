"""One worker's way into the files of content: beside the loop, before the record is written.

    a call's end ─▶ keep ─▶ a thread: encrypt, append, one write() ─▶ kept or dropped ─▶ its record ─▶ its answer's end

The law: what a record says was kept is in the file before the record is, and is synced before the record is synced
(`sync` is called by what syncs the journal). Content is the first thing to go: where the disk is nearly full, fails, or
is slow, it is dropped, and the call's record says so. A file that failed is left as it is, and another one is begun.
"""

import asyncio
import concurrent.futures
import contextlib
import enum
import errno
import hashlib
import logging
import os
import pathlib
import secrets
import threading
from collections.abc import Callable
from typing import NamedTuple

from metering.capture import shelf
from metering.capture.envelope import Recipient
from metering.capture.frame import Header
from metering.capture.shelf import Shelf, Shelved
from metering.files import sync_directory
from metering.logs import log
from metering.record import Capture
from metering.units import NS_PER_HOUR

FILE_BYTES_MAX = 64 * 1024 * 1024
"""From here on another file is begun within the hour."""
LATE_S = 2.0
"""How long a call's end waits for its content; then that is given up."""
BACKLOG_BYTES_MAX = 64 * 1024 * 1024
"""What may wait for a slow disk."""
FREE_BYTES_MIN, FREE_SHARE = 256 * 1024 * 1024, 20
"""Free space that is left to the journal: so much, or a twentieth of a smaller disk."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
# Where there is no fdatasync (macOS), fsync does all that it does and more.
_fdatasync = getattr(os, "fdatasync", os.fsync)

logger = logging.getLogger("weighbridge.capture")


class Dropped(enum.StrEnum):
    """Why a call's content is not kept; names as in deploy/reference/journal.md."""

    DISK_FULL = "disk_full"
    FAILED = "failed"
    LATE = "late"


class Wanted(NamedTuple):
    """A tenant's capture. bytes_max: of a prompt, and of an answer, each. required: or else no call."""

    recipient: Recipient
    bytes_max: int
    required: bool


class Content(NamedTuple):
    """What is to be kept of a call. prompt, answer: as far as they are; *_bytes: how long they were."""

    call_id: str
    tenant: str
    prompt: bytes
    prompt_bytes: int
    answer: bytes
    answer_bytes: int


class _File:
    """A file that is written. All in the keeper's thread, but for what `Keeper.sync` does."""

    def __init__(self, path: pathlib.Path, hour: int) -> None:
        """Raises OSError."""
        self.name = path.name
        self.hour = hour
        self.bytes = 0
        self.failed = False  # a sync has: what the disk holds is not known
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)

    @property
    def can_grow(self) -> bool:
        """Not once a sync of it has failed, or it was deleted: its tenant's content is erased. Raises OSError."""
        return not self.failed and os.fstat(self.fd).st_nlink > 0

    def append(self, data: bytes) -> int:
        """Write it whole; returns where it begins. Raises OSError: nothing of it stands where the next one would."""
        try:
            written = os.write(self.fd, data)
            if written != len(data):
                raise OSError(errno.ENOSPC, f"short write: {written} of {len(data)} bytes")
        except OSError:
            os.ftruncate(self.fd, self.bytes)
            raise
        at, self.bytes = self.bytes, self.bytes + written
        return at


class Keeper:
    """Of one worker. All on the loop's thread, but for `sync`.

    clock: wall clock in nanoseconds since 1970 (UTC). count: called for each content with what has become of it:
    `kept`, `cut` or why it was dropped.
    """

    def __init__(
        self,
        state_dir: pathlib.Path,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], int],
        count: Callable[[str], None],
    ) -> None:
        self._shelf = Shelf(state_dir)
        self._loop = loop
        self._clock = clock
        self._count = count
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "capture")
        self._waiting_bytes = 0
        self._waiting: set[asyncio.Future[Capture]] = set()
        self._well = True
        self._files: dict[str, _File] = {}  # by tenant; of the thread
        self._failing = False  # the thread has said so
        self._syncing = threading.Lock()
        self._closed = False
        self._lock = threading.Lock()  # of the three below
        self._dirty: dict[int, _File] = {}  # not synced since they were written, by descriptor
        self._ended: list[_File] = []  # to be closed once they are synced
        self._directories: set[pathlib.Path] = set()  # with names that are not durable

    @property
    def takes(self) -> bool:
        """Was the last content kept, or is there reason to believe that the next one will be?"""
        return self._well and self._waiting_bytes < BACKLOG_BYTES_MAX

    def keep(self, wanted: Wanted, content: Content, done: Callable[[Capture], None]) -> None:
        """Keep it; `done` is called once, later, with what its record is to say."""
        size = len(content.prompt) + len(content.answer)
        if self._closed or self._waiting_bytes + size > BACKLOG_BYTES_MAX:
            self._loop.call_soon(self._end, done, _dropped(wanted, Dropped.LATE), content)
            return
        self._waiting_bytes += size
        given_up = threading.Event()
        work = self._loop.run_in_executor(self._thread, self._write, wanted, content, given_up)
        self._waiting.add(work)
        timer = self._loop.call_later(LATE_S, self._give_up, given_up, wanted, content, done)

        def ended(work: asyncio.Future[Capture]) -> None:
            self._waiting.discard(work)
            self._waiting_bytes -= size
            timer.cancel()
            if given_up.is_set():
                return
            if (error := work.exception()) is not None:  # our own mistake must not hold up the call
                log(logger, logging.ERROR, "fault in a capture", error=repr(error))
                self._end(done, _dropped(wanted, Dropped.FAILED), content)
            else:
                self._end(done, work.result(), content)

        work.add_done_callback(ended)

    def look(self) -> None:
        """Once a second: may the disk have room again? The next content will tell."""
        with contextlib.suppress(OSError):
            self._well = self._well or not self._is_full()

    def sync(self) -> None:
        """Make all that was written so far durable; in any thread. Raises nothing: what is lost so is logged, and
        found by whoever looks for it (metering/capture/content.py)."""
        with self._syncing:
            with self._lock:
                dirty, self._dirty = list(self._dirty.values()), {}
                ended, self._ended = self._ended, []
                directories, self._directories = self._directories, set()
            for file in dirty:
                try:
                    _fdatasync(file.fd)
                except OSError as error:
                    file.failed = True
                    _log_failed("content may be lost", error)
            for directory in directories:
                try:
                    sync_directory(directory)
                except OSError as error:
                    _log_failed("content may be lost", error)
            for file in ended:
                os.close(file.fd)

    async def close(self) -> None:
        """Wait for what is under way, and close the files."""
        self._closed = True
        if self._waiting:
            await asyncio.wait(self._waiting)
        await self._loop.run_in_executor(self._thread, self._end_files)
        self._thread.shutdown()

    def _give_up(
        self, given_up: threading.Event, wanted: Wanted, content: Content, done: Callable[[Capture], None]
    ) -> None:
        given_up.set()
        self._end(done, _dropped(wanted, Dropped.LATE), content)

    def _end(self, done: Callable[[Capture], None], capture: Capture, content: Content) -> None:
        if capture.dropped is not None:
            self._well = False
            self._count(capture.dropped)
        else:
            self._well = True
            whole = capture.prompt_bytes, capture.answer_bytes
            self._count("kept" if whole == (content.prompt_bytes, content.answer_bytes) else "cut")
        done(capture)

    # In the thread

    def _write(self, wanted: Wanted, content: Content, given_up: threading.Event) -> Capture:
        try:
            if given_up.is_set():  # nobody will say that it is there
                return _dropped(wanted, Dropped.LATE)
            if self._is_full():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            kept = self._append(wanted, content)
        except OSError as error:
            is_full = error.errno in _FULL
            if not self._failing:
                self._failing = True
                _log_failed("content not kept", error)
            if not is_full:  # after a failed write nobody knows what the disk holds
                self._end_file(content.tenant)
            return _dropped(wanted, Dropped.DISK_FULL if is_full else Dropped.FAILED)
        if self._failing:
            self._failing = False
            log(logger, logging.INFO, "content is kept again")
        return kept

    def _append(self, wanted: Wanted, content: Content) -> Capture:
        header = Header(
            answer_bytes=content.answer_bytes,
            answer_kept_bytes=len(content.answer),
            call_id=content.call_id,
            key=wanted.recipient.id,
            prompt_bytes=content.prompt_bytes,
            prompt_kept_bytes=len(content.prompt),
            tenant=content.tenant,
        )
        data = wanted.recipient.seal(header, content.prompt, content.answer)
        file = self._file(content.tenant)
        offset = file.append(data)
        with self._lock:
            self._dirty[file.fd] = file
        return Capture(
            answer_bytes=len(content.answer),
            bytes=len(data),
            file=file.name,
            key=wanted.recipient.id,
            offset=offset,
            prompt_bytes=len(content.prompt),
            sha256=hashlib.sha256(data).hexdigest(),
        )

    def _file(self, tenant: str) -> _File:
        """The file to append to now. Raises OSError."""
        hour = self._clock() // NS_PER_HOUR
        file = self._files.get(tenant)
        if file and file.hour == hour and file.bytes < FILE_BYTES_MAX and file.can_grow:
            return file
        self._end_file(tenant)
        name = shelf.file_name(hour, secrets.token_hex(shelf.TOKEN_BYTES))
        path = self._shelf.path(Shelved(tenant, name))
        for directory in (path.parent.parent, path.parent):
            if not directory.is_dir():
                directory.mkdir(mode=0o700, exist_ok=True)
                sync_directory(directory.parent)
        file = self._files[tenant] = _File(path, hour)
        with self._lock:
            self._directories.add(path.parent)
        return file

    def _end_file(self, tenant: str) -> None:
        if (file := self._files.pop(tenant, None)) is not None:
            with self._lock:
                self._ended.append(file)
                self._dirty.setdefault(file.fd, file)

    def _end_files(self) -> None:
        for tenant in list(self._files):
            self._end_file(tenant)
        self.sync()

    def _is_full(self) -> bool:
        """Is so little free that it is left to the journal? Raises OSError."""
        disk = os.statvfs(self._shelf.root.parent)
        total, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
        return free < min(FREE_BYTES_MIN, total // FREE_SHARE)


def _dropped(wanted: Wanted, reason: Dropped) -> Capture:
    return Capture(dropped=reason.value, key=wanted.recipient.id)


def _log_failed(event: str, error: OSError) -> None:
    log(logger, logging.ERROR, event, error=error.strerror or str(error))
