"""Laws of the bill, each broken on purpose: what checks them must see it.

Σ of the lines, each once and at what it effectively cost = what the instances and the unused commitments cost
                                                          + what is shown and not allocated
"""

import pathlib
from collections.abc import Callable

import msgspec
import pytest

from metering.cost import bill as folding
from metering.cost import bill_cells, bill_cur, bill_reader, reconcile
from metering.cost.bill import Charge, Line, Meaning
from metering.cost.bill_cur import CurRow
from metering.cost.close_row import CloseRow, RowKind
from metering.cost.reconcile import What
from tests.support import billed, cur


def check(directory: pathlib.Path) -> None:
    """A bill with some of everything: what it comes to is known from how it was made."""
    bill = cur.Bill(instances=8, hours=72)
    bill.block(first=24, ran=(24, 12))
    shown, off = bill.shown_only(), bill.discounts()
    bill.charges += bill.charges[:3]
    hours = billed.closed(bill)
    read = billed.read([cur.write_csv(bill.cur(), directory / "bill.csv")], hours)
    result, new = billed.reconcile(read, hours)
    allocated = bill.total + bill.block_pusd + off
    assert result.billed_pusd == allocated + shown
    assert result.difference_pusd == shown
    assert result.is_explained
    assert {finding.what for finding in result.findings} == {What.SPLIT, What.DOUBLED}
    rows = [row for of_hour in new.values() for row in of_hour]
    assert sum(row.allocated_pusd or 0 for row in rows) == allocated
    for instance in bill.fleet:
        if instance.option not in ("on-demand", "capacity-block"):
            cost = sum(pusd for (one, _), pusd in bill.cost.items() if one == instance.id)
            assert sum(row.allocated_pusd or 0 for row in rows if row.instance_id == instance.id) == cost
    unused = sum(row.allocated_pusd or 0 for row in rows if row.kind is RowKind.RESERVED) - bill.reserved
    assert abs(unused * 48 - bill.block_pusd * 12) < 48 * 24
    for hour in new:
        assert sum(row.shared_pusd or 0 for row in new[hour]) == 0


Patch = pytest.MonkeyPatch


def negation_costs(patch: Patch) -> None:
    """What a plan takes back is taken off, too."""
    cost = bill_cur._cost
    patch.setattr(
        bill_cur,
        "_cost",
        lambda row, meaning, where: cost(row, Meaning.FEE if meaning is Meaning.NEGATION else meaning, where),
    )


def fee_counts_twice(patch: Patch) -> None:
    """What was paid in advance counts when it is paid, and when it is used."""
    cost = bill_cur._cost
    patch.setattr(
        bill_cur,
        "_cost",
        lambda row, meaning, where: cost(
            row, Meaning.FEE if meaning is Meaning.AMORTISED else meaning, where
        ),
    )


def reservation_at_its_bill(patch: Patch) -> None:
    """Use of a reservation costs what its line is billed: nothing."""
    _with_row(patch, lambda row: row._replace(reservation_cost=row.cash))


def plan_at_list(patch: Patch) -> None:
    """Use that a plan covers costs its public price."""
    _with_row(patch, lambda row: row._replace(plan_cost=row.cash))


def copies_count(patch: Patch) -> None:
    """A line that stands twice counts twice."""
    add = folding._Folding.add

    def twice(folding_: folding._Folding, line: Line) -> None:
        for _ in range(line.copies):
            add(folding_, line)

    patch.setattr(folding._Folding, "add", twice)


def containers_count(patch: Patch) -> None:
    """Lines of containers are lines like others."""
    patch.setattr(bill_reader, "CUR", bill_reader.CUR._replace(split=None))


def floats(patch: Patch) -> None:
    """Amounts are binary floating point."""
    patch.setattr(
        bill_cells, "integer", lambda text, parts, where: None if text is None else int(float(text) * parts)
    )


def block_to_its_users(patch: Patch) -> None:
    """Who ran in a block pays all of it, used or not."""
    patch.setattr(folding._Folding, "_room", lambda *_: 0)


def discount_forgotten(patch: Patch) -> None:
    """Discounts are read, and taken off nothing."""
    patch.setattr(folding._Folding, "place_discounts", lambda _: None)


def credit_allocated(patch: Patch) -> None:
    """A credit lowers what an instance cost."""
    meaning = bill_cur._meaning
    patch.setattr(
        bill_cur,
        "_meaning",
        lambda row: Meaning.DISCOUNT if meaning(row) is Meaning.CREDIT else meaning(row),
    )


def parts_rounded_each(patch: Patch) -> None:
    """Each row's part of the cost is rounded by itself."""

    def paid(rows: list[CloseRow], charge: Charge) -> list[CloseRow]:
        total = sum(row.micro_hours for row in rows)
        return [
            msgspec.structs.replace(row, allocated_pusd=charge.pusd * row.micro_hours // total, shared_pusd=0)
            for row in rows
        ]

    patch.setattr(reconcile, "_paid", paid)


def sharing_at_list(patch: Patch) -> None:
    """What is shared stays at its list price while the cost changes."""
    paid = reconcile._paid

    def kept(rows: list[CloseRow], charge: Charge) -> list[CloseRow]:
        new = paid(rows, charge)
        return [
            msgspec.structs.replace(row, shared_pusd=(row.shared_pusd or 0) + (row.kind is RowKind.TENANT))
            for row in new
        ]

    patch.setattr(reconcile, "_paid", kept)


def _with_row(patch: Patch, change: Callable[[CurRow], CurRow]) -> None:
    cost = bill_cur._cost
    patch.setattr(bill_cur, "_cost", lambda row, meaning, where: cost(change(row), meaning, where))


MUTANTS = (
    negation_costs,
    fee_counts_twice,
    reservation_at_its_bill,
    plan_at_list,
    copies_count,
    containers_count,
    floats,
    block_to_its_users,
    discount_forgotten,
    credit_allocated,
    parts_rounded_each,
    sharing_at_list,
)


def test_the_laws_hold(tmp_path: pathlib.Path) -> None:
    check(tmp_path)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_law_is_seen(mutant: Callable[[Patch], None], tmp_path: pathlib.Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        with pytest.raises(AssertionError):
            check(tmp_path)
