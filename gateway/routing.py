"""Which backends can serve a call, in which order, and what follows a failure. Pure."""

import enum
from collections.abc import Sequence

import msgspec

from backends.errors import BackendError, BackendRejected
from backends.health import State
from metering.pricing import Tariff
from metering.record import Host, LeftOut


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A backend as a call sees it: what was known of it when the call was planned.

    tariff: how its calls of this model are priced, or why they are not.
    cold: no answer has come from it since it started.
    """

    name: str
    served_model: str
    host: Host
    identity_digest: str
    slots: int | None
    max_model_len: int | None
    cold: bool
    tariff: Tariff


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A backend of the model asked for, with this worker's load on it.

    tier: index of its tier, 0 is tried first. cap: this worker's share of its slots; None: no cap.
    """

    target: Target
    tier: int
    state: State
    in_flight: int
    cap: int | None


class Candidate(msgspec.Struct, frozen=True):
    """A backend able to serve the call."""

    target: Target
    tier: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The candidates, best first; those left out, each with its reason.

    unable: why a tier before the first candidate's has nobody able; None if it is the first tier.
    """

    able: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...]
    unable: str | None = None


TOO_LONG = "context length"


def plan(views: Sequence[View], *, max_tokens: int | None) -> Plan:
    """Order the backends able to serve a call, the best first; say why the others are not.

    Tier by tier; within one the least load per slot wins, then the name, so that equal inputs give an equal plan.
    max_tokens: of the request; a backend whose compiled length is not above it cannot hold the answer.
    """
    able: list[View] = []
    left_out: list[LeftOut] = []
    for view in views:
        if reason := why_not(view, max_tokens):
            left_out.append(LeftOut(backend=view.target.name, reason=reason))
        else:
            able.append(view)
    able.sort(key=lambda view: (view.tier, _load(view), view.target.name))
    first_tier = able[0].tier if able else 0
    before = [view for view in views if view.tier < first_tier]
    unable = why_not(before[0], max_tokens) if before else None
    return Plan(
        able=tuple(Candidate(view.target, view.tier) for view in able),
        left_out=tuple(left_out),
        unable=unable,
    )


def why_not(view: View, max_tokens: int | None) -> str | None:
    """Why this backend cannot serve the call; None: it can. The reasons are few, and fit for a label."""
    if view.state is not State.READY:
        return view.state.value
    length = view.target.max_model_len
    if max_tokens is not None and length is not None and max_tokens >= length:
        return TOO_LONG
    return None


def _load(view: View) -> float:
    return view.in_flight / view.cap if view.cap else float(view.in_flight)


class Step(enum.Enum):
    """What follows a failed attempt."""

    NEXT_BACKEND = "next backend"
    LONGER_WALL = "longer wall"
    GIVE_UP = "give up"


def after(error: BackendError, *, committed: bool, attempts_left: int, longer_wall: bool) -> Step:
    """Decide what follows a failed attempt.

    Once an answer event has gone to the client the answer is fixed: a second
    backend would continue a different sentence. A rejected request is the
    client's to mend, unless it only outgrew this backend's compiled length.
    """
    assert attempts_left >= 0
    if committed or attempts_left == 0:
        return Step.GIVE_UP
    if isinstance(error, BackendRejected):
        return Step.LONGER_WALL if error.context_length and longer_wall else Step.GIVE_UP
    return Step.NEXT_BACKEND
