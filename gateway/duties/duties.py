"""What the clerk sees to (gateway/duties/clerk.py): duties, each of tasks that fail alone."""

import collections
import functools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from gateway.duties.close_duty import CloseRunError
from metering.archive.facts import FactsError
from metering.archive.objects import ArchiveError
from metering.audit.verify import VerifyError
from metering.journal.sealing import SealError
from metering.ledger.believed import ClockDoubted
from metering.ledger.store import StoreUnavailable
from metering.logs import log
from metering.pages.pages import PageError

RETRY_S = 30.0
"""A task that failed is left alone for this long: what keeps failing must not take a core."""
EXPECTED = (
    OSError,
    SealError,
    FactsError,
    ArchiveError,
    StoreUnavailable,
    PageError,
    VerifyError,
    ClockDoubted,
    CloseRunError,
)
"""What may go wrong without a mistake of ours: the disk, the archive, the store, the clock."""

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
    """Goes round its duties; says once when a task fails, and once when it works again.

    clock: monotonic, in s. show: told how many tasks of each duty are failing, at first and when that has changed.
    """

    def __init__(
        self,
        duties: Sequence[Duty],
        clock: Callable[[], float] = time.monotonic,
        *,
        show: Callable[[Mapping[str, int]], object] | None = None,
    ) -> None:
        self._duties = tuple(duties)
        self._clock = clock
        self._show = show
        self._shown: Mapping[str, int] = {}
        self._failing: dict[tuple[str, str], _Failure] = {}  # by duty and about

    def round(self) -> None:
        """Do what there is to do. Raises nothing of a task's."""
        for duty in self._duties:
            self._attempt(duty.name, Task("", functools.partial(self._all_tasks, duty)))
        if self._show is not None:
            self._attempt("failures", Task("", functools.partial(self._show_failures, self._show)))

    def _show_failures(self, show: Callable[[Mapping[str, int]], object]) -> None:
        counts = collections.Counter(name for name, _ in self._failing)
        failures = {duty.name: counts[duty.name] for duty in self._duties}
        if failures != self._shown:
            show(failures)
            self._shown = failures

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
