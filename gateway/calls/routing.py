"""Which backends can serve a call, in which order, and what follows a failure. Pure."""

import enum
import functools
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Literal

import msgspec

from backends.errors import BackendError, BackendRejected
from backends.health import State
from gateway.api.errors import BackendsBusy, GatewayError, NoBackend
from metering import record
from metering.cost.pricing import Schedule
from metering.cost.work_units import WorkUnits
from metering.record import Host, Instance, LeftOut


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What a record says of who served its call, or was asked last; of nobody, if nobody was."""

    backend: str | None = None
    identity_digest: str | None = None
    identity_source: Literal["agent", "config", "unknown"] = "unknown"
    instance_family: str | None = None
    instances: tuple[Instance, ...] = ()
    neuron_version: str | None = None
    simulated: bool | None = None
    slots: int | None = None
    warm_state: Literal["cold", "warm"] | None = None


NOBODY = Shown()


class Target(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A backend as a call sees it: what was known of it when the call was planned.

    tariffs: how its calls of this model are priced, or why they are not. work_units: how its tokens are weighed.
    cold: no answer has come from it since it started.
    """

    name: str
    served_model: str
    host: Host
    identity_digest: str
    slots: int | None
    max_model_len: int | None
    cold: bool
    tariffs: Schedule
    work_units: WorkUnits

    @functools.cached_property
    def served_by(self) -> bytes:
        """What answers say of it: the header's line."""
        return b"x-weighbridge-served-by: %b\r\n" % (self.host.instance_family or "unknown").encode()

    @functools.cached_property
    def shown(self) -> Shown:
        """What records say of it; many calls share a target."""
        host = self.host
        return Shown(
            backend=self.name,
            identity_digest=self.identity_digest,
            identity_source=host.identity_source,
            instance_family=host.instance_family,
            instances=host.instances,
            neuron_version=host.neuron_version,
            simulated=host.simulated,
            slots=self.slots,
            warm_state="cold" if self.cold else "warm",
        )


class Busy(msgspec.Struct, frozen=True, kw_only=True):
    """A backend's word that it takes nothing now. status: 429 or 503. retry_after_s: None: it did not say."""

    status: int
    retry_after_s: int | None = None


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A backend of the model asked for, with this worker's load on it.

    tier: index of its tier, 0 is tried first. cap: its slots, of all workers; None: no cap.
    busy: what it said, while the time it asked for has not passed.
    """

    target: Target
    tier: int
    state: State
    in_flight: int
    cap: int | None
    busy: Busy | None = None


class Candidate(msgspec.Struct, frozen=True):
    """A backend able to serve the call."""

    target: Target
    tier: int


class Plan(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The candidates, tier by tier and best first; those left out, each with its reason.

    unable: why a tier before the first candidate's has nobody able; None if it is the first tier.
    busy: the words of those left out because of them.
    """

    able: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...]
    unable: str | None = None
    busy: tuple[Busy, ...] = ()

    @functools.cached_property
    def line(self) -> record.Plan:
        """What records say of it; many calls share a plan."""
        able = tuple([candidate.target.name for candidate in self.able])
        return record.Plan(able=able, left_out=self.left_out)


TOO_LONG = "context length"
BUSY = "busy"
ELSEWHERE = "not the holder"
"""What the call is about lies at another backend."""
RETRY_AFTER_S = 1
"""When to come again, if no backend said, or said at once."""


def plan(views: Sequence[View], *, max_tokens: int | None) -> Plan:
    """Order the backends able to serve a call, the best first; say why the others are not.

    Tier by tier; within one the least load per slot wins, then the name, so that equal inputs give an equal plan.
    max_tokens: of the request; a backend whose compiled length is not above it cannot hold the answer.
    """
    able: list[View] = []
    left_out: list[LeftOut] = []
    busy: list[Busy] = []
    for view in views:
        reason = why_not(view, max_tokens)
        if reason is None:
            able.append(view)
            continue
        left_out.append(LeftOut(backend=view.target.name, reason=reason))
        if reason is BUSY and view.busy is not None:
            busy.append(view.busy)
    if len(able) > 1:
        able.sort(key=lambda view: (view.tier, load(view.in_flight, view.cap), view.target.name))
    first_tier = able[0].tier if able else 0
    before = [view for view in views if view.tier < first_tier] if first_tier else []
    unable = why_not(before[0], max_tokens) if before else None
    return Plan(
        able=tuple([Candidate(view.target, view.tier) for view in able]),
        left_out=tuple(left_out),
        unable=unable,
        busy=tuple(busy),
    )


def only(plan: Plan, backend: str) -> Plan:
    """The plan of a call that is about something which this backend alone holds.

    If it cannot serve the call it is the only one left out: why the others could not does not matter.
    """
    able = tuple([candidate for candidate in plan.able if candidate.target.name == backend])
    if able:
        others = [LeftOut(backend=one.target.name, reason=ELSEWHERE) for one in plan.able if one not in able]
        return Plan(able=able, left_out=(*plan.left_out, *others))
    said = zip([left for left in plan.left_out if left.reason == BUSY], plan.busy, strict=True)
    return Plan(
        able=(),
        left_out=tuple([left for left in plan.left_out if left.backend == backend]),
        busy=tuple([word for left, word in said if left.backend == backend]),
    )


