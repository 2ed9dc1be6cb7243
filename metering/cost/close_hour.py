"""One hour as rows: what instances were paid for, and what facts say of it, split and priced. Pure.

    paid hours ─▶ pieces, ready ─▶ (facts summed by them: metering/cost/close_usage.py) ─▶ allocation ─▶ rows × price

The amounts of a payer (calls, tokens, slot time, work, the estimate) stand once: on the first instance, by id, that the
backend owned at the time. What no backend with an instance served has a row with no instance and no micro-hours.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from metering.cost import allocation, intervals
from metering.cost.allocation import (
    NOBODY,
    Allocated,
    BackendHour,
    InstanceHour,
    Method,
    Payer,
    Portion,
    Sharing,
    Usage,
    split,
)
from metering.cost.close_manifest import PoolTime
from metering.cost.close_row import CloseRow, RowKind
from metering.cost.hour_facts import Busy, Piece, Ready, Used
from metering.cost.hours import PaidHour, Stay
from metering.cost.intervals import Interval
from metering.cost.work_units import WorkUnits
from metering.units import NS_PER_HOUR


class Price(NamedTuple):
    """Of an instance in an hour, in micro-dollars an hour."""

    uusd_per_hour: int
    source: str | None
    date: str | None


class Terms(NamedTuple):
    """How an hour is closed. price: of an instance-hour, None if it is unknown; family: of an instance type.

    weights: of a model on an instance type, at a moment.
    """

    method: Method
    sharing: Sharing
    price: Callable[[PaidHour], Price | None]
    family: Callable[[str], str]
    weights: Callable[[str, str | None, int], WorkUnits]


class ClosedHour(NamedTuple):
    """rows: sorted by key. pools, remarks, unpriced, weights: as in close_manifest.Manifest."""

    rows: list[CloseRow]
    pools: dict[str, PoolTime]
    remarks: tuple[str, ...]
    unpriced: tuple[str, ...]
    weights: tuple[WorkUnits, ...]


def pieces_of(hour: int, paid: Sequence[PaidHour]) -> list[Piece]:
    """The times of an hour in which each backend owned the same instances; those of a backend cover the hour."""
    from_ns, to_ns = hour * NS_PER_HOUR, (hour + 1) * NS_PER_HOUR
    edges: dict[str, set[int]] = defaultdict(lambda: {from_ns, to_ns})
    for one in paid:
        for stay in one.stays:
            edges[stay.backend].update(edge for interval in stay.owned for edge in interval)
    return [
        Piece(backend, hour, number, *span)
        for backend, at in sorted(edges.items())
        for number, span in enumerate(itertools.pairwise(sorted(at)))
    ]


def ready_of(hour: int, paid: Sequence[PaidHour]) -> list[Ready]:
    """When each backend was able to serve, on any of its instances."""
    ready: dict[str, list[Interval]] = defaultdict(list)
    for one in paid:
        for stay in one.stays:
            ready[stay.backend] += stay.ready
    return [
        Ready(backend, hour, *interval)
        for backend, found in sorted(ready.items())
        for interval in intervals.union(found)
    ]


def close(
    hour: int, paid: Sequence[PaidHour], used: Iterable[Used], busy: Iterable[Busy], terms: Terms
) -> ClosedHour:
    """The rows of an hour. paid: its instances, by id; used, busy: summed by `pieces_of` and `ready_of` of these."""
    return _Hour(hour, paid, used, busy, terms).closed()


def at_cost(rows: Sequence[CloseRow], pusd: int) -> list[CloseRow]:
    """Rows of an instance's hour at what it cost by its bill; what is shared of the rest follows."""
    keys = [row.key for row in rows]
    own = {key: row.micro_hours for key, row in zip(keys, rows, strict=True)}
    shared = {key: row.micro_hours + row.shared_micro_hours for key, row in zip(keys, rows, strict=True)}
    parts, after = split(pusd, own), split(pusd, shared)
    return [
        msgspec.structs.replace(row, allocated_pusd=parts[key], shared_pusd=after[key] - parts[key])
        for key, row in zip(keys, rows, strict=True)
    ]


