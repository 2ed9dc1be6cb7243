"""A worker's keeping of content: nothing at all, unless a tenant of the configuration wants it.

What it takes (metering/capture/) is imported only then: a worker without it is no larger for it.
"""

import asyncio
import pathlib
import time
from typing import TYPE_CHECKING

from gateway.calls.relay import NewRelay
from gateway.configuration.config import Config

if TYPE_CHECKING:
    from collections.abc import Callable

    from metering.capture.keeper import Keeper, Wanted


class Captures:
    """One worker's. All on the loop's thread, but for `sync`."""

    def __init__(
        self, config: Config, loop: asyncio.AbstractEventLoop, count: "Callable[[str], None]"
    ) -> None:
        """count: told what has become of each content."""
        self._wanted: dict[str, Wanted] = {}
        self._keeper: Keeper | None = None
        if any(tenant.capture is not None for tenant in config.tenants):
            self._open(config, loop, count)

    def _open(self, config: Config, loop: asyncio.AbstractEventLoop, count: "Callable[[str], None]") -> None:
        from metering.capture.envelope import Recipient
        from metering.capture.keeper import Keeper, Wanted

        for tenant in config.tenants:
            if (wants := tenant.capture) is not None:
                recipient = Recipient.parse(wants.public_key)
                self._wanted[tenant.name] = Wanted(recipient, wants.bytes_max, wants.required)
        self._keeper = Keeper(pathlib.Path(config.state_dir), loop=loop, clock=time.time_ns, count=count)

    def maker(self, otherwise: NewRelay) -> NewRelay:
        """Makes calls: those of tenants whose content is kept; all others, or all, as `otherwise` does."""
        if self._keeper is None:
            return otherwise
        from gateway.calls import captured

        return captured.maker(self._wanted, self._keeper, otherwise)

    def sync(self) -> None:
        """Make what was kept so far durable; in any thread."""
        if self._keeper is not None:
            self._keeper.sync()

    def look(self) -> None:
        """Once a second."""
        if self._keeper is not None:
            self._keeper.look()

    async def close(self) -> None:
        """Wait for what is under way."""
        if self._keeper is not None:
            await self._keeper.close()
