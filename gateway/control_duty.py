"""The clerk's control: compare, look for tokens that passed by, and show both (metering/board.py)."""

import asyncio
import pathlib
import time
from collections.abc import Mapping

import msgspec

from backends import registry, token_counters
from backends.errors import BackendError
from backends.model import Backend
from backends.upstream import Upstream
from gateway.archives import archive_of
from gateway.config import Config
from gateway.config_load import backend_keys
from metering import board, control, files
from metering.board import Gauge
from metering.bypass import Bypass
from metering.control import Difference
from metering.control_kept import DIRECTORY
from metering.controller import Controller
from metering.store import Store
from metering.units import NS_PER_HOUR, NS_PER_S

LOOK_S = 60.0
WHOLE_S = 3_600.0
"""How often all hours of the ledger are compared: there may be ten thousand. In between the newest are."""
RECENT_HOURS = 48
NAME = "clerk"
_BACKENDS = "backends"
_HEAD_BYTES_MAX = 64 * 1024


class ControlDuty:
    """Looks each LOOK_S. config: with redis.url resolved, as a worker has it."""

    def __init__(self, config: Config) -> None:
        assert config.redis.url is not None
        self._state_dir = pathlib.Path(config.state_dir)
        self._backends = config.backends
        self._keys = backend_keys(config)
        self._url = config.redis.url
        self._bypasses = self._load()
        self._due_s = 0.0
        self._whole_due_s = 0.0
        self._from_hour = 0  # since the last look at all hours, those from here on were compared
        self._older: list[Difference] = []  # what that look found before this hour
        self._controller = Controller(self._state_dir, archive=archive_of(config.journal))

    def look_if_due(self) -> None:
        """Compare and show it, if it is time. Raises StoreUnavailable, PageError, ArchiveError, OSError: still due."""
        if time.monotonic() >= self._due_s:
            self.look()
            self._due_s = time.monotonic() + LOOK_S

    def look(self) -> None:
        """Compare and show it. Raises as `look_if_due`."""
        asyncio.run(self._look())

    async def _look(self) -> None:
        async with Store(self._url) as store:
            differences = control.sizes(await self._compare(store))
        await self._look_past(self._controller.backends)
        gauges = [
            Gauge(name=board.DIFFERENCE, labels=pair_and_unit, value=size)
            for pair_and_unit, size in differences.items()
        ]
        gauges.append(Gauge(name=board.TIMESTAMP, value=time.time_ns() // NS_PER_S))
        for backend, bypass in self._bypasses.items():
            if (unmetered := bypass.unmetered) is not None:
                gauges.append(Gauge(name=board.UNMETERED, labels=(backend,), value=unmetered))
        board.show(self._state_dir / "pages", NAME, gauges)

    async def _compare(self, store: Store) -> list[Difference]:
        if time.monotonic() < self._whole_due_s:
            return [*self._older, *await self._controller.look(store, self._from_hour)]
        differences = await self._controller.look(store)
        self._whole_due_s = time.monotonic() + WHOLE_S
        self._from_hour = time.time_ns() // NS_PER_HOUR - RECENT_HOURS
        self._older = [one for one in differences if 0 < one.hour < self._from_hour]
        return differences

    async def _look_past(self, metered: Mapping[str, int]) -> None:
        """Ask each backend for its own counters. metered: by our records, as of a moment before."""
        for backend in self._backends:
            counters = await self._counters(backend)
            if counters is not None:
                bypass = self._bypasses.setdefault(backend.name, Bypass())
                bypass.look(counters.prompt + counters.completion, metered.get(backend.name, 0))
        self._save()

    async def _counters(self, backend: Backend) -> token_counters.TokenCounters | None:
        upstream = Upstream(
            backend,
            key=self._keys.get(backend.name),
            loop=asyncio.get_running_loop(),
            head_bytes_max=_HEAD_BYTES_MAX,
            idle_max=0,
            idle_s_max=1.0,
        )
        try:
            answer = await registry.get(upstream, "/metrics")
        except BackendError:  # that it is away is told elsewhere
            return None
        finally:
            await upstream.close()
        return token_counters.read(answer.body) if answer.status == 200 else None

    def _load(self) -> dict[str, Bypass]:
        names = {backend.name for backend in self._backends}
        try:
            data = (self._state_dir / DIRECTORY / _BACKENDS).read_bytes()
            found = msgspec.json.decode(data, type=dict[str, Bypass])
        except (FileNotFoundError, msgspec.MsgspecError):  # then it begins with the next look
            return {}
        return {name: bypass for name, bypass in found.items() if name in names}

    def _save(self) -> None:
        path = self._state_dir / DIRECTORY / _BACKENDS
        path.parent.mkdir(exist_ok=True)
        files.put(path, msgspec.json.encode(self._bypasses))
