"""How lines of a bill come together, beyond what whole bills show (test_reconcile.py)."""

from hypothesis import given
from hypothesis import strategies as st

from metering.cost import bill
from metering.cost.bill import Line, Meaning

HOUR = 3_600 * 10**9
HOURS = range(1_000, 1_720)


def line(meaning: Meaning, **fields: object) -> Line:
    given = {
        "line_type": "Usage", "resource": "i-1", "usage_type": None, "instance_type": "inf2.48xlarge", "account": None,
        "region": None, "az": None, "start_ns": 1_000 * HOUR, "end_ns": 1_001 * HOUR, "micro_hours": 1_000_000,
        "effective_pusd": 0,
    }  # fmt: skip
    return Line(meaning=meaning, **(given | fields))  # type: ignore[arg-type]


@given(st.integers(-(10**18), 10**18), st.integers(0, 10**16), st.integers(0, 10**16))
def test_what_is_spread_over_hours_is_all_there(amount: int, start: int, length: int) -> None:
    parts = bill.over_hours(amount, start, start + length)
    assert sum(parts.values()) == amount
    assert min(parts) == start // HOUR
    assert max(parts) <= max(start, start + length - 1) // HOUR
    for hour, part in parts.items():
        inside = min(start + length, (hour + 1) * HOUR) - max(start, hour * HOUR)
        assert length == 0 or abs(part * length - amount * inside) < length


@given(
    st.lists(
        st.tuples(st.sampled_from(["i-1", "i-2", "i-3"]), st.integers(0, 9), st.integers(1, 10**6)),
        max_size=20,
    ),
    st.integers(0, 10**15),
    st.integers(0, 4),
)
def test_a_block_loses_nothing_however_its_instances_ran(
    runs: list[tuple[str, int, int]], fee: int, instances: int
) -> None:
    lines = [
        line(Meaning.ON_DEMAND, resource=one, start_ns=(1_000 + at) * HOUR, micro_hours=long, capacity="cr-1")
        for one, at, long in runs
    ]
    paid = line(Meaning.CAPACITY_BLOCK, end_ns=1_008 * HOUR, micro_hours=8_000_000 * instances, effective_pusd=fee,
                capacity="cr-1")  # fmt: skip
    folded = bill.fold([*lines, paid], HOURS)
    unused = sum(pusd for of_hour in folded.reserved.values() for pusd in of_hour.values())
    assert sum(charge.pusd for charge in folded.charges.values()) + unused == folded.total_pusd == fee


@given(st.permutations(range(6)))
def test_the_order_of_lines_does_not_matter(order: list[int]) -> None:
    lines = [
        line(Meaning.ON_DEMAND, effective_pusd=100, list_uusd=7, micro_hours=600_000),
        line(Meaning.SPOT, effective_pusd=50, list_uusd=7, micro_hours=400_000),
        line(Meaning.DISCOUNT, effective_pusd=-30, resource=None, account="1"),
        line(Meaning.DISCOUNT, effective_pusd=-10),
        line(Meaning.UNUSED, effective_pusd=9, commitment="ri-1"),
        line(
            Meaning.SAVINGS_PLAN, effective_pusd=8, resource="i-2", account="1", commitment="sp", cash_pusd=5
        ),
    ]
    folded = bill.fold([lines[at] for at in order], HOURS)
    assert folded == bill.fold(lines, HOURS)
    first, second = folded.charges["i-1", 1_000], folded.charges["i-2", 1_000]
    assert (first.pusd, first.purchase_option, first.micro_hours) == (140, "on-demand", 1_000_000)
    assert second.pusd == -22  # a discount of its account is larger than it: nothing is cut
    assert folded.total_pusd == 127


def test_a_block_of_another_month_is_none_of_ours() -> None:
    before = line(
        Meaning.CAPACITY_BLOCK, start_ns=900 * HOUR, end_ns=924 * HOUR, effective_pusd=5, of_month=False
    )
    assert bill.fold([before, line(Meaning.TAX, effective_pusd=3, of_month=False)], HOURS).total_pusd == 0


def test_use_of_no_length_costs_what_it_says() -> None:
    folded = bill.fold([line(Meaning.ON_DEMAND, micro_hours=0, effective_pusd=4)], HOURS)
    assert folded.charges["i-1", 1_000].pusd == 4
