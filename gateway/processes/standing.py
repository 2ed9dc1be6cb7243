"""How each backend stands in a worker, and what follows when that changes.

state or its reason ─┬─▶ a log line, a gauge
                     ├─▶ `identity` line, once for each fact that changes ─▶ what calls are priced by
                     └─▶ `registration` line, by the one worker that speaks of instances
"""

import functools
import logging
import time
from collections.abc import Sequence

from backends import identity
from backends.health import Health, State
from backends.registry import Entry
from gateway.calls.routing import Target
from gateway.calls.targets import Targets
from gateway.configuration import config as cfg
from gateway.configuration import pricing_config
from gateway.configuration.config import Config
from gateway.configuration.config_load import catalog_of
from gateway.configuration.price_books import WatchedPrices
from gateway.processes.books import Books
from gateway.processes.registrations import Registrations
from metering.cost.pricing import Unpriced, explain
from metering.logs import log
from metering.record import Host, Identity

logger = logging.getLogger("weighbridge.worker")


class Standing:
    """Of all backends of a worker. targets: to be set before anything changes.

    registrations: of the worker that speaks of instances, once it knows how its backends stand.
    """

    targets: Targets
    registrations: Registrations | None = None

    def __init__(self, config: Config, books: Books) -> None:
        self._models = config.models
        self._prices = WatchedPrices(config)
        self._weights = pricing_config.work_units(config.models)
        self._books = books
        self.catalog = catalog_of(config.instance_types)
        self._written: dict[tuple[str, str], tuple[str, str]] = {}  # by whom, and what
        self._said: set[tuple[str, str, Unpriced]] = set()

    def changed(self, entry: Entry) -> None:
        """Its state, or the reason for it, is another one."""
        name = entry.backend.name
        if entry.health != Health():
            log(
                logger, logging.WARNING if entry.health.state is State.DOWN else logging.INFO, "backend state",
                backend=name, state=entry.health.state.value, reason=entry.health.reason,
            )  # fmt: skip
        self.write_down(entry)
        if self.registrations is not None:
            self.registrations.say([entry])

    def register(self) -> None:
        """Say of the instances what is not said yet."""
        if self.registrations is not None:
            self.registrations.look()

    def write_down(self, entry: Entry) -> None:
        """What it is and how it stands, where that is not written yet: a new journal and its page have none of it."""
        name = entry.backend.name
        if (held := self._books.held) is not None:
            held.page.gauges.backend_state(name, entry.health.state.value)
        for model in self._models_of(entry):
            self._identify(model, entry)

    def _models_of(self, entry: Entry) -> list[cfg.Model]:
        name = entry.backend.name
        return [model for model in self._models if any(name in tier.backends for tier in model.tiers)]

    def _host(self, model: cfg.Model, entry: Entry) -> Host:
        return identity.host(entry.backend, pricing_config.model_facts(model), self.catalog, entry.probed)

    def _identify(self, model: cfg.Model, entry: Entry) -> None:
        host = self._host(model, entry)
        digest = identity.digest(host)
        recorder = self._books.recorder
        if self._written.get((model.name, host.backend)) == (recorder.writer, digest):
            return
        self._written[model.name, host.backend] = recorder.writer, digest
        recorder.note(functools.partial(_identity_line, host, digest))
        self._set_target(model, entry, host, digest)

    def take_up_prices(self, entries: Sequence[Entry]) -> None:
        """Calls that are planned from now on are priced by what has been imported meanwhile."""
        if not self._prices.look():
            return
        log(logger, logging.INFO, "imported prices taken up", digest=self._prices.list.book.digest)
        for entry in entries:
            for model in self._models_of(entry):
                host = self._host(model, entry)
                self._set_target(model, entry, host, identity.digest(host))

    def _set_target(self, model: cfg.Model, entry: Entry, host: Host, digest: str) -> None:
        now_ns = time.time_ns()
        tariffs = self._prices.list.schedule(host, now_ns)
        tariff = tariffs.at(now_ns)
        if isinstance(tariff, Unpriced):
            self._say_unpriced(tariff, host, entry.backend.instance_type)
        self.targets.set(
            model.name,
            Target(
                name=host.backend,
                served_model=host.served_model,
                host=host,
                identity_digest=digest,
                slots=host.slots,
                max_model_len=host.max_model_len,
                cold=entry.cold,
                tariffs=tariffs,
                work_units=self._weights.at(
                    model.name, entry.backend.instance_type, host.instance_family, now_ns
                ),
            ),
        )

    def _say_unpriced(self, reason: Unpriced, host: Host, instance_type: str | None) -> None:
        """Once for each reason: which flag or line would price these calls."""
        said = (host.model, host.backend, reason)
        if said in self._said:
            return
        self._said.add(said)
        hint = explain(reason, model=host.model, backend=host.backend, instance_type=instance_type)
        log(
            logger, logging.WARNING, "calls will be unpriced", model=host.model, backend=host.backend,
            reason=reason.value, to_price_them=hint,
        )  # fmt: skip


def _identity_line(host: Host, digest: str, seq: int, prev: str) -> Identity:
    return Identity(at_ns=time.time_ns(), digest=digest, host=host, prev=prev, seq=seq)
