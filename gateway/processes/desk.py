"""The clerk's desk in the supervisor: keeps one clerk process at work (gateway/duties/clerk.py).

One that dies is started again, later and later if it keeps dying (gateway/processes/restarts.py); nobody waits for it.
"""

import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from gateway.processes.restarts import Restarts
from gateway.processes.workplaces import environment
from metering.ledger.embedded import end_with_parent
from metering.logs import log

CLERK = (sys.executable, "-P", "-m", "gateway.duties.clerk")
LEAVE_S = 5.0
"""For the step that it is at; after that it is killed, which costs nothing but the step."""

logger = logging.getLogger("weighbridge.supervisor")


class Desk:
    """Where the clerk sits. config: the resolved configuration as JSON. To be used on one thread only, the main one:
    the kernel's parent-death signal is tied to it."""

    def __init__(self, config: bytes, argv: Sequence[str] = CLERK) -> None:
        self.start_ns: int | None = 0  # when to start a clerk; None: there is one, or none is to be
        self._config = config
        self._argv = argv
        self._restarts = Restarts()
        self._started_ns = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe_fd = -1

    def keep_up(self) -> None:
        """See whether the clerk has died, and start one if it is time. Waits for nothing."""
        if self._process is not None and (status := self._process.poll()) is not None:
            log(logger, logging.WARNING, "clerk ended", pid=self._process.pid, status=status)
            self._leave()
            self._again()
        if self.start_ns is not None and self.start_ns <= time.monotonic_ns():
            try:
                self._start()
            except OSError as error:
                log(logger, logging.ERROR, "clerk not started", error=error.strerror)
                self._again()

    def dismiss(self) -> None:
        """Tell the clerk to leave; `close` waits for it. Idempotent."""
        self.start_ns = None
        if self._process is not None:
            self._process.terminate()

    def close(self) -> None:
        """Have the clerk leave, and wait until it has. Idempotent."""
        self.dismiss()
        if self._process is None:
            return
        try:
            self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._leave()

    def _start(self) -> None:
        self.start_ns, self._started_ns = None, time.monotonic_ns()
        reader_fd, pipe_fd = os.pipe()
        try:
            with tempfile.TemporaryFile() as file:
                file.write(self._config)
                file.seek(0)
                words = ("--config-fd", str(file.fileno()), "--supervisor-fd", str(reader_fd))
                self._process = subprocess.Popen(
                    [*self._argv, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=sys.__stderr__,  # as a worker's: stdout is the command's
                    env=environment(),
                    pass_fds=(file.fileno(), reader_fd),
                    process_group=0,
                    preexec_fn=end_with_parent(),
                )
        except OSError:
            os.close(pipe_fd)
            raise
        finally:
            os.close(reader_fd)
        self._pipe_fd = pipe_fd

    def _again(self) -> None:
        self.start_ns = self._restarts.died(self._started_ns, time.monotonic_ns()).at_ns

    def _leave(self) -> None:
        self._process = None
        os.close(self._pipe_fd)
