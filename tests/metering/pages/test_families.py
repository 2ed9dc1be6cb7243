"""What each line counts as."""

import itertools
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.cost.pricing import Unpriced
from metering.journal import chain
from metering.pages import families
from metering.pages.families import (
    BACKEND_STATE,
    BOUND_EXCEEDED,
    BOUND_OF_FAILURE,
    BOUND_OF_REFUSAL,
    CALLS,
    CLIENT_CONNECTIONS,
    COST,
    FAMILIES,
    IN_FLIGHT,
    LEDGER_LAG,
    LOOP_LAG,
    OVERHEAD,
    QUEUE_WAIT,
    TOKENS,
    TPOT,
    TTFT,
    Bound,
    Cells,
    Families,
    Family,
    Gauges,
    Kind,
    Series,
    Totals,
)
from metering.record import AttemptOutcome, CallRecord, Line, Outcome, Refused
from metering.units import NS_PER_S
from metering.usage import UNKNOWN as UNKNOWN_USAGE
from tests.support import lines


def fold(*some: Line) -> Totals:
    folded = Families()
    for line in some:
        folded.observe(line)
    return folded.cells.totals()


def shown(totals: Totals) -> dict[str, int]:
    """Series as text, histograms as their count."""
    values = {}
    for (name, labels), value in totals.items():
        family = FAMILIES[name]
        key = f"{name.removeprefix('weighbridge_')}({','.join(labels)})"
        values[key] = sum(value[:-1]) if family.kind is Kind.HISTOGRAM else value[0]
    return values


def test_a_completed_call_counts_once_in_each_family_that_it_knows() -> None:
    assert shown(fold(lines.call())) == {
        "calls_total(acme,llama,inf2,completed)": 1,
        "tokens_total(acme,llama,inf2,prompt,reported)": 10,
        "tokens_total(acme,llama,inf2,cached_prompt,reported)": 4,
        "tokens_total(acme,llama,inf2,completion,reported)": 7,
        "estimated_cost_usd_total(acme,llama,inf2)": 12_345_678,
        "ttft_seconds(llama,inf2)": 1,
        "tpot_seconds(llama,inf2)": 1,
        "queue_wait_seconds(llama)": 1,
        "overhead_seconds()": 1,
        "attempts_total(b1,completed)": 1,
    }


def test_what_is_unknown_makes_no_series() -> None:
    lost = lines.call(
        attempts=(),
        backend_ended_ns=None,
        cost_pusd=None,
        dispatched_ns=None,
        instance_family=None,
        outcome=Outcome.LOST,
        queue_wait_ns=None,
        tpot_ns=None,
        ttft_ns=None,
        unpriced_reason=None,
        usage=UNKNOWN_USAGE,
    )
    assert shown(fold(lost)) == {
        "calls_total(acme,llama,unknown,lost)": 1,
        "unpriced_calls_total(llama,unknown)": 1,
    }


def test_zero_is_known_and_makes_a_series() -> None:
    totals = fold(lines.call(cost_pusd=0, usage=lines.usage(3, None, 0)))
    assert totals[Series(TOKENS.name, ("acme", "llama", "inf2", "completion", "reported"))] == (0,)
    assert Series(TOKENS.name, ("acme", "llama", "inf2", "cached_prompt", "reported")) not in totals
    assert totals[Series(COST.name, ("acme", "llama", "inf2"))] == (0,)


def test_a_refused_line_is_a_call_and_nothing_else() -> None:
    known = lines.refused(tenant="acme", model="llama", status=503, error_code="no_backend")
    assert shown(fold(lines.refused(), lines.refused(), known)) == {
        "calls_total(unknown,unknown,unknown,refused)": 2,
        "calls_total(acme,llama,unknown,refused)": 1,
    }


@pytest.mark.parametrize(("reason", "bound"), BOUND_OF_REFUSAL.items())
def test_a_refusal_at_a_bound_counts_there(reason: str, bound: Bound) -> None:
    assert fold(lines.refused(reason=reason))[Series(BOUND_EXCEEDED.name, (bound,))] == (1,)


@pytest.mark.parametrize(("error", "bound"), BOUND_OF_FAILURE.items())
def test_an_answer_beyond_a_bound_counts_there(error: str, bound: Bound) -> None:
    failed = lines.attempt("b0", AttemptOutcome.FAILED, error=error)
    assert fold(lines.call(attempts=(failed,)))[Series(BOUND_EXCEEDED.name, (bound,))] == (1,)


def test_a_call_that_waited_too_long_counts_at_its_bound() -> None:
    shed = lines.call(outcome=Outcome.SHED, attempts=())
    assert fold(shed)[Series(BOUND_EXCEEDED.name, ("queue_wait",))] == (1,)


