"""The clerk's control: compare, look for tokens that passed by, and show both (metering/pages/board.py)."""

import asyncio
import pathlib
import secrets
import time
from collections.abc import Mapping

import msgspec

from backends import registry, token_counters
from backends.errors import BackendError
from backends.model import Backend
from backends.upstream import Upstream
from gateway.configuration.archives import archive_of
from gateway.configuration.config import Config
from gateway.configuration.config_load import backend_keys
from metering import files
from metering.ledger import control
from metering.ledger.bypass import Bypass
from metering.ledger.control import Difference
from metering.ledger.control_kept import DIRECTORY
from metering.ledger.controller import Controller
from metering.ledger.metered_elsewhere import Elsewhere, Statement, address_of
from metering.ledger.store import Store
from metering.pages import board
from metering.pages.board import Gauge
from metering.units import NS_PER_HOUR, NS_PER_S

LOOK_S = 60.0
WHOLE_S = 3_600.0
"""How often all hours of the ledger are compared: there may be ten thousand. In between the newest are."""
RECENT_HOURS = 48
NAME = "clerk"
_BACKENDS = "backends"
_GATEWAY_BYTES = 8
_HEAD_BYTES_MAX = 64 * 1024


class _Kept(msgspec.Struct):
    """What is known of the backends, kept over starts. gateway: a name for this state directory."""

    gateway: str
    beat: int = 0
    bypasses: dict[str, Bypass] = {}
    elsewhere: dict[str, Elsewhere] = {}


class ControlDuty:
    """Looks each LOOK_S. config: with redis.url resolved, as a worker has it."""

    def __init__(self, config: Config) -> None:
        assert config.redis.url is not None
        self._state_dir = pathlib.Path(config.state_dir)
        self._backends = config.backends
        self._keys = backend_keys(config)
        self._url = config.redis.url
        self._kept = self._load()
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
            metered = self._controller.backends
            await self._exchange(store, metered)
        await self._look_past(metered)
        gauges = [
            Gauge(name=board.DIFFERENCE, labels=pair_and_unit, value=size)
            for pair_and_unit, size in differences.items()
        ]
        gauges.append(Gauge(name=board.TIMESTAMP, value=time.time_ns() // NS_PER_S))
        for backend, bypass in self._kept.bypasses.items():
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

    async def _exchange(self, store: Store, metered: Mapping[str, int]) -> None:
        """State what our records have of each backend, and take in what other gateways state of it."""
        kept = self._kept
        kept.beat += 1
        ours = [
            Statement(kept.gateway, one.name, address_of(one.url), kept.beat, metered.get(one.name, 0))
            for one in self._backends
        ]
        others = [one for one in await store.metered() if one.gateway != kept.gateway]
        gone: list[str] = []
        for own in ours:
            same = [one for one in others if one.backend == own.backend or one.address == own.address]
            gone += kept.elsewhere.setdefault(own.backend, Elsewhere()).take(same)
        await store.state_metered(ours, gone)

    async def _look_past(self, metered: Mapping[str, int]) -> None:
        """Ask each backend for its own counters. metered: by our records, as of a moment before."""
        for backend in self._backends:
            counters = await self._counters(backend)
            if counters is not None:
                bypass = self._kept.bypasses.setdefault(backend.name, Bypass())
                elsewhere = self._kept.elsewhere.get(backend.name, Elsewhere())
                if elsewhere.is_silent:
                    bypass.forgive()
                total = metered.get(backend.name, 0) + elsewhere.tokens
                bypass.look(counters.prompt + counters.completion, total)
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

    def _load(self) -> _Kept:
        names = {backend.name for backend in self._backends}
        try:
            data = (self._state_dir / DIRECTORY / _BACKENDS).read_bytes()
            found = msgspec.json.decode(data, type=_Kept)
        except (FileNotFoundError, msgspec.MsgspecError):  # then it begins with the next look
            return _Kept(gateway=secrets.token_hex(_GATEWAY_BYTES))
        found.bypasses = {name: one for name, one in found.bypasses.items() if name in names}
        found.elsewhere = {name: one for name, one in found.elsewhere.items() if name in names}
        return found

    def _save(self) -> None:
        path = self._state_dir / DIRECTORY / _BACKENDS
        path.parent.mkdir(exist_ok=True)
        files.put(path, msgspec.json.encode(self._kept))
