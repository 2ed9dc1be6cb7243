"""What a closed hour says of itself, and what a month does. Pure.

    close/rows/day=2026-11-28/2026-11-28T13-rev-1-<first 12 of its SHA-256>.parquet   the rows (close_row.py)
    close/2026-11-28T13/rev-1/manifest.json    put last, and once: that revision is closed
    close/months/2026-11/0001.json             a month's states, one after the other

Rows stand apart from manifests because a table of SQL takes every file below its place for one of its own.
A reader believes only what a manifest names. Both are canonical JSON; hashes are SHA-256 in hex, money is a decimal
string in USD with 12 places. The newest revision of an hour counts; what came before it stays.
"""

import datetime
import enum
import re
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from metering.archive.manifest import NotAManifest
from metering.cost.charge_terms import ChargeTerms
from metering.cost.close_row import CloseRow, RowKind
from metering.cost.work_units import WorkUnits
from metering.units import usd_text

VERSION = 1
CLOSE = "close/"
MONTHS = "close/months/"
ROWS = "close/rows/"
LOOKS = "close/looks/"
"""Rows of looks into running hours, by hour: what is no revision must not stand among those that are."""
MANIFEST = "manifest.json"
LIST = "list"
BILL = "bill:"

_HOUR_PATTERN = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})T([0-9]{2})")
_MONTH_PATTERN = re.compile(r"[0-9]{4}-[0-9]{2}")
_HOURS_PER_DAY = 24
_EPOCH = datetime.date(1970, 1, 1)
_ENCODER = msgspec.json.Encoder(order="deterministic")


class Reason(enum.StrEnum):
    """Why there is a revision."""

    FIRST = "first"
    LATE = "late"  # records or registrations came after the close
    BILL = "bill"  # the effective cost took the place of the list's
    PRICES = "prices"  # of a type that had no price one is known now
    NOW = "now"  # of a running hour, for a look; no revision, and replaced by the close


class WriterSeen(msgspec.Struct, frozen=True, kw_only=True):
    """How far a writer's journal went into the close: the line at `seq`, whose leaf binds all lines before it.

    complete: `tick`: nothing of the hour was open behind it; `end`: the journal has ended; `deadline`: neither was
    seen in time, so that more may come.
    """

    complete: Literal["tick", "end", "deadline"]
    leaf: str
    seq: int
    writer: str


class RowsObject(msgspec.Struct, frozen=True, kw_only=True):
    """The Parquet file of a revision."""

    bytes: int
    count: int
    path: str
    sha256: str


NO_ROWS = RowsObject(bytes=0, count=0, path="", sha256="")
"""Of a manifest that is not put yet."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of the rows, in USD. instances: what all rows cost but shared costs; rest: each kind but `tenant`.

    under_recovery: instances − estimated. micro_hours: of each kind; those without a price are in no sum of money.
    """

    calls: int
    estimated: str
    instances: str
    micro_hours: dict[str, int]
    rest: dict[str, str]
    tenants: str
    under_recovery: str


class PoolTime(msgspec.Struct, frozen=True, kw_only=True):
    """How far the backends of a model were used, as sums that can be added over hours.

    owned_ns, ready_ns, busy_ns: of its backends (on each instance): paid for, able to serve, with a call.
    slot_ns of slots_ns (slots × owned_ns, where slots are known); work_units of capacity_units (capacity an hour ×
    ready_ns, where it is calibrated; 0: it is not).
    """

    busy_ns: int = 0
    capacity_units: int = 0
    owned_ns: int = 0
    ready_ns: int = 0
    slot_ns: int = 0
    slots_ns: int = 0
    work_units: int = 0

    def __add__(self, other: "PoolTime") -> "PoolTime":
        return PoolTime(
            **{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__}
        )

    def ratios(self) -> "Ratios":
        """In parts per million."""
        return Ratios(
            busy=_ppm(self.busy_ns, self.owned_ns),
            capacity=_ppm(self.work_units, self.capacity_units),
            used=_ppm(self.slot_ns, self.slots_ns),
        )


