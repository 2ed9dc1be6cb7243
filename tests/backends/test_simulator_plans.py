import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.simulator import plans
from backends.simulator.plans import Plan
from backends.simulator.tokens import natural_length, words


def said(plan: Plan) -> list[str]:
    return [next(plan.texts, "") for _ in range(plan.length)]


def test_words_end_by_themselves_unless_told_otherwise() -> None:
    natural = natural_length(0)
    plan = plans.spoken(0, max_tokens=999, min_tokens=0, ignore_eos=False)
    assert (plan.length, plan.finish_reason) == (natural, "stop")
    assert said(plan) == [*itertools.islice(words(0), natural - 1), ""]  # the end token has no text
    plan = plans.spoken(0, max_tokens=999, min_tokens=0, ignore_eos=True)
    assert (plan.length, plan.finish_reason) == (999, "length")
    assert all(said(plan))
    assert plans.spoken(0, max_tokens=999, min_tokens=500, ignore_eos=False).length == 500
    plan = plans.spoken(0, max_tokens=3, min_tokens=500, ignore_eos=False)
    assert (said(plan), plan.finish_reason) == (list(itertools.islice(words(0), 3)), "length")


@pytest.mark.parametrize(
    ("max_tokens", "texts", "reason"),
    [
        (9, ["{", '"', "load", '"', ":", " 1", "}", ""], "stop"),
        (8, ["{", '"', "load", '"', ":", " 1", "}", ""], "stop"),
        (7, ["{", '"', "load", '"', ":", " 1", "}"], "length"),
        (2, ["{", '"'], "length"),
    ],
)
def test_a_script_is_said_in_tokens_and_ended(max_tokens: int, texts: list[str], reason: str) -> None:
    plan = plans.scripted('{"load": 1}', max_tokens=max_tokens)
    assert (said(plan), plan.finish_reason) == (texts, reason)


@given(st.text())
def test_a_scripts_tokens_are_its_text(text: str) -> None:
    assert "".join(plans.split(text)) == text


def test_what_only_reads_says_nothing() -> None:
    plan = plans.nothing()
    assert (said(plan), plan.finish_reason) == ([""], "stop")


def script(*texts: str, reason: str = "length") -> Plan:
    return Plan(iter(texts), len(texts), reason)


def test_without_stop_strings_a_plan_stays_as_it_was() -> None:
    plan = script("a", "b")
    assert plans.stopped(plan, ()) is plan


@pytest.mark.parametrize(
    ("stops", "texts", "stop_reason"),
    [
        ([" River"], ["", "", "1", ". The"], " River"),  # as in the capture chat_stream_stop
        (["The"], ["", "", "1. "], "The"),
        (["1"], [""], "1"),
        (["of", ". T"], ["", "", "1"], ". T"),
        (["no such"], ["", "", "", "1. The", " River of"], None),
    ],
)
def test_a_stop_string_is_not_said_and_neither_is_what_may_begin_one(
    stops: list[str], texts: list[str], stop_reason: str | None
) -> None:
    plan = plans.stopped(script("1", ".", " The", " River", " of"), stops)
    assert (plan.length, plan.stop_reason) == (len(texts), stop_reason)
    assert plan.finish_reason == ("length" if stop_reason is None else "stop")
    if stop_reason is not None:
        assert said(plan) == texts


@given(st.lists(st.text("ab", max_size=3), min_size=1), st.lists(st.text("ab", min_size=1, max_size=3)))
def test_stop_strings_cut_the_text_before_the_first_that_was_met(texts: list[str], stops: list[str]) -> None:
    """Whatever the tokens are: the text has none of the stop strings, and goes up to one."""
    plan = plans.stopped(script(*texts), stops)
    length, reason = plan.length, plan.stop_reason
    text = "".join(said(plan))
    whole = "".join(texts)
    assert not any(stop in text for stop in stops)
    if reason is None:
        assert (text, length) == (whole, len(texts))
    else:
        assert whole.startswith(text + reason)
        assert not any(stop in "".join(texts[: length - 1]) for stop in stops)
