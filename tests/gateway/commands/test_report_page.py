"""The report as it stands in a terminal."""

import pytest

from gateway.commands import report_page
from metering.cost import month_report
from metering.cost.amounts import Amounts, PriceUsed, Summary
from metering.cost.close_manifest import Ratios
from metering.cost.close_row import RowKind
from metering.cost.month_report import REST, Waterfall

USD = 10**12


def _waterfall(**fields: object) -> Waterfall:
    rest = dict.fromkeys(REST, 0) | {
        RowKind.STARTUP: 100 * USD,
        RowKind.IDLE: 500 * USD,
        RowKind.HEADROOM: 250 * USD,
    }
    values = {
        "pool": "llama-3.1-8b",
        "billed": 1_000 * USD,
        "rest": rest,
        "tenants": 150 * USD,
        "recovered": 120 * USD,
        "calls": 3_000,
        "tokens": 500_000_000,
        "unpriced_micro_hours": 0,
        "unpriced_calls": 0,
        "ratios": Ratios(used=123_456, busy=1_000_000, capacity=None),
    } | fields
    return Waterfall(**values)  # type: ignore[arg-type]


def test_a_waterfall_goes_down_step_by_step() -> None:
    assert report_page.waterfall(_waterfall()) == [
        "pool llama-3.1-8b",
        "  billed                 1,000.00  100.0 %  ████████████████████████████████████",
        "  - startup                100.00   10.0 %                                  ████",
        "  - stranded                 0.00    0.0 %",
        "  - idle                   500.00   50.0 %                ██████████████████",
        "  - headroom               250.00   25.0 %       █████████",
        "  - overhead                 0.00    0.0 %",
        "  = tenants                150.00   15.0 %  █████",
        "    recovered              120.00   12.0 %  ████",
        "    under-recovery         880.00   88.0 %  ████████████████████████████████",
        "  used 12.3 % of slots × paid time, busy 100.0 % of paid time, capacity -",
        "  3,000 calls, 500,000,000 tokens; allocated 0.050000 a call, 0.3000 per 1M tokens;",
        "  with all that was not used 2.0000 per 1M tokens",
    ]


def test_what_has_no_price_is_said() -> None:
    lines = report_page.waterfall(
        _waterfall(unpriced_micro_hours=1_500_000, unpriced_calls=2, calls=0, ratios=None)
    )
    assert lines[-2:] == [
        "  1.50 h have no price and are in no sum: weighbridge prices import",
        "  2 calls have no estimate and count as 0 in recovered",
    ]


def test_a_pool_that_cost_nothing_or_earned_more_has_a_page() -> None:
    assert report_page.waterfall(_waterfall(billed=0, rest=dict.fromkeys(REST, 0), tenants=0, pool=None))
    (line,) = [one for one in report_page.waterfall(_waterfall(recovered=2_000 * USD)) if "under" in one]
    assert line == "    under-recovery      -1,000.00  -100.0 %"


@pytest.mark.parametrize(
    ("pusd", "text"),
    [(0, "0.00"), (USD, "1.00"), (-USD, "-1.00"), (1_234_567 * USD, "1,234,567.00"), (5_000_000, "0.000005"),
     (-999_999_500_000, "-1.000000"), (1_005_000_000_000, "1.01"), (None, "-")],
)  # fmt: skip
def test_amounts_are_rounded_for_people(pusd: int | None, text: str) -> None:
    assert report_page.usd(pusd) == text


def test_a_tenants_month_shows_both_bases_and_why_it_differs() -> None:
    def sums(cost: int, tokens: int) -> list[Summary]:
        amounts = Amounts(
            allocated_pusd=cost * USD,
            estimated_pusd=2 * cost * USD,
            prompt_tokens=tokens,
            calls=4,
            slot_ns=3_600 * 10**9,
        )
        return [Summary(RowKind.TENANT, ("llama", "inf2"), amounts)]

    lines = month_report.tenant_lines(sums(30, 3_000_000), sums(8, 1_000_000))
    page = report_page.tenant("acme", lines, "allocated")
    assert page == [
        "tenant acme, charged by allocation",
        "  estimated 60.00  allocated 30.00  variance -30.00",
        "  model  hardware  calls     tokens  slot hours  estimated   per 1M  allocated   per 1M  per call",
        "  llama  inf2          4  3,000,000       1.000      60.00  20.0000      30.00  10.0000  7.500000",
        "  sum                  4  3,000,000       1.000      60.00  20.0000      30.00  10.0000  7.500000",
        "",
        "  against the month before        before  usage  price    now",
        "  llama                     inf2    8.00  16.00   6.00  30.00",
        "  sum                               8.00  16.00   6.00  30.00",
    ]
    assert max(map(len, page)) <= 100
    assert report_page.tenant("acme", month_report.tenant_lines(sums(1, 1), []), "rate-card")[-1].endswith(
        "before"
    )


