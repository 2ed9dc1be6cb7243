"""Postings and balances: what the journals say each tenant used, per hour. Pure.

    record ─▶ Posting ─┐
    record ─▶ Posting ─┼─▶ Batch(tenant, writer, prev, last, sums) ─▶ the store's script, or Balances
    record ─▶ Posting ─┘

A *mark* names the last record of one writer that is folded into a tenant's balances. A batch is taken
only where its `prev` is the mark, and then moves the mark to its `last` in the same step: so a repeat,
an overlap or a gap changes nothing, and all who fold a journal, at any time, make one stream.

`Balances` is the store's script in Python: the same checks, the same order, the same answers.
Keys, batch and answers are described in deploy/reference/ledger.md.
"""

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from metering.limits.terms import TENANT, windows
from metering.record import Billed, CallRecord
from metering.units import NS_PER_HOUR

UNITS = ("calls", "prompt_tokens", "cached_prompt_tokens", "completion_tokens", "cost_pusd", "unpriced_calls")
_COST = UNITS.index("cost_pusd")
RANGE_MAX = 4 * 10**18
"""|value| + Σ|amounts of a batch| of a field is at most this; well inside the store's 64 bits."""
FAMILY_UNKNOWN = "unknown"
LEAF_DIGITS = 16
"""A mark carries this many hex digits of its record's leaf."""
FLOOR_NONE = "0000000000"
"""The floor of a ledger all of whose hours are open."""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_HOUR = datetime.timedelta(hours=1)
_MARK_PATTERN = re.compile(r"(0|[1-9][0-9]{0,15}):([0-9a-f]{16})")
_HOUR_PATTERN = re.compile(r"[0-9]{10}")
_INTEGER_PATTERN = re.compile(r"0|-?[1-9][0-9]*")


class Mark(NamedTuple):
    """A record's place in its writer's journal: its seq and the first 16 hex digits of its leaf."""

    seq: int
    leaf: str

    def __str__(self) -> str:
        return f"{self.seq}:{self.leaf}"

    @classmethod
    def parse(cls, text: str) -> "Mark":
        """Read `seq:leaf`. Raises ValueError."""
        match = _MARK_PATTERN.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no mark")
        return cls(int(match[1]), match[2])


START = Mark(0, "0" * LEAF_DIGITS)
"""The mark before a writer's first record; the store keeps nothing for it."""


class Account(NamedTuple):
    """What amounts are summed by, within a tenant. hour: hours since 1970 (UTC), of `finished`."""

    hour: int
    project: str
    model: str
    family: str


class Posting(NamedTuple):
    """What one record moves. amounts: one for each of UNITS; 0 where the record knows none.

    spender: hours since 1970 (UTC) of its admission, and its key: whose budgets it is spent of.
    """

    mark: Mark
    account: Account
    amounts: tuple[int, ...]
    spender: tuple[int, str]


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive records of one (tenant, writer), summed. prev = last and no sums: the probe.

    sums: (hour as `yyyymmddhh`, field as `project|model|family|unit`) → amount.
    spent: (window as `yyyymm`, `yyyymmdd` or `yyyymmddhh`, scope) → picodollars (metering/limits/terms.py).
    """

    tenant: str
    writer: str
    prev: Mark
    last: Mark
    sums: dict[tuple[str, str], int]
    spent: dict[tuple[str, str], int] = {}

    def __post_init__(self) -> None:
        assert self.prev.seq < self.last.seq or (self.prev == self.last and not self.sums)


class Posted(msgspec.Struct, frozen=True):
    """The batch was taken: the mark is its `last` now."""


class Done(msgspec.Struct, frozen=True):
    """The mark is at the batch's `last` or behind it: nothing was to be done."""

    mark: Mark


class Gap(msgspec.Struct, frozen=True):
    """The mark is not the batch's `prev`: cut again from the mark."""

    mark: Mark


class Refused(msgspec.Struct, frozen=True):
    """Nothing was taken, and no repeat will be: the store holds, or would hold, what is no balance.

    reason: TYPE (a key of another type), FORM (no integer, no mark, no floor) or RANGE; where: the key or field.
    """

    reason: str
    where: str


Reply = Posted | Done | Gap | Refused


def mark(seq: int, leaf: str) -> Mark:
    """The mark of the record at this seq with this leaf (64 hex digits)."""
    return Mark(seq, leaf[:LEAF_DIGITS])


