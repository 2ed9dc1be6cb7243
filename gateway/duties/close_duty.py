"""The clerk's closing of hours: a process for each run, soon after each full hour, and again while an hour waits."""

import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

from gateway.configuration.config import Config, to_json
from gateway.processes.workplaces import environment
from metering.ledger.embedded import end_with_parent
from metering.logs import log
from metering.units import NS_PER_HOUR, NS_PER_S

CLOSER = (sys.executable, "-P", "-m", "gateway.duties.closer")
WAITS = 5
"""Status of a run after which an hour that is over waits for somebody's journal."""
FIRST_NS = 30 * NS_PER_S
"""After its start: a gateway that starts has other things to do."""
AFTER_HOUR_NS = 10 * NS_PER_S
"""For the ticks of the full hour to be written."""
AGAIN_NS = 60 * NS_PER_S
"""While an hour waits."""

logger = logging.getLogger("weighbridge.clerk")


class CloseRunError(Exception):
    """A run has failed; its own log lines say why."""


class CloseDuty:
    """Starts runs, and waits for none of them. To be used on the main thread only.

    clock: wall clock in ns since 1970 (UTC). argv: the command of a run; the flags of closer.py are added.
    """

    def __init__(
        self, config: Config, clock: Callable[[], int] = time.time_ns, argv: Sequence[str] = CLOSER
    ) -> None:
        self._config = to_json(config)
        self._clock = clock
        self._argv = argv
        self._due_ns = clock() + FIRST_NS
        self._waits = False  # for an hour's journals; closed hours were looked at again just now
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        """Is a run under way, or has ended and not been seen yet?"""
        return self._process is not None

    def close_if_due(self) -> None:
        """See whether the run under way has ended, or start one if it is time. Raises CloseRunError, OSError."""
        now_ns = self._clock()
        if self._process is not None:
            status = self._process.poll()
            if status is None:
                return
            self._process = None
            self._waits = status == WAITS
            self._due_ns = next_ns(now_ns, waits=self._waits)
            if status not in (0, WAITS):
                self._due_ns = now_ns  # the clerk tries it again, after a while
                raise CloseRunError(f"the closing process ended with status {status}")
        elif (
            now_ns >= self._due_ns or self._due_ns - now_ns > NS_PER_HOUR + AFTER_HOUR_NS
        ):  # the clock was set back
            self._start()

    def _start(self) -> None:
        with tempfile.TemporaryFile() as file:
            file.write(self._config)
            file.seek(0)
            self._process = subprocess.Popen(
                [*self._argv, "--config-fd", str(file.fileno()), *(["--open-only"] if self._waits else [])],
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__,
                env=environment(),
                pass_fds=(file.fileno(),),
                preexec_fn=end_with_parent(),
            )
        log(logger, logging.DEBUG, "close begun", pid=self._process.pid)


def next_ns(now_ns: int, *, waits: bool) -> int:
    """When the next run is due. waits: an hour that is over waits for somebody."""
    hour_ns = (now_ns // NS_PER_HOUR + 1) * NS_PER_HOUR + AFTER_HOUR_NS
    return min(hour_ns, now_ns + AGAIN_NS) if waits else hour_ns
