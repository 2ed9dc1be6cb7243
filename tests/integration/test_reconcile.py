"""`weighbridge reconcile` on closed hours in a state directory: what it says, writes, tells and leaves alone."""

import functools
import json
import pathlib
import re
import types
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from gateway import cli
from gateway.commands import reconcile_command
from metering.archive.objects import LocalObjects
from metering.cost import close_manifest, close_months, shared_costs
from metering.cost.close_manifest import NO_ROWS, Manifest, MonthState, Ratios, Reason
from metering.cost.close_row import CloseRow, RowKind
from metering.cost.closes import Closes
from metering.cost.reconcile import Reconciling
from metering.cost.shared_costs import SharedCost, Split
from metering.units import NS_PER_HOUR, usd_text
from tests.oracle import journal
from tests.support import billed, cur, fleet
from tests.support.journals import stop, tick

pytestmark = pytest.mark.integration

MONTH = close_manifest.month_hours("2026-11")


def manifest(hour: int, rows: Sequence[CloseRow], revision: int = 1) -> Manifest:
    return Manifest(
        basis="list", closed_ns=1, hour=hour, made_by="clerk", method=billed.METHOD, missing=(), pools={}, prices="p",
        ratios=Ratios(busy=None, capacity=None, used=None), reason=Reason.FIRST, instances={}, remarks=(),
        revision=revision, rows=NO_ROWS, sharing="none", totals=close_manifest.totals(rows), unpriced=(),
        weights=(), writers=(), paid="",
    )  # fmt: skip