def test_a_bound_that_no_line_tells_of_is_counted_in_the_same_series() -> None:
    """Two series of one name and labels would hide each other."""
    folded = Families()
    folded.exceeded(Bound.BODY_TIME)
    folded.observe(lines.refused(reason="TooSlow"))
    folded.exceeded(Bound.BODY_TIME)
    assert folded.cells.totals()[Series(BOUND_EXCEEDED.name, ("body_time",))] == (3,)


def test_every_bound_can_be_counted_in_one_way() -> None:
    by_line = {*BOUND_OF_REFUSAL.values(), *BOUND_OF_FAILURE.values()}
    by_worker = [Bound.CONNECTIONS, Bound.HEAD_TIME, Bound.HEAD_BYTES, Bound.WRITE_STALL, Bound.BUFFER]
    assert sorted([*by_line, *by_worker]) == sorted(Bound)


def test_reasons_and_attempts() -> None:
    failed = lines.attempt("b0", AttemptOutcome.UNAVAILABLE)
    call = lines.call(
        attempts=(failed, lines.attempt("b1")),
        cost_pusd=None,
        unpriced_reason="no instance price",
        spill_reason="full",
        fallback_reason="connect refused",
    )
    counted = shown(fold(call))
    assert counted["attempts_total(b0,unavailable)"] == 1
    assert counted["attempts_total(b1,completed)"] == 1
    assert counted["spills_total(llama,full)"] == 1
    assert counted["fallbacks_total(llama,connect refused)"] == 1
    assert counted["unpriced_calls_total(llama,no instance price)"] == 1
    assert "estimated_cost_usd_total(acme,llama,inf2)" not in counted


def test_a_reason_is_one_series_read_from_a_journal_or_not() -> None:
    """In the process that wrote it a reason may be a member of an enumeration, with another hash."""
    fresh = lines.call(cost_pusd=None, unpriced_reason=Unpriced.UNITS_UNKNOWN)
    read = chain.decode(chain.encode(fresh).removesuffix(b"\n"))
    assert read is not None
    assert shown(fold(fresh, read))["unpriced_calls_total(llama,units_unknown)"] == 2


def test_lines_that_are_no_calls_count_nothing() -> None:
    assert fold(lines.start("w"), lines.admitted(), lines.stop()) == {}


def test_overhead_is_the_time_before_dispatch_and_after_the_backend_but_not_in_the_queue() -> None:
    (value,) = [value for series, value in fold(lines.call()).items() if series.family == OVERHEAD.name]
    assert value[-1] == (2_000 - 500) + (9_000 - 8_000)


def test_overhead_is_never_negative() -> None:
    """A call that fell back may have queued longer than it took to its first dispatch."""
    totals = fold(lines.call(queue_wait_ns=5_000))
    assert totals[Series(OVERHEAD.name, ())][-1] == 1_000


def test_a_call_that_was_shed_waited_but_has_no_overhead() -> None:
    shed = lines.call(outcome=Outcome.SHED, attempts=(), dispatched_ns=None, backend_ended_ns=None)
    counted = shown(fold(shed))
    assert counted["queue_wait_seconds(llama)"] == 1
    assert "overhead_seconds()" not in counted


@pytest.mark.parametrize(
    ("ns", "bucket"),
    [
        (0, 0),
        (TTFT.edges_ns[0], 0),  # an upper bound belongs to its bucket, as `le` says
        (TTFT.edges_ns[0] + 1, 1),
        (TTFT.edges_ns[-1], len(TTFT.edges_ns) - 1),
        (TTFT.edges_ns[-1] + 1, len(TTFT.edges_ns)),  # the bucket without bound
    ],
)
def test_bucket_of_an_observation(ns: int, bucket: int) -> None:
    *counts, total = fold(lines.call(ttft_ns=ns))[Series(TTFT.name, ("llama", "inf2"))]
    assert [at for at, count in enumerate(counts) if count] == [bucket]
    assert total == ns


@pytest.mark.parametrize("family", [TTFT, TPOT, QUEUE_WAIT, OVERHEAD], ids=lambda family: family.name)
def test_edges_rise_and_are_exact_in_seconds(family: Family) -> None:
    assert all(a < b for a, b in itertools.pairwise(family.edges_ns))
    assert all(round(float(repr(edge / NS_PER_S)) * NS_PER_S) == edge for edge in family.edges_ns)


@given(st.lists(st.integers(0, 2**70), max_size=20))
def test_amounts_of_any_size_are_exact(amounts: list[int]) -> None:
    cells = Cells()
    cost = families.Amount(COST, cells).series("t", "m", "f")
    for amount in amounts:
        cost.add(amount)
    assert cells.totals() == ({Series(COST.name, ("t", "m", "f")): (sum(amounts),)} if amounts else {})
    assert all(low >= 0 for low in cells.values[::2])


