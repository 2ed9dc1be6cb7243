"""Do journal, ledger, metrics and export say the same? Compared at one cut. Pure.

    journal of a writer   1 ─ 2 ─ 3 ─ 4 ─ 5 ─ 6 ─ 7 ─ 8
                                  │           └ its metrics page stands for the lines up to here
                                  └ the ledger's mark: one tenant's records up to here are in the balances

While calls go on nothing stands still, so each figure is compared with the journal as far as that figure
says that it goes: the ledger by its marks, a page by its seq. What is behind is lag, which has a metric of
its own; what differs at the cut is a fault. Differences are summed without their signs, so that two of
them never hide each other.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from metering.ledger import ledger
from metering.ledger.ledger import UNITS, Account, Amounts, Held
from metering.pages import families
from metering.pages.families import Totals
from metering.record import CallRecord, Line, Metered, Refused

JOURNAL_LEDGER = "journal-ledger"
JOURNAL_METRICS = "journal-metrics"
LEDGER_EXPORT = "ledger-export"
PAIRS = (JOURNAL_LEDGER, JOURNAL_METRICS, LEDGER_EXPORT)
WRITERS = "writers"
"""Unit of journals that the ledger has figures of and that nobody can find."""

_TOKEN_UNITS = {
    "prompt": "prompt_tokens", "cached_prompt": "cached_prompt_tokens", "completion": "completion_tokens",
}  # fmt: skip

Key = TypeVar("Key")
Place = TypeVar("Place", Account, tuple[int, str])


class Difference(NamedTuple):
    """Two figures that should be one. left, right: in the order of the pair's name.

    where: account, or hour (0: all of them) and writer, that both are of; None: the tenant's as a whole.
    """

    pair: str
    unit: str
    tenant: str
    where: Account | tuple[int, str] | None
    left: int
    right: int

    @property
    def hour(self) -> int:
        """The hour that it is in (since 1970, UTC); 0: in none."""
        match self.where:
            case Account(hour) | (hour, _):
                return hour
        return 0

    @property
    def size(self) -> int:
        """How far they are apart."""
        return abs(self.left - self.right)


def sizes(differences: Iterable[Difference]) -> dict[tuple[str, str], int]:
    """Σ sizes by (pair, unit), those without a difference included."""
    totals = {(pair, unit): 0 for pair in PAIRS for unit in UNITS} | {(JOURNAL_LEDGER, WRITERS): 0}
    for one in differences:
        totals[one.pair, one.unit] += one.size
    return totals


class Ledgered:
    """One writer's records by tenant and account, each tenant's as far as its mark in the ledger.

    upto, sums: of each tenant, the seq that was got to, and what there is up to it. read: all lines up to this seq
    have been offered; passed: of a tenant, the first record that was beyond its mark then.
    """

    def __init__(
        self, upto: dict[str, int] | None = None, sums: dict[str, dict[Account, Amounts]] | None = None
    ) -> None:
        self.upto = upto or {}
        self.sums = sums or {}
        self.read = 0
        self.passed: dict[str, int] = {}

    def after(self, cuts: Mapping[str, int]) -> int | None:
        """The seq above which lines are to be read to get to these cuts (tenant → seq); None: it is there.

        A tenant whose mark has fallen back is begun again.
        """
        for tenant, cut in cuts.items():
            if self.upto.get(tenant, 0) > cut:
                del self.upto[tenant], self.sums[tenant]
                self.passed[tenant] = 1
        behind = (tenant for tenant, cut in cuts.items() if self.upto.get(tenant, 0) < cut)
        return min(map(self._next_after, behind), default=None)

    def _next_after(self, tenant: str) -> int:
        """The seq above which its next record is: what was read since its last one had none, or has one passed over."""
        passed = self.passed.get(tenant)
        return max(self.upto.get(tenant, 0), self.read if passed is None else passed - 1)

    def add(self, record: CallRecord | Metered, seq: int, leaf: str, cuts: Mapping[str, int]) -> None:
        """Take in a record, of lines that are read in order from above `after`; what is there is passed over."""
        tenant = record.tenant
        assert tenant is not None
        if seq <= self.upto.get(tenant, 0):
            return
        if seq > cuts.get(tenant, 0):
            self.passed.setdefault(tenant, seq)
            return
        posting = ledger.posting(record, seq, leaf)
        held = self.sums.setdefault(tenant, {}).setdefault(posting.account, [0] * len(UNITS))
        ledger.add(held, posting.amounts)
        self.upto[tenant] = seq
        self.passed.pop(tenant, None)


class Counted(msgspec.Struct):
    """One writer's lines up to `seq`: what its metrics page should show.

    sums: by tenant, refused requests among the calls, those of no tenant under `unknown`.
    lasts: each tenant's last record. backends: prompt and completion tokens of all attempts, by backend.
    """

    seq: int = 0
    sums: dict[str, Amounts] = {}
    lasts: dict[str, int] = {}
    backends: dict[str, int] = {}

    def add(self, line: Line | Metered | None, seq: int, leaf: str) -> None:
        """Take in the next line; None: one of another kind."""
        assert seq > self.seq
        self.seq = seq
        if isinstance(line, CallRecord | Metered) and line.kind == "call":
            assert line.tenant is not None
            ledger.add(self._held(line.tenant), ledger.posting(line, seq, leaf).amounts)
            self.lasts[line.tenant] = seq
            for attempt in line.attempts:
                tokens = (attempt.usage.prompt_tokens or 0) + (attempt.usage.completion_tokens or 0)
                self.backends[attempt.backend] = self.backends.get(attempt.backend, 0) + tokens
        elif isinstance(line, Refused | Metered) and line.kind == "refused":
            self._held(line.tenant or families.UNKNOWN)[0] += line.count

    def _held(self, tenant: str) -> Amounts:
        return self.sums.setdefault(tenant, [0] * len(UNITS))


def journal_ledger(
    tenant: str, held: Held, journals: Mapping[str, Ledgered], known: frozenset[str]
) -> Iterator[Difference]:
    """The journals that can be read here against the ledger, each up to its mark.

    journals: by writer. known: writers of other gateways that are there to answer for themselves.

    Where all writers that the ledger has figures of are among `journals`, account by account. Else
    those that are, hour by hour; and what the ledger has by account against what it has by writer.
    """
    strangers = held.marks.keys() - journals.keys()
    for writer in sorted(strangers - known):
        yield Difference(JOURNAL_LEDGER, WRITERS, tenant, (0, writer), 0, 1)  # of no hour
    ours = [journals[writer].sums.get(tenant, {}) for writer in held.marks.keys() & journals.keys()]
    if not strangers:
        left: dict[Account, Amounts] = {}
        for sums in ours:
            _merge(left, sums, held.floor)
        right = {account: held.sums[account] for account in held.sums if account.hour >= held.floor}
        yield from _compare(JOURNAL_LEDGER, tenant, left, right)
        return
    for writer in sorted(held.marks.keys() & journals.keys()):
        by_hour = _by_hour(writer, journals[writer].sums.get(tenant, {}), held.floor)
        theirs = {at: one for at, one in held.by_writer.items() if at[1] == writer and at[0] >= held.floor}
        yield from _compare(JOURNAL_LEDGER, tenant, by_hour, theirs)
    hours: dict[tuple[int, str], Amounts] = {}
    for (hour, _), amounts in held.by_writer.items():
        if hour >= held.floor:
            _add(hours, (hour, ""), amounts)
    yield from _compare(JOURNAL_LEDGER, tenant, hours, _by_hour("", held.sums, held.floor))


def journal_metrics(shown: Totals, journals: Iterable[Counted]) -> Iterator[Difference]:
    """The journals, each up to its page's seq, against the counters of all pages."""
    left: dict[str, Amounts] = {}
    for journal in journals:
        for tenant, amounts in journal.sums.items():
            _add(left, tenant, amounts)
    right: dict[str, Amounts] = {}
    for (family, labels), value in shown.items():
        unit = None
        if family == families.CALLS.name:
            unit = "calls"
        elif family == families.COST.name:
            unit = "cost_pusd"
        elif family == families.TOKENS.name:
            unit = _TOKEN_UNITS.get(labels[families.TOKENS.labels.index("kind")])
        if unit is not None:
            right.setdefault(labels[0], [0] * len(UNITS))[UNITS.index(unit)] += sum(value)
    unpriced = sum(sum(value) for (family, _), value in shown.items() if family == families.UNPRICED.name)
    # Which tenants' calls are unpriced is not shown: the metric has their models, as who mends it needs.
    at = UNITS.index("unpriced_calls")
    counted = sum(amounts[at] for amounts in left.values())
    if counted != unpriced:
        yield Difference(JOURNAL_METRICS, "unpriced_calls", "", None, counted, unpriced)
    for tenant in sorted(left.keys() | right.keys()):
        ours, theirs = left.get(tenant, [0] * len(UNITS)), right.get(tenant, [0] * len(UNITS))
        for unit, one, other in zip(UNITS, ours, theirs, strict=True):
            if one != other and unit != "unpriced_calls":
                yield Difference(JOURNAL_METRICS, unit, tenant, None, one, other)


def _by_hour(writer: str, sums: Mapping[Account, Amounts], floor: int) -> dict[tuple[int, str], Amounts]:
    found: dict[tuple[int, str], Amounts] = {}
    for account, amounts in sums.items():
        if account.hour >= floor:
            _add(found, (account.hour, writer), amounts)
    return found


def _merge(into: dict[Account, Amounts], sums: Mapping[Account, Amounts], floor: int) -> None:
    for account, amounts in sums.items():
        if account.hour >= floor:
            _add(into, account, amounts)


def _add(into: dict[Key, Amounts], key: Key, amounts: Sequence[int]) -> None:
    held = into.get(key)
    if held is None:
        into[key] = list(amounts)
    else:
        ledger.add(held, amounts)


def _compare(
    pair: str, tenant: str, left: Mapping[Place, Amounts], right: Mapping[Place, Amounts]
) -> Iterator[Difference]:
    nothing = [0] * len(UNITS)
    for place in sorted(left.keys() | right.keys()):
        ours, theirs = left.get(place, nothing), right.get(place, nothing)
        for unit, one, other in zip(UNITS, ours, theirs, strict=True):
            if one != other:
                yield Difference(pair, unit, tenant, place, one, other)
