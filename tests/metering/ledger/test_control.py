"""The control: nothing differs where nothing was altered, and whatever is altered anywhere is found."""

import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.export import export
from metering.journal import chain
from metering.ledger import control, controller, ledger
from metering.ledger.control import JOURNAL_LEDGER, JOURNAL_METRICS, LEDGER_EXPORT, WRITERS, Counted, Ledgered
from metering.ledger.ledger import UNITS, Account, Held, Mark
from metering.pages.families import Families, Series, Totals
from metering.record import CallRecord, Line
from metering.units import NS_PER_HOUR
from metering.usage import Usage, UsageSource
from tests.support import journals

TENANTS = ("acme", "globex")
WRITERS_HERE = ("w" + "a" * 16, "w" + "b" * 16)
FIRST_HOUR = journals.AT_NS // NS_PER_HOUR
Cell = tuple[str, str, Account, int]  # tenant, writer, account, index of the unit


def made(makes: list[journals.Make]) -> list[Line]:
    lines = [chain.decode(line) for line in journals.encoded(makes)]
    return [line for line in lines if line is not None]


class World:
    """Journals of some writers, cut at random, and what a ledger without fault holds at these cuts.

    The ledger's side is summed here, from the records' own fields.
    """

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.lines: dict[str, list[Line]] = {}
        self.cuts: dict[str, dict[str, int]] = {}
        self.pages: dict[str, int] = {}
        for writer in WRITERS_HERE:
            makes: list[journals.Make] = [journals.start(writer=writer)]
            for number in range(chance.randrange(12)):
                fields: dict[str, Any] = {
                    "tenant": chance.choice(TENANTS),
                    "at_ns": journals.AT_NS + chance.randrange(3) * NS_PER_HOUR,
                }
                if chance.random() < 0.3:
                    makes.append(journals.refused(count=chance.randrange(1, 4)))
                makes.append(journals.admitted(f"{writer}-{number}", **fields))
                cost = chance.choice([None, 0, chance.randrange(10**9)])
                reason = "no_rate_card" if cost is None else None
                usage = Usage(
                    source=UsageSource.REPORTED,
                    prompt_tokens=chance.randrange(1, 50),
                    cached_prompt_tokens=chance.choice([None, 0, 1]),
                    completion_tokens=chance.randrange(50),
                )
                call = {"cost_pusd": cost, "unpriced_reason": reason, "usage": usage}
                makes.append(journals.call(f"{writer}-{number}", **fields, **call))
            self.lines[writer] = made(makes)
            records = [line for line in self.lines[writer] if isinstance(line, CallRecord)]
            self.cuts[writer] = {}
            for tenant in TENANTS:
                seqs = [0, *(one.seq for one in records if one.tenant == tenant)]
                if cut := chance.choice(seqs):
                    self.cuts[writer][tenant] = cut
            self.pages[writer] = chance.randrange(len(self.lines[writer]) + 1)

    def cells(self) -> dict[Cell, int]:
        """What the ledger holds at the cuts."""
        found: dict[Cell, int] = {}
        for writer, lines in self.lines.items():
            for line in lines:
                if isinstance(line, CallRecord) and line.seq <= self.cuts[writer].get(line.tenant, 0):
                    account = Account(
                        line.finished_ns // NS_PER_HOUR,
                        line.project or "",
                        line.model,
                        line.instance_family or "",
                    )
                    usage = line.usage
                    amounts = (
                        1,
                        usage.prompt_tokens or 0,
                        usage.cached_prompt_tokens or 0,
                        usage.completion_tokens or 0,
                        line.cost_pusd or 0,
                        int(line.cost_pusd is None),
                    )
                    for index, amount in enumerate(amounts):
                        cell = (line.tenant, writer, account, index)
                        found[cell] = found.get(cell, 0) + amount
        return found

    def held(self, tenant: str, cells: Mapping[Cell, int], floor: int = 0) -> Held:
        sums: dict[Account, list[int]] = {}
        by_writer: dict[tuple[int, str], list[int]] = {}
        for (whose, writer, account, index), amount in cells.items():
            if whose == tenant and account.hour >= floor:
                sums.setdefault(account, [0] * len(UNITS))[index] += amount
                by_writer.setdefault((account.hour, writer), [0] * len(UNITS))[index] += amount
        marks = {writer: Mark(cuts[tenant], "0" * 16) for writer, cuts in self.cuts.items() if tenant in cuts}
        return Held(marks, sums, by_writer, floor)

    def ledgered(self, writers: tuple[str, ...] = WRITERS_HERE) -> dict[str, Ledgered]:
        found = {}
        for writer in writers:
            found[writer] = one = Ledgered()
            after = one.after(self.cuts[writer])
            for line in self.lines[writer]:
                if after is not None and line.seq > after and isinstance(line, CallRecord):
                    one.add(line, line.seq, "0" * 64, self.cuts[writer])
            assert one.after(self.cuts[writer]) is None
        return found

    def counted(self) -> list[Counted]:
        found = []
        for writer, lines in self.lines.items():
            found.append(one := Counted())
            for line in lines[: self.pages[writer]]:
                one.add(line, line.seq, "0" * 64)
        return found

    def shown(self) -> Totals:
        """What the pages show. Their fold is our own, so it is the control's sums that are tested here."""
        page = Families()
        for writer, lines in self.lines.items():
            for line in lines[: self.pages[writer]]:
                page.observe(line)
        return page.cells.totals()