def counted(rows: Iterable[CloseRow]) -> set[str]:
    """Instances of these rows that are real and were paid for."""
    return {
        row.instance_id
        for row in rows
        if row.instance_id is not None and row.micro_hours and not row.simulated
    }


def until(paid: Sequence[PaidHour], at_ns: int) -> list[PaidHour]:
    """Paid hours as far as they are over at a moment."""

    def cut(found: Sequence[Interval]) -> tuple[Interval, ...]:
        return tuple(intervals.intersection(found, [Interval(0, at_ns)]))

    return [
        msgspec.structs.replace(
            one,
            paid=cut(one.paid),
            stays=tuple(
                msgspec.structs.replace(stay, owned=cut(stay.owned), ready=cut(stay.ready))
                for stay in one.stays
            ),
        )
        for one in paid
        if cut(one.paid)
    ]


class _Amounts:
    """What stands once of a payer."""

    def __init__(self) -> None:
        self.slot_ns = self.work_units = 0
        self.calls = self.prompt = self.cached_prompt = self.completion = self.estimated = self.unpriced = 0
        self.simulated = False
        self.families: set[str | None] = set()

    def add_usage(self, one: Used, work_units: int) -> None:
        self.slot_ns += one.slot_ns
        self.work_units += work_units

    def add_calls(self, one: Used) -> None:
        self.calls += one.calls
        self.prompt += one.prompt_tokens
        self.cached_prompt += one.cached_prompt_tokens
        self.completion += one.completion_tokens
        self.estimated += one.estimated_pusd
        self.unpriced += one.unpriced_calls
        self.simulated = self.simulated or one.simulated
        self.families.add(one.family)

    @property
    def usage(self) -> Usage:
        return Usage(slot_ns=self.slot_ns, work_units=self.work_units)

    def on(self, row: CloseRow) -> CloseRow:
        """The row that they stand on."""
        return msgspec.structs.replace(
            row,
            slot_ns=self.slot_ns,
            work_units=self.work_units,
            calls=self.calls,
            prompt_tokens=self.prompt,
            cached_prompt_tokens=self.cached_prompt,
            completion_tokens=self.completion,
            estimated_pusd=self.estimated,
            unpriced_calls=self.unpriced,
        )


_Owner = tuple[str, str]
"""(instance id, backend); the id "" is no instance."""


