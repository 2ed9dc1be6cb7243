"""Where calls of each model may go: what is known now of its backends, and the plan that follows from it."""

from collections.abc import Sequence

import msgspec

from backends.health import Health
from backends.registry import Entry, Registry
from gateway.calls import routing
from gateway.calls.call import Limits
from gateway.calls.queueing import Seats
from gateway.calls.routing import Busy, Plan, Target, View


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    """Backends tried together, by name."""

    backends: tuple[str, ...]


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model this gateway serves: its id and names, the tiers, and the deadlines of its calls."""

    id: str
    owner: str | None
    tiers: tuple[Tier, ...]
    limits: Limits


class Targets:
    """What is known now of every backend, as calls of each model see it."""

    def __init__(self, registry: Registry, seats: Seats) -> None:
        self._registry = registry
        self._seats = seats
        self._targets: dict[tuple[str, str], Target] = {}
        self._standing: dict[str, _Standing] = {}

    def set(self, model: str, target: Target) -> None:
        """Replace what is known of a backend for the calls of a model."""
        self._targets[model, target.name] = target
        self._standing.pop(model, None)

    def plan(self, served: ServedModel, max_tokens: int | None, now_ns: int) -> Plan:
        """As `routing.plan` of `views`; all but the order by load is kept for as long as nothing else has changed."""
        standing = self._standing.get(served.id)
        if standing is None or not standing.holds(now_ns):
            views = self.views(served, now_ns)
            plan = routing.plan(views, max_tokens=None)
            entries = [self._registry.entries[name] for tier in served.tiers for name in tier.backends]
            standing = self._standing[served.id] = _Standing(entries, views, plan)
        if max_tokens is None or standing.shortest is None or max_tokens < standing.shortest:
            return routing.by_load(standing.plan, self._load) if standing.several else standing.plan
        return routing.plan(self.views(served, now_ns), max_tokens=max_tokens)

    def views(self, served: ServedModel, now_ns: int) -> Sequence[View]:
        """The backends of a model with this worker's load on them, tier by tier. now_ns: monotonic."""
        views = []
        for number, tier in enumerate(served.tiers):
            for name in tier.backends:
                entry = self._registry.entries[name]
                target = self._targets[served.id, name]
                if target.cold != entry.cold:
                    target = msgspec.structs.replace(target, cold=entry.cold)
                hold = entry.held(now_ns)
                busy = None
                if hold is not None:
                    busy = Busy(status=hold.status, retry_after_s=hold.left_s(now_ns))
                views.append(
                    View(
                        target=target,
                        tier=number,
                        state=entry.health.state,
                        in_flight=self._seats.taken(name),
                        cap=self._seats.size(name),
                        busy=busy,
                    )
                )
        return views

    def _load(self, backend: str) -> float:
        return routing.load(self._seats.taken(backend), self._seats.size(backend))


class _Standing:
    """A model's plan for calls of any load, and what it was made from."""

    __slots__ = ("_busy", "_seen", "plan", "several", "shortest")

    def __init__(self, entries: Sequence[Entry], views: Sequence[View], plan: Plan) -> None:
        self.plan = plan
        tiers = [candidate.tier for candidate in plan.able]
        self.several = len(set(tiers)) < len(tiers)
        """Is there a tier where the load decides?"""
        self._seen: list[tuple[Entry, Health, bool]] = [(one, one.health, one.cold) for one in entries]
        self._busy = any(view.busy is not None for view in views)
        lengths = [view.target.max_model_len for view in views]
        self.shortest = min([length for length in lengths if length is not None], default=None)
        """Of the lengths: for a longer answer somebody is left out."""

    def holds(self, now_ns: int) -> bool:
        """Is everything as it was? While a backend is busy, never: its hold ends by itself."""
        if self._busy:
            return False
        for entry, health, cold in self._seen:
            if entry.health is not health or entry.cold is not cold:
                return False
            if entry.hold is not None and entry.held(now_ns) is not None:
                return False
        return True
