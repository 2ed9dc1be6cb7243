"""This worker's membership in the pools of its backends: joined before it takes calls, left when they have ended."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

from gateway.calls.pooled import PooledSeats
from gateway.calls.queueing import Seats, share
from gateway.configuration.config import Config
from metering.limits import pools
from metering.limits.pool_messages import Wake
from metering.limits.pools import Pools

JOIN_S_MAX = 1.0
"""How long the store is waited for at the start; then this worker begins with its part of the slots."""
LEAVE_S_MAX = 0.5
SWEEP_S = 0.05
"""A slot that was freed is kept for so long, while nobody waits anywhere."""


class Pooling:
    """Of all backends whose slots are known. name: of this worker, of no other ever; index, workers: its place.

    Raises ValueError if the store can't be at `url`.
    """

    def __init__(
        self, config: Config, url: str, name: str, *, index: int, workers: int, seats: Seats
    ) -> None:
        loop = asyncio.get_running_loop()
        self._pools = Pools(url, name, connected=self._connected, woken=self._woken)
        self._pooled = {
            pools.key(backend.name): PooledSeats(
                backend.name,
                backend.slots,
                name=name,
                part=share(backend.slots, index, workers),
                seats=seats,
                send=self._pools.sender(backend.name),
                soon=loop.call_soon,
                clock=time.monotonic_ns,
            )
            for backend in config.backends
            if backend.slots is not None
        }

    async def open(self) -> None:
        """Return once all pools have answered and may give seats, or it is clear that the store is away.

        A pool that is new gives none for a moment: calls would fill the line while seats are free.
        """
        if self._pooled:
            self._pools.start()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(JOIN_S_MAX):
                    while any(one.away for one in self._pooled.values()):
                        await asyncio.sleep(SWEEP_S / 10)
                    while any(one.settling for one in self._pooled.values()):
                        self.sweep()  # asks again
                        await asyncio.sleep(SWEEP_S)
            self.sweep()

    async def close(self) -> None:
        """Give all slots back, and let go of the store. Calls have ended."""
        if self._pooled:
            for one in self._pooled.values():
                one.leave()
            await _until(lambda: all(one.gone for one in self._pooled.values()), LEAVE_S_MAX)
            await self._pools.close()

    def sweep(self) -> None:
        """Twenty times a second."""
        self._pools.sweep()
        for one in self._pooled.values():
            one.sweep()

    def warnings(self) -> Sequence[str]:
        """What an operator should know."""
        away = sorted(one.backend for one in self._pooled.values() if one.away)
        if not away:
            return []
        return [f"the ledger's store is away: this worker has its part of the slots of {', '.join(away)}"]

    def _connected(self) -> None:
        for one in self._pooled.values():
            one.connected()

    def _woken(self, key: str, wake: Wake) -> None:
        if key in self._pooled:
            self._pooled[key].woken(wake)


async def _until(done: Callable[[], bool], seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not done():
                await asyncio.sleep(SWEEP_S / 10)