def shared_world() -> tuple[World, str]:
    """A world and a tenant that both writers have records of in the ledger."""
    for seed in range(1_000):
        world = World(seed)
        for tenant in TENANTS:
            if all(tenant in cuts for cuts in world.cuts.values()):
                return world, tenant
    raise AssertionError("no such world")


def differences(world: World, cells: Mapping[Cell, int], floor: int = 0) -> list[control.Difference]:
    return [
        one
        for tenant in TENANTS
        for one in control.journal_ledger(
            tenant, world.held(tenant, cells, floor), world.ledgered(), frozenset()
        )
    ]


@given(st.integers(0, 10**6), st.integers(-1, 3))
def test_nothing_differs_where_nothing_was_altered(seed: int, floor: int) -> None:
    world = World(seed)
    assert differences(world, world.cells(), FIRST_HOUR + floor) == []
    assert list(control.journal_metrics(world.shown(), world.counted())) == []
    for tenant in TENANTS:
        assert list(controller.ledger_export(tenant, world.held(tenant, world.cells()))) == []


@given(st.integers(0, 10**6), st.integers(-3, 3), st.data())
def test_any_figure_of_the_ledger_that_is_off_is_found(seed: int, off: int, data: st.DataObject) -> None:
    world = World(seed)
    cells = world.cells()
    if not cells or not off:
        return
    tenant, writer, account, index = data.draw(st.sampled_from(sorted(cells)))
    found = differences(
        world, cells | {(tenant, writer, account, index): cells[tenant, writer, account, index] + off}
    )
    (one,) = found
    assert (one.tenant, one.where, one.unit, one.size) == (tenant, account, UNITS[index], abs(off))
    assert one.right - one.left == off
    assert control.sizes(found)[JOURNAL_LEDGER, UNITS[index]] == abs(off)


@given(st.integers(0, 10**6), st.integers(0, 3))
def test_hours_below_the_floor_are_not_compared(seed: int, floor: int) -> None:
    world = World(seed)
    here, other = WRITERS_HERE
    low = {cell: amount + 1 for cell, amount in world.cells().items() if cell[2].hour < FIRST_HOUR + floor}
    for tenant in TENANTS:
        held = world.held(tenant, world.cells() | low)._replace(floor=FIRST_HOUR + floor)
        assert list(control.journal_ledger(tenant, held, world.ledgered(), frozenset())) == []
        assert list(control.journal_ledger(tenant, held, world.ledgered((here,)), frozenset({other}))) == []


@given(st.integers(0, 10**6), st.data())
def test_what_was_moved_between_accounts_is_found(seed: int, data: st.DataObject) -> None:
    world = World(seed)
    calls = {cell: amount for cell, amount in world.cells().items() if cell[3] == 0 and amount}
    if not calls:
        return
    cell = data.draw(st.sampled_from(sorted(calls)))
    tenant, writer, account, index = cell
    moved = (tenant, writer, account._replace(project="another"), index)
    found = differences(world, world.cells() | {cell: calls[cell] - 1, moved: 1})
    assert [one.size for one in found] == [1, 1]


@given(st.integers(0, 10**6), st.integers(1, 3), st.data())
def test_with_other_gateways_each_answers_for_its_own(seed: int, off: int, data: st.DataObject) -> None:
    world = World(seed)
    here, other = WRITERS_HERE
    cells = world.cells()

    def seen(cells: Mapping[Cell, int]) -> list[control.Difference]:
        return [
            one
            for tenant in TENANTS
            for one in control.journal_ledger(
                tenant, world.held(tenant, cells), world.ledgered((here,)), frozenset({other})
            )
        ]

    assert seen(cells) == []
    mine = sorted(cell for cell in cells if cell[1] == here)
    strangers = {tenant for tenant in TENANTS if tenant in world.cuts[other]}
    if mine:
        cell = data.draw(st.sampled_from(mine))
        (one,) = seen(cells | {cell: cells[cell] + off})
        assert one.size == off
        assert one.where == ((cell[2].hour, here) if cell[0] in strangers else cell[2])


