"""A month's closed hours against its bill: the list price gives way to what was paid, and every difference has a name.

    the bill − allocated = Σ explained + the rest          the rest is 0, or something is wrong with bill or books

An instance's hour costs what the bill says, split over its rows by their micro-hours, which stay as they were counted.
What was counted and is not on the bill keeps its list price, and is named. Pure.
"""

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from metering.cost import close_hour
from metering.cost.bill import MICRO_HOURS_PER_HOUR, NOT_ALLOCATED, Bill, Charge, Meaning, Reserved, Tally
from metering.cost.close_row import CloseRow, RowKind

TOLERANCE_MICRO_HOURS = 16_667
"""A minute: AWS bills at least that much of an instance, and boots and stops take seconds."""

_ON_DEMAND = (None, Meaning.ON_DEMAND.value)


class What(enum.StrEnum):
    """What a finding is about."""

    NOT_REGISTERED = "instance billed, not registered"
    NOT_BILLED = "instance counted, not on the bill"
    HOURS_NOT_COUNTED = "hours billed, not counted"
    HOURS_NOT_BILLED = "hours counted, not billed"
    HOURS_NOT_CLOSED = "hours billed, not closed"
    HOURS_DIFFER = "length of hours differs"
    UNUSED_ELSEWHERE = "unused commitment of hardware that does not serve"
    OVER_AN_HOUR = "more than an hour billed in an hour"
    PRICE = "list price differs"
    DOUBLED = "line stands more than once, counted once"
    SPLIT = "lines of containers, which repeat their instance, left out"
    UNPLACED = "discount of nothing that is billed"
    OUTSIDE = "lines of hours outside the month"
    UNKNOWN = "line type that is not known"
    UNBALANCED = "savings plan use and its negation do not cancel out"
    NOTHING_OURS = "no instance of these hours is on the bill"


WRONG = frozenset({What.UNKNOWN, What.UNBALANCED, What.NOTHING_OURS})
"""The bill is not whole, is another one, or says what nobody can read here: not explained, whatever the sums are."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One difference. hours: how many; first_hour, last_hour: since 1970 (UTC); pusd: what it explains, if anything.

    detail: what was expected and what was found, for a person.
    """

    what: What
    of: str
    hours: int = 0
    first_hour: int | None = None
    last_hour: int | None = None
    micro_hours: int = 0
    pusd: int = 0
    detail: str = ""


class Reconciled(msgspec.Struct, frozen=True, kw_only=True):
    """The result. billed_pusd: all that the bill says; allocated_pusd: of the rows of these hours, as they are now.

    by_meaning: of the bill. explained: by what each part of the difference is. findings: in order.
    """

    billed_pusd: int
    by_meaning: dict[Meaning, Tally]
    allocated_pusd: int
    explained: dict[str, int]
    findings: tuple[Finding, ...]

    @property
    def difference_pusd(self) -> int:
        """The bill less what is allocated."""
        return self.billed_pusd - self.allocated_pusd

    @property
    def rest_pusd(self) -> int:
        """What nothing explains."""
        return self.difference_pusd - sum(self.explained.values())

    @property
    def is_explained(self) -> bool:
        """Nothing is left over, and the bill could be read whole."""
        return self.rest_pusd == 0 and not any(finding.what in WRONG for finding in self.findings)


class _Price(NamedTuple):
    instance_type: str
    region: str
    ours: int | None
    theirs: int
    basis: str


class _Seen:
    """How often, when, how long and how much: of one thing that is found hour by hour."""

    def __init__(self) -> None:
        self.hours: list[int] = []
        self.micro_hours = 0
        self.pusd = 0

    def add(self, hour: int, micro_hours: int, pusd: int) -> None:
        self.hours.append(hour)
        self.micro_hours += micro_hours
        self.pusd += pusd

    def finding(self, what: What, of: str, detail: str = "") -> Finding:
        return Finding(
            what=what, of=of, hours=len(self.hours), first_hour=min(self.hours), last_hour=max(self.hours),
            micro_hours=self.micro_hours, pusd=self.pusd, detail=detail,
        )  # fmt: skip


