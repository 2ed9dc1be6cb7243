"""Changes of the directory by a person's wish, one at a time.

    this host's lock ─▶ the store's lock ─▶ what is newest ─▶ the edit ─▶ told in the journal ─▶ everywhere

With the store away the second lock is left out: then the newest of two that could not see each other wins.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence

from gateway.api.errors import JournalFull, Overloaded
from gateway.directory.directory import Directory
from gateway.directory.edits import Edit, Here
from gateway.directory.watcher import Watcher
from metering.journal.events import Changed
from metering.journal.recorder import Recorder
from metering.journal.unwritten import Unwritable
from metering.ledger.directory_file import DirectoryFile
from metering.ledger.register import take_in
from metering.ledger.store import Store, StoreUnavailable
from metering.record import Entry

WAIT_S = 5.0
"""How long a change waits for others to be made."""
_AGAIN_S = 0.02
_HOLDER_BYTES = 8


class Changer:
    """Of one worker. recorder: gives the one that takes lines now; models: ids of those that are served here."""

    def __init__(
        self,
        compiled: Directory,
        watcher: Watcher,
        file: DirectoryFile,
        recorder: Callable[[], Recorder | Unwritable],
        models: Collection[str],
        redis_url: str,
    ) -> None:
        """redis_url: where the ledger is, which takes in tenants that are made."""
        self._redis_url = redis_url
        self._compiled = compiled
        self._watcher = watcher
        self._file = file
        self._recorder = recorder
        self._models = models
        self._mine = asyncio.Lock()

    async def newest(self) -> None:
        """Know what others have changed until now: who has made a change anywhere must find it here. Raises OSError."""
        await self._watcher.newest()

    async def change(self, edit: Edit, *, actor: str, change: str, request_id: str | None) -> Sequence[Entry]:
        """Have it made. On return it is in the journal, counts here, and is on its way to all others.

        actor, change, request_id: as of its lines. returns: the entries as they are now. Raises GatewayError: nothing
        was changed.
        """
        async with self._alone():
            await self._watcher.newest()
            copy = self._watcher.copy
            made = edit(Here(self._compiled, copy, self._models, time.time_ns()))
            fresh = [entry for entry in made if entry != copy.get(entry.kind, entry.name)]
            for entry in fresh:
                await self._tell(entry, actor, change, request_id)
            for entry in fresh:
                if entry.kind == "tenant" and entry.version == 1:
                    await self._take_in(entry.name)
            await self._watcher.publish(fresh)
            return made

    async def _take_in(self, tenant: str) -> None:
        """Have the ledger know a tenant that was just made; should it be away, its upkeep will find out."""
        with contextlib.suppress(StoreUnavailable):
            async with Store(self._redis_url) as store:
                await take_in(store, tenant)

    async def _tell(self, entry: Entry, actor: str, change: str, request_id: str | None) -> None:
        told = Changed(actor=actor, change=change, entry=entry, request_id=request_id)
        try:
            await self._recorder().tell(told.line(time.time_ns))
        except OSError as error:
            raise JournalFull("this change could not be recorded, so it is not made") from error

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Raises Overloaded: others have been at it for WAIT_S."""
        holder = secrets.token_hex(_HOLDER_BYTES)
        try:
            async with asyncio.timeout(WAIT_S), contextlib.AsyncExitStack() as waiting:
                await waiting.enter_async_context(self._mine)
                await _wait_for(self._this_host, waiting)
                await _wait_for(lambda: self._watcher.locked(holder), waiting)
                held = waiting.pop_all()
        except TimeoutError:
            raise Overloaded("another change is being made; try again", retry_after_s=1) from None
        async with held:
            yield

    @contextlib.asynccontextmanager
    async def _this_host(self) -> AsyncIterator[bool]:
        with self._file.change_lock_if_free() as free:
            yield free


async def _wait_for(
    lock: Callable[[], contextlib.AbstractAsyncContextManager[bool]], held: contextlib.AsyncExitStack
) -> None:
    """Take a lock once it is free, and keep it as long as `held` is open."""
    while True:
        async with contextlib.AsyncExitStack() as one:
            if await one.enter_async_context(lock()):
                await held.enter_async_context(one.pop_all())
                return
        await asyncio.sleep(_AGAIN_S)
