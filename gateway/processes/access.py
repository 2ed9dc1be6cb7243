"""Who may ask a worker: its directory, opened, and what lets people in by it.

configuration, copy on disk, store ─▶ Watcher ─▶ Directory ─▶ Entrance (calls, faces)
                                         ▲
                                      Changer ◀─ the admin face
"""

import asyncio
import contextlib
import pathlib
import time
from collections.abc import Callable, Iterable

from gateway.admission.admission import Admissions
from gateway.admission.salts import Salts
from gateway.api.auth import Keys
from gateway.calls.fairness import Claim
from gateway.calls.queueing import Seats
from gateway.configuration.config import Config, Tenant
from gateway.configuration.limits_config import tenant_terms
from gateway.directory.changer import Changer
from gateway.directory.directory import Directory
from gateway.directory.entrance import Entrance
from gateway.directory.watcher import Watcher
from gateway.faces.admin_api import AdminApi
from gateway.processes import rounds
from metering.journal.recorder import Recorder
from metering.journal.unwritten import Unwritable
from metering.ledger.directory_file import DirectoryFile
from metering.ledger.directory_store import DirectoryStore
from metering.limits.limiter import Limiter
from metering.limits.terms import TenantTerms


class Access:
    """Of one worker. directory: who there is; entrance: who is let in; admin: the face by which that is changed;
    warnings: what somebody should see to."""

    def __init__(
        self, config: Config, index: int, redis_url: str, recorder: Callable[[], Recorder | Unwritable]
    ) -> None:
        """index: of the worker; recorder: gives the one that takes lines now."""
        keys = Keys()
        file = DirectoryFile(pathlib.Path(config.state_dir))
        self._store = DirectoryStore(redis_url)
        self.directory = Directory(config.tenants, keys, time.time_ns())
        self.entrance = Entrance.of(config, keys, time.monotonic_ns)
        self._watcher = watcher = Watcher(
            self.directory, file, self._store, keeps=index == 0, stale_max_s=config.auth.stale_max_s
        )
        self.warnings = watcher.warnings
        models = frozenset(model.name for model in config.models)
        changer = Changer(self.directory, watcher, file, recorder, models, redis_url)
        self.admin = AdminApi(
            entrance=self.entrance,
            recorder=recorder,
            compiled=self.directory,
            copy=watcher.copy,
            changer=changer,
        )

    async def open(self, stack: contextlib.AsyncExitStack) -> None:
        """Know who may ask, and go on knowing it until the stack is closed. Raises OSError."""
        stack.push_async_callback(self._store.close)
        await self._watcher.begin()
        stack.push_async_callback(rounds.cancel, asyncio.create_task(self._watcher.run()))

    def follow(self, limiter: Limiter, seats: Seats, admissions: Admissions, salts: Salts) -> None:
        """Have limits, holds, places in the line and salts be those of who there is, now and at each change."""
        tenants: dict[str, Tenant] = {}
        terms: dict[str, TenantTerms] = {}

        def changed(names: Iterable[str]) -> None:
            for name in names:
                terms.pop(name, None)
                tenants.pop(name, None)
                if (tenant := self.directory.tenant(name)) is not None:
                    terms.update(tenant_terms([tenant]))
                    tenants[name] = tenant
            limiter.use(terms)
            admissions.use(tenants.values())
            seats.use({one.name: Claim(one.share, one.priority) for one in tenants.values()})
            salts.use(tenants)

        self.directory.on_change.append(changed)
        changed(self.directory.names())