class Reconciling:
    """Takes the closed hours of a month one after the other, and gives their rows with the bill's cost."""

    def __init__(self, bill: Bill, registered: Collection[str]) -> None:
        """registered: ids of the instances that any hour of the month has rows of."""
        self._bill = bill
        self._registered = frozenset(registered)
        self._open: dict[int, dict[str, Charge]] = {}
        for (instance, hour), charge in bill.charges.items():
            self._open.setdefault(hour, {})[instance] = charge
        serving = {_family(charge) for (one, _), charge in bill.charges.items() if one in self._registered}
        self._reserved: dict[int, dict[Reserved, int]] = {}
        self._seen: dict[tuple[What, str], _Seen] = {}
        self._prices: dict[_Price, _Seen] = {}
        self._billed_instances = {instance for instance, _ in bill.charges}
        self._allocated = 0
        for hour, of_hour in sorted(bill.reserved.items()):
            for one, pusd in of_hour.items():
                if one.family in serving:
                    self._reserved.setdefault(hour, {})[one] = pusd
                else:
                    self._note(What.UNUSED_ELSEWHERE, f"{one.id}, {one.family}", hour, 0, pusd)

    def hour(self, hour: int, rows: Sequence[CloseRow], method: str) -> list[CloseRow]:
        """The rows of a closed hour with what was paid, in order. rows: as its newest revision has them.

        method: of rows that only the bill has.
        """
        charges = self._open.pop(hour, {})
        by_instance: dict[str, list[CloseRow]] = {}
        kept: list[CloseRow] = []
        for row in rows:
            if row.kind is RowKind.RESERVED:
                continue  # of an earlier bill
            if row.kind is RowKind.SHARED_COST or row.instance_id is None or row.simulated:
                kept.append(row)
            else:
                by_instance.setdefault(row.instance_id, []).append(row)
        for instance, own in by_instance.items():
            micro_hours = sum(row.micro_hours for row in own)
            charge = charges.pop(instance, None) if micro_hours else None
            if charge is not None:
                self._compare(hour, instance, own, micro_hours, charge)
                own = _paid(own, charge)
            elif micro_hours:
                own = _listed(own)
                self._note(What.HOURS_NOT_BILLED, instance, hour, micro_hours, _total(own))
            kept += own
            self._allocated += _total(own)
        for instance, charge in charges.items():
            self._leave(hour, instance, charge, What.HOURS_NOT_COUNTED)
        for row in _reserved_rows(hour, self._reserved.pop(hour, {}), method):
            self._allocated += row.allocated_pusd or 0
            kept.append(row)
        return sorted(kept, key=lambda row: row.key)

    def unbilled(self, hour: int, rows: Iterable[CloseRow]) -> tuple[str, ...]:
        """Instances of an hour that are not on the bill, and keep their list price."""
        counted = close_hour.counted(rows)
        return tuple(sorted(one for one in counted if (one, hour) not in self._bill.charges))

    def result(self, split_rows: int = 0) -> Reconciled:
        """After the last hour. split_rows: how many lines of containers were left out."""
        for hour, charges in self._open.items():
            for instance, charge in charges.items():
                self._leave(hour, instance, charge, What.HOURS_NOT_CLOSED)
        bill = self._bill
        unclosed = sum(pusd for of_hour in self._reserved.values() for pusd in of_hour.values())
        explained = {
            What.NOT_REGISTERED.value: self._sum(What.NOT_REGISTERED),
            What.HOURS_NOT_COUNTED.value: self._sum(What.HOURS_NOT_COUNTED),
            What.HOURS_NOT_CLOSED.value: self._sum(What.HOURS_NOT_CLOSED),
            What.UNUSED_ELSEWHERE.value: self._sum(What.UNUSED_ELSEWHERE),
            "unused commitments of hours that are not closed": unclosed,
            "hours counted, not billed, at list price": -self._sum(What.HOURS_NOT_BILLED),
            What.OUTSIDE.value: bill.outside.pusd,
            What.UNPLACED.value: bill.unplaced.pusd,
            **{meaning.value: bill.by_meaning.get(meaning, Tally()).pusd for meaning in NOT_ALLOCATED},
        }
        return Reconciled(
            billed_pusd=bill.total_pusd,
            by_meaning={
                meaning: bill.by_meaning[meaning] for meaning in Meaning if meaning in bill.by_meaning
            },
            allocated_pusd=self._allocated,
            explained={label: pusd for label, pusd in explained.items() if pusd},
            findings=tuple(self._findings(split_rows)),
        )

    def _compare(
        self, hour: int, instance: str, rows: Sequence[CloseRow], micro_hours: int, charge: Charge
    ) -> None:
        if charge.micro_hours > MICRO_HOURS_PER_HOUR + TOLERANCE_MICRO_HOURS:
            self._note(What.OVER_AN_HOUR, instance, hour, charge.micro_hours, 0)
        elif abs(charge.micro_hours - micro_hours) > TOLERANCE_MICRO_HOURS:
            self._note(What.HOURS_DIFFER, instance, hour, charge.micro_hours - micro_hours, 0)
        first = rows[0]
        ours, theirs = first.uusd_per_hour, charge.list_uusd
        if theirs is not None and theirs != ours and first.purchase_option in _ON_DEMAND:
            basis = f"{first.price_source or 'no source'}, {first.price_date or 'no date'}"
            price = _Price(
                first.instance_type or "?", charge.region or first.region or "?", ours, theirs, basis
            )
            self._prices.setdefault(price, _Seen()).add(hour, micro_hours, 0)

    def _leave(self, hour: int, instance: str, charge: Charge, what: What) -> None:
        if instance not in self._registered:
            what = What.NOT_REGISTERED
        self._note(what, instance, hour, charge.micro_hours, charge.pusd)

    def _note(self, what: What, of: str, hour: int, micro_hours: int, pusd: int) -> None:
        self._seen.setdefault((what, of), _Seen()).add(hour, micro_hours, pusd)

    def _sum(self, what: What) -> int:
        return sum(seen.pusd for (one, _), seen in self._seen.items() if one is what)

    def _findings(self, split_rows: int) -> Iterable[Finding]:
        order = list(What)
        for (what, instance), seen in sorted(
            self._seen.items(), key=lambda item: (order.index(item[0][0]), item[0][1])
        ):
            never = what is What.HOURS_NOT_BILLED and instance not in self._billed_instances
            yield seen.finding(What.NOT_BILLED if never else what, instance)
        for price, seen in sorted(self._prices.items(), key=lambda item: str(item[0])):
            ours = "none" if price.ours is None else f"{price.ours} µ$"
            detail = f"{ours} an hour here ({price.basis}), {price.theirs} µ$ on the bill"
            yield seen.finding(What.PRICE, f"{price.instance_type} in {price.region}", detail)
        bill = self._bill
        if self._registered.isdisjoint(self._billed_instances) and (self._registered or bill.charges):
            yield Finding(
                what=What.NOTHING_OURS,
                of="the bill",
                detail=f"{len(self._billed_instances)} instances there, {len(self._registered)} other ones here",
            )
        for line_type, tally in sorted(bill.unknown.items()):
            yield Finding(what=What.UNKNOWN, of=line_type, pusd=tally.pusd, detail=f"{tally.lines} lines")
        for (plan, usage_type), pusd in sorted(bill.unbalanced.items()):
            yield Finding(what=What.UNBALANCED, of=f"{plan or 'a plan'}, {usage_type}", pusd=pusd)
        counted = ((What.DOUBLED, bill.doubled), (What.UNPLACED, bill.unplaced), (What.OUTSIDE, bill.outside))
        for what, tally in counted:
            if tally.lines:
                yield Finding(what=what, of="the bill", pusd=tally.pusd, detail=f"{tally.lines} lines")
        if split_rows:
            yield Finding(what=What.SPLIT, of="the bill", detail=f"{split_rows} lines")


