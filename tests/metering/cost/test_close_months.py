"""When a month can be closed, and the reason when it can't."""

import pytest

from metering.cost import close_months
from metering.cost.close_manifest import Month, MonthState
from metering.units import NS_PER_HOUR

HOURS = close_months.hours_of("2026-02")
OVER_NS = HOURS.stop * NS_PER_HOUR
ALL = set(HOURS)


def month(state: MonthState) -> Month:
    return Month(at_ns=1, bills=(), by="cli:ann", hours={}, month="2026-02", number=1, state=state)


@pytest.mark.parametrize(
    ("state", "closed", "without_bill", "now_ns", "says"),
    [
        (MonthState.RECONCILED, ALL, False, OVER_NS, None),
        (MonthState.PROVISIONAL, ALL, True, OVER_NS, None),
        (MonthState.PROVISIONAL, set(HOURS[100:]), True, OVER_NS, None),  # nobody saw the hours before
        (MonthState.PROVISIONAL, ALL, False, OVER_NS, "it is not reconciled"),
        (MonthState.CLOSED, ALL, True, OVER_NS, "it was closed by cli:ann before"),
        (MonthState.RECONCILED, ALL, False, OVER_NS - 1, "it is not over"),
        (MonthState.RECONCILED, set(), False, OVER_NS, "none of its hours is closed"),
        (MonthState.RECONCILED, ALL - {HOURS[5]}, False, OVER_NS, "hour 2026-02-01T05 is not closed"),
        (
            MonthState.RECONCILED,
            set(HOURS[:-2]),
            False,
            OVER_NS,
            "hour 2026-02-28T22 and 1 more is not closed",
        ),
    ],
)
def test_a_month_is_closed_or_refused_with_the_reason(
    state: MonthState, closed: set[int], without_bill: bool, now_ns: int, says: str | None
) -> None:
    found = close_months.why_not(month(state), closed, without_bill=without_bill, now_ns=now_ns)
    assert found == says or (found is not None and says is not None and found.startswith(says))


@pytest.mark.parametrize(
    ("closed", "until", "now_ns", "says"),
    [
        (ALL, HOURS.stop, OVER_NS, None),
        (set(HOURS[100:]), HOURS.stop, OVER_NS, None),
        (set(HOURS[:9]), HOURS[9], OVER_NS, None),  # a bill that ends there
        (set(HOURS[:9]), HOURS[0], OVER_NS, None),
        (ALL, HOURS.stop, OVER_NS - 1, "2026-02 is not over"),
        (set(HOURS[:9]), HOURS[10], OVER_NS, "hour 2026-02-01T09 is not closed; see `weighbridge close`"),
    ],
)
def test_a_month_takes_a_bill_or_the_reason_is_said(
    closed: set[int], until: int, now_ns: int, says: str | None
) -> None:
    assert close_months.why_no_bill("2026-02", closed, until=until, now_ns=now_ns) == says
