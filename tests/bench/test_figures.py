import msgspec
import pytest

from tests.bench import figures, report
from tests.bench.samples import OURS, Load, Sample, faults
from tests.bench.scenarios import COMPARED, JSON_REQUEST_BYTES, SCENARIOS, body

STREAMS = SCENARIOS["paced"]


def load(requests: int = 100, **changed: float) -> Load:
    facts = {
        "sent": requests, "requests": requests, "errors": 0, "events": requests * STREAMS.events,
        "done": requests, "usage": requests, "seconds": 2.0, "latency_p50_us": 100.0, "latency_p99_us": 200.0,
        "ttft_p50_us": 10.0, "ttft_p99_us": 20.0,
    }  # fmt: skip
    return Load(**{**facts, **changed})  # type: ignore[arg-type]


def sample(target: str, us: float, scenario: str = "json", **changed: object) -> Sample:
    facts = {
        "target": target, "scenario": scenario, "repetition": 0, "load": load(), "cpu_us": {"gateway": us},
        "pss_before_kib": 1000, "pss_max_kib": 21_000,
    }  # fmt: skip
    return Sample(**{**facts, **changed})  # type: ignore[arg-type]


def test_the_figure_is_the_median_of_the_repetitions() -> None:
    table = figures.table([sample("nginx", us) for us in (1000, 9000, 2000)], 0)
    assert table["json"]["nginx"].measured_us == 20
    assert table["json"]["nginx"].spread == pytest.approx((90 - 10) / 20)
    assert table["json"]["nginx"].requests_per_s == 50


def test_all_processes_are_summed_and_shown_apart() -> None:
    parts = {"worker": 5000.0, "store": 300.0, "supervisor": 200.0}
    (one,) = figures.table([sample(OURS, 0, cpu_us=parts)], 0)["json"].values()
    assert one.measured_us == 55
    assert one.by_role == {"worker": 50, "store": 3, "supervisor": 2}


def test_what_is_missing_is_added_to_each_request_of_ours_and_to_no_peer() -> None:
    table = figures.table([sample(OURS, 5000), sample("nginx", 1000)], 10)
    assert (table["json"][OURS].measured_us, table["json"][OURS].total_us) == (50, 60)
    assert table["json"]["nginx"].total_us == 10
    assert figures.ratios(table) == {"json": {"nginx": 6}}
    assert figures.ratios(table, measured_only=True) == {"json": {"nginx": 5}}


def test_a_stream_shares_what_is_missing_among_its_events() -> None:
    (one,) = figures.table([sample(OURS, 6800, "paced")], 13.6)["paced"].values()
    assert one.measured_us == pytest.approx(1)
    assert one.missing_us == pytest.approx(0.2)  # 13.6 µs over 68 events


def test_a_sample_that_does_not_count_is_in_no_figure() -> None:
    table = figures.table(
        [sample("nginx", 1000), sample("nginx", 1, faults=("1 of 100 requests failed",))], 0
    )
    assert (table["json"]["nginx"].repetitions, table["json"]["nginx"].measured_us) == (1, 10)


def test_there_is_no_ratio_without_both() -> None:
    assert figures.ratios(figures.table([sample("nginx", 1000)], 0)) == {}
    assert figures.ratios(figures.table([sample(OURS, 1000), sample("direct", 0)], 0)) == {"json": {}}


def test_every_promise_covers_every_scenario_that_is_compared() -> None:
    assert all(tuple(promised) == COMPARED for promised in figures.PROMISED.values())
    bounds = [one for promised in figures.PROMISED.values() for one in promised.values()]
    assert all(one.goal is None or one.goal < one.must for one in bounds)


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(7.01, "FAIL"), (7, "PASS"), (4.61, "PASS"), (4.6, "goal"), (1, "goal")]
)
def test_a_ratio_is_held_against_must_and_goal(ratio: float, verdict: str) -> None:
    assert report.verdict(ratio, figures.Bound(7, 4.6)) == verdict


def test_a_promise_without_a_goal_is_kept_or_not() -> None:
    assert [report.verdict(ratio, figures.Bound(0.5)) for ratio in (0.5, 0.51)] == ["PASS", "FAIL"]


def test_the_other_promises_are_read_from_hot_paced_and_open() -> None:
    def timed(target: str, scenario: str, **of_load: float) -> Sample:
        return sample(target, 1, scenario, load=load(100, **of_load))

    samples = [
        timed("direct", "hot", latency_p50_us=20),
        timed("nginx", "hot", latency_p50_us=120),
        timed(OURS, "hot", latency_p50_us=160),
        timed("nginx", "paced", ttft_p99_us=20),
        timed(OURS, "paced", ttft_p99_us=50),
        timed(OURS, "open"),
    ]
    found = figures.verdicts(figures.table(samples, 0))
    assert [(one.value, one.kept) for one in found] == [(1.4, True), (2.5, False), (20, True)]
    assert figures.verdicts({}) == []


def test_a_request_without_a_stream_has_the_size_that_the_figures_are_of() -> None:
    assert {len(body(each)) for each in SCENARIOS.values() if not each.streamed} == {JSON_REQUEST_BYTES}
    assert all(b'"include_usage": true' in body(each) for each in SCENARIOS.values() if each.streamed)


@pytest.mark.parametrize(
    ("changed", "outcomes", "found"),
    [
        ({}, {"completed": 100}, []),
        ({}, None, []),  # a peer keeps no books
        ({"errors": 1}, None, ["1 of 100 requests failed"]),
        ({"usage": 99}, None, ["usage in 99 of 100 answers"]),
        ({"done": 99}, None, ["[DONE] in 99 of 100 streams"]),
        ({"events": 6799}, None, ["6799 events, not 6800"]),
        ({}, {"completed": 99}, ["100 requests, and in the journal {'completed': 99}"]),
        ({}, {"completed": 101}, ["100 requests, and in the journal {'completed': 101}"]),
        ({}, {"shed": 1}, ["100 requests, and in the journal {'shed': 1}"]),
    ],
)  # fmt: skip
def test_what_makes_a_measurement_not_count(
    changed: dict[str, int], outcomes: dict[str, int] | None, found: list[str]
) -> None:
    assert list(faults(STREAMS, load(**changed), outcomes)) == found


def test_the_tables_say_what_was_measured_and_how_it_stands() -> None:
    samples = [sample(OURS, 5000), sample("nginx", 1000), sample("portkey", 100_000)]
    table = figures.table(samples, 10)
    result = report.Result(
        date="2026-11-28 05:00 UTC", machine={"processor": "a processor"}, versions={OURS: "0.1", "nginx": "1.22.1"},
        left_out={"envoy": "not installed"}, repetitions=1, missing_us=10, missing={"limits": 8, "tracing": 2},
        ratios=figures.ratios(table), ratios_measured=figures.ratios(table, measured_only=True), medians=table,
        idle={OURS: {"worker": report.Idle(1024, 512)}}, promises=(figures.Verdict("a promise", 1, 2),),
        records=100, requests=100,
    )  # fmt: skip
    text = report.markdown(result)
    assert "Not measured: envoy (not installed)." in text
    assert "6 × (measured 5 ×) PASS: must 7 ×, goal 4.6 ×" in text
    assert "16.7 × less (measured 20 × less) FAIL: must 30 × less" in text
    assert "missing_us: 10 a request (limits 8, tracing 2)" in text
    assert "| a promise      | 2.00 |  ≤ 1 | FAIL |" in text
    assert "Not measured" not in report.markdown(msgspec.structs.replace(result, left_out={}))
