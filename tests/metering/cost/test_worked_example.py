"""The worked example of deploy/reference/cost.md: its figures are computed here, and stand there as they are."""

import csv
import pathlib
from fractions import Fraction

import pytest

from metering.cost.allocation import (
    BackendHour,
    InstanceHour,
    Method,
    Payer,
    Portion,
    Sharing,
    Usage,
    allocate,
)
from metering.cost.close_row import RowKind
from metering.units import NS_PER_HOUR, usd_text

ROOT = pathlib.Path(__file__).parent.parent.parent.parent
PAGE = (ROOT / "deploy" / "reference" / "cost.md").read_text()

README = (ROOT / "README.md").read_text()

MINUTE = NS_PER_HOUR // 60
SLOTS = 32
BURST, TRICKLE = Payer("burst"), Payer("trickle")
PER_HOUR = 90_000_000_000
"""Work units that one of the backends can do in an hour: calibrated at full slots."""


NOTHING = Usage(work_units=0)


def used(slot_minutes: int, work_units: int) -> Usage:
    return Usage(slot_ns=slot_minutes * MINUTE, work_units=work_units)


def backend(
    name: str, *, ready: int, busy: int, usage: dict[Payer, Usage], overhead: Usage = NOTHING
) -> BackendHour:
    """ready, busy: minutes."""
    return BackendHour(
        backend=name, units=8, owned_ns=NS_PER_HOUR, ready_ns=ready * MINUTE, busy_ns=busy * MINUTE, slots=SLOTS,
        capacity_per_hour=PER_HOUR, usage=usage, overhead=overhead,
    )  # fmt: skip


HOUR = InstanceHour(
    micro_hours=1_000_000,
    paid_ns=NS_PER_HOUR,
    units_total=24,
    backends=(
        backend(
            "a", ready=60, busy=60,
            usage={BURST: used(310, 12_000_000_000), TRICKLE: used(60, 840_000_000)},
        ),
        backend(
            "b", ready=60, busy=10, usage={BURST: used(318, 12_000_000_000)}, overhead=used(2, 60_000_000)
        ),
        backend("c", ready=48, busy=10, usage={BURST: used(320, 12_000_000_000)}),
    ),
)  # fmt: skip
ROWS = [
    ("burst", RowKind.TENANT, BURST), ("trickle", RowKind.TENANT, TRICKLE),
    ("`~overhead`", RowKind.OVERHEAD, None), ("`headroom`", RowKind.HEADROOM, None),
    ("`idle`", RowKind.IDLE, None), ("`startup`", RowKind.STARTUP, None),
]  # fmt: skip


def uusd_per_hour() -> int:
    with open(ROOT / "metering" / "data" / "instances.csv") as file:
        (price,) = (
            row["usd_per_hour_on_demand"]
            for row in csv.DictReader(file)
            if row["instance_type"] == "inf2.48xlarge"
        )
    return int(Fraction(price) * 1_000_000)


def sums(portions: tuple[Portion, ...]) -> list[int]:
    """Micro-hours of each of ROWS."""
    return [
        sum(one.micro_hours for one in portions if one.kind is kind and payer in (None, one.payer))
        for _, kind, payer in ROWS
    ]


def usd(micro_hours: int) -> str:
    """For a person: to a hundredth of a cent."""
    cents_of_cents = (2 * micro_hours * uusd_per_hour() + 100_000_000) // 200_000_000
    return f"{cents_of_cents // 10_000}.{cents_of_cents % 10_000:04d}"


def row(name: str, micro_hours: list[int]) -> str:
    return f"| {name} | " + " | ".join(f"{each:,} | {usd(each)}" for each in micro_hours) + " |"


def table() -> list[str]:
    methods = [sums(allocate(HOUR, method).portions) for method in Method]
    names = [method.value for method in Method]
    return [
        "| | " + " | ".join(f"`{name}`: micro-hours | USD" for name in names) + " |",
        "|---|" + "---:|---:|" * len(names),
        *(row(name, [of[at] for of in methods]) for at, (name, _, _) in enumerate(ROWS)),
        row("the hour", [sum(of) for of in methods]),
    ]


def test_the_table_stands_on_the_page() -> None:
    assert "\n".join(table()) in PAGE, "\n".join(table())


@pytest.mark.parametrize("method", Method)
def test_the_readme_has_the_same_figures(method: Method) -> None:
    (line,) = [line for line in README.splitlines() if line.startswith(f"| `{method.value}`")]
    figures = [cell.strip() for cell in line.split("|")[2:-2]]
    assert figures == [usd(each) for each in sums(allocate(HOUR, method).portions)]


@pytest.mark.parametrize("method", Method)
@pytest.mark.parametrize("sharing", Sharing)
def test_every_method_gives_out_the_hour_to_the_picodollar(method: Method, sharing: Sharing) -> None:
    allocated = allocate(HOUR, method, sharing)
    assert allocated.remarks == frozenset()
    assert sum(one.micro_hours * uusd_per_hour() for one in allocated.portions) == 12_981_270_000_000
    assert usd_text(12_981_270_000_000) == "12.981270000000"


def test_what_the_page_says_of_slot_time() -> None:
    """By hand: of 3 × 32 × 60 slot-minutes burst had 948, trickle 60, what failed 2."""
    by_hand = [Fraction(1_000_000 * minutes, 3 * SLOTS * 60) for minutes in (948, 60, 2, 1550, 2816, 384)]
    found = sums(allocate(HOUR, Method.SLOT_TIME).portions)
    assert all(abs(each - exact) < 4 for each, exact in zip(found, by_hand, strict=True))
    (minute,) = {Fraction(uusd_per_hour(), 3 * SLOTS * 60)}
    assert f"{float(minute) / 1_000_000:.6f}" == "0.002254"
    assert "$0.002254 a slot-minute" in PAGE


def paid(tenant: Payer, hour: InstanceHour, method: Method) -> int:
    portions = allocate(hour, method).portions
    return sum(one.micro_hours for one in portions if one.payer == tenant)


ALONE = InstanceHour(
    micro_hours=1_000_000,
    paid_ns=NS_PER_HOUR,
    units_total=24,
    backends=(
        backend("a", ready=60, busy=60, usage={TRICKLE: used(60, 840_000_000)}),
        backend("b", ready=60, busy=0, usage={}),
        backend("c", ready=48, busy=0, usage={}),
    ),
)


def test_what_trickle_pays_without_its_neighbour() -> None:
    told = [usd(paid(TRICKLE, ALONE, method)) for method in Method]
    assert "Without burst, trickle pays {} · {} · {}.".format(*told) in PAGE, told
    assert abs(paid(TRICKLE, ALONE, Method.SLOT_TIME) - paid(TRICKLE, HOUR, Method.SLOT_TIME)) <= 1
