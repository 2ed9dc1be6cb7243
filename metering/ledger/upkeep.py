"""The upkeep of a ledger by who holds journals: fold complete ones in an epoch, state them, say who is ready.

A gateway's caretaker does it each 30 s for all journals of its state directory, `weighbridge ledger fold` once for
the ones that it is given.
"""

from collections.abc import Callable, Collection, Sequence

from metering.ledger.epochs import NO_EPOCH, Writer
from metering.ledger.folder import Directory, Folder
from metering.ledger.ledger import hour_text
from metering.ledger.register import Register, raise_floor
from metering.ledger.store import Store

EPOCHS_MAX = 5
"""In one round. A second one comes with a tenant that is found in a journal only, or with a loss meanwhile."""


class Upkeep:
    """Of one gateway, or one command, on one store. One caller at a time.

    tenants: those that are looked after beside the ones that the journals name. host: named with each writer.
    lost: set by who has seen the store lose records; the next round begins a new epoch.
    floor: the hour (`yyyymmddhh`) below which the ledger is closed, now; None: it is not for this one to say.
    """

    def __init__(
        self,
        store: Store,
        *,
        tenants: Collection[str],
        host: str,
        floor: Callable[[], str] | None = None,
    ) -> None:
        self.lost = False
        self._store = store
        self._floor = floor
        self.folder = Folder(store)
        self.register = Register(store, host=host)
        self._configured = frozenset(tenants)
        self._new: frozenset[str] = frozenset()  # not taken into an epoch yet

    @property
    def tenants(self) -> frozenset[str]:
        """All that are known here."""
        return self._configured.union(*(learnt.lasts for learnt in self.folder.learnt.values()))

    def know(self, tenants: Collection[str]) -> None:
        """Look after these too, from the next round on. Those that come once there was one were made just now."""
        if self.register.epoch != NO_EPOCH:
            self._new |= frozenset(tenants) - self.tenants
        self._configured |= frozenset(tenants)

    async def round(self, directories: Sequence[Directory]) -> bool:
        """Once for all directories. Raises StoreUnavailable, OSError.

        returns: True if it was done from beginning to end in one epoch, with all tenants in it; else go round again.
        """
        if not await self._fold(directories):
            return False
        await self.register.state(self._stated(directories))
        await self.settle()
        return True

    async def clear_limits(self) -> None:
        """Let go of what dead workers had under way, and hold, of tenants' limits. Raises StoreUnavailable."""
        running, held = [], []
        for tenant, workers in (await self._store.limit_workers(self.tenants)).items():
            told = self.register.told(tenant)
            for writer in workers:
                stream = (tenant, writer)
                if writer in told or (writer in self.folder.learnt and stream not in self.folder.left):
                    held.append(stream)
                elif writer in self.folder.learnt:
                    running.append(stream)
        await self._store.clear_limits(running, with_held=False)
        await self._store.clear_limits(held, with_held=True)

    async def settle(self) -> None:
        """Say who is ready by now. Raises StoreUnavailable."""
        await self.register.settle(self.tenants)

    async def _fold(self, directories: Sequence[Directory]) -> bool:
        for _ in range(EPOCHS_MAX):
            before, tenants = self.register.epoch, self.tenants
            new = self._new
            epoch = await self.register.begin(tenants, lost=self.lost, new=new)
            self._new -= new
            self.lost &= epoch == NO_EPOCH
            if epoch != before:
                self.folder.begin_epoch()
            await self._raise_floor()
            await self.folder.fold(directories)
            self.lost |= self.folder.fell
            if epoch != NO_EPOCH and not self.lost and self.tenants == tenants:
                return True
        return False

    async def _raise_floor(self) -> None:
        hour = self._floor() if self._floor else ""
        if low := self.register.with_floor_below(hour):
            await raise_floor(self._store, low, hour)

    def _stated(self, directories: Sequence[Directory]) -> dict[str, Writer]:
        """Complete ones as they are folded; of the others each states its own."""
        stated = {}
        for directory in directories:
            learnt = self.folder.learnt.get(directory.writer)
            stated[directory.writer] = (
                self.register.open()
                if learnt is None
                else self.register.closed(
                    seq=learnt.last_seq,
                    hour=hour_text(learnt.last_hour) if learnt.lasts else "",
                    behind={tenant for tenant, writer in self.folder.left if writer == directory.writer},
                )
            )
        return stated
