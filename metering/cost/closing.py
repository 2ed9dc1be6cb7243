"""Closing hours: which can be, what they hold, one revision after the other.

    journals ─▶ how far each has told ─▶ hours to close (all have told, or it is late) ─┐
                registrations ─▶ paid hours ─▶ pieces ─▶ facts summed by them ──────────┴─▶ told ─▶ rows ─▶ manifest

An hour that is closed is made anew where more is known of it: a journal that was missing or had not told all, another
instance, a price of a type that had none. The new revision takes method, sharing, prices and weights from the one
before, and what a bill has put in the place of the list's price. It is only made by who has read every journal at least
as far as that one: of several gateways, none undoes what another knew.
"""

import hashlib
import itertools
import logging
import pathlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from metering.cost import close_hour, close_manifest
from metering.cost.close_hour import ClosedHour, Price, Terms
from metering.cost.close_manifest import BILL, LIST, NO_ROWS, Manifest, Reason, WriterSeen, sum_of
from metering.cost.close_row import CloseRow, RowKind
from metering.cost.close_sources import Seen, Sources
from metering.cost.close_usage import UsageReader
from metering.cost.closes import Closes, Outdone
from metering.cost.hour_facts import HourOfFacts
from metering.cost.hours import PaidHour, paid_hours
from metering.cost.work_units import ANY, WorkUnits
from metering.logs import log
from metering.units import NS_PER_HOUR

SILENT_NS = NS_PER_HOUR
"""Whoever wrote nothing in an hour, and nothing for so long before it, is not waited for; it is named."""
FORGOTTEN_NS = 7 * 24 * NS_PER_HOUR
"""Nor is it named any more, once it has been silent for so long."""
GROUP_HOURS = 744
"""So many hours are closed from one reading of their facts."""

NOBODY: Mapping[str, int] = types.MappingProxyType({})

logger = logging.getLogger("weighbridge.close")


class Rules(NamedTuple):
    """How hours are closed for the first time. late_ns: how long after its end an hour waits for journals.

    shared: rows of what is no instance, for an hour and its other rows. prices: digest of the price book.
    """

    terms: Terms
    prices: str
    late_ns: int
    shared: Callable[[int, Sequence[CloseRow]], list[CloseRow]] = lambda _hour, _rows: []


class Work(NamedTuple):
    """An hour that is to be closed. before: the revision that counts until now; None: there is none."""

    hour: int
    reason: Reason
    before: Manifest | None


class Told(NamedTuple):
    """What is about to be done, for the journal. hours: in order."""

    reason: Reason
    hours: tuple[int, ...]


