"""A worker's workplace: listening sockets that stay, and the process that works there, one after another.

While a process is being restarted its sockets stay open, and who connects waits in their backlog.
A process is started by exec and inherits its descriptors: the configuration as JSON, the sockets, one end of
the control pair (gateway/processes/control.py), and stdout if journal lines are copied there.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import NamedTuple

from gateway.processes.control import Decoder, Message, encode
from gateway.processes.restarts import Restarts
from gateway.processes.sockets import Port
from metering.ledger.embedded import end_with_parent

WORKER = (sys.executable, "-P", "-m", "gateway.processes.worker")
"""How a worker is started. -P: a directory named gateway where the command is run is not ours."""

_ENVIRONMENT_OURS = "WEIGHBRIDGE_"
_READ_BYTES = 4096


class Ports(NamedTuple):
    """Where the gateway listens. ops: `ops.listen`, if it is set."""

    main: Port
    ops: Port | None


class Workplace:
    """Of one of the workers; its process is to be started at once."""

    def __init__(
        self,
        index: int,
        workers: int,
        ports: Ports,
        argv: Sequence[str],
        config: bytes,
        *,
        mirror_fd: int | None = None,
    ) -> None:
        """Raises OSError if the sockets cannot be made.

        config: the resolved configuration as JSON; mirror_fd: where journal lines are copied to.
        """
        self.index = index
        self.writer: str | None = None  # of the process, once it is ready
        self.member: str | None = None  # its name in pools: its first writer's
        self.restarts = Restarts()
        self.start_ns: int | None = 0  # when to start a process; None: there is one, or none is to be
        self.started_ns = 0
        self.control: socket.socket | None = None
        self._workers = workers
        self._ports = ports
        self._argv = argv
        self._config = config
        self._mirror_fd = mirror_fd
        self._listeners: dict[str, socket.socket] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._decoder = Decoder()
        self.listen()

    @property
    def pid(self) -> int | None:
        """Of the process; None: there is none."""
        return self._process.pid if self._process else None

    def listen(self) -> None:
        """Open the sockets that are closed. Raises OSError."""
        if "--socket-fd" not in self._listeners:
            self._listeners["--socket-fd"] = self._ports.main.listen()
        if self._ports.ops and "--ops-fd" not in self._listeners:
            self._listeners["--ops-fd"] = self._ports.ops.listen()

    def stop_listening(self) -> None:
        """Close the sockets here; who waits in their backlog is cut off unless a process holds them."""
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()

    def start(self) -> None:
        """Start a process here. Raises OSError."""
        assert self._process is None
        self.listen()
        self.start_ns, self.started_ns = None, time.monotonic_ns()
        ours, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile() as file:
            file.write(self._config)
            file.seek(0)
            inherited = {"--config-fd": file.fileno(), "--control-fd": theirs.fileno()}
            inherited |= {flag: listener.fileno() for flag, listener in self._listeners.items()}
            if self._mirror_fd is not None:
                inherited["--mirror-fd"] = self._mirror_fd
            numbers = inherited | {"--index": self.index, "--workers": self._workers}
            words = [str(word) for flag_and_number in numbers.items() for word in flag_and_number]
            try:
                self._process = subprocess.Popen(
                    [*self._argv, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=sys.__stderr__,  # what a library prints there is a log; stdout is the command's
                    env=environment(),
                    pass_fds=tuple(inherited.values()),
                    # One that is only starting does not hear its control pair end yet, and would hold the port.
                    preexec_fn=end_with_parent(),
                    process_group=0,  # Ctrl-C is for the supervisor, which tells the workers
                )
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        self.control, self._decoder = ours, Decoder()

    def messages(self) -> list[Message] | None:
        """What the process has said; None: it has closed its end. Raises control.ControlError."""
        assert self.control is not None
        try:
            data = self.control.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except ConnectionResetError:  # it died with something unread
            return None
        return self._decoder.feed(data) if data else None

    def say(self, message: Message) -> None:
        """Tell the process something, if there is one that listens."""
        if self.control is not None:
            # It is dying, or has not read for so long that it is as good as dead.
            with contextlib.suppress(OSError):
                self.control.send(encode(message))

    def ended(self) -> bool:
        """Has the process ended? `clear` is then to be called."""
        return self._process is not None and self._process.poll() is not None

    def clear(self) -> int:
        """Make room for the next process. returns: the exit status of the one that has ended."""
        assert self._process is not None
        status = self._process.returncode
        assert status is not None
        self._process, self.writer, self.member = None, None, None
        if self.control is not None:
            self.control.close()
            self.control = None
        return status

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if there is one."""
        if self._process is not None:
            self._process.send_signal(number)


def environment() -> dict[str, str]:
    """For a process of ours: without what overrides the configuration, which is resolved and may hold a password."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_ENVIRONMENT_OURS)}