class Ratios(msgspec.Struct, frozen=True, kw_only=True):
    """Parts per million; None: it can't be said (nothing was paid for, slots unknown, capacity not calibrated).

    used: slot time of all attempts ÷ slots × paid time; busy: time with a call ÷ paid time; capacity: work units ÷ what
    the ready time could have done.
    """

    busy: int | None
    capacity: int | None
    used: int | None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One revision of an hour.

    hour: since 1970, UTC; the path says it as text. basis: `list`, or `bill:<sha256>` of the bill whose effective cost
    the rows carry. made_by: of whom: `clerk`, or `cli:<user>`. missing: writers that are known and could not be read;
    what the split could not do as told is in remarks, as «backend on instance: what» (metering/cost/allocation.py).
    prices: digest of the price book; weights: as they were used, so that a later revision uses the same.
    instances: paid micro-hours of each; paid: a digest of all that was known of them. pools: by model.
    simulated: instance types of hardware that was not there, which nobody was charged for.
    unpriced: instance types without a price, whose money is null. unbilled: instances that are not on the bill of the
    basis, and have kept their list price.
    """

    basis: str
    closed_ns: int
    hour: int
    instances: dict[str, int]
    made_by: str
    method: str
    missing: tuple[str, ...]
    paid: str
    pools: dict[str, PoolTime]
    prices: str
    ratios: Ratios
    reason: Reason
    remarks: tuple[str, ...]
    revision: int
    rows: RowsObject
    sharing: str
    simulated: tuple[str, ...] = ()
    totals: Totals
    unbilled: tuple[str, ...] = ()
    unpriced: tuple[str, ...]
    v: int = VERSION
    weights: tuple[WorkUnits, ...]
    writers: tuple[WriterSeen, ...]


_MANIFESTS = msgspec.json.Decoder(Manifest)
"""Made here: msgspec learns a type at its first use, and crashes if two threads do so at once."""


class MonthState(enum.StrEnum):
    """In this order; a month never goes back."""

    PROVISIONAL = "provisional"
    RECONCILED = "reconciled"  # with a bill
    CLOSED = "closed"  # by a person; only corrections after it


class HourRevision(msgspec.Struct, frozen=True, kw_only=True):
    """Which revision of an hour; sha256: of its manifest."""

    revision: int
    sha256: str


class Month(msgspec.Struct, frozen=True, kw_only=True):
    """A state of a month, and the hours as they were then, by their text.

    bills: SHA-256 of each bill's file; none of a month that was closed without. number: from 1; 0: nobody has said
    anything of this month, it is provisional. terms: of a closed month, with the cards that held in it; None: it is not
    closed, or was before months kept them.
    """

    at_ns: int
    bills: tuple[str, ...]
    by: str
    hours: dict[str, HourRevision]
    month: str
    number: int
    state: MonthState
    terms: ChargeTerms | None = None
    v: int = VERSION


_MONTHS = msgspec.json.Decoder(Month)


def provisional(month: str) -> Month:
    """Of a month of which nobody has said anything."""
    return Month(at_ns=0, bills=(), by="", hours={}, month=month, number=0, state=MonthState.PROVISIONAL)


def encode(one: Manifest | Month) -> bytes:
    """As it stands in its file, with a newline at its end."""
    return _ENCODER.encode(one) + b"\n"


def decode(data: bytes) -> Manifest:
    """Raises NotAManifest."""
    try:
        return _MANIFESTS.decode(data)
    except msgspec.MsgspecError as error:
        raise NotAManifest(str(error)) from error


def decode_month(data: bytes) -> Month:
    """Raises NotAManifest."""
    try:
        return _MONTHS.decode(data)
    except msgspec.MsgspecError as error:
        raise NotAManifest(str(error)) from error


def hour_text(hour: int) -> str:
    """As paths and months have it: 2026-11-28T13."""
    days, hours = divmod(hour, _HOURS_PER_DAY)
    return f"{_EPOCH + datetime.timedelta(days=days)}T{hours:02d}"


def day_text(hour: int) -> str:
    """The day of an hour: 2026-11-28."""
    return hour_text(hour)[:10]


def parse_hour(text: str) -> int | None:
    """The reverse; None: that is no hour."""
    match = _HOUR_PATTERN.fullmatch(text)
    if match is None or int(match[2]) >= _HOURS_PER_DAY:
        return None
    try:
        days = datetime.date.fromisoformat(match[1]) - _EPOCH
    except ValueError:
        return None
    return days.days * _HOURS_PER_DAY + int(match[2])


def month_hours(month: str) -> range:
    """The hours of a month, as in 2026-11. Raises ValueError: that is none."""
    if _MONTH_PATTERN.fullmatch(month):
        try:
            first = datetime.date.fromisoformat(f"{month}-01")
            after = (first + datetime.timedelta(days=31)).replace(day=1)
        except (ValueError, OverflowError):
            pass
        else:
            start = (first - _EPOCH).days * _HOURS_PER_DAY
            if start >= 0:
                return range(start, (after - _EPOCH).days * _HOURS_PER_DAY)
    raise ValueError(f"{month!r} is no month since 1970; write it as in 2026-11")


def month_of(hour: int) -> str:
    """The month that an hour belongs to."""
    return hour_text(hour)[:7]


def totals(rows: Iterable[CloseRow]) -> Totals:
    """Sums of these rows."""
    calls = estimated = 0
    money: dict[RowKind, int] = {}
    micro_hours: dict[RowKind, int] = {}
    for row in rows:
        calls += row.calls
        estimated += row.estimated_pusd
        micro_hours[row.kind] = micro_hours.get(row.kind, 0) + row.micro_hours
        if row.allocated_pusd is not None:
            money[row.kind] = money.get(row.kind, 0) + row.allocated_pusd
    instances = sum(pusd for kind, pusd in money.items() if kind is not RowKind.SHARED_COST)
    rest = {kind.value: usd_text(pusd) for kind, pusd in money.items() if kind is not RowKind.TENANT}
    return Totals(
        calls=calls,
        estimated=usd_text(estimated),
        instances=usd_text(instances),
        micro_hours={kind.value: amount for kind, amount in micro_hours.items()},
        rest=rest,
        tenants=usd_text(money.get(RowKind.TENANT, 0)),
        under_recovery=usd_text(instances - estimated),
    )


def sum_of(pools: Mapping[str, PoolTime]) -> PoolTime:
    """Of all pools together."""
    return sum(pools.values(), start=PoolTime())


def _ppm(part: int, whole: int) -> int | None:
    return part * 1_000_000 // whole if whole else None