class Closing:
    """One run over some hours. To be used once, in one thread."""

    def __init__(
        self,
        sources: Sources,
        closes: Closes,
        rules: Rules,
        hours: range,
        *,
        now_ns: int,
        made_by: str,
        registered: Mapping[str, int] = NOBODY,
    ) -> None:
        """hours: those that may be closed. now_ns: wall clock.

        registered: writers that the ledger's store knows as open, and when that was last stated.

        Raises OSError, ArchiveError, FactsError.
        """
        self._sources = sources
        self._closes = closes
        self._rules = rules
        self._hours = hours
        self._now_ns = now_ns
        self._made_by = made_by
        self._seen = sources.seen
        known = {one.writer for one in self._seen}
        self._nowhere = {name: seen_ns for name, seen_ns in registered.items() if name not in known}
        last_ns = {one.writer: one.last_ns for one in self._seen}
        found = paid_hours(sources.told(), last_ns, hours)
        self._paid = {hour: list(paid) for hour, paid in itertools.groupby(found, lambda one: one.hour)}

    def due(self) -> list[Work]:
        """Hours that can be closed now, and closed ones of which more is known, in order. Raises ArchiveError."""
        before = {one.hour: one for one in self._closes.hours(self._hours)}
        found = []
        for hour in self._hours:
            if hour not in before:
                if self._can_be_closed(hour):
                    found.append(Work(hour, Reason.FIRST, None))
            elif (reason := self._more_is_known(before[hour])) is not None:
                found.append(Work(hour, reason, before[hour]))
        return found

    def waits_for(self, hour: int) -> list[str]:
        """Writers that have not told all of an hour yet, and that it waits for."""
        untold = [one.writer for one in self._untold(hour) if not self._is_silent(one, hour)]
        return sorted([*untold, *self._unread(hour)])

    def close(
        self, works: Sequence[Work], tell: Callable[[Told], None], work_dir: pathlib.Path
    ) -> Iterator[Manifest]:
        """Close these hours, and give each one's manifest; one that somebody else has just closed is left out.

        tell: told of them before. Raises OSError, ArchiveError, FactsError, CloseFileError, and what `tell` does.
        """
        for start in range(0, len(works), GROUP_HOURS):
            for group in _near(works[start : start + GROUP_HOURS]):
                for reason, same in itertools.groupby(group, lambda one: one.reason):
                    tell(Told(reason, tuple(one.hour for one in same)))
                for work, facts in self._facts_of(group, work_dir):
                    if (made := self._close_one(work, facts)) is not None:
                        yield made

    def look(self, hour: int, work_dir: pathlib.Path) -> Manifest:
        """Look into an hour that is not over, up to now: it is put where the close will replace it. As `close`."""
        work = Work(hour, Reason.NOW, None)
        self._paid[hour] = close_hour.until(self._paid.get(hour, []), self._now_ns)
        ((_, facts),) = self._facts_of([work], work_dir)
        closed = self._closed(work, facts, self._rules.terms)
        return self._closes.look(self._manifest(work, closed), closed.rows)

    def _can_be_closed(self, hour: int) -> bool:
        over_ns = self._now_ns - (hour + 1) * NS_PER_HOUR
        return over_ns >= 0 and (over_ns >= self._rules.late_ns or not self.waits_for(hour))

    def _touching(self, hour: int) -> list[Seen]:
        forgotten_ns = hour * NS_PER_HOUR - FORGOTTEN_NS
        return [one for one in self._seen if one.touches(hour) and (one.ended or one.last_ns >= forgotten_ns)]

    def _untold(self, hour: int) -> list[Seen]:
        return [one for one in self._touching(hour) if not one.has_told(hour)]

    def _unread(self, hour: int) -> list[str]:
        """Writers whose journals are neither here nor in the archive, and may tell of this hour."""
        return [name for name, seen_ns in self._nowhere.items() if seen_ns >= hour * NS_PER_HOUR]

    def _is_silent(self, one: Seen, hour: int) -> bool:
        return one.last_ns < hour * NS_PER_HOUR - SILENT_NS

    def _writers(self, hour: int) -> tuple[WriterSeen, ...]:
        def how(one: Seen) -> Literal["tick", "end", "deadline"]:
            if one.ended:
                return "end"
            return "tick" if one.has_told(hour) else "deadline"

        return tuple(
            WriterSeen(complete=how(one), leaf=one.leaf, seq=one.seq, writer=one.writer)
            for one in self._touching(hour)
        )

    def _instances(self, hour: int) -> dict[str, int]:
        return {one.instance_id: one.micro_hours for one in self._paid.get(hour, [])}

    def _paid_digest(self, hour: int) -> str:
        """Of what instances were paid for, and who owned them: a word of another hour may bear on it."""
        paid = msgspec.json.encode(self._paid.get(hour, []))
        return "sha256:" + hashlib.sha256(paid).hexdigest()

    def _more_is_known(self, before: Manifest) -> Reason | None:
        hour = before.hour
        there = {one.writer: one for one in before.writers}
        now = {one.writer: one for one in self._writers(hour)}
        if any(name not in now or now[name].seq < one.seq for name, one in there.items()):
            return None  # whoever made it had read more
        news = any(name not in there for name in now)
        told = any(
            one.complete == "deadline" and now[name].complete != "deadline" for name, one in there.items()
        )
        if news or told or self._paid_digest(hour) != before.paid:
            return Reason.LATE
        if before.unpriced and before.basis == LIST:
            prices = [self._rules.terms.price(one) for one in self._paid.get(hour, [])]
            if sum(price is None for price in prices) < sum(
                (one.facts.instance_type or "unknown") in before.unpriced for one in self._paid.get(hour, [])
            ):
                return Reason.PRICES
        return None

    def _facts_of(self, works: Sequence[Work], work_dir: pathlib.Path) -> Iterator[tuple[Work, HourOfFacts]]:
        """What facts say of each of these hours, in order."""
        hours = range(works[0].hour, works[-1].hour + 1)
        paid = [(hour, self._paid.get(hour, [])) for hour in hours]
        pieces = [piece for hour, of_hour in paid for piece in close_hour.pieces_of(hour, of_hour)]
        ready = [one for hour, of_hour in paid for one in close_hour.ready_of(hour, of_hour)]
        wanted = {one.hour: one for one in works}
        with UsageReader(self._sources.files(hours), hours, pieces, ready, work_dir) as reader:
            for facts in reader.by_hour():
                while wanted and (hour := min(wanted)) < facts.hour:
                    yield wanted.pop(hour), HourOfFacts(hour, [], [])
                if facts.hour in wanted:
                    yield wanted.pop(facts.hour), facts
        for hour in sorted(wanted):
            yield wanted[hour], HourOfFacts(hour, [], [])

    def _close_one(self, work: Work, facts: HourOfFacts) -> Manifest | None:
        """None: somebody else was first, or what more is known changes nothing."""
        before = work.before
        rows_before = list(self._closes.rows([before])) if before else []
        terms = _terms_of(before, rows_before, self._rules.terms) if before else self._rules.terms
        closed = self._closed(work, facts, terms)
        if before is not None:
            if before.basis.startswith(BILL):
                closed = closed._replace(rows=_at_bill(closed.rows, rows_before))
            if closed.rows == rows_before and self._writers(work.hour) == before.writers:
                return None
        manifest = self._manifest(work, closed)
        try:
            return self._closes.commit(manifest, closed.rows)
        except Outdone as error:
            log(logger, logging.INFO, "an hour was closed by somebody else", reason=str(error))
            return None

    def _closed(self, work: Work, facts: HourOfFacts, terms: Terms) -> ClosedHour:
        closed = close_hour.close(work.hour, self._paid.get(work.hour, []), facts.used, facts.busy, terms)
        if shared := self._rules.shared(work.hour, closed.rows):
            return closed._replace(rows=sorted([*closed.rows, *shared], key=lambda row: row.key))
        return closed

    def _manifest(self, work: Work, closed: ClosedHour) -> Manifest:
        before, hour = work.before, work.hour
        silent = [one.writer for one in self._untold(hour) if self._is_silent(one, hour)]
        terms = self._rules.terms
        return Manifest(
            basis=before.basis if before else LIST,
            closed_ns=self._now_ns,
            hour=hour,
            instances=self._instances(hour),
            made_by=self._made_by,
            method=before.method if before else terms.method.value,
            missing=tuple(sorted({*silent, *self._unread(hour)})),
            paid=self._paid_digest(hour),
            pools=closed.pools,
            prices=before.prices if before and work.reason is not Reason.PRICES else self._rules.prices,
            ratios=sum_of(closed.pools).ratios(),
            reason=work.reason,
            remarks=closed.remarks,
            revision=0 if work.reason is Reason.NOW else before.revision + 1 if before else 1,
            rows=NO_ROWS,
            sharing=before.sharing if before else terms.sharing.value,
            simulated=tuple(sorted({row.instance_type or "unknown" for row in closed.rows if row.simulated})),
            totals=close_manifest.totals(closed.rows),
            unbilled=_unbilled(before, closed.rows) if before else (),
            unpriced=closed.unpriced,
            weights=closed.weights,
            writers=self._writers(hour),
        )


