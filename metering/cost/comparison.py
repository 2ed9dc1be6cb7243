"""What a model cost on two kinds of hardware, if that can be compared. Pure.

A saving is said only if of both sides is known, and has one value, all that a cost per token hangs on: FIELDS.
Anything else is «not comparable», with what is not known. What differs is marked, and is not held against it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from metering.cost.amounts import Amounts, PriceUsed, Summary, total
from metering.cost.close_row import RowKind
from metering.cost.month_report import per_mtok
from metering.record import Host

FIELDS = (
    "context",
    "batch",
    "precision",
    "SDK",
    "topology",
    "region",
    "utilisation",
    "price",
    "price date",
    "basis",
)

_PPM = 1_000_000


class Side(NamedTuple):
    """A model on one instance type. facts: of each of FIELDS the values that there were; none: not known.

    all_of_it: what its servers' share of the instances cost, used or not; tenants: of that, what calls used.
    """

    instance_type: str
    facts: Mapping[str, tuple[str, ...]]
    all_of_it: Amounts
    tenants: Amounts

    @property
    def per_mtok(self) -> int | None:
        """Picodollars per 1M tokens, with what was not used."""
        return per_mtok(self.all_of_it.allocated_pusd, self.tenants.tokens)

    @property
    def used_per_mtok(self) -> int | None:
        """Picodollars per 1M tokens, without it."""
        return per_mtok(self.tenants.allocated_pusd, self.tenants.tokens)


class Comparison(NamedTuple):
    """lacking: what keeps them from being compared, for people; saving_ppm: of the first side against the second, in
    parts per million, None if they can't be; differing: fields whose values are not the same."""

    sides: tuple[Side, Side]
    lacking: tuple[str, ...]
    differing: frozenset[str]
    saving_ppm: int | None


def side(
    instance_type: str,
    summaries: Sequence[Summary],
    prices: Iterable[PriceUsed],
    hosts: Iterable[Host],
    bases: Iterable[str],
) -> Side:
    """summaries: of this model on this type, by `backend`; prices: of this type; hosts: of any; bases: of its hours."""
    used, tenants = total(summaries), total(summaries, RowKind.TENANT)
    backends = {one.key[0] for one in summaries if one.amounts.micro_hours}
    of_backends = [host for host in hosts if host.backend in backends]
    paid = list(prices)
    facts = {
        "context": _values(host.max_model_len for host in of_backends),
        "batch": _values(host.slots for host in of_backends),
        "precision": _values(host.precision for host in of_backends),
        "SDK": _values(map(_sdk, of_backends)),
        "topology": _values(
            None if host.tensor_parallel is None else f"TP{host.tensor_parallel}" for host in of_backends
        ),
        "region": _values(price.region for price in paid),
        "utilisation": _values([_utilisation(used, tenants)]),
        "price": _values(map(_price, paid)),
        "price date": _values(price.date for price in paid),
        "basis": _values(bases),
    }
    return Side(instance_type, facts, used, tenants)


def compare(one: Side, other: Side) -> Comparison:
    """Set two sides against each other."""
    lacking = [
        f"{each.instance_type}: {field} {'is not known' if not values else 'is ' + ' and '.join(values)}"
        for each in (one, other)
        for field in FIELDS
        if len(values := each.facts[field]) != 1
    ]
    lacking += [
        f"{each.instance_type}: {hours} instance-hours have no price"
        for each in (one, other)
        if (hours := each.all_of_it.unpriced_micro_hours / _PPM)
    ]
    lacking += [
        f"{each.instance_type}: no token was used" for each in (one, other) if not each.tenants.tokens
    ]
    differing = frozenset(field for field in FIELDS if one.facts[field] != other.facts[field])
    cost, against = one.per_mtok, other.per_mtok
    saving = None
    if not lacking and cost is not None and against:
        saving = (against - cost) * _PPM // against
    return Comparison((one, other), tuple(lacking), differing, saving)


def _values(found: Iterable[object]) -> tuple[str, ...]:
    """Those that there are; one that is not known makes all of it not known."""
    values = list(found)
    return () if None in values else tuple(sorted({str(value) for value in values}))


def _sdk(host: Host) -> str | None:
    if host.neuron_version is not None:
        return f"Neuron {host.neuron_version}"
    if host.framework is None or host.framework_version is None:
        return None
    return f"{host.framework} {host.framework_version}"


def _utilisation(used: Amounts, tenants: Amounts) -> str | None:
    if not used.micro_hours:
        return None
    tenths = tenants.micro_hours * 1_000 // used.micro_hours
    return f"{tenths // 10}.{tenths % 10} %"


def _price(price: PriceUsed) -> str | None:
    if price.uusd_per_hour is None:
        return None
    whole, rest = divmod(price.uusd_per_hour, _PPM)
    return f"{whole}.{rest:06d} USD/h {price.purchase_option or 'on-demand'}"