def test_prices_are_cut_to_the_width_and_counted() -> None:
    one = PriceUsed(
        "inf2.48xlarge", 12_981_270, "on-demand", "us-east-1", "list " * 30, "2026-07-20", False, 720_000_000
    )
    lines = report_page.prices([one] * 13 + [one._replace(uusd_per_hour=None)])
    assert lines[0].startswith(
        "  inf2.48xlarge  12.98127 USD/h, 720.00 h  on-demand, us-east-1, 2026-07-20, list"
    )
    assert max(map(len, lines)) <= 100
    assert lines[-1] == "  and 2 more"
    (unknown,) = report_page.prices([one._replace(uusd_per_hour=None, source=None, simulated=True)])
    assert "no price known, 720.00 h  simulated" in unknown


def test_a_table_has_tenants_first_and_adds_up() -> None:
    sums = [
        Summary(RowKind.IDLE, (None,), Amounts(allocated_pusd=2 * USD)),
        Summary(RowKind.TENANT, ("acme",), Amounts(allocated_pusd=USD, calls=1)),
    ]
    lines = report_page.table(["tenant"], sums)
    assert [line.split()[0] for line in lines] == ["tenant", "acme", "-", "sum"]
    assert "3.00" in lines[-1]


def test_what_nobody_knows_the_price_of_is_not_shown_as_nothing() -> None:
    unknown = Amounts(micro_hours=1_500_000, unpriced_micro_hours=1_500_000, calls=2, unpriced_calls=2)
    known = Amounts(micro_hours=1_000_000, allocated_pusd=3 * USD, calls=1, estimated_pusd=2 * USD)
    shown = report_page.table(
        ["tenant"], [Summary(RowKind.TENANT, ("acme",), unknown), Summary(RowKind.TENANT, ("globex",), known)]
    )
    assert [line.split()[-3:] for line in shown[1:4]] == [
        ["-", "-", "-"],
        ["3.00", "0.00", "2.00"],
        ["3.00", "0.00", "2.00"],
    ]
    lacking = [
        "  1.50 h have no price and are in no sum: weighbridge prices import",
        "  2 calls have no estimate and count as 0 in estimated",
    ]
    assert shown[4:] == lacking
    key = ("llama", "inf2")
    (line,) = month_report.tenant_lines(
        [Summary(RowKind.TENANT, key, unknown)], [Summary(RowKind.TENANT, key, unknown)]
    )
    page = report_page.tenant("acme", [line], "allocated")
    assert page[1] == "  estimated -  allocated -  variance -"
    assert page[3].split()[-5:] == ["-", "-", "-", "-", "-"]
    assert page[5:7] == lacking
    assert page[-2:] == [f"  of the month before:{one[1:]}" for one in lacking]


def test_a_pool_without_a_price_has_no_price_per_call() -> None:
    lines = report_page.waterfall(_waterfall(billed=0, tenants=0, unpriced_micro_hours=1_500_000))
    assert lines[-3:-1] == [
        "  3,000 calls, 500,000,000 tokens; allocated - a call, - per 1M tokens;",
        "  with all that was not used - per 1M tokens",
    ]


def _price(instance_type: str, *, simulated: bool) -> PriceUsed:
    return PriceUsed(instance_type, 1, None, None, None, None, simulated, 1)


def test_simulated_hardware_is_said() -> None:
    real, other = _price("g6e.xlarge", simulated=False), _price("inf2.48xlarge", simulated=True)
    assert report_page.simulated([real]) == []
    assert report_page.simulated([other]) == [
        "simulated hardware: this is what it would have cost, nobody was charged"
    ]
    assert report_page.simulated([real, other]) == [
        "in part simulated hardware, for which nobody was charged: inf2.48xlarge"
    ]


@pytest.mark.parametrize(
    ("charged", "words", "now"), [("allocated", "  charged 5.00", "5.00"), ("rate-card", "", "2.00")]
)
def test_who_pays_by_allocation_pays_what_was_shared_out_too(charged: str, words: str, now: str) -> None:
    key = ("llama", "inf2")
    month = Amounts(calls=1, completion_tokens=10, micro_hours=1, allocated_pusd=3 * USD, shared_pusd=2 * USD,
                    estimated_pusd=2 * USD)  # fmt: skip
    before = Amounts(calls=1, completion_tokens=5, micro_hours=1, allocated_pusd=2 * USD, estimated_pusd=USD)
    (line,) = month_report.tenant_lines(
        [Summary(RowKind.TENANT, key, month)], [Summary(RowKind.TENANT, key, before)]
    )
    assert line.allocated == (2 * USD, USD)
    page = report_page.tenant("acme", [line], charged)
    assert page[1] == f"  estimated 2.00  allocated 3.00  variance 1.00  shared 2.00{words}"
    assert page[-1].split()[-1] == now