def _paid(rows: Sequence[CloseRow], charge: Charge) -> list[CloseRow]:
    """Rows of an instance's hour at its cost on the bill. What is shared of the rest follows it."""
    return [
        msgspec.structs.replace(row, purchase_option=charge.purchase_option)
        for row in close_hour.at_cost(rows, charge.pusd)
    ]


def _listed(rows: Sequence[CloseRow]) -> list[CloseRow]:
    """Rows at their list price, whatever an earlier bill made of them."""
    return [
        msgspec.structs.replace(
            row,
            allocated_pusd=row.list_pusd,
            shared_pusd=None if row.uusd_per_hour is None else row.shared_micro_hours * row.uusd_per_hour,
        )
        for row in rows
    ]


def _reserved_rows(hour: int, reserved: Mapping[Reserved, int], method: str) -> list[CloseRow]:
    """A row for each commitment: of one that stands there for several types, the first names them all."""
    by_id: dict[str, tuple[Reserved, int]] = {}
    for one, pusd in sorted(reserved.items()):
        first, so_far = by_id.get(one.id, (one, 0))
        by_id[one.id] = first, so_far + pusd
    return [
        CloseRow(
            hour=hour,
            kind=RowKind.RESERVED,
            backend=one.id or None,
            instance_type=one.instance_type or None,
            instance_family=one.family or None,
            account=one.account or None,
            region=one.region or None,
            az=one.az or None,
            purchase_option=one.purchase_option,
            list_pusd=0,  # nothing was used, which costs nothing on demand
            allocated_pusd=pusd,
            shared_pusd=0,
            method=method,
        )
        for one, pusd in by_id.values()
    ]


def _family(charge: Charge) -> str:
    return (charge.instance_type or "").partition(".")[0]


def _total(rows: Iterable[CloseRow]) -> int:
    return sum(row.allocated_pusd or 0 for row in rows)
