"""One paid instance-hour, split among those who used it and what was left unused. Pure.

    instance's micro-hours ─ by units × time ─▶ each backend's share, rest `stranded`
    a backend's share      ─ by the method   ─▶ payers, `~overhead`, `headroom`, `idle`, `startup`

A method only makes weights; one function, `split`, rounds. With t for the time that the backend owned its units:

    t = busy (≥ 1 attempt) + idle (able to serve, no attempt) + startup (not able to)

    slot-time   payer  Σ its slot time               rest of busy: headroom = slots × busy − Σ slot time
                idle   slots × idle                  startup: slots × startup
    busy-time   payer  busy × its work ÷ all work    no headroom: the busy time has been used by who was there
                idle   idle                          startup: startup
    capacity    payer  its work                      headroom = K × busy − all work (K: work units per hour)
                idle   K × idle, less what was done above K × busy
                                                     startup: its time is split off first

`~overhead` (attempts that failed) is weighed as a payer is. Under slot-time what a slot-second costs is the share ÷
(slots × t): no neighbour and no routing changes it. What each method hides: deploy/reference/cost.md.

Only quantities are split here, money is their product with a price. Amounts are additive over gateways.
"""

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from metering.cost.close_row import RowKind
from metering.units import NS_PER_HOUR


class Ordered(Protocol):
    """What `split` can sort: text, or tuples of it. Code points sort as the bytes of UTF-8 do."""

    def __lt__(self, other: Any, /) -> bool: ...
    def __hash__(self) -> int: ...


K = TypeVar("K", bound=Ordered)


class Payer(NamedTuple):
    """Whose calls they are; "" where there is none (a call with no project). tags: sorted by name."""

    tenant: str
    project: str = ""
    model: str = ""
    operation: str = ""
    tags: tuple[tuple[str, str], ...] = ()


NOBODY = Payer("")
"""Of what no tenant used: the rest, and overhead."""


class Method(enum.StrEnum):
    """How a backend's share is split (`allocation.method`)."""

    SLOT_TIME = "slot-time"
    CAPACITY = "capacity"
    BUSY_TIME = "busy-time"


class Sharing(enum.StrEnum):
    """How what no tenant used is shared out among those who were there (`allocation.sharing`)."""

    NONE = "none"
    WEIGHTED = "weighted"  # by the micro-hours that each payer used
    EVEN = "even"  # the same for each tenant; among a tenant's payers by micro-hours


class Remark(enum.StrEnum):
    """What a split could not do as it was told to; the close shows it."""

    OVER_UNITS = (
        "over_units"  # backends claim more units than the instance has: each gets less than it claims
    )
    OVER_SLOTS = "over_slots"  # more slot time than slots: `slots` is wrong, and a slot-second too cheap
    OVER_CAPACITY = "over_capacity"  # more work than the calibrated capacity, which is then too low
    SLOTS_UNKNOWN = "slots_unknown"  # split as busy-time
    CAPACITY_UNKNOWN = "capacity_unknown"  # split as busy-time
    WORK_UNKNOWN = "work_unknown"  # no work-unit weights: busy-time split by slot time


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What one payer, or the overhead, had of a backend. slot_ns: Σ over its attempts of the time in a slot.

    work_units: None if the model has no work-unit weights.
    """

    slot_ns: int = 0
    work_units: int | None = None


class BackendHour(msgspec.Struct, frozen=True, kw_only=True):
    """A backend's part of an instance within one hour; times in ns.

    units, units_total: of the instance, in cores or accelerators. owned_ns: how long it owned them while the instance
    was paid for; ready_ns: of that, able to serve; busy_ns: of that, with at least one attempt (what was busy was
    able to serve, whatever its state said). slots: None if unknown. capacity_per_hour: work units, None if not
    calibrated. All must be of the same backend, instance and hour, so that they can be compared.
    """

    backend: str
    units: int
    owned_ns: int
    ready_ns: int
    busy_ns: int
    slots: int | None
    capacity_per_hour: int | None = None
    usage: Mapping[Payer, Usage]
    overhead: Usage = Usage()


class InstanceHour(msgspec.Struct, frozen=True, kw_only=True):
    """An instance within one hour. micro_hours: paid (`units.micro_hours` of its spans); paid_ns: the same as time."""

    micro_hours: int
    paid_ns: int
    units_total: int
    backends: tuple[BackendHour, ...]


class Portion(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an instance-hour: of one payer, or of what no tenant used. backend: None if it is stranded.

    shared_micro_hours: what was shared out to it of the rest; negative for the rest itself, and 0 over all portions.
    method: by which it was split; a remark says why, if that is not the one asked for.
    """

    backend: str | None
    kind: RowKind
    payer: Payer
    micro_hours: int
    shared_micro_hours: int
    method: Method


class Allocated(msgspec.Struct, frozen=True, kw_only=True):
    """An instance-hour, split; the micro-hours of the portions add up to its own.

    Every payer has a portion, even of 0; of the rest only what there was. Sorted by (backend, kind, payer).
    remarks: (backend, what); the backend is None where it is about the instance.
    """

    portions: tuple[Portion, ...]
    remarks: frozenset[tuple[str | None, Remark]]


