"""What a bill of AWS says of the serving instances: the cost of each (instance, hour), and the rest by name. Pure.

    line ─ meaning ─┬─ hourly use of an instance ───────────────▶ charges[(instance, hour)]
                    ├─ fee of a capacity block, over its hours ─▶ the block's instances by use; unused: reserved[hour]
                    ├─ unused commitment, over its hours ───────▶ reserved[hour]
                    ├─ discount, over what it is a discount of ─▶ charges
                    └─ credit, refund, tax, other charges ──────▶ by_meaning alone: shown, never allocated

Effective cost: what was paid in advance counts in the hour in which it was used, and not when it was paid. The
formula of each line type is AWS' own for amortised cost; it stands in metering/cost/bill_cur.py. Money is picodollars,
time micro-hours. Σ by_meaning = all that the lines say; nothing is in it twice.
"""

import enum
import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from metering.cost.allocation import split
from metering.units import NS_PER_HOUR, div_half_up

MICRO_HOURS_PER_HOUR = 1_000_000
NETTING_PUSD = 10_000
"""What covered usage and its negation may differ by, per line: AWS rounds each to ten places."""


class Meaning(enum.StrEnum):
    """What a line of a bill is about."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"
    RESERVED = "reserved"  # use of a reserved instance
    SAVINGS_PLAN = "savings-plan"  # use that a plan covers
    CAPACITY_BLOCK = "capacity-block"  # the fee of a block, paid before it begins
    UNUSED = "unused commitment"  # of a reservation, a plan of the family, or reserved capacity
    DISCOUNT = "discount"
    NEGATION = "negation"  # takes back what a plan covers; costs nothing
    AMORTISED = "paid in advance"  # counts in the lines that use it; costs nothing here
    OTHER = "other charges of the instances"  # transfer, addresses: not its hours
    FEE = "fee"
    CREDIT = "credit"
    REFUND = "refund"
    TAX = "tax"
    UNKNOWN = "unknown line type"


HOURLY = frozenset({Meaning.ON_DEMAND, Meaning.SPOT, Meaning.RESERVED, Meaning.SAVINGS_PLAN})
"""Use of an instance within one hour."""
NOT_ALLOCATED = (Meaning.OTHER, Meaning.FEE, Meaning.CREDIT, Meaning.REFUND, Meaning.TAX)
"""Shown in lines of their own: a credit or a tax of one month is no price of hardware."""


class Line(NamedTuple):
    """A line of the bill, whatever its format.

    line_type: as the bill calls it. resource: the instance, or what else is billed. commitment: the id of the
    reservation or plan; capacity: that of the capacity reservation or block. family: of its instances, or of those that
    a plan is for. option: of what is unused, as in prices.
    list_uusd: the public on-demand price per hour. cash_pusd: before plans take it back. copies: how often the very
    same line stands in the files. of_month: its billing period is the month that is read.
    """

    meaning: Meaning
    line_type: str
    resource: str | None
    usage_type: str | None
    instance_type: str | None
    account: str | None
    region: str | None
    az: str | None
    start_ns: int
    end_ns: int
    micro_hours: int
    effective_pusd: int
    cash_pusd: int = 0
    list_uusd: int | None = None
    commitment: str | None = None
    capacity: str | None = None
    family: str | None = None
    option: str = Meaning.RESERVED.value
    copies: int = 1
    of_month: bool = True


class Charge(msgspec.Struct, kw_only=True):
    """What the bill has of one instance in one hour. list_uusd: public price per hour; None: not on the bill."""

    instance_type: str | None
    account: str | None
    region: str | None
    purchase_option: str
    micro_hours: int = 0
    pusd: int = 0
    list_uusd: int | None = None


class Reserved(NamedTuple):
    """What is paid for and runs no instance. id: of the reservation, plan or block; "" is unknown.

    family: of the instances that it is for; instance_type: a plan has none.
    """

    id: str
    family: str
    instance_type: str
    account: str
    region: str
    az: str
    purchase_option: str


class Tally(NamedTuple):
    """Lines of one kind. lines: how many; pusd: what they add up to."""

    lines: int = 0
    pusd: int = 0

    def plus(self, pusd: int, lines: int = 1) -> "Tally":
        """With so many more."""
        return Tally(self.lines + lines, self.pusd + pusd)


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """The lines of one month, folded.

    by_meaning: effective cost of all lines. outside: of lines and parts of lines in hours that are not of the month.
    unplaced: discounts of what is not there. doubled: lines that stand more than once, their copies counted here
    alone. unknown: by line type. unbalanced: (plan, usage type) → what covered usage and its negations differ by.
    """

    hours: range
    charges: dict[tuple[str, int], Charge]
    reserved: dict[int, dict[Reserved, int]]
    by_meaning: dict[Meaning, Tally]
    outside: Tally
    unplaced: Tally
    doubled: Tally
    unknown: dict[str, Tally]
    unbalanced: dict[tuple[str, str], int]

    @property
    def total_pusd(self) -> int:
        """All that the lines say, as effective cost."""
        return sum(tally.pusd for tally in self.by_meaning.values())


class ReadBill(msgspec.Struct, frozen=True, kw_only=True):
    """A bill that was read. digests: SHA-256 of each file, sorted.

    rows: in the files; split_rows: of the containers on wanted instances, which repeat the instance and are left out.
    covered_until_ns: where the newest row of the month ends, whatever it is of. invoiced: all rows have an invoice.
    approximate: the files hold binary doubles, which say a decimal only to 15 places.
    """

    format: str
    month: str
    digests: tuple[str, ...]
    rows: int
    other_months: tuple[str, ...]
    split_rows: int
    covered_until_ns: int
    invoiced: bool
    approximate: bool
    bill: Bill

    @property
    def digest(self) -> str:
        """Of the whole: that of its one file, or SHA-256 of those of all, a line each."""
        if len(self.digests) == 1:
            return self.digests[0]
        return hashlib.sha256("".join(f"{one}\n" for one in self.digests).encode()).hexdigest()


def fold(lines: Iterable[Line], hours: range) -> Bill:
    """Fold the lines of a bill. hours: of its month, since 1970 (UTC)."""
    folding = _Folding(hours)
    for line in lines:
        folding.add(line)
    folding.place_blocks()
    folding.place_discounts()
    return folding.bill()


def over_hours(amount: int, start_ns: int, end_ns: int) -> dict[int, int]:
    """Spread an amount evenly over [start_ns, end_ns), by hours; all of it is given out."""
    if end_ns <= start_ns:
        return {start_ns // NS_PER_HOUR: amount}
    weights = {
        hour: min(end_ns, (hour + 1) * NS_PER_HOUR) - max(start_ns, hour * NS_PER_HOUR)
        for hour in _hours_of(start_ns, end_ns)
    }
    return split(amount, weights)


def _hours_of(start_ns: int, end_ns: int) -> range:
    return range(start_ns // NS_PER_HOUR, max(start_ns // NS_PER_HOUR + 1, -(-end_ns // NS_PER_HOUR)))


class _Folding:
    """A bill while its lines come. Blocks and discounts wait for what they are spread over."""

    def __init__(self, hours: range) -> None:
        self._hours = hours
        self._charges: dict[tuple[str, int], Charge] = {}
        self._reserved: dict[int, dict[Reserved, int]] = {}
        self._by_meaning: dict[Meaning, Tally] = {}
        self._outside = Tally()
        self._unplaced = Tally()
        self._doubled = Tally()
        self._unknown: dict[str, Tally] = {}
        self._balance: dict[tuple[str, str], Tally] = {}
        self._in_block: dict[tuple[str, int], dict[str, int]] = {}
        self._longest: dict[tuple[str, int], int] = {}
        self._blocks: list[Line] = []
        self._discounts: list[Line] = []

    def add(self, line: Line) -> None:
        if line.copies > 1:
            self._doubled = self._doubled.plus(line.effective_pusd * (line.copies - 1), line.copies - 1)
        if line.meaning is Meaning.CAPACITY_BLOCK:
            self._blocks.append(line)
            return
        if not line.of_month:
            return
        self._count(line.meaning, line.effective_pusd)
        if line.meaning in (Meaning.SAVINGS_PLAN, Meaning.NEGATION):
            plan = line.commitment or "", line.usage_type or ""
            self._balance[plan] = self._balance.get(plan, Tally()).plus(line.cash_pusd)
        if line.meaning in HOURLY:
            self._charge(line)
        elif line.meaning is Meaning.UNUSED and line.effective_pusd:
            for hour, part in over_hours(line.effective_pusd, line.start_ns, line.end_ns).items():
                self._reserve(hour, line, part)
        elif line.meaning is Meaning.DISCOUNT:
            self._discounts.append(line)
        elif line.meaning is Meaning.UNKNOWN:
            self._unknown[line.line_type] = self._unknown.get(line.line_type, Tally()).plus(
                line.effective_pusd
            )

    def place_blocks(self) -> None:
        """Spread the fee of each block over its hours, and those over the instances that ran in it."""
        for line in self._blocks:
            parts = over_hours(line.effective_pusd, line.start_ns, line.end_ns)
            if line.of_month:
                self._count(line.meaning, line.effective_pusd)
            elif inside := {hour: part for hour, part in parts.items() if hour in self._hours}:
                self._count(line.meaning, sum(inside.values()))
                parts = inside
            else:
                continue
            room = self._room(line, parts)
            for hour, part in parts.items():
                self._place_block(line, hour, part, room)

    def place_discounts(self) -> None:
        """Spread each discount over what was billed of its instance, or of its type, in its hours, by cost."""
        by_type: dict[tuple[str, int], list[str]] = {}
        for (instance, hour), charge in self._charges.items():
            by_type.setdefault((charge.instance_type or "", hour), []).append(instance)
        off: dict[tuple[str, int], int] = {}
        for line in self._discounts:
            wanted = {
                (instance, hour): max(0, self._charges[instance, hour].pusd)
                for hour in _hours_of(line.start_ns, line.end_ns)
                for instance in self._discounted(line, hour, by_type)
            }
            if not any(wanted.values()):
                self._unplaced = self._unplaced.plus(line.effective_pusd)
                continue
            for place, part in split(line.effective_pusd, wanted).items():
                off[place] = off.get(place, 0) + part
        for place, part in off.items():
            self._charges[place].pusd += part

    def bill(self) -> Bill:
        return Bill(
            hours=self._hours,
            charges=self._charges,
            reserved=self._reserved,
            by_meaning=self._by_meaning,
            outside=self._outside,
            unplaced=self._unplaced,
            doubled=self._doubled,
            unknown=self._unknown,
            unbalanced={
                plan: tally.pusd
                for plan, tally in self._balance.items()
                if abs(tally.pusd) > tally.lines * NETTING_PUSD
            },
        )

    def _count(self, meaning: Meaning, pusd: int) -> None:
        self._by_meaning[meaning] = self._by_meaning.get(meaning, Tally()).plus(pusd)

    def _charge(self, line: Line) -> None:
        hour = line.start_ns // NS_PER_HOUR
        assert line.resource is not None
        if hour not in self._hours:
            self._outside = self._outside.plus(line.effective_pusd)
            return
        place = line.resource, hour
        if (charge := self._charges.get(place)) is None:
            charge = self._charges[place] = Charge(
                instance_type=line.instance_type,
                account=line.account,
                region=line.region,
                purchase_option=line.meaning.value,
            )
        charge.micro_hours += line.micro_hours
        charge.pusd += line.effective_pusd
        if line.list_uusd is not None:
            charge.list_uusd = max(line.list_uusd, charge.list_uusd or 0)
        if line.micro_hours > self._longest.get(
            place, 0
        ):  # of an hour that is billed in parts the longest tells
            self._longest[place] = line.micro_hours
            charge.purchase_option = line.meaning.value
        if line.capacity is not None:
            used = self._in_block.setdefault((line.capacity, hour), {})
            used[line.resource] = used.get(line.resource, 0) + line.micro_hours

    def _reserve(self, hour: int, line: Line, pusd: int) -> None:
        if hour not in self._hours:
            self._outside = self._outside.plus(pusd)
            return
        reserved = Reserved(
            line.commitment or line.capacity or line.resource or "",
            line.family or "",
            line.instance_type or "",
            line.account or "",
            line.region or "",
            line.az or "",
            line.option,
        )
        of_hour = self._reserved.setdefault(hour, {})
        of_hour[reserved] = of_hour.get(reserved, 0) + pusd

    def _room(self, line: Line, parts: Iterable[int]) -> int:
        """Micro-hours that a block has in an hour: its instances by the fee's quantity, else as many as ever ran."""
        span_ns = line.end_ns - line.start_ns
        if span_ns > 0 and (count := div_half_up(line.micro_hours * 3_600_000, span_ns)) > 0:
            return count * MICRO_HOURS_PER_HOUR
        return max(sum(self._used(line, hour).values()) for hour in parts)

    def _place_block(self, line: Line, hour: int, part: int, room: int) -> None:
        used = self._used(line, hour)
        free = max(0, room - sum(used.values()))
        weights = {**used, "": free if free or used else 1}
        for instance, share in split(part, weights).items():
            if instance:
                charge = self._charges[instance, hour]
                charge.pusd += share
                charge.purchase_option = Meaning.CAPACITY_BLOCK.value
            elif share:
                self._reserve(hour, line, share)

    def _used(self, line: Line, hour: int) -> dict[str, int]:
        return {
            instance: micro_hours
            for instance, micro_hours in self._in_block.get((line.capacity or "", hour), {}).items()
            if micro_hours
        }

    def _discounted(self, line: Line, hour: int, by_type: dict[tuple[str, int], list[str]]) -> Iterator[str]:
        if line.resource is not None:
            if (line.resource, hour) in self._charges:
                yield line.resource
            return
        for instance in by_type.get((line.instance_type or "", hour), ()):
            charge = self._charges[instance, hour]
            if line.account in (None, charge.account) and line.region in (None, charge.region):
                yield instance
