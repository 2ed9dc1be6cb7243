"""The extra process: what has time, beside the calls and never on a data loop.

    each ROUND_S, in order:  every duty ─▶ its tasks, one by one, each failing alone

One per state directory, started by the supervisor (gateway/desk.py) and started again when it dies; no call ever
needs it. It gets the resolved configuration as a worker does. SIGTERM ends it, and so does the end of the
supervisor: its pipe closes, and on Linux the kernel tells it. Whatever it was at is done again by the next one:
all that it does is whole or not there.
"""

import argparse
import functools
import logging
import os
import pathlib
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import NamedTuple

from gateway import config as cfg
from gateway import logs
from gateway.config import Config
from gateway.control_duty import ControlDuty
from gateway.verify_duty import VerifyDuty
from metering import facts, sealing
from metering.facts import FactsError
from metering.journal import Directory, directories
from metering.logs import log
from metering.pages import PageError
from metering.sealing import SealError
from metering.store import StoreUnavailable
from metering.verify import VerifyError

ROUND_S = 5.0
RETRY_S = 30.0
"""A task that failed is left alone for this long: what keeps failing must not take a core."""
NICENESS = 10
"""Workers come first."""
EXPECTED = (OSError, SealError, FactsError, StoreUnavailable, PageError, VerifyError)
"""What may go wrong without a mistake of ours: the disk, the archive, the store."""

logger = logging.getLogger("weighbridge.clerk")


class Task(NamedTuple):
    """A piece of work that succeeds or fails by itself. about: on what, for the log."""

    about: str
    do: Callable[[], object]


class Duty(NamedTuple):
    """Something that is seen to in each round. name: for the log; tasks: what there is to do now."""

    name: str
    tasks: Callable[[], Iterable[Task]]


class _Failure(NamedTuple):
    """reason: as it was last said; again_s: when the task is tried again."""

    reason: str
    again_s: float


class Clerk:
    """Goes round its duties; says once when a task fails, and once when it works again. clock: monotonic, in s."""

    def __init__(self, duties: Sequence[Duty], clock: Callable[[], float] = time.monotonic) -> None:
        self._duties = tuple(duties)
        self._clock = clock
        self._failing: dict[tuple[str, str], _Failure] = {}  # by duty and about

    def round(self) -> None:
        """Do what there is to do. Raises nothing of a task's."""
        for duty in self._duties:
            self._attempt(duty.name, Task("", functools.partial(self._all_tasks, duty)))

    def _all_tasks(self, duty: Duty) -> None:
        seen = {""}
        for task in duty.tasks():
            seen.add(task.about)
            self._attempt(duty.name, task)
        for key in [key for key in self._failing if key[0] == duty.name and key[1] not in seen]:
            del self._failing[key]  # there is nothing to be done about it any more

    def _attempt(self, duty: str, task: Task) -> None:
        key = duty, task.about
        before = self._failing.get(key)
        if before is not None and self._clock() < before.again_s:
            return
        about = {"about": task.about} if task.about else {}
        try:
            task.do()
        except Exception as error:  # noqa: BLE001  our own mistake in one task must not end the others
            reason = str(error) if isinstance(error, EXPECTED) else f"fault: {error!r}"
            if before is None or before.reason != reason:
                log(logger, logging.ERROR, "duty failed", duty=duty, **about, reason=reason)
            self._failing[key] = _Failure(reason, self._clock() + RETRY_S)
        else:
            if before is not None:
                del self._failing[key]
                log(logger, logging.INFO, "duty works again", duty=duty, **about)


def duties(config: Config) -> list[Duty]:
    """What the clerk sees to, in the order of a round."""
    state_dir = pathlib.Path(config.state_dir)
    journals = state_dir / "journal"
    maker = facts.Maker(state_dir / "facts")
    control = ControlDuty(config)
    verification = VerifyDuty(state_dir)
    return [
        Duty("seal", functools.partial(seal_tasks, journals)),
        Duty("facts", functools.partial(facts_tasks, journals, maker)),
        Duty("control", lambda: [Task("look", control.look_if_due)]),
        Duty("verify", lambda: [Task("journals", verification.verify_if_due)]),
    ]


def seal_tasks(journals: pathlib.Path) -> Iterable[Task]:
    """One for each directory."""
    for directory in directories(journals):
        yield Task(directory.writer, functools.partial(seal_all, directory))


def seal_all(directory: Directory) -> None:
    """Seal what is due of one directory. Raises OSError, SealError."""
    for path in sealing.due(directory, time.time_ns()):
        sealing.seal(path)


def facts_tasks(journals: pathlib.Path, maker: facts.Maker) -> Iterable[Task]:
    """One for each segment that is sealed and has no facts yet."""
    for directory in directories(journals):
        for first_seq in maker.missing(directory):
            about = facts.name(directory.writer, first_seq)
            yield Task(about, functools.partial(maker.make, directory, first_seq))


def run(clerk: Clerk, supervisor_fd: int) -> int:
    """Go round until the supervisor's end of this pipe is closed. returns: the exit code."""
    while True:
        clerk.round()
        if select.select([supervisor_fd], [], [], ROUND_S)[0]:  # nobody ever writes to it
            return 0


def main() -> int:
    """Entry of `python -m gateway.clerk`; see desk.py for who calls it."""
    parser = argparse.ArgumentParser(prog="weighbridge-clerk", description=__doc__)
    for name in ("--config-fd", "--supervisor-fd"):
        parser.add_argument(name, type=int, required=True)
    args = parser.parse_args()
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C may reach the whole group; the supervisor speaks for it
    signal.signal(signal.SIGTERM, _leave)
    logs.set_up(sys.stderr, process="clerk")
    os.nice(NICENESS)
    with os.fdopen(args.config_fd, "rb") as file:
        config = cfg.from_json(file.read())
    return run(Clerk(duties(config)), args.supervisor_fd)


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    sys.exit(main())
