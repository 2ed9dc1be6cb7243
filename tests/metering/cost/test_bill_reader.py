"""The files of a bill: which they may be, and what is said of those that are none."""

import hashlib
import pathlib

import pytest

from metering.cost import bill_reader
from metering.cost.bill_cells import BillError
from metering.cost.bill_reader import Wanted
from tests.support import billed, cur


def wanted(month: str) -> Wanted:
    return Wanted({"i-00000000000000000"}, billed.FAMILIES)


@pytest.fixture(scope="module")
def bill() -> cur.Bill:
    return cur.Bill(instances=4, hours=24)


def refused(paths: list[pathlib.Path], month: str | None = None) -> str:
    with pytest.raises(BillError) as error:
        bill_reader.read(paths, month, wanted)
    return str(error.value)


def test_several_files_are_one_bill(bill: cur.Bill, tmp_path: pathlib.Path) -> None:
    rows = bill.cur()
    whole = bill_reader.read([cur.write_csv(rows, tmp_path / "whole.csv")], None, wanted)
    paths = [
        cur.write_csv(rows[:100], tmp_path / "a.csv"),
        cur.write_parquet(rows[100:], tmp_path / "b.parquet"),
    ]
    parts = bill_reader.read(paths, None, wanted)
    assert parts.bill == whole.bill
    assert (parts.rows, parts.approximate, whole.approximate) == (len(rows), True, False)
    assert whole.digest == hashlib.sha256((tmp_path / "whole.csv").read_bytes()).hexdigest()
    assert parts.digest == bill_reader.read(paths[::-1], None, wanted).digest


def test_only_what_bears_on_the_fleet_is_taken(bill: cur.Bill, tmp_path: pathlib.Path) -> None:
    read = bill_reader.read([cur.write_csv(bill.cur(), tmp_path / "bill.csv")], "2026-11", wanted)
    assert {instance for instance, _ in read.bill.charges} == cur.ids(bill.fleet)  # by family, and not the m5
    assert read.split_rows == 24
    assert read.covered_until_ns == (bill.span.start + 24) * 3_600 * 10**9
    nobody = bill_reader.read([tmp_path / "bill.csv"], None, lambda _: Wanted({"i-0web"}, ()))
    assert {instance for instance, _ in nobody.bill.charges} == {"i-0web"}


def test_the_month_is_the_files_or_is_named(bill: cur.Bill, tmp_path: pathlib.Path) -> None:
    november = cur.write_csv(bill.cur(), tmp_path / "november.csv")
    october = cur.write_csv(cur.Bill("2026-10", instances=4, hours=24).cur(), tmp_path / "october.csv")
    assert refused([november, october]) == "the files are of 2026-10, 2026-11: name one with --month"
    assert refused([november], "2026-10") == "the files are of 2026-11, and have nothing of 2026-10"
    read = bill_reader.read([november, october], "2026-11", wanted)
    assert read.other_months == ("2026-10",)
    assert read.bill == bill_reader.read([november], None, wanted).bill


def test_a_block_that_was_paid_a_month_before_is_known_from_that_bill(tmp_path: pathlib.Path) -> None:
    before = cur.Bill("2026-10", instances=1, hours=2)
    before.block(first=31 * 24 - 12, hours=24, ran=())
    bill = cur.Bill(instances=1, hours=24)
    paths = [cur.write_csv(one.cur(), tmp_path / f"{one.month}.csv") for one in (before, bill)]
    read = bill_reader.read(paths, "2026-11", wanted)
    assert sum(pusd for of_hour in read.bill.reserved.values() for pusd in of_hour.values()) == (
        bill.reserved + before.block_pusd - before.block_pusd // 2
    )
    assert read.bill.outside == (0, 0)
    october = bill_reader.read(paths, "2026-10", wanted)
    assert october.bill.outside.pusd == before.block_pusd - before.block_pusd // 2


def test_the_type_may_stand_in_the_details_of_the_sku(bill: cur.Bill, tmp_path: pathlib.Path) -> None:
    rows = [
        row | {"x_UsageType": "", "SkuPriceDetails": '{"InstanceType":"inf2.48xlarge"}'}
        for row in bill.focus()
    ]
    read = bill_reader.read([cur.write_csv(rows, tmp_path / "focus.csv")], None, wanted)
    assert {charge.instance_type for charge in read.bill.charges.values()} == {"inf2.48xlarge"}


def test_a_file_that_is_no_bill_is_named(bill: cur.Bill, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    assert refused([path]) == f"{path} is neither CUR 2.0 nor FOCUS; its columns are a, b…"
    path.write_text("identity/LineItemId,lineItem/LineItemType\n1,2\n")
    assert "is a legacy CUR; make an export of CUR 2.0 or FOCUS" in refused([path])
    rows = [
        {name: text for name, text in row.items() if name != "line_item_resource_id"} for row in bill.cur()
    ]
    assert (
        refused([cur.write_csv(rows, path)])
        == f"{path} is a CUR 2.0 bill without the columns line_item_resource_id"
    )
    path.write_bytes(b"PAR1 and no more")
    assert refused([path]).startswith("the bill cannot be read: ")


def test_one_file_twice_two_formats_and_another_currency_are_refused(
    bill: cur.Bill, tmp_path: pathlib.Path
) -> None:
    one = cur.write_csv(bill.cur(), tmp_path / "one.csv")
    two = cur.write_csv(bill.cur(), tmp_path / "two.csv")
    assert refused([one, two]) == f"{two} is the same file as {one}"
    other = cur.write_csv(bill.focus(), tmp_path / "focus.csv")
    assert refused([one, other]) == "a bill has one format: one.csv is CUR 2.0, focus.csv is FOCUS"
    euros = cur.write_csv(
        [row | {"line_item_currency_code": "EUR"} for row in bill.cur()], tmp_path / "euros.csv"
    )
    assert refused([euros]) == "the bill is in EUR; only USD can be reconciled"
