"""The state of all backends, as this worker sees them, and the probes that keep it true.

`GET /health` every 2 s decides the state (health.py). When a backend becomes ready, `/version` and
`/v1/models` say what it runs; the answer changes its identity, and with it the record's.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from backends import health
from backends.errors import BackendError, BackendUnavailable
from backends.health import Health, Hold, State
from backends.identity import Probed
from backends.model import Backend
from backends.upstream import Upstream
from metering.logs import log
from metering.units import NS_PER_S

T = TypeVar("T")

logger = logging.getLogger("weighbridge.registry")

PROBE_TIMEOUT_S = 2.0
PROBE_BYTES_MAX = 1024 * 1024
VERSION_CHARACTERS_MAX = 64
NAME_CHARACTERS_MAX = 100
NAMES_MAX = 3
"""What a server says of itself goes into the journal, so it is bounded."""
LENGTH_MAX = 10**9
"""A longer context is none, nor is one of 0 or less: it is then not known."""
SIMULATED_HEADER = b"x-weighbridge-simulated"


class _Version(msgspec.Struct):
    version: str | None = None


class _Served(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: tuple[_Served, ...] = ()


class Answer(msgspec.Struct, frozen=True):
    """A probe's whole answer."""

    status: int
    simulated: bool
    body: bytes


class Entry:
    """One backend: its connection pool, health, what it says of itself, and whether it has answered a call yet.

    hold: it is busy and gets no calls for a while; look at it through `held`.
    """

    def __init__(self, backend: Backend, upstream: Upstream) -> None:
        self.backend = backend
        self.upstream = upstream
        self.health = Health()
        self.hold: Hold | None = None
        self.probed = Probed()
        self.served: tuple[str, ...] | None = None  # names it knows its models by; None: it has not said
        self.cold = True

    def held(self, now_ns: int) -> Hold | None:
        """The hold, if it lasts still. now_ns: monotonic."""
        return self.hold if self.hold is not None and now_ns < self.hold.until_ns else None

    def held_s(self, now_ns: int) -> int | None:
        """Seconds until it may be asked again, rounded up; None: it is not held."""
        hold = self.held(now_ns)
        return None if hold is None else -(-(hold.until_ns - now_ns) // NS_PER_S)


class Registry:
    """All backends by name. on_change: called with the entry whose state has changed, or why it is not ready."""

    def __init__(self, entries: Iterable[Entry], on_change: Callable[[Entry], None]) -> None:
        self.entries = {entry.backend.name: entry for entry in entries}
        self._on_change = on_change

    def connect_failed(self, name: str, reason: str) -> None:
        """A call could not connect; the third time in a row the backend is down."""
        entry = self.entries[name]
        self._set(entry, health.connect_failed(entry.health, reason))

    def busy(self, name: str, status: int, retry_after_s: int | None, now_ns: int) -> None:
        """A call was answered 429 or 503: the last such word with a time in it counts. now_ns: monotonic."""
        entry = self.entries[name]
        before = entry.held(now_ns)
        entry.hold = health.busy(status, retry_after_s, now_ns) or entry.hold
        if before is None and entry.held(now_ns) is not None:
            log(
                logger, logging.INFO, "backend busy", backend=name, status=status, retry_after_s=retry_after_s,
            )  # fmt: skip

    def answered(self, name: str) -> None:
        """A call was answered: the backend is warm."""
        self.entries[name].cold = False

    async def watch(self, entry: Entry) -> None:
        """Probe one backend for ever."""
        while True:
            try:
                await self.probe(entry)
            except Exception as error:  # noqa: BLE001  our own mistake must not freeze what is known of it
                log(logger, logging.ERROR, "fault in a probe", backend=entry.backend.name, error=repr(error))
            await asyncio.sleep(health.PROBE_INTERVAL_S)

    async def probe(self, entry: Entry) -> None:
        """Probe once, and learn what the backend runs if it was not ready before."""
        try:
            answer = await get(entry.upstream, "/health")
            if answer.status != 200:
                self._set(entry, health.said_no(entry.health, f"/health says {answer.status}"))
                return
            if entry.health.state is not State.READY:
                await self._learn(entry, answer.simulated)
            model = entry.backend.model
            if entry.served is not None and model not in entry.served:
                self._set(entry, health.said_no(entry.health, _other_names(model, entry.served)))
                return
            self._set(entry, health.passed(entry.health))
        except BackendError as error:
            self._set(entry, health.connect_failed(entry.health, error.reason))

    async def _learn(self, entry: Entry, simulated: bool) -> None:
        version = _decode(await get(entry.upstream, "/version"), _Version)
        models = _decode(await get(entry.upstream, "/v1/models"), _Models)
        served = {model.id: model.max_model_len for model in models.data} if models else {}
        entry.served = tuple(served) if models else None
        entry.probed = Probed(
            framework="vllm" if version else None,
            framework_version=_cut(version.version) if version else None,
            max_model_len=_length(served.get(entry.backend.model)),
            simulated=simulated,
        )
        entry.cold = True
        entry.hold = None  # it has started anew, or was away: what it said before is over

    def _set(self, entry: Entry, new: Health) -> None:
        old = entry.health
        changed = new.state is not old.state or (new.state is not State.READY and new.reason != old.reason)
        entry.health = new
        if changed:
            self._on_change(entry)


def _other_names(model: str, served: Sequence[str]) -> str:
    names = ", ".join(name[:NAME_CHARACTERS_MAX] for name in served[:NAMES_MAX]) or "nothing"
    return f"it does not serve {model}; it serves {names}"


def _decode(answer: Answer, kind: type[T]) -> T | None:
    if answer.status != 200:
        return None
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _cut(version: str | None) -> str | None:
    return None if version is None else version[:VERSION_CHARACTERS_MAX]


def _length(said: int | None) -> int | None:
    return said if said is not None and 0 < said <= LENGTH_MAX else None


class _Collector:
    """An Exchange that gathers a small answer."""

    def __init__(self, backend: str, done: "asyncio.Future[Answer]") -> None:
        self._backend = backend
        self._done = done
        self._status = 0
        self._simulated = False
        self._body = b""

    def connected(self) -> None:
        pass

    def head(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._status = status
        self._simulated = any(name == SIMULATED_HEADER for name, _ in headers)

    def data(self, data: bytes) -> None:
        if len(self._body) < PROBE_BYTES_MAX:
            self._body += data

    def chunk(self, read: bytes, at: int) -> bool:  # noqa: ARG002
        return False

    def end(self) -> None:
        if not self._done.done():
            self._done.set_result(Answer(self._status, self._simulated, self._body))

    def whole(self, status: int, headers: Sequence[tuple[bytes, bytes]], data: bytes) -> None:
        self.head(status, headers)
        self.data(data)
        self.end()

    def lost(self, error: BackendError) -> None:
        if not self._done.done():
            self._done.set_exception(error)


async def get(upstream: Upstream, path: str) -> Answer:
    """GET a small page of a backend. Raises BackendError, also when it takes longer than PROBE_TIMEOUT_S."""
    done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    attempt = upstream.send("GET", path, b"", b"", _Collector(upstream.name, done))
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            return await done
    except TimeoutError:
        raise BackendUnavailable(upstream.name, "no answer in time") from None
    finally:
        attempt.abort()
