"""What `weighbridge close` shows."""

import pytest

from gateway.commands import close_table
from metering.cost.close_manifest import PoolTime, Reason, WriterSeen
from metering.cost.close_row import RowKind
from tests.support.closed import HOUR, manifest, row

ROWS = [
    row(micro_hours=600_000),
    row(kind=RowKind.TENANT, tenant="acme", micro_hours=400_000, estimated_pusd=20_000_000_000_000),
]
WRITER = "w" + "a" * 16


def test_a_line_for_each_hour_and_amounts_for_people() -> None:
    time = PoolTime(owned_ns=3, busy_ns=1, slot_ns=1, slots_ns=6)
    now = manifest([], hour=HOUR + 1, revision=0, reason=Reason.NOW, instances={})
    shown = close_table.page([manifest(ROWS, ratios=time.ratios()), now], {})
    assert shown == (
        "hour           rev  inst     cost  tenants  ~overhead  headroom    idle  startup  stranded  under-rec."
        "  used  busy  cap.\n"
        "2026-01-01T00    1     1  12.9813   5.1925     0.0000    0.0000  7.7888   0.0000    0.0000     -7.0187"
        "  16.7  33.3     -\n"
        "2026-01-01T01  now     0   0.0000   0.0000     0.0000    0.0000  0.0000   0.0000    0.0000      0.0000"
        "     -  50.0     -\n"
        "2 hours, in USD; rest by kind; used, busy, cap.(acity) in percent\n"
    )


def test_what_a_person_should_know_stands_below() -> None:
    late = WriterSeen(complete="deadline", leaf="0", seq=1, writer=WRITER)
    one = manifest(
        ROWS, missing=("wb",), remarks=("a on i-1: over_slots",), unpriced=("inf9.large",), writers=(late,),
        simulated=("g6e.xlarge", "inf2.48xlarge"),
    )  # fmt: skip
    notes = close_table.page([one], {HOUR + 1: [WRITER], HOUR + 2: []}).splitlines()[3:]
    assert notes == [
        "inf9.large has no price, and its hours no money: weighbridge prices import FILE, or a line under prices",
        "simulated hardware, for which nobody was charged: g6e.xlarge, inf2.48xlarge",
        f"2026-01-01T00 was closed before these told all of it: {WRITER}",
        "2026-01-01T00 lacks the journals of wb",
        "2026-01-01T00: a on i-1: over_slots",
        f"2026-01-01T01 waits for {WRITER}",
        "2026-01-01T02 waits for its turn",
    ]


@pytest.mark.parametrize("waiting", [{}, {HOUR: [WRITER]}])
def test_nothing_to_close(waiting: dict[int, list[str]]) -> None:
    assert close_table.page([], waiting).startswith("nothing to close\n")


def test_hours_that_are_not_over_are_said_not_to_be() -> None:
    hour = HOUR
    assert close_table.not_over(range(hour, hour + 1), hour + 1, now=False) is None
    running = "2026-01-01T00 is not over: it can be closed after its end, and --now looks into it"
    assert close_table.not_over(range(hour - 2, hour + 1), hour, now=False) == running
    assert close_table.not_over(range(hour, hour + 5), hour, now=True) is None
    assert close_table.not_over(range(hour, hour + 5), hour - 1, now=True) == "2026-01-01T00 has not begun"
