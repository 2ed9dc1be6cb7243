"""One gateway's part in the epochs of a store: it begins them, states who was folded, and says who is ready.

    begin ─▶ (fold what this gateway holds) ─▶ state ─▶ settle

The list of writers is kept from one look to the next, so that a store which has lost it gets all of it again,
and a writer whose gateway is gone is not forgotten: it is named, and keeps its tenants from being ready.
"""

import secrets
import time
from collections.abc import Callable, Collection, Mapping

from metering.ledger import epochs
from metering.ledger.epochs import NO_EPOCH, Meta, Writer
from metering.ledger.ledger import hour_number
from metering.ledger.store import Store

EPOCH_BYTES = 10


def new_epoch() -> str:
    """A name for a new life of a store."""
    return secrets.token_hex(EPOCH_BYTES)


class Register:
    """Of one gateway, in one store. One caller at a time. All raise StoreUnavailable.

    epoch: the one that was begun last; unready: tenants that were not ready when it was last settled.
    """

    def __init__(
        self,
        store: Store,
        *,
        host: str,
        clock: Callable[[], int] = time.time_ns,
        name: Callable[[], str] = new_epoch,
    ) -> None:
        self.epoch = NO_EPOCH
        self.unready: list[str] = []
        self._store = store
        self._host = host
        self._clock = clock
        self._name = name
        self._writers: dict[str, Writer] = {}  # as the store had them last
        self._floors: dict[str, str] = {}

    def told(self, tenant: str) -> frozenset[str]:
        """Writers of which all is in the ledger for this tenant, or that were given up, as was last seen."""
        return frozenset(
            name
            for name, one in self._writers.items()
            if one.state == "gone"
            or (one.state == "closed" and one.epoch == self.epoch != NO_EPOCH and tenant not in one.behind)
        )

    async def begin(self, tenants: Collection[str], *, lost: bool = False, new: Collection[str] = ()) -> str:
        """See to it that tenants are in the store's epoch, before anything is compared in it. returns: that epoch.

        A new one is begun where there is none; where a tenant is not in it, for its shard may have lost it; and
        where records were seen to be lost. What anybody said of the old one then holds no more. Only who begins
        an epoch takes tenants into it: so nobody has stated anything in it before. Floors that the store has lost
        are put back first, and so is the list of writers. NO_EPOCH: others were quicker; the next look will tell.

        new: tenants of which this gateway has never heard before. They join the epoch that there is: nobody loses
        his place in it because somebody came. A gateway that has known one, and misses it, still begins another.
        """
        epoch = await self._store.epoch()
        metas = await self._store.metas(tenants)
        fallen: dict[str, list[str]] = {}
        for tenant, meta in metas.items():
            floor = self._floors.get(tenant, "")
            if floor > meta.floor:
                fallen.setdefault(floor, []).append(tenant)
            self._floors[tenant] = max(floor, meta.floor)
        for floor, low in fallen.items():
            await self._store.set_floor(low, floor)
        await self._look()
        joining = [name for name in new if name in metas and metas[name].epoch == NO_EPOCH != epoch]
        if joining:
            await self._store.begin(joining, epoch)
            metas |= {name: Meta(epoch=epoch) for name in joining}
        stale = lost and epoch == self.epoch
        if epoch == NO_EPOCH or stale or any(meta.epoch != epoch for meta in metas.values()):
            name = self._name()
            epoch = await self._store.renew(epoch, name)
            if epoch != name:
                epoch = NO_EPOCH
            else:
                await self._store.begin(metas, epoch)
        self.epoch = epoch
        return epoch

    def with_floor_below(self, hour: str) -> list[str]:
        """Tenants that were taken into the epoch and whose floor is below this hour, by name."""
        return sorted(tenant for tenant, floor in self._floors.items() if floor < hour)

    def open(self) -> Writer:
        """A writer of this gateway that states its own folding, and has not yet."""
        return Writer(host=self._host, seen_ns=self._clock(), seq=0, state="open")

    def closed(self, *, seq: int, hour: str, behind: Collection[str]) -> Writer:
        """A writer of this gateway whose directory is complete and was compared since the epoch was begun."""
        return Writer(
            behind=tuple(sorted(behind)),
            epoch=self.epoch,
            host=self._host,
            hour=hour,
            seen_ns=self._clock(),
            seq=seq,
            state="closed",
        )

    async def state(self, writers: Mapping[str, Writer]) -> None:
        """Register this gateway's writers. One that is open is left as it stands, if it stands there."""
        await self._look()
        news = epochs.news(writers, self._writers)
        await self._store.put_writers({name: one for name, one in news.items() if one.state == "closed"})
        missing = {
            name: one for name, one in news.items() if one.state == "open" and name not in self._writers
        }
        await self._store.put_writers(missing, if_absent=True)

    async def settle(self, tenants: Collection[str]) -> None:
        """Say of tenants that they are ready, if every writer has been folded for them in this epoch."""
        await self._look()
        if self.epoch == NO_EPOCH:
            self.unready = list(tenants)
            return
        self.unready = [name for name in tenants if epochs.unfolded(self.epoch, self._writers, name)]
        await self._store.set_ready([name for name in tenants if name not in self.unready], self.epoch)

    async def _look(self) -> None:
        """Read the list of writers, and put back who was on it and is not; but for those whose hours are closed."""
        found = await self._store.writers()
        if undated := epochs.undated(found, self._clock()):
            await self._store.put_writers(undated)
            found = found | undated
        missing = {name: one for name, one in self._writers.items() if name not in found}
        for name in epochs.below(missing, min(self._floors.values(), default="")):
            del missing[name]
        if missing:
            await self._store.put_writers(missing, if_absent=True)
        self._writers = missing | found


async def raise_floor(store: Store, tenants: Collection[str], hour: str) -> None:
    """Close the hours below `hour` (`yyyymmddhh`) for these tenants' ledger, for ever.

    Their balances are deleted, and the marks of writers that are closed and have none above: folded again, such a
    directory adds nothing. Raises StoreUnavailable; again is harmless.
    """
    await store.set_floor(tenants, hour)  # first: what is deleted next must not come back
    await store.drop_hours(tenants, hour_number(hour))
    await store.drop_writers(epochs.below(await store.writers(), hour), tenants)


async def take_in(store: Store, tenant: str) -> None:
    """A tenant was just made, so no journal has anything of it: it is in the epoch, and ready. Raises StoreUnavailable.

    Else the next look would find it outside, which elsewhere means that a part of the store was lost.
    """
    epoch = await store.epoch()
    meta = (await store.metas([tenant])).get(tenant)
    if epoch != NO_EPOCH and meta is not None and meta.epoch == NO_EPOCH:
        await store.begin([tenant], epoch)
        await store.set_ready([tenant], epoch)