def posting(record: CallRecord | Billed, seq: int, leaf: str) -> Posting:
    """What the record at this place in its journal moves.

    A count that is not known adds nothing; a cost that is not known counts as an unpriced call.
    """
    usage = record.usage
    cost = record.cost_pusd
    assert record.finished_ns is not None
    assert record.admitted_ns is not None
    assert record.model is not None
    account = (
        record.finished_ns // NS_PER_HOUR,
        record.project or "",
        record.model,
        record.instance_family or FAMILY_UNKNOWN,
    )
    amounts = (
        1,
        usage.prompt_tokens or 0,
        usage.cached_prompt_tokens or 0,
        usage.completion_tokens or 0,
        cost or 0,
        1 if cost is None else 0,
    )
    # A named tuple's own `__new__` is a function of Python, which three times a call costs as much as all else here.
    made = tuple.__new__
    mark = made(Mark, (seq, leaf[:LEAF_DIGITS]))
    spender = (record.admitted_ns // NS_PER_HOUR, record.key_id)
    return made(Posting, (mark, made(Account, account), amounts, spender))


Origin = tuple[Account, tuple[int, str]]
"""What all that a batch says is summed by: a posting's account and its spender."""


def by_origin(postings: Iterable[Posting]) -> dict[Origin, list[int]]:
    """Amounts by origin, each in the order of UNITS."""
    found: dict[Origin, list[tuple[int, ...]]] = {}
    for _, account, amounts, spender in postings:
        origin = account, spender
        held = found.get(origin)
        if held is None:
            found[origin] = [amounts]
        else:
            held.append(amounts)
    return {origin: [*map(sum, zip(*rows, strict=True))] for origin, rows in found.items()}


def total(origins: Mapping[Origin, list[int]]) -> dict[Account, list[int]]:
    """Amounts by account."""
    found: dict[Account, list[int]] = {}
    for (account, _), amounts in origins.items():
        add(found.setdefault(account, [0] * len(UNITS)), amounts)
    return found


def add(held: list[int], amounts: Sequence[int]) -> None:
    """Add amounts, each to its own; both in the order of UNITS."""
    for index, amount in enumerate(amounts):
        held[index] += amount


def sums(origins: Mapping[Origin, list[int]]) -> dict[tuple[str, str], int]:
    """Amounts by (hour, field), as the store keeps them; a field that stays 0 is left out."""
    return {
        (hour_text(account.hour), field_text(account, unit)): amount
        for account, amounts in total(origins).items()
        for unit, amount in zip(UNITS, amounts, strict=True)
        if amount
    }


def spent(origins: Mapping[Origin, list[int]]) -> dict[tuple[str, str], int]:
    """Costs by (window, scope), as budgets see them: windows of the admission, whatever the end."""
    found: dict[tuple[str, str], int] = {}
    for (account, (hour, key_id)), amounts in origins.items():
        cost, project = amounts[_COST], account.project
        if not cost:
            continue
        scopes = [TENANT, f"k:{key_id}", f"m:{account.model}", *([f"p:{project}"] if project else [])]
        for window in windows(hour):
            for scope in scopes:
                found[window, scope] = found.get((window, scope), 0) + cost
    return found


def postings(record: CallRecord) -> dict[tuple[str, str], int]:
    """What one record adds to its tenant's balances: (hour, field) → amount."""
    return sums(by_origin([posting(record, record.seq, START.leaf)]))


def batch(tenant: str, writer: str, prev: Mark, records: Sequence[Posting]) -> Batch:
    """Sum up records, at least one, that follow the record of `prev` without a gap."""
    origins = by_origin(records)
    return Batch(
        tenant=tenant,
        writer=writer,
        prev=prev,
        last=records[-1].mark,
        sums=sums(origins),
        spent=spent(origins),
    )


def probe(tenant: str, writer: str, at: Mark) -> Batch:
    """The batch that only asks where the mark is: `Done` or `Gap`."""
    return Batch(tenant=tenant, writer=writer, prev=at, last=at, sums={})


def by_writer(batch: Batch) -> dict[tuple[str, str], int]:
    """The batch's amounts by (hour, `writer|unit`): what they are whatever the account."""
    sums: dict[tuple[str, str], int] = {}
    for (hour, field), amount in batch.sums.items():
        key = (hour, f"{batch.writer}|{field.rpartition('|')[2]}")
        sums[key] = sums.get(key, 0) + amount
    return sums


def hour_text(hour: int) -> str:
    """Hours since 1970 (UTC) as `yyyymmddhh`."""
    return (_EPOCH + hour * _HOUR).strftime("%Y%m%d%H")


def hour_number(text: str) -> int:
    """`yyyymmddhh` as hours since 1970 (UTC). Raises ValueError."""
    if len(text) != 10 or not text.isdecimal():
        raise ValueError(f"{text!r} is no hour")
    moment = datetime.datetime.strptime(text, "%Y%m%d%H").replace(tzinfo=datetime.UTC)
    return (moment - _EPOCH) // _HOUR


def field_text(account: Account, unit: str) -> str:
    """The name of a balance within its tenant and hour: `project|model|family|unit`."""
    return f"{account.project}|{account.model}|{account.family}|{unit}"


def field_parts(hour: int, text: str) -> tuple[Account, str]:
    """Account and unit that a field of this hour stands for. Raises ValueError."""
    parts = text.split("|")
    if len(parts) != 4:
        raise ValueError(f"{text!r} is no field of the ledger")
    project, model, family, unit = parts
    return Account(hour, project, model, family), unit


Amounts = list[int]
"""One for each of UNITS, in their order."""


class Held(NamedTuple):
    """What the store has of one tenant, at one moment.

    by_writer: the same amounts as `sums`, by hour and by whose records they are.
    floor: hours below it are closed, and their keys may be gone.
    """

    marks: Mapping[str, Mark]
    sums: Mapping[Account, Amounts]
    by_writer: Mapping[tuple[int, str], Amounts]
    floor: int


class Balances:
    """The store and its script in Python, for proofs and for tests of the real one.

    values: what the store's hashes hold, as text: (tenant, hour, field) → integer.
    by_writer: the same by whose records they are: (tenant, hour, `writer|unit`) → integer.
    spent: of budgets: (tenant, window, scope) → integer.
    marks: (tenant, writer) → `seq:leaf`, as text too: what a store holds need not be well-formed.
    floors: tenant → `yyyymmddhh`; hours below it are closed.
    epoch, epochs, ready, writers: as metering/ledger/epochs.py has them; the last as text, by name.
    """

    def __init__(self) -> None:
        self.epoch = ""
        self.epochs: dict[str, str] = {}
        self.ready: dict[str, str] = {}
        self.writers: dict[str, str] = {}
        self.values: dict[tuple[str, str, str], str] = {}
        self.by_writer: dict[tuple[str, str, str], str] = {}
        self.spent: dict[tuple[str, str, str], str] = {}
        self.marks: dict[tuple[str, str], str] = {}
        self.floors: dict[str, str] = {}

    def post(self, batch: Batch) -> Reply:
        """Take a batch, or say why not: all checks come before the first write."""
        try:
            at = Mark.parse(self.marks.get((batch.tenant, batch.writer), str(START)))
        except ValueError:
            return Refused("FORM", batch.writer)
        if at.seq >= batch.last.seq:
            return Done(at)
        if at != batch.prev:
            return Gap(at)
        floor = self.floors.get(batch.tenant, FLOOR_NONE)
        if not _HOUR_PATTERN.fullmatch(floor):
            return Refused("FORM", "floor")
        moved = [
            (values, (batch.tenant, hour, field), amount)
            for values, sums in (
                (self.values, batch.sums),
                (self.by_writer, by_writer(batch)),
                (self.spent, batch.spent),
            )
            for (hour, field), amount in sums.items()
            if hour >= floor[: len(hour)]  # of a month or a day: until all of it is closed
        ]
        for values, key, amount in moved:
            value = values.get(key, "0")
            if not _INTEGER_PATTERN.fullmatch(value):
                return Refused("FORM", key[2])
            if abs(int(value)) + abs(amount) > RANGE_MAX:
                return Refused("RANGE", key[2])
        for values, key, amount in moved:
            values[key] = str(int(values.get(key, "0")) + amount)
        self.marks[batch.tenant, batch.writer] = str(batch.last)
        return Posted()

    def tenant(self, name: str) -> Mapping[tuple[str, str], int]:
        """One tenant's balances: (hour, field) → amount."""
        return {
            (hour, field): int(value)
            for (tenant, hour, field), value in self.values.items()
            if tenant == name
        }

    def renew(self, seen: str, new: str) -> str:
        """Begin the epoch `new`, unless it is not `seen` any more. returns: the one that is now."""
        if self.epoch == seen:
            self.epoch = new
        return self.epoch

    def begin(self, tenant: str, epoch: str) -> None:
        """Take a tenant into an epoch; it is not ready in it yet."""
        if self.epochs.get(tenant) != epoch:
            self.epochs[tenant] = epoch
            self.ready.pop(tenant, None)

    def set_ready(self, tenant: str, epoch: str) -> bool:
        """Say that a tenant is ready, if it is in this epoch still."""
        if self.epochs.get(tenant) != epoch:
            return False
        self.ready[tenant] = epoch
        return True

    def set_floor(self, tenant: str, hour: str) -> str:
        """Raise a tenant's floor; one that is higher stays. returns: the floor that is now."""
        self.floors[tenant] = max(hour, self.floors.get(tenant, FLOOR_NONE))
        return self.floors[tenant]