def _near(works: Sequence[Work]) -> Iterator[list[Work]]:
    """Groups of hours within a day of each other: what lies between two of them is read for nothing."""
    group: list[Work] = []
    for work in works:
        if group and work.hour - group[-1].hour > 24:
            yield group
            group = []
        group.append(work)
    if group:
        yield group


def _terms_of(before: Manifest, rows: Sequence[CloseRow], now: Terms) -> Terms:
    """The terms of a closed hour: what it was priced and weighed by, and for what it did not know those of now."""
    prices = {
        row.instance_id: Price(row.uusd_per_hour, row.price_source, row.price_date)
        for row in rows
        if row.instance_id is not None and row.uusd_per_hour is not None
    }
    weights = {(one.model, one.hardware): one for one in before.weights}

    def price(paid: PaidHour) -> Price | None:
        return prices.get(paid.instance_id) or now.price(paid)

    def weigh(model: str, instance_type: str | None, at_ns: int) -> WorkUnits:
        kept = (weights.get((model, word)) for word in _hardware(instance_type, now))
        return next((one for one in kept if one is not None), None) or now.weights(
            model, instance_type, at_ns
        )

    return now._replace(
        method=type(now.method)(before.method),
        sharing=type(now.sharing)(before.sharing),
        price=price,
        weights=weigh,
    )


def _hardware(instance_type: str | None, terms: Terms) -> Iterator[str]:
    """What weights of an instance type may be for, the closest first (metering/cost/work_units.py)."""
    if instance_type is not None:
        yield instance_type
        yield terms.family(instance_type)
    yield ANY


def _unbilled(before: Manifest, rows: Sequence[CloseRow]) -> tuple[str, ...]:
    """Who has the list price in an hour that has a bill: who had it before, and who was not known then."""
    if not before.basis.startswith(BILL):
        return ()
    return tuple(
        sorted(
            instance
            for instance in close_hour.counted(rows)
            if instance in before.unbilled or not before.instances.get(instance)
        )
    )


def _at_bill(rows: Sequence[CloseRow], before: Sequence[CloseRow]) -> list[CloseRow]:
    """Rows at what their instances cost by the bill; what only the bill knows stays as it is."""
    costs: dict[str | None, int] = {}
    options: Mapping[str | None, str | None] = {row.instance_id: row.purchase_option for row in before}
    for row in before:
        if (
            row.instance_id is not None
            and row.kind is not RowKind.RESERVED
            and row.allocated_pusd is not None
        ):
            costs[row.instance_id] = costs.get(row.instance_id, 0) + row.allocated_pusd
    found = [row for row in before if row.kind is RowKind.RESERVED]
    for instance_id, group in itertools.groupby(rows, lambda row: row.instance_id):
        of_instance = list(group)
        if instance_id in costs:
            option = options[instance_id]
            of_instance = [
                msgspec.structs.replace(row, purchase_option=option)
                for row in close_hour.at_cost(of_instance, costs[instance_id])
            ]
        found += of_instance
    return sorted(found, key=lambda row: row.key)