_Part = tuple[RowKind, Payer]
_Weights = dict[_Part, int]


def split(quantity: int, weights: Mapping[K, int]) -> dict[K, int]:
    """Split a quantity by weights: cumulative rounding over the keys in their order.

    The k-th key gets ⌊quantity × (w_1 + … + w_k) ÷ W⌋ less what those before it got: all is given out, each is within
    one of its exact part, a weight of 0 gets 0, and parts summed by a prefix of the key are what splitting by the
    prefix gives. quantity: any integer (a credit is negative); weights: not negative.

    Raises ValueError: a number is no integer or a weight is negative, or there is something to split and no weight.
    """
    for number in (quantity, *weights.values()):
        if type(number) is not int:
            raise ValueError(f"{number!r} is no integer")
    if any(weight < 0 for weight in weights.values()):
        raise ValueError(f"a weight is negative: {min(weights.values())}")
    total = sum(weights.values())
    if total == 0:
        if quantity:
            raise ValueError(f"nobody has a weight, and {quantity} is to be split")
        return dict.fromkeys(sorted(weights), 0)
    parts: dict[K, int] = {}
    weighed, given = 0, 0
    for key in sorted(weights):
        weighed += weights[key]
        up_to = quantity * weighed // total
        parts[key] = up_to - given
        given = up_to
    return parts


def allocate(hour: InstanceHour, method: Method, sharing: Sharing = Sharing.NONE) -> Allocated:
    """Split an instance-hour. Raises ValueError: a number is out of its range, or a backend is named twice."""
    _check(hour)
    remarks: set[tuple[str | None, Remark]] = set()
    claims = {one.backend: one.units * one.owned_ns for one in hour.backends}
    stranded = hour.units_total * hour.paid_ns - sum(claims.values())
    if stranded < 0:
        remarks.add((None, Remark.OVER_UNITS))
    shares = split(hour.micro_hours, {**claims, "": max(0, stranded)})
    parts: dict[str, tuple[Method, dict[_Part, int]]] = {}
    for one in sorted(hour.backends, key=lambda one: one.backend):
        used, weights, remark = _weights(one, method)
        remarks |= {(one.backend, each) for each in remark}
        parts[one.backend] = used, split(shares[one.backend], weights)
    parts[""] = method, {(RowKind.STRANDED, NOBODY): shares[""]}
    shared = _shared({backend: split_up for backend, (_, split_up) in parts.items()}, sharing)
    portions = [
        Portion(
            backend=backend or None,
            kind=kind,
            payer=payer,
            micro_hours=micro_hours,
            shared_micro_hours=shared.get((backend, kind, payer), 0),
            method=used,
        )
        for backend, (used, split_up) in sorted(parts.items())
        for (kind, payer), micro_hours in split_up.items()
        if micro_hours or kind is RowKind.TENANT
    ]
    return Allocated(portions=tuple(portions), remarks=frozenset(remarks))


def _check(hour: InstanceHour) -> None:
    _within("micro_hours", hour.micro_hours, 0)
    _within("units_total", hour.units_total, 1)
    _within("paid_ns", hour.paid_ns, 1 if hour.micro_hours else 0, NS_PER_HOUR)
    names = {one.backend for one in hour.backends}
    if len(names) < len(hour.backends) or "" in names:
        raise ValueError("a backend stands twice, or has no name")
    for one in hour.backends:
        about = f"backend {one.backend}: "
        _within(about + "units", one.units, 0)
        _within(about + "owned_ns", one.owned_ns, 0, hour.paid_ns)
        _within(about + "ready_ns", one.ready_ns, 0, one.owned_ns)
        _within(about + "busy_ns", one.busy_ns, 0, one.owned_ns)
        _within(about + "slots", 1 if one.slots is None else one.slots, 1)
        _within(about + "capacity_per_hour", 1 if one.capacity_per_hour is None else one.capacity_per_hour, 1)
        for usage in (*one.usage.values(), one.overhead):
            _within(about + "slot_ns", usage.slot_ns, 0)
            _within(about + "work_units", usage.work_units or 0, 0)


def _within(what: str, number: int, low: int, high: int | None = None) -> None:
    if type(number) is not int or number < low or (high is not None and number > high):
        most = "" if high is None else f" and at most {high}"
        raise ValueError(f"{what} is {number!r}; it must be an integer of at least {low}{most}")


class _Times(NamedTuple):
    """How a backend's time divides; the three add up to what it owned its units for."""

    busy: int
    idle: int
    startup: int


