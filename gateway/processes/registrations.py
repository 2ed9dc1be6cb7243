"""What a gateway says of the instances behind its backends: `registration` lines, by which hours are paid for.

    started, state changed, full hour ─▶ changed? ─▶ a line for each backend of the configuration
    a start with another configuration ─▶ `gone` for what the last one had and this one has not

The first worker alone speaks: several would say the same. Nothing here is on the path of a call. What the lines come
to: metering/cost/hours.py.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from backends import identity
from backends.catalog import Catalog
from backends.health import State
from backends.model import Backend
from backends.registry import Entry
from gateway.configuration.config import Config
from metering.cost.schedule import ALWAYS
from metering.journal.recorder import Recorder
from metering.journal.unwritten import Unwritable
from metering.periods import parse_instant
from metering.record import BackendState, Instance, Registration
from metering.units import NS_PER_HOUR


class _LastBackend(msgspec.Struct, frozen=True):
    name: str
    instance_id: str | None = None


class _Last(msgspec.Struct, frozen=True):
    """The part of a configuration that says which backends were on which instances, as any version of it has it."""

    backends: tuple[_LastBackend, ...] = ()


def instance_of(backend: Backend | _LastBackend) -> str:
    """The id of its instance; where it is not known, that of one of its own."""
    return backend.instance_id or f"backend:{backend.name}"


def word_on(
    backend: Backend, model: str | None, catalog: Catalog, *, state: BackendState, simulated: bool
) -> Registration:
    """What is said of a backend of the configuration; without a time and a place in a journal (0, "").

    model: the id of the one that it serves. The configuration has been checked.
    """
    (share,) = identity.instances(backend, catalog) or (Instance(),)
    return Registration(
        account=backend.account,
        at_ns=0,
        az=backend.az,
        backend=backend.name,
        billed=backend.billed,
        instance_id=instance_of(backend),
        instance_type=backend.instance_type,
        launched_ns=_instant(backend.launched),
        model=model,
        prev="",
        purchase_option=backend.purchase_option,
        region=backend.region,
        seq=0,
        simulated=simulated,
        slots=backend.slots,
        source="config",
        state=state,
        terminated_ns=_instant(backend.terminated),
        units=share.units,
        units_total=share.units_total,
    )


def gone(before: bytes, config: Config) -> list[Registration]:
    """What is said of backends that were on an instance by the last configuration, and are not by this one.

    before: as ConfigLast keeps it, of any version. Raises msgspec.MsgspecError: it is no configuration.
    """
    last = msgspec.json.decode(before, type=_Last)
    here = {(instance_of(backend), backend.name) for backend in config.backends}
    return [
        Registration(
            at_ns=0, backend=one.name, billed=ALWAYS, instance_id=instance_of(one), prev="", seq=0, source="config",
            state="gone",
        )
        for one in last.backends
        if (instance_of(one), one.name) not in here
    ]  # fmt: skip


def line(word: Registration, clock: Callable[[], int]) -> Callable[[int, str], Registration]:
    """Makes its line at the flush. clock: wall clock in nanoseconds since 1970 (UTC)."""

    def make(seq: int, prev: str) -> Registration:
        return msgspec.structs.replace(word, at_ns=clock(), prev=prev, seq=seq)

    return make


class _Saying(NamedTuple):
    """To whom something was said, in which hour, and what of it can change."""

    writer: str
    hour: int
    state: BackendState
    simulated: bool


_STATES: dict[State, BackendState] = {
    State.STARTING: "starting",
    State.READY: "ready",
    State.DOWN: "down",
}


class Registrations:
    """Says of each backend what is not said yet: to this writer, in this hour.

    recorder: the one in use. While its disk is full, or has failed, nothing is said; it is said once it can be.
    """

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        entries: Sequence[Entry],
        recorder: Callable[[], Recorder | Unwritable],
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._catalog = catalog
        self._entries = entries
        self._recorder = recorder
        self._clock = clock
        self._models = _models(config)
        self._said: dict[str, _Saying] = {}  # by backend

    def look(self) -> None:
        """Each second, and when something may have changed."""
        self.say(self._entries)

    def say(self, entries: Iterable[Entry]) -> None:
        """The same of some of the backends."""
        recorder = self._recorder()
        if recorder.dead is not None or recorder.full:
            return
        hour = self._clock() // NS_PER_HOUR
        for entry in entries:
            backend, state, simulated = entry.backend, _STATES[entry.health.state], entry.probed.simulated
            saying = _Saying(recorder.writer, hour, state, simulated)
            if self._said.get(backend.name) != saying:
                self._said[backend.name] = saying
                model = self._models.get(backend.name)
                word = word_on(backend, model, self._catalog, state=state, simulated=simulated)
                recorder.note(line(word, self._clock))


def _models(config: Config) -> Mapping[str, str]:
    """Backend → the id of the first model that it serves."""
    models: dict[str, str] = {}
    for model in config.models:
        for tier in model.tiers:
            for name in tier.backends:
                models.setdefault(name, model.name)
    return models


def _instant(text: str | None) -> int | None:
    return None if text is None else parse_instant(text)