@given(st.lists(st.integers(0, 2**63 - 1), max_size=8))
def test_times_of_any_size_are_exact(times: list[int]) -> None:
    cells = Cells()
    ttft = families.Histogram(TTFT, cells).series("m", "f")
    for ns in times:
        ttft.observe(ns)
    for *counts, total in cells.totals().values():
        assert (sum(counts), total) == (len(times), sum(times))
    assert len(cells.totals()) == bool(times)


@pytest.mark.parametrize("amount", [-1, -(2**70)])
def test_nothing_is_taken_off(amount: int) -> None:
    cells = Cells()
    with pytest.raises(AssertionError):
        families.Amount(COST, cells).series("t", "m", "f").add(amount)
    with pytest.raises(AssertionError):
        families.Histogram(TTFT, cells).series("m", "f").observe(amount)
    assert cells.totals() == {}


names = st.sampled_from(["a", "b"])
tokens = st.integers(0, 50)
records = st.builds(
    lambda tenant, model, family, outcome, cost, prompt, wait: lines.call(
        tenant=tenant,
        model=model,
        instance_family=family,
        outcome=outcome,
        cost_pusd=cost,
        usage=UNKNOWN_USAGE if prompt is None else lines.usage(prompt, None, 1),
        queue_wait_ns=wait,
    ),
    names,
    names,
    st.none() | names,
    st.sampled_from(Outcome),
    st.none() | st.integers(0, 10**20),
    st.none() | tokens,
    st.none() | st.integers(0, 60 * NS_PER_S),
)
journal = st.lists(
    records
    | st.builds(lambda tenant, model: lines.refused(tenant=tenant, model=model), st.none() | names, names)
)


@given(journal)
def test_the_fold_is_the_sum_over_the_lines(some: list[Line]) -> None:
    """Against a count of the same lines that shares nothing with the cells."""
    expected: Counter[tuple[str, ...]] = Counter()
    for line in some:
        if isinstance(line, Refused):
            expected[CALLS.name, line.tenant or "unknown", str(line.model), "unknown", "refused"] += 1
            continue
        assert isinstance(line, CallRecord)
        of = (line.tenant, line.model, line.instance_family or "unknown")
        expected[(CALLS.name, *of, line.outcome.value)] += 1
        if line.cost_pusd is not None:
            expected[(COST.name, *of)] += line.cost_pusd
        if line.usage.prompt_tokens is not None:
            expected[(TOKENS.name, *of, "prompt", "reported")] += line.usage.prompt_tokens
        if line.queue_wait_ns is not None:
            expected[QUEUE_WAIT.name, line.model] += line.queue_wait_ns
    found = {(name, *labels): value[-1] for (name, labels), value in fold(*some).items()}
    looked_at = {
        key: value
        for key, value in found.items()
        if key[0] in (CALLS.name, COST.name, QUEUE_WAIT.name) or "prompt" in key
    }
    assert looked_at == dict(expected) | {key: 0 for key in looked_at if key not in expected}


@given(journal, st.data())
def test_a_fold_may_be_cut_anywhere(some: list[Line], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(some)))
    both = fold(*some[:cut])
    families.merge(both, fold(*some[cut:]))
    assert both == fold(*some)


def test_gauges_of_several_workers() -> None:
    together: Totals = {}
    for state, under_way, lag_ns in [("ready", 2, 9_000_000), ("down", 3, 1_000_000)]:
        cells = Cells()
        seen = Gauges(cells)
        seen.in_flight("b1", under_way)
        seen.backend_state("b1", "starting")
        seen.backend_state("b1", state)
        seen.ledger_lag(5)
        seen.client_connections(7)
        seen.loop_lag(lag_ns)
        assert families.counters(cells.totals()) == {}
        families.merge(together, families.gauges(cells.totals()))
    assert together == {
        Series(IN_FLIGHT.name, ("b1",)): (5,),
        Series(LEDGER_LAG.name, ()): (10,),
        Series(CLIENT_CONNECTIONS.name, ()): (14,),
        Series(LOOP_LAG.name, ()): (9_000_000,),
        Series(BACKEND_STATE.name, ("b1", "starting")): (0,),
        Series(BACKEND_STATE.name, ("b1", "ready")): (1,),
        Series(BACKEND_STATE.name, ("b1", "down")): (1,),
    }


def test_cells_that_end_within_a_series_are_refused() -> None:
    with pytest.raises(ValueError, match="3 cells"):
        families.totals_of([Series(TTFT.name, ("m", "f"))], [0, 0, 0])


def test_the_digest_of_shapes_tells_any_other_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a page of an older version would be read with the buckets of a newer one."""
    before = families.shapes()
    finer = msgspec.structs.replace(TTFT, edges_ns=(1, *TTFT.edges_ns))
    monkeypatch.setattr(families, "FAMILIES", dict(FAMILIES) | {TTFT.name: finer})
    assert families.shapes() != before
