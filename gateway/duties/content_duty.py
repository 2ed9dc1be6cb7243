"""The clerk's care for kept content: into the archive, if there is one, and deleted when it is older than its days."""

import functools
import logging
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping

from gateway.configuration.config import Config
from gateway.duties.duties import Duty, Task
from metering.archive.objects import Objects
from metering.archive.retention import NS_PER_DAY
from metering.audit.keys import Keys
from metering.capture import removal
from metering.capture.shelf import Shelf, Shelved
from metering.journal import event_journal, events
from metering.logs import log

ARCHIVE_S = 60.0
RETENTION_S = 86_400.0
"""How often it is looked for what is too old: each time that something is, a journal of the clerk's tells of it."""
COMMAND = "clerk"

logger = logging.getLogger("weighbridge.clerk")


class ContentDuty:
    """Of one state directory. believed: the time that deletions go by; clock: the wall clock; both in ns since 1970."""

    def __init__(
        self,
        config: Config,
        objects: Objects | None,
        believed: Callable[[], int],
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._shelf = Shelf(pathlib.Path(config.state_dir))
        self._journals = pathlib.Path(config.state_dir) / "journal"
        self._keys = Keys(config.state_dir, config.journal.signing_key_file)
        self._objects = objects
        self._believed = believed
        self._clock = clock
        self._days = {
            tenant.name: tenant.capture.retention_days for tenant in config.tenants if tenant.capture
        }
        self._days_else = config.retention_days
        self._archive_s = 0.0
        self._retention_s: dict[str, float] = {}

    def duties(self) -> list[Duty]:
        """All of it; nothing, where no tenant's content was ever kept."""
        return [Duty("content", self._tasks)]

    def _tasks(self) -> Iterable[Task]:
        if not self._days and not self._shelf.root.is_dir():
            return
        if self._objects is not None and time.monotonic() >= self._archive_s:
            self._archive_s = time.monotonic() + ARCHIVE_S
            for one in self._shelf.files():
                if self._shelf.is_final(one, self._clock()):
                    yield Task(one.below, functools.partial(removal.archive, self._shelf, self._objects, one))
        if self._is_due("local"):
            yield Task("local", self._delete_local)
        if self._objects is not None and self._is_due("archive"):
            yield Task("archive", functools.partial(self._delete_archived, self._objects))

    def _is_due(self, where: str) -> bool:
        return time.monotonic() >= self._retention_s.get(where, 0.0)

    def _delete_local(self) -> None:
        old = removal.old(self._shelf.files(), self._older_than_ns)
        self._tell("local", old)
        removal.delete_local(self._shelf, (one for files in old.values() for one in files))
        self._retention_s["local"] = time.monotonic() + RETENTION_S

    def _delete_archived(self, objects: Objects) -> None:
        old = removal.old(removal.archived(objects), self._older_than_ns)
        self._tell("archive", old)
        removal.delete_archived(objects, (one for files in old.values() for one in files))
        self._retention_s["archive"] = time.monotonic() + RETENTION_S

    def _older_than_ns(self, tenant: str) -> int:
        """Content of one that wants no more of it is kept as long as the journal."""
        return self._believed() - self._days.get(tenant, self._days_else) * NS_PER_DAY

    def _tell(self, where: str, old: Mapping[str, list[Shelved]]) -> None:
        """Raises OSError: nothing is to be deleted then."""
        if not old:
            return
        happenings = [
            events.content_deleted(
                actor=None,
                where=where,
                tenant=tenant,
                reason="age",
                until_ns=self._older_than_ns(tenant),
                files=len(files),
            )
            for tenant, files in old.items()
        ]
        event_journal.tell(
            self._journals, COMMAND, happenings, self._keys.ensure(self._clock()), clock=self._clock
        )
        for tenant, files in old.items():
            log(logger, logging.INFO, "old content is deleted", where=where, tenant=tenant, files=len(files))
