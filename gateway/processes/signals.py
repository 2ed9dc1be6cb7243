"""Signals as bytes to read, instead of interruptions at any place."""

import signal
import socket
from types import TracebackType

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
ENDING = frozenset({signal.SIGTERM, signal.SIGINT})
_READ_BYTES = 512


class Signals:
    """While entered, SIGTERM, SIGINT and SIGCHLD do nothing but to become readable. Main thread only.

    Until `hold` is called the first SIGTERM or SIGINT raises KeyboardInterrupt too: there is nobody yet who
    reads. A child started meanwhile has the default handlers.
    """

    def __init__(self) -> None:
        self._interrupting = True
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def __enter__(self) -> "Signals":
        self._wakeup_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, self._handle) for number in HANDLED}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_fd)
        self._reader.close()
        self._writer.close()

    def hold(self) -> None:
        """From now on no signal interrupts: they are read."""
        self._interrupting = False

    def fileno(self) -> int:
        """To wait on: readable when a signal has come."""
        return self._reader.fileno()

    def read(self) -> list[int]:
        """The signals that have come since, in order; none if there were none."""
        try:
            return list(self._reader.recv(_READ_BYTES))
        except BlockingIOError:
            return []

    def _handle(self, number: int, _frame: object) -> None:
        """That there is a handler makes the signal readable."""
        if self._interrupting and number in ENDING:
            self._interrupting = False
            raise KeyboardInterrupt