class _Hour:
    def __init__(
        self, hour: int, paid: Sequence[PaidHour], used: Iterable[Used], busy: Iterable[Busy], terms: Terms
    ) -> None:
        self._hour = hour
        self._paid = paid
        self._terms = terms
        self._types = {one.instance_id: one.facts.instance_type for one in paid}
        self._pieces = {(one.backend, one.number): one for one in pieces_of(hour, paid)}
        self._owners = {place: self._owners_of(piece) for place, piece in self._pieces.items()}
        self._busy = {(one.backend, one.piece): one for one in busy}
        self._weights: dict[tuple[str, str | None], WorkUnits] = {}
        self._usage: dict[_Owner, dict[Payer, _Amounts]] = defaultdict(lambda: defaultdict(_Amounts))
        self._once: dict[_Owner, dict[Payer, _Amounts]] = defaultdict(lambda: defaultdict(_Amounts))
        for one in used:
            self._take(one)

    def closed(self) -> ClosedHour:
        rows: list[CloseRow] = []
        pools: dict[str, PoolTime] = {}
        remarks: set[str] = set()
        for one in self._paid:
            stays = {stay.backend: self._backend_hour(one, stay) for stay in one.stays}
            split_up = self._allocate(one, tuple(stays.values()))
            rows += self._rows(one, split_up)
            remarks |= {
                f"{backend or 'backends'} on {one.instance_id}: {what}" for backend, what in split_up.remarks
            }
            for stay in one.stays:
                pool = stay.model or ""
                pools[pool] = pools.get(pool, PoolTime()) + _pool_time(stays[stay.backend])
        rows += self._unplaced()
        unpriced = {
            row.instance_type or "unknown" for row in rows if row.instance_id and row.list_pusd is None
        }
        weights = {one.id: one for one in self._weights.values()}
        return ClosedHour(
            rows=sorted(rows, key=lambda row: row.key),
            pools=dict(sorted(pools.items())),
            remarks=tuple(sorted(remarks)),
            unpriced=tuple(sorted(unpriced)),
            weights=tuple(weights[id_] for id_ in sorted(weights)),
        )

    def _owners_of(self, piece: Piece) -> list[str]:
        """Instances that the backend owned units of in this time, by id."""
        return sorted(
            one.instance_id
            for one in self._paid
            for stay in one.stays
            if stay.backend == piece.backend
            and any(span.from_ns <= piece.from_ns < span.to_ns for span in stay.owned)
        )

    def _take(self, one: Used) -> None:
        payer = Payer(
            one.tenant, one.project or "", one.model, one.operation, tuple(sorted((one.tags or {}).items()))
        )
        owners = self._owners.get((one.backend, one.piece), []) if one.backend is not None else []
        backend = one.backend or ""
        user = payer if one.served else NOBODY
        for owner in owners:
            self._usage[owner, backend][user].add_usage(one, self._work(one, owner))
        first = owners[0] if owners else ""
        if one.served:
            amounts = self._once[first, backend][payer]
            amounts.add_usage(one, self._work(one, first))
            amounts.add_calls(one)
            return
        if owners:
            self._once[first, backend][NOBODY].add_usage(one, self._work(one, first))
        if one.calls:
            self._once["", ""][payer].add_calls(one)

    def _work(self, one: Used, instance_id: str) -> int:
        """Work units of these tokens on this instance's type, by the weights of the model."""
        return self._weigh(one.model, self._types.get(instance_id)).of(
            one.work_prompt_tokens, one.work_cached_prompt_tokens, one.work_completion_tokens
        )

    def _weigh(self, model: str, instance_type: str | None) -> WorkUnits:
        key = model, instance_type
        if key not in self._weights:
            self._weights[key] = self._terms.weights(*key, self._hour * NS_PER_HOUR)
        return self._weights[key]

    def _backend_hour(self, paid: PaidHour, stay: Stay) -> BackendHour:
        owned_ns = intervals.length_ns(stay.owned)
        busy_ns = able_ns = 0
        for (backend, number), piece in self._pieces.items():
            if backend != stay.backend or paid.instance_id not in self._owners[backend, number]:
                continue
            busy = self._busy.get((backend, number), Busy(self._hour, backend, number, 0, 0))
            within = intervals.intersection(stay.ready, [Interval(piece.from_ns, piece.to_ns)])
            busy_ns += busy.busy_ns
            able_ns += intervals.length_ns(within) + busy.busy_ns - busy.ready_ns
        usage = self._usage.get((paid.instance_id, stay.backend), {})
        overhead = usage.get(NOBODY)
        per_hour = self._weigh(stay.model or "", paid.facts.instance_type).per_hour
        capacity = None if per_hour is None else max(1, per_hour * stay.units // paid.units_total)
        return BackendHour(
            backend=stay.backend,
            units=stay.units,
            owned_ns=owned_ns,
            ready_ns=min(able_ns, owned_ns),
            busy_ns=min(busy_ns, owned_ns),
            slots=stay.slots,
            capacity_per_hour=capacity,
            usage={payer: amounts.usage for payer, amounts in usage.items() if payer != NOBODY},
            overhead=overhead.usage if overhead else Usage(work_units=0),
        )

    def _allocate(self, one: PaidHour, backends: tuple[BackendHour, ...]) -> Allocated:
        return allocation.allocate(
            InstanceHour(
                micro_hours=one.micro_hours,
                paid_ns=one.paid_ns,
                units_total=one.units_total,
                backends=backends,
            ),
            self._terms.method,
            self._terms.sharing,
        )

    def _rows(self, one: PaidHour, split_up: Allocated) -> Iterator[CloseRow]:
        price = self._terms.price(one)
        models = {stay.backend: stay.model for stay in one.stays}
        for portion in split_up.portions:
            payer = portion.payer if portion.kind is RowKind.TENANT else NOBODY
            has_amounts = portion.kind in (RowKind.TENANT, RowKind.OVERHEAD)
            once = self._once.get((one.instance_id, portion.backend or ""), {}) if has_amounts else {}
            row = self._row(one, portion, models.get(portion.backend or ""), price)
            yield once[payer].on(row) if payer in once else row

    def _row(self, one: PaidHour, portion: Portion, pool: str | None, price: Price | None) -> CloseRow:
        facts, payer = one.facts, portion.payer
        is_tenant = portion.kind is RowKind.TENANT
        list_pusd = portion.micro_hours * price.uusd_per_hour if price else None
        return CloseRow(
            hour=self._hour,
            kind=portion.kind,
            pool=pool,
            backend=portion.backend,
            instance_id=one.instance_id,
            instance_type=facts.instance_type,
            instance_family=self._terms.family(facts.instance_type) if facts.instance_type else None,
            account=facts.account,
            region=facts.region,
            az=facts.az,
            purchase_option=facts.purchase_option,
            simulated=facts.simulated,
            tenant=payer.tenant if is_tenant else None,
            project=(payer.project or None) if is_tenant else None,
            model=payer.model if is_tenant else None,
            operation=payer.operation if is_tenant else None,
            tags=dict(payer.tags) if is_tenant else None,
            micro_hours=portion.micro_hours,
            shared_micro_hours=portion.shared_micro_hours,
            uusd_per_hour=price.uusd_per_hour if price else None,
            price_source=price.source if price else None,
            price_date=price.date if price else None,
            list_pusd=list_pusd,
            allocated_pusd=list_pusd,
            shared_pusd=portion.shared_micro_hours * price.uusd_per_hour if price else None,
            method=portion.method.value,
        )

    def _unplaced(self) -> Iterator[CloseRow]:
        """What was served outside all paid hours, or by nobody."""
        for (instance_id, backend), by_payer in self._once.items():
            for payer, amounts in by_payer.items() if not instance_id else ():
                families = amounts.families - {None}
                row = CloseRow(
                    hour=self._hour,
                    kind=RowKind.TENANT,
                    pool=payer.model,
                    backend=backend or None,
                    instance_family=families.pop() if len(families) == 1 else None,
                    simulated=amounts.simulated,
                    tenant=payer.tenant,
                    project=payer.project or None,
                    model=payer.model,
                    operation=payer.operation,
                    tags=dict(payer.tags),
                    list_pusd=0,
                    allocated_pusd=0,
                    shared_pusd=0,
                    method=self._terms.method.value,
                )
                yield amounts.on(row)


def _pool_time(one: BackendHour) -> PoolTime:
    slots = one.slots or 0
    users = [*one.usage.values(), one.overhead]
    able_ns = max(one.ready_ns, one.busy_ns)
    capacity = one.capacity_per_hour
    return PoolTime(
        busy_ns=one.busy_ns,
        capacity_units=capacity * able_ns // NS_PER_HOUR if capacity else 0,
        owned_ns=one.owned_ns,
        ready_ns=able_ns,
        slot_ns=sum(user.slot_ns for user in users) if slots else 0,
        slots_ns=slots * one.owned_ns,
        work_units=sum(user.work_units or 0 for user in users) if capacity else 0,
    )