def _weights(one: BackendHour, method: Method) -> tuple[Method, _Weights, set[Remark]]:
    """By which method this backend's share can be split, with its weights, and what must be said of it."""
    able = max(one.ready_ns, one.busy_ns)
    times = _Times(one.busy_ns, able - one.busy_ns, one.owned_ns - able)
    work = _work(one)
    if method is Method.SLOT_TIME and one.slots is not None:
        return method, *_by_slot_time(times, one.slots, _slot_time(one))
    if method is Method.CAPACITY and one.capacity_per_hour is not None and work is not None:
        return method, *_by_capacity(times, one.capacity_per_hour, work)
    remarks = {
        Method.SLOT_TIME: {Remark.SLOTS_UNKNOWN},
        Method.CAPACITY: {Remark.CAPACITY_UNKNOWN} if work is not None else set(),
        Method.BUSY_TIME: set(),
    }[method]
    if work is None:
        return Method.BUSY_TIME, _by_busy_time(times, _slot_time(one)), remarks | {Remark.WORK_UNKNOWN}
    return Method.BUSY_TIME, _by_busy_time(times, work), remarks


def _by_slot_time(times: _Times, slots: int, used: _Weights) -> tuple[_Weights, set[Remark]]:
    free = slots * times.busy - sum(used.values())
    weights = used | _rest(headroom=max(0, free), idle=slots * times.idle, startup=slots * times.startup)
    return weights, {Remark.OVER_SLOTS} if free < 0 else set()


def _by_busy_time(times: _Times, used: _Weights) -> _Weights:
    if not (total := sum(used.values())):  # an attempt ran, and nothing came of it
        used, total = used | {(RowKind.OVERHEAD, NOBODY): 1}, 1
    weights = {part: times.busy * weight for part, weight in used.items()}
    return weights | _rest(headroom=0, idle=total * times.idle, startup=total * times.startup)


def _by_capacity(times: _Times, per_hour: int, work: _Weights) -> tuple[_Weights, set[Remark]]:
    """Work and capacity are compared in work units × NS_PER_HOUR, so that nothing is rounded."""
    used = {part: units * NS_PER_HOUR for part, units in work.items()}
    done, able = sum(used.values()), times.busy + times.idle
    capacity = max(per_hour * able, done)
    headroom = max(0, per_hour * times.busy - done)
    idle = capacity - done - headroom
    remarks = {Remark.OVER_CAPACITY} if done > per_hour * able else set()
    if not able:
        return dict.fromkeys(used, 0) | _rest(headroom=0, idle=0, startup=times.startup), remarks
    weights = {part: able * weight for part, weight in used.items()}
    return weights | _rest(
        headroom=able * headroom, idle=able * idle, startup=capacity * times.startup
    ), remarks


def _rest(*, headroom: int, idle: int, startup: int) -> _Weights:
    return {
        (RowKind.HEADROOM, NOBODY): headroom,
        (RowKind.IDLE, NOBODY): idle,
        (RowKind.STARTUP, NOBODY): startup,
    }


def _slot_time(one: BackendHour) -> _Weights:
    return _each(one, lambda usage: usage.slot_ns)


def _work(one: BackendHour) -> _Weights | None:
    """None if of anybody who was served the work is not known."""
    if any(usage.slot_ns and usage.work_units is None for usage in (*one.usage.values(), one.overhead)):
        return None
    return _each(one, lambda usage: usage.work_units or 0)


def _each(one: BackendHour, weight: Callable[[Usage], int]) -> _Weights:
    weights = {(RowKind.TENANT, payer): weight(usage) for payer, usage in one.usage.items()}
    return {**weights, (RowKind.OVERHEAD, NOBODY): weight(one.overhead)}


_Place = tuple[str, RowKind, Payer]


def _shared(parts: Mapping[str, Mapping[_Part, int]], sharing: Sharing) -> dict[_Place, int]:
    """What each portion is given of the rest (positive) or gives away (negative), by its place.

    A backend's rest goes to those who used the backend, what is stranded to all on the instance. Where nobody was,
    it stays.
    """
    shared: dict[_Place, int] = {}
    if sharing is Sharing.NONE:
        return shared
    used: dict[_Place, int] = {
        (backend, kind, payer): micro_hours
        for backend, split_up in parts.items()
        for (kind, payer), micro_hours in split_up.items()
        if kind is RowKind.TENANT and micro_hours
    }
    for backend, split_up in parts.items():
        users = {place: amount for place, amount in used.items() if backend in ("", place[0])}
        rest = {part: amount for part, amount in split_up.items() if part[0] is not RowKind.TENANT}
        if not users:
            continue
        for place, amount in _share(sum(rest.values()), users, sharing):
            shared[place] = shared.get(place, 0) + amount
        shared |= {(backend, *part): -amount for part, amount in rest.items()}
    return shared


def _share(quantity: int, users: Mapping[_Place, int], sharing: Sharing) -> Iterable[tuple[_Place, int]]:
    if sharing is Sharing.WEIGHTED:
        return split(quantity, users).items()
    tenants = split(quantity, dict.fromkeys((payer.tenant for _, _, payer in users), 1))
    return [
        part
        for tenant, amount in tenants.items()
        for part in split(
            amount, {place: n for place, n in users.items() if place[2].tenant == tenant}
        ).items()
    ]
