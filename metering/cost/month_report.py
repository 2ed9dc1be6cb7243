"""What a month's closed hours say to a person: a waterfall for each pool, a tenant's month beside the one before. Pure.

    billed − startup − stranded − idle − headroom − reserved − overhead = tenants        (allocated)
    billed − recovered (the estimates of the rate cards) = under-recovery

A tenant's month differs from the one before by usage and by price, and by nothing else:

    usage effect = (units now − units before) × cost before ÷ units before, rounded half up, for each model and hardware
    price effect = the difference of the costs − the usage effect

Units are work units, which weigh prompt and completion tokens; without any, tokens. What is new, or gone, is usage.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from metering.cost.amounts import Amounts, Summary, total
from metering.cost.close_manifest import Manifest, PoolTime, Ratios
from metering.cost.close_row import RowKind
from metering.units import div_half_up

REST = (
    RowKind.STARTUP,
    RowKind.STRANDED,
    RowKind.IDLE,
    RowKind.HEADROOM,
    RowKind.RESERVED,
    RowKind.OVERHEAD,
)
"""Kinds that nobody's answer came of, in the order in which a waterfall goes down."""

_MTOK = 1_000_000


class Waterfall(NamedTuple):
    """Of one pool; None: what belongs to no pool, or to several. Money in picodollars.

    rest: of each kind of REST. unpriced: what has no price, and so no money here. ratios: None if nothing says them.
    """

    pool: str | None
    billed: int
    rest: Mapping[RowKind, int]
    tenants: int
    recovered: int
    calls: int
    tokens: int
    unpriced_micro_hours: int
    unpriced_calls: int
    ratios: Ratios | None

    @property
    def under_recovery(self) -> int:
        """What the rate cards did not bring in."""
        return self.billed - self.recovered


def waterfalls(by_pool: Sequence[Summary], manifests: Iterable[Manifest]) -> list[Waterfall]:
    """One for each pool, the dearest first, that of no pool last. by_pool: sums by `pool` alone."""
    times: dict[str, PoolTime] = {}
    for manifest in manifests:
        for pool, time in manifest.pools.items():
            times[pool] = times.get(pool, PoolTime()) + time
    pools = dict.fromkeys(one.key[0] for one in by_pool if one.kind is not RowKind.SHARED_COST)
    found = [
        _waterfall(pool, [one for one in by_pool if one.key[0] == pool], times.get(pool or ""))
        for pool in pools
    ]
    return sorted(found, key=lambda one: (one.pool is None, -one.billed, one.pool or ""))


def _waterfall(pool: str | None, summaries: Sequence[Summary], time: PoolTime | None) -> Waterfall:
    kinds = (RowKind.TENANT, *REST)
    all_of_it = total(summaries, *kinds)
    tenants = total(summaries, RowKind.TENANT)
    return Waterfall(
        pool=pool,
        billed=all_of_it.allocated_pusd,
        rest={kind: total(summaries, kind).allocated_pusd for kind in REST},
        tenants=tenants.allocated_pusd,
        recovered=tenants.estimated_pusd,
        calls=tenants.calls,
        tokens=tenants.tokens,
        unpriced_micro_hours=all_of_it.unpriced_micro_hours,
        unpriced_calls=tenants.unpriced_calls,
        ratios=time.ratios() if time is not None else None,
    )


class Effect(NamedTuple):
    """Why a cost differs from the one before, in picodollars."""

    usage: int
    price: int


def sum_of_effects(effects: Iterable[Effect]) -> Effect:
    """Of all of them together."""
    found = list(effects)
    return Effect(sum(one.usage for one in found), sum(one.price for one in found))


def effect(*, cost_before: int, units_before: int, cost: int, units: int) -> Effect:
    """Of one model on one hardware."""
    difference = cost - cost_before
    if not units_before or not units:
        return Effect(difference, 0)
    usage = _rounded((units - units_before) * cost_before, units_before)
    return Effect(usage, difference - usage)


class Line(NamedTuple):
    """A tenant's use of a model on one kind of hardware. model, hardware: None: not known.

    estimated, allocated: why what it is charged differs, by rate card, or by allocation and with what was shared out.
    """

    model: str | None
    hardware: str | None
    now: Amounts
    before: Amounts
    estimated: Effect
    allocated: Effect


def tenant_lines(now: Sequence[Summary], before: Sequence[Summary]) -> list[Line]:
    """A line for each model and hardware, the dearest first. now, before: a tenant's sums by model and family."""
    earlier = {one.key: one.amounts for one in before if one.kind is RowKind.TENANT}
    later = {one.key: one.amounts for one in now if one.kind is RowKind.TENANT}
    lines = []
    for key in later.keys() | earlier.keys():
        one, other = later.get(key, Amounts()), earlier.get(key, Amounts())
        weighed = bool(one.work_units and other.work_units)
        units, units_before = (one.work_units, other.work_units) if weighed else (one.tokens, other.tokens)
        estimated, allocated = (
            effect(cost_before=cost_before, units_before=units_before, cost=cost, units=units)
            for cost_before, cost in (
                (other.estimated_pusd, one.estimated_pusd),
                (other.charge_pusd, one.charge_pusd),
            )
        )
        model, hardware = key
        lines.append(Line(model, hardware, one, other, estimated, allocated))
    return sorted(lines, key=lambda line: (-line.now.allocated_pusd, line.model or "", line.hardware or ""))


def per_mtok(pusd: int, tokens: int) -> int | None:
    """Picodollars per 1M tokens, half up; None: there are none."""
    return _rounded(pusd * _MTOK, tokens) if tokens else None


def per_call(pusd: int, calls: int) -> int | None:
    """Picodollars per call, half up; None: there are none."""
    return _rounded(pusd, calls) if calls else None


def _rounded(numerator: int, denominator: int) -> int:
    if denominator < 0:
        numerator, denominator = -numerator, -denominator
    sign = -1 if numerator < 0 else 1
    return sign * div_half_up(abs(numerator), denominator)
