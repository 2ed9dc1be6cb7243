"""The record is made from its fields in their order: that each stands where its name says is checked here."""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable

import msgspec
import pytest

from gateway.api import wire
from gateway.api.openai_api import OpenAIApi
from gateway.calls.tally import Facts, Tally
from metering import record
from metering.cost.pricing import RateCard, Schedule
from metering.journal import chain
from metering.record import Admitted, AttemptOutcome, AttemptRecord, CallRecord, Outcome
from metering.usage import Usage, UsageSource
from tests.support import lines, machine


@pytest.mark.parametrize(
    ("function", "maker", "kind"),
    [
        (Tally.record, "_call_record", CallRecord),
        (Tally.admitted, "_admitted", Admitted),
        (Tally.end_attempt, "_attempt_record", AttemptRecord),
        (OpenAIApi.begin, "facts_in_order", Facts),
        (wire.read_usual, "_ask_in_order", wire.Ask),
    ],
)
def test_the_fields_of_a_struct_stand_in_their_order(
    function: Callable[..., object], maker: str, kind: type[msgspec.Struct]
) -> None:
    source = textwrap.dedent(inspect.getsource(function))
    (made,) = (
        node for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == maker
    )  # fmt: skip
    rows = source.splitlines()
    names = [re.fullmatch(r".*,  # (\w+)", rows[(each.end_lineno or 0) - 1]) for each in made.args]
    assert [name and name[1] for name in names] == list(kind.__struct_fields__)
    assert not made.keywords


def test_a_record_made_in_order_is_a_record() -> None:
    known = lines.call(7, chain.ZEROS)
    fields = msgspec.structs.astuple(known)
    made = record.in_order(CallRecord)(*fields)
    assert isinstance(made, CallRecord)
    assert chain.encode(made) == chain.encode(known)
    assert chain.decode(chain.encode(made)) == known


EXPECTED = record.Expected(
    cost_pusd=35, price_basis=record.PriceBasis(kind="card"), rate_card="m1/inf2@2026-11-28", unpriced_reason=None,
    usage=Usage(source=UsageSource.ESTIMATED, prompt_tokens=25, completion_tokens=5),
)  # fmt: skip


@pytest.mark.parametrize(("expected", "version"), [(msgspec.UNSET, 1), (EXPECTED, 2)])
def test_an_admission_says_what_is_expected_of_it_only_where_that_is_billed(
    expected: record.Expected | msgspec.UnsetType, version: int
) -> None:
    known = msgspec.structs.replace(machine.facts(), expected=expected)
    tally = Tally(known, machine.plan((machine.target("b1"),)))
    tally.admitted_ns = 0
    line = json.loads(chain.encode(tally.admitted(2, chain.ZEROS)))
    assert (line["v"], "expected" in line) == (version, version == 2)
    if version == 2:
        assert line["expected"]["cost_pusd"] == 35
        assert line["expected"]["usage"]["prompt_tokens"] == 25


CHANGE_NS = 10 * machine.SECOND


def of_a_call(admitted_ns: int, ended_ns: int) -> CallRecord:
    """The record of a call of 10 + 5 tokens, at a backend whose card doubles at CHANGE_NS."""
    plain = machine.target("b1")
    (card,) = plain.tariffs.tariffs
    assert isinstance(card, RateCard)
    dear = msgspec.structs.replace(
        card, prompt=2 * card.prompt, completion=2 * card.completion, date="2026-11-29"
    )
    facts = machine.facts()
    schedule = Schedule((CHANGE_NS + facts.wall_offset_ns,), (card, dear))
    target = msgspec.structs.replace(plain, tariffs=schedule)
    tally = Tally(facts, machine.plan((target,)))
    tally.admitted_ns = admitted_ns
    tally.begin_attempt(target, 0, admitted_ns)
    tally.served = True
    tally.usage = Usage(prompt_tokens=10, completion_tokens=5, source=UsageSource.REPORTED)
    tally.end_attempt(AttemptOutcome.COMPLETED, None, ended_ns)
    return tally.record(Outcome.COMPLETED, 200, None, ended_ns, seq=2, prev=chain.ZEROS)


@pytest.mark.parametrize(
    ("admitted_ns", "ended_ns", "cost_pusd", "date"),
    [
        (0, CHANGE_NS - 1, 15, "2026-11-28"),
        (CHANGE_NS - 1, CHANGE_NS + machine.SECOND, 15, "2026-11-28"),  # it ran over the change
        (CHANGE_NS, CHANGE_NS + machine.SECOND, 30, "2026-11-29"),
    ],
)
def test_a_call_is_priced_by_what_was_in_force_at_its_admission(
    admitted_ns: int, ended_ns: int, cost_pusd: int, date: str
) -> None:
    made = of_a_call(admitted_ns, ended_ns)
    assert made.price_basis is not None
    assert (made.cost_pusd, made.rate_card, made.price_basis.date) == (cost_pusd, f"m1/inf2@{date}", date)


def test_by_what_is_in_force_at_its_end_it_would_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: the newest tariff prices every call."""
    monkeypatch.setattr(Schedule, "at", lambda schedule, _at_ns: schedule.tariffs[-1])
    assert of_a_call(CHANGE_NS - 1, CHANGE_NS + machine.SECOND).cost_pusd == 30