class Site:
    """A state directory with closed hours, and the command run on it."""

    def __init__(self, root: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.closes = Closes(LocalObjects(root / "state"))
        self._capsys = capsys

    def close(self, hours: billed.Hours) -> None:
        for hour, rows in hours.items():
            self.closes.commit(manifest(hour, rows), sorted(rows, key=lambda row: row.key))

    def bill(self, bill: cur.Bill) -> pathlib.Path:
        return cur.write_csv(bill.cur(), self.root / "bill.csv")

    def run(self, *words: object) -> tuple[int, str, str]:
        code = cli.main(["reconcile", "--state-dir", str(self.root / "state"), *map(str, words)])
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err

    def rows(self) -> list[CloseRow]:
        return list(self.closes.rows(self.closes.hours(MONTH)))

    def told(self) -> list[dict[str, str]]:
        root = self.root / "state" / "journal"
        if not root.exists():
            return []
        lines = [line for writer in journal.read(root) for line in writer.of("event")]
        return [line["data"] for line in lines if line["topic"] == "reconcile"]


@pytest.fixture
def site(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.chdir(tmp_path)
    at(monkeypatch, MONTH.stop)
    return Site(tmp_path, capsys)


def at(monkeypatch: pytest.MonkeyPatch, hour: int) -> None:
    """The command's clock says that this hour begins."""
    clock = types.SimpleNamespace(time_ns=lambda: hour * NS_PER_HOUR)
    monkeypatch.setattr(reconcile_command, "time", clock)


def made(instances: int, hours: int, rest: int = 0) -> cur.Bill:
    """Of the last hours of the month, but for `rest`: no gateway saw the hours before."""
    return cur.Bill(instances=instances, hours=hours, first=len(MONTH) - hours - rest)


def closed(site: Site, bill: cur.Bill) -> None:
    """The hours that the bill has something of are closed, and no others."""
    hours = range(bill.start, bill.start + bill.count)
    site.close({hour: rows for hour, rows in billed.closed(bill).items() if hour in hours})


def test_a_whole_month_of_forty_instances_reconciles_to_nothing(tmp_path: pathlib.Path) -> None:
    bill = cur.Bill()
    hours = billed.closed(bill)
    read = billed.read([cur.write_parquet(bill.cur(), tmp_path / "bill.parquet")], hours)
    result, new = billed.reconcile(read, hours)
    assert (result.billed_pusd, result.difference_pusd, result.rest_pusd) == (bill.total, 0, 0)
    assert result.is_explained
    assert sum(row.allocated_pusd or 0 for rows in new.values() for row in rows) == bill.total


def test_closed_hours_become_the_bill(site: Site) -> None:
    bill = made(40, 24)
    closed(site, bill)
    code, out, err = site.run("--bill", site.bill(bill))
    assert code == 0, err
    assert out.splitlines()[-3].split() == ["unexplained", "0.000000000000"]
    assert out.splitlines()[-1].startswith(
        "lines of containers, which repeat their instance, left out: the bill"
    )
    assert "2026-11 is reconciled" in err
    costs: dict[tuple[str, int], int] = {}
    reserved = 0
    for row in site.rows():
        assert row.allocated_pusd is not None
        if row.kind is RowKind.RESERVED:
            reserved += row.allocated_pusd
        else:
            place = str(row.instance_id), row.hour
            costs[place] = costs.get(place, 0) + row.allocated_pusd
    assert costs == bill.cost
    assert reserved == bill.reserved
    month = site.closes.month("2026-11")
    assert (month.state, len(month.hours)) == (MonthState.RECONCILED, 24)
    newest = site.closes.hours(MONTH)
    assert {one.basis for one in newest} == {f"bill:{month.bills[0]}"}
    assert {(one.revision, one.reason, one.unpriced) for one in newest} == {(2, Reason.BILL, ())}
    (told,) = site.told()
    assert (told["month"], told["hours"], told["bill"]) == ("2026-11", "24", month.bills[0])
    assert told["billed_usd"] == told["allocated_usd"] == usd_text(bill.total)


def test_a_second_time_changes_nothing_and_another_bill_does(site: Site) -> None:
    bill = made(4, 4)
    closed(site, bill)
    path = site.bill(bill)
    assert site.run("--bill", path)[0] == 0
    code, _, err = site.run("--bill", path)
    assert (code, "2026-11 is reconciled with this bill already" in err, len(site.told())) == (0, True, 1)
    bill.charges[0].cost = bill.charges[0].effective = 7
    code, _, err = site.run("--bill", cur.write_csv(bill.cur(), site.root / "other.csv"))
    assert (code, "4 hours have a new revision" in err) == (0, True)
    assert [month.state for month in site.closes.states("2026-11")] == [MonthState.RECONCILED] * 2


def test_a_dry_run_writes_nothing_and_a_program_can_read_it(site: Site) -> None:
    bill = made(4, 4)
    extra = bill.shown_only()
    closed(site, bill)
    before = sorted(site.root.rglob("*"))
    path = site.bill(bill)
    code, out, err = site.run("--bill", path, "--month", "2026-11", "--dry-run", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["unexplained_usd"] == "0.000000000000"
    assert told["difference_usd"] == usd_text(extra)
    assert set(told["explained"]) == {"credit", "refund", "tax", "other charges of the instances"}
    assert told["is_explained"] is True
    assert sorted(site.root.rglob("*")) == sorted([*before, path])


def test_what_is_not_explained_changes_nothing(site: Site) -> None:
    bill = made(4, 4)
    (gone, *_) = [charge for charge in bill.charges if charge.line_type == "SavingsPlanNegation"]
    bill.charges.remove(gone)
    closed(site, bill)
    code, out, err = site.run("--bill", site.bill(bill))
    assert code == 1
    assert "savings plan use and its negation do not cancel out: sp-0bb2, USW2-BoxUsage:trn1.32xlarge" in out
    assert "nothing was changed: the bill is not all explained" in err
    assert {one.revision for one in site.closes.hours(MONTH)} == {1}
    assert site.told() == []


def test_a_bill_that_is_not_whole_leaves_the_month_open(site: Site) -> None:
    bill = made(4, 4, rest=2)
    closed(site, bill)
    end = bill.start + 4
    late = [row for one in bill.fleet for row in billed.rows_of(one, end, 1_000_000, 1)]
    site.close({end: late, end + 1: []})
    rows = [row | {"bill_invoice_id": ""} for row in bill.cur()]
    code, out, err = site.run("--bill", cur.write_csv(rows, site.root / "bill.csv"))
    assert (code, "not invoiced yet" in out) == (0, True)
    assert "the bill ends at 2026-11-30T22: 2026-11 stays as it is until it is whole" in err
    assert [one.revision for one in site.closes.hours(MONTH)] == [2, 2, 2, 2, 1, 1]
    assert site.closes.month("2026-11").state is MonthState.PROVISIONAL


def test_after_the_close_there_are_corrections(site: Site) -> None:
    bill = made(4, 4, rest=1)
    closed(site, bill)
    site.close({bill.start + 4: []})  # an hour without rows gets those of the bill, if it has any
    site.closes.commit_month("2026-11", MonthState.CLOSED, bills=(), by="ann", at_ns=1)
    code, _, err = site.run("--bill", site.bill(bill))
    assert (code, "2026-11 is closed: what changed are corrections" in err) == (0, True)
    assert site.closes.month("2026-11").state is MonthState.CLOSED
    assert {one.revision for one in site.closes.hours(MONTH)} == {2}


def test_somebody_who_was_first_is_not_overwritten(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    bill = made(1, 2)
    closed(site, bill)
    told = reconcile_command.tell

    def meanwhile(*args: Any) -> None:
        told(*args)
        site.closes.commit(manifest(bill.start, [], revision=2), [])

    monkeypatch.setattr(reconcile_command, "tell", meanwhile)
    code, _, err = site.run("--bill", site.bill(bill))
    assert code == 1
    assert re.search(r"was put by somebody else just now; run this again", err)
    assert site.closes.month("2026-11").state is MonthState.PROVISIONAL


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("not over", "nothing was changed: 2026-11 is not over"),
        ("a gap", "nothing was changed: hour 2026-11-30T21 is not closed; see `weighbridge close`"),
        ("behind", "nothing was changed: hour 2026-11-30T23 is not closed; see `weighbridge close`"),
        ("another bill", "nothing was changed: the bill is not all explained"),
    ],
)
def test_a_month_is_reconciled_only_when_it_can_be(
    what: str, says: str, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    bill = made(4, 4)
    hours = {hour: rows for hour, rows in billed.closed(bill).items() if hour >= bill.start}
    if what == "not over":
        at(monkeypatch, MONTH.stop - 1)
    elif what == "a gap":
        del hours[bill.start + 1]
    elif what == "behind":
        del hours[bill.start + 3]
    else:
        for hour in hours:
            hours[hour] = [
                msgspec.structs.replace(row, instance_id=f"{row.instance_id}-x") for row in hours[hour]
            ]
    site.close(hours)
    path = site.bill(bill)
    code, out, err = site.run("--bill", path)
    assert (code, says in err) == (1, True)
    assert ("no instance of these hours is on the bill" in out) == (what == "another bill")
    assert {one.revision for one in site.closes.hours(MONTH)} == {1}
    assert (site.told(), site.closes.states("2026-11")) == ([], [])
    if what != "another bill":
        code, _, err = site.run("--bill", path, "--dry-run")
        assert (code, f"it can't be reconciled now: {says.partition(': ')[2]}" in err) == (0, True)


def test_what_is_not_on_the_bill_is_not_said_to_have_its_cost(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    bill = made(4, 4)
    other = cur.Instance("i-other", "inf2.xlarge", "us-east-1", "on-demand", 7_582_000_000, range(4))
    bill.fleet.append(other)
    closed(site, bill)
    code, out, err = site.run("--bill", site.bill(bill))
    assert (code, "instance counted, not on the bill: i-other" in out) == (0, True), err
    assert {one.unbilled for one in site.closes.hours(MONTH)} == {("i-other",)}
    assert cli.main(["report", "--month", "2026-11", "--state-dir", str(site.root / "state")]) == 0
    says = "cost by the bill; 4 instance-hours of 1 instances are not on it, and have list prices"
    assert says in capsys.readouterr().out


def test_mutants_are_seen(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A month that always can be reconciled; hours that name nobody who kept the list price."""
    with monkeypatch.context() as broken:
        broken.setattr(close_months, "why_no_bill", lambda *_args, **_more: None)
        with pytest.raises(AssertionError):
            test_a_month_is_reconciled_only_when_it_can_be(
                "not over", "nothing was changed: 2026-11 is not over", site, broken
            )
    monkeypatch.setattr(Reconciling, "unbilled", lambda *_: ())
    with pytest.raises(AssertionError):
        test_what_is_not_on_the_bill_is_not_said_to_have_its_cost(Site(site.root / "two", capsys), capsys)


def test_wrong_input_has_a_clear_error(site: Site) -> None:
    bill = made(1, 2)
    path = site.bill(bill)
    assert site.run("--bill", path)[::2] == (
        1, "weighbridge: no hour of 2026-11 is closed: there is nothing to reconcile\n"
    )  # fmt: skip
    code, _, err = site.run("--bill", path, "--month", "november")
    assert (code, "'november' is no month" in err) == (2, True)
    code, _, err = site.run("--bill", path, "--month", "2026-10")
    assert (code, "the files are of 2026-11, and have nothing of 2026-10" in err) == (2, True)
    code, _, err = site.run("--bill", site.root / "absent.csv")
    assert (code, f"{site.root / 'absent.csv'}: No such file or directory" in err) == (1, True)
    closed(site, bill)
    for object_ in (site.root / "state" / "close").rglob("*.parquet"):
        object_.write_bytes(b"x")
    code, _, err = site.run("--bill", path)
    assert (code, "is not what its manifest says" in err) == (1, True)


def test_from_a_journal_over_the_bill_to_a_late_record(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The close engine's rows take the bill's cost, and a record that comes later does not take it from them."""
    plant = fleet.Site(tmp_path)
    half, end_ns = 30 * fleet.MINUTE_NS, fleet.AT_NS + fleet.NS_PER_HOUR
    paid = {"simulated": False, "launched_ns": fleet.AT_NS}
    calls = [*fleet.busy("w-1", fleet.AT_NS, half, simulated=False), tick(at_ns=end_ns)]
    plant.journal([fleet.registration(fleet.AT_NS, **paid), *calls])
    cost = SharedCost(name="s3", uusd_per_hour=3, split=Split.EVEN)
    shared = functools.partial(shared_costs.rows, (cost,))
    hours = range(fleet.HOUR, fleet.HOUR + 1)
    (first,) = plant.close(end_ns + fleet.MINUTE_NS, hours, shared=shared)
    assert first.totals.instances == "12.981270000000"
    bill = cur.Bill("2026-01", instances=0, hours=1)
    box = "BoxUsage:inf2.48xlarge"
    bill.charges += [
        cur.Charge("DiscountedUsage", 0, 1, 0, 56_080_000_001, box, "inf2.48xlarge", "i-1", rate=129_812_700_000,
                   reservation="ri-1", id="use"),
    ]  # fmt: skip
    for hour in range(fleet.HOUR + 1, fleet.HOUR + 4):  # in which there was nothing
        plant.closes.commit(manifest(hour, []), [])
    words = [
        "reconcile",
        "--state-dir",
        str(tmp_path),
        "--bill",
        str(cur.write_csv([row | {"bill_invoice_id": ""} for row in bill.cur()], tmp_path / "b.csv")),
    ]
    assert cli.main(words) == 0
    (billed_,) = plant.closes.hours(hours)
    reserved = usd_text(bill.reserved - 12_981_270_000_000)  # of one hour that has it
    assert (billed_.revision, billed_.totals.rest["reserved"], billed_.totals.rest["shared_cost"]) == (
        2, reserved, "0.000003000000",
    )  # fmt: skip
    other = "w" + "b" * 16
    late = fleet.busy("v-1", fleet.AT_NS + half, half, tenant="late", simulated=False)
    found = fleet.registration(fleet.AT_NS, instance_id="i-2", backend="b-2", **paid)
    plant.journal([found, *late, stop(at_ns=end_ns)], writer=other)
    (third,) = plant.close(end_ns + fleet.MINUTE_NS, hours, shared=shared)
    assert (third.revision, third.reason, third.basis) == (3, Reason.LATE, billed_.basis)
    assert (billed_.unbilled, third.unbilled) == ((), ("i-2",))  # nobody knew of that one when the bill came
    rows = list(plant.closes.rows([third]))
    assert sum(row.allocated_pusd or 0 for row in rows if row.instance_id == "i-1") == 5_608_000_000_100
    assert {row.tenant for row in rows if row.kind is RowKind.TENANT} == {"acme", "late"}
    assert third.totals.rest["reserved"] == reserved
    assert [row.allocated_pusd for row in rows if row.kind is RowKind.SHARED_COST] == [1_500_000, 1_500_000]
    capsys.readouterr()
    assert cli.main([*words, "--dry-run"]) == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["unexplained", "0.000000000000"] in table