def why_not(view: View, max_tokens: int | None) -> str | None:
    """Why this backend cannot serve the call; None: it can. The reasons are few, and fit for a label."""
    if view.state is not State.READY:
        return view.state.value
    length = view.target.max_model_len
    if max_tokens is not None and length is not None and max_tokens >= length:
        return TOO_LONG
    return BUSY if view.busy is not None else None


def load(in_flight: int, cap: int | None) -> float:
    """How full a backend is: the share of its seats that are taken; without a cap, how many calls it has."""
    return in_flight / cap if cap else float(in_flight)


def by_load(plan: Plan, load_of: Callable[[str], float]) -> Plan:
    """The plan as `plan` would order it under another load."""
    able = sorted(plan.able, key=lambda one: (one.tier, load_of(one.target.name), one.target.name))
    return msgspec.structs.replace(plan, able=tuple(able))


class Course:
    """How far a call has come along its plan: who has been tried, which tiers are open, how long a wall must be.

    patience_ns: by tier, how long its seats are waited for before the next tier opens.
    """

    __slots__ = ("_left", "_longer_than", "_open_tier", "_patience_ns", "_plan", "base_tier")

    base_tier: int  # the tier it set out in; from `set_out` on
    _open_tier: int  # the last one that is open

    def __init__(self, plan: Plan, patience_ns: tuple[int, ...]) -> None:
        assert plan.able
        self._plan = plan
        self._left = plan.able
        self._patience_ns = patience_ns
        self._longer_than: int | None = None  # only walls longer than this, once one was too short

    def __len__(self) -> int:
        """How many may still be tried."""
        return len(self._left)

    def set_out(self) -> int | None:
        """Open the lowest tier that has somebody to try, and those after a tier that is not waited for.

        returns: `patience_ns`.
        """
        left = self._left
        self.base_tier = self._open_tier = tier = left[0].tier
        if left[-1].tier == tier:
            return None  # there is no other, as for nearly every call
        while (patience_ns := self.patience_ns) == 0:
            self.spill()
        return patience_ns

    @property
    def patience_ns(self) -> int | None:
        """How long the open tiers are waited for before the next one opens; None: there is no next one."""
        return self._patience_ns[self._open_tier] if self._left[-1].tier > self._open_tier else None

    def spill(self) -> None:
        """Open the next tier that has somebody to try."""
        self._open_tier = next(one.tier for one in self._left if one.tier > self._open_tier)

    def wants(self) -> tuple[str, ...]:
        """The backends of the open tiers, best first."""
        tier, left = self._open_tier, self._left
        if left is self._plan.able and left[-1].tier <= tier:
            return self._plan.line.able  # all of them, as for nearly every call
        return tuple([candidate.target.name for candidate in left if candidate.tier <= tier])

    def take(self, backend: str) -> Candidate:
        """Try this one: it is not wanted again."""
        left = self._left
        first = left[0]
        if first.target.name == backend:
            self._left = left[1:]
            return first
        for at, candidate in enumerate(left):
            if candidate.target.name == backend:
                self._left = left[:at] + left[at + 1 :]
                return candidate
        raise AssertionError(f"{backend} is not to be tried")

    def outgrow(self, length: int) -> bool:
        """The call does not fit into `length` tokens: keep those with a longer wall. returns: may it move on? Once."""
        first = self._longer_than is None
        self._longer_than = length
        self._left = tuple([one for one in self._left if (one.target.max_model_len or 0) > length])
        return first and bool(self._left)


def turned_away(busy: Sequence[Busy], *, all_busy: bool) -> GatewayError:
    """What a client is told when backends were busy and none served it.

    all_busy: nobody was left out or failed for another reason. 429 if all of them said so, else 503; it may come
    again when the first of them is free.
    """
    said = [word.retry_after_s for word in busy if word.retry_after_s is not None]
    wait_s = max(min(said, default=RETRY_AFTER_S), RETRY_AFTER_S)
    if all_busy and all(word.status == HTTPStatus.TOO_MANY_REQUESTS for word in busy):
        return BackendsBusy("the servers of this model have too many calls; try again", retry_after_s=wait_s)
    return NoBackend("no server of this model can take the call now; try again", retry_after_s=wait_s)


class Step(enum.Enum):
    """What follows a failed attempt."""

    NEXT_BACKEND = "next backend"
    LONGER_WALL = "longer wall"
    GIVE_UP = "give up"


def after(error: BackendError, *, committed: bool, attempts_left: int, longer_wall: bool) -> Step:
    """Decide what follows a failed attempt.

    Once an answer event has gone to the client the answer is fixed: a second
    backend would continue a different sentence. A rejected request is the
    client's to mend. One that outgrew this backend's compiled length, whatever
    the status that says so, goes on to a longer wall and nowhere else.
    """
    assert attempts_left >= 0
    if committed or attempts_left == 0:
        return Step.GIVE_UP
    if error.context_length:
        return Step.LONGER_WALL if longer_wall else Step.GIVE_UP
    if isinstance(error, BackendRejected):
        return Step.GIVE_UP
    return Step.NEXT_BACKEND