def test_an_amount_that_is_no_writers_is_found() -> None:
    world, tenant = shared_world()
    held = world.held(tenant, world.cells())
    account = next(iter(held.sums))
    planted = dict(held.sums) | {account: [held.sums[account][0] + 1, *held.sums[account][1:]]}
    here, other = WRITERS_HERE
    (one,) = control.journal_ledger(
        tenant, held._replace(sums=planted), world.ledgered((here,)), frozenset({other})
    )
    assert (one.unit, one.size, one.where) == ("calls", 1, (account.hour, ""))


def test_a_writer_that_nobody_finds_is_named() -> None:
    world, tenant = shared_world()
    here, other = WRITERS_HERE
    found = list(
        control.journal_ledger(
            tenant, world.held(tenant, world.cells()), world.ledgered((here,)), frozenset()
        )
    )
    assert [(one.unit, one.where) for one in found] == [(WRITERS, (0, other))]
    assert control.sizes(found)[JOURNAL_LEDGER, WRITERS] == 1


@given(st.integers(0, 10**6), st.integers(1, 3), st.data())
def test_any_counter_that_is_off_is_found(seed: int, off: int, data: st.DataObject) -> None:
    world = World(seed)
    shown = world.shown()
    names = {
        "weighbridge_calls_total": "calls",
        "weighbridge_estimated_cost_usd_total": "cost_pusd",
        "weighbridge_unpriced_calls_total": "unpriced_calls",
        "weighbridge_tokens_total": None,
    }
    cells = sorted(one for one in shown if one.family in names and "reasoning" not in one.labels)
    if not cells:
        return
    cell = data.draw(st.sampled_from(cells))
    unit = names[cell.family] or f"{cell.labels[3]}_tokens"
    (one,) = control.journal_metrics(shown | {cell: (shown[cell][0] + off,)}, world.counted())
    assert (one.pair, one.unit, one.size) == (JOURNAL_METRICS, unit, off)
    assert one.tenant == ("" if unit == "unpriced_calls" else cell.labels[0])


def test_a_counter_of_a_tenant_that_no_journal_knows_is_found() -> None:
    shown: Totals = {Series("weighbridge_calls_total", ("ghost", "llama", "inf2", "completed")): (2,)}
    (one,) = control.journal_metrics(shown, [])
    assert (one.tenant, one.unit, one.left, one.right) == ("ghost", "calls", 0, 2)


def test_a_mark_that_fell_back_is_begun_again() -> None:
    records = [
        line for line in made([journals.call(f"w-{n}") for n in range(3)]) if isinstance(line, CallRecord)
    ]
    tenant, seqs = records[0].tenant, [record.seq for record in records]
    one = Ledgered()
    for record in records:
        one.add(record, record.seq, "0" * 64, {tenant: seqs[-1]})
    assert one.after({tenant: seqs[-1]}) is None
    assert one.after({tenant: seqs[0]}) == 0
    assert tenant not in one.sums


def test_a_tenant_that_was_quiet_is_read_from_where_all_was_read() -> None:
    """Not from its last record, which may be an hour ago; but from the first that was beyond its mark, if one was."""
    records = [
        line for line in made([journals.call(f"w-{n}") for n in range(4)]) if isinstance(line, CallRecord)
    ]
    tenant, seqs = records[0].tenant, [record.seq for record in records]
    one = Ledgered()
    for record in records[:3]:
        one.add(record, record.seq, "0" * 64, {tenant: seqs[0]})
    one.read = seqs[2]
    assert one.after({tenant: seqs[2]}) == seqs[1] - 1
    for record in records[1:3]:
        one.add(record, record.seq, "0" * 64, {tenant: seqs[2]})
    one.read = seqs[2] + 1_000
    assert one.after({tenant: seqs[2] + 1_001}) == seqs[2] + 1_000


def test_an_export_that_loses_a_picodollar_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: a formatter that rounds."""
    account = Account(FIRST_HOUR, "web", "llama", "inf2")
    held = Held({}, {account: [1, 2, 0, 3, 22_500_001, 0]}, {}, 0)
    assert list(controller.ledger_export("acme", held)) == []
    monkeypatch.setattr(export, "usd_text", lambda pusd: f"{pusd / 10**12:.6f}000000")
    (one,) = controller.ledger_export("acme", held)
    assert (one.pair, one.unit) == (LEDGER_EXPORT, "cost_pusd")
    assert one.left == 22_500_001


def test_amounts_below_zero_are_read_as_they_were_written() -> None:
    account = Account(FIRST_HOUR, "web", "llama", "inf2")
    assert list(controller.ledger_export("acme", Held({}, {account: [1, 2, 0, 3, -5, 0]}, {}, 0))) == []


def test_units_are_the_ledgers() -> None:
    assert {unit for pair, unit in control.sizes([]) if pair == JOURNAL_METRICS} == set(ledger.UNITS)
