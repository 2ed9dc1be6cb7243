"""The gateway before a real vLLM: it records the engine's own tokens, and changes no byte of an answer.

Judged from outside: the `openai` SDK's view, two taps, vLLM's counters and the journal's files.
"""

import collections.abc
import csv
import json

import openai
import pytest

from tests.e2e import journal
from tests.e2e.cases import Case
from tests.e2e.client import Answer
from tests.e2e.environment import MODEL
from tests.e2e.journal import Tokens
from tests.e2e.session import LEFT, Part, Session
from tests.oracle.journal import Line
from tests.support import captures
from tests.support.captures import Response
from tests.support.tap import Passed

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1_800)]

Finding = collections.abc.Callable[[str], None]

ENDED_CALLS_MIN = 20
REFUSED = {  # by the case's name: status, class of the SDK's exception, code; None: no such thing
    "unknown_model": (404, openai.NotFoundError, "model_not_found"),
    "unknown_model_stream": (404, openai.NotFoundError, "model_not_found"),
    "completions_unknown_model": (404, openai.NotFoundError, "model_not_found"),
    "broken_json": (400, None, None),
    "no_messages": (400, None, None),
    "wrong_type": (400, openai.BadRequestError, None),
    "empty_messages": (400, openai.BadRequestError, None),
    "stream_options_without_stream": (400, openai.BadRequestError, None),
    "too_long": (400, openai.BadRequestError, "context_length_exceeded"),
    "too_long_stream": (400, openai.BadRequestError, "context_length_exceeded"),
    "completions_too_long": (400, openai.BadRequestError, "context_length_exceeded"),
}


def test_the_difference_to_the_engines_own_counters_is_zero(session: Session, finding: Finding) -> None:
    ended = completed(session, session.ended)
    assert len(ended) >= ENDED_CALLS_MIN
    ours, theirs = journal.tokens(ended), session.ended.counted
    finding(f"calls that ended: {len(ended)}; tokens in the records: {ours}; counted by vLLM: {theirs}")
    assert ours - theirs == Tokens(0, 0)


def test_with_many_choices_the_engine_counts_the_prompt_once_a_choice(session: Session) -> None:
    """Its usage object, which is what we bill, has the prompt once."""
    ended = completed(session, session.many_choices)
    choices = [call["params"]["n"] for call in ended]
    assert set(choices) == {2}
    ours = journal.tokens(ended)
    assert Tokens(2 * ours.prompt, ours.completion) == session.many_choices.counted


def test_calls_that_the_client_left_are_billed_by_what_is_known(session: Session, finding: Finding) -> None:
    """A stream by the tokens that came, a sized answer by its prompt; what vLLM generated besides is not known."""
    for request_id in LEFT:
        call = session.records[request_id]
        usage = call["usage"]
        finding(f"left: {request_id}: outcome {call['outcome']}, usage {usage['source']}")
        assert call["outcome"] == "client_gone"
        assert usage["source"] == ("counted" if request_id.endswith("stream") else "estimated")
        assert usage["prompt_tokens"] > 0
        assert (usage["completion_tokens"] > 0) == request_id.endswith("stream")
        assert call["price_basis"]["kind"] == "derived"
        assert call["slot_ns"] > 0
    left = journal.tokens(session.records[request_id] for request_id in LEFT)
    finding(f"left: tokens in the records: {left}; counted by vLLM: {session.left.counted}")
    assert 0 < left.completion <= session.left.counted.completion


def test_the_engine_stops_when_the_client_leaves(session: Session, finding: Finding) -> None:
    asked = sum(case.body["max_tokens"] for case in LEFT.values() if isinstance(case.body, dict))
    generated = session.left.counted.completion
    finding(f"left: the clients asked for {asked} tokens; vLLM generated {generated}")
    assert 0 < generated < asked / 2


def test_every_answer_that_ended_has_one_record_that_says_so(session: Session) -> None:
    for answer, call in answered(session):
        assert call["outcome"] == "completed", answer
        assert (call["status"], call["call_id"]) == (200, answer.call_id)
        assert (call["model"], call["instance_family"], answer.served_by) == (MODEL, "g6e", "g6e")
        assert call["usage"]["source"] == "reported"
        assert call["price_basis"]["kind"] == "derived"
        assert call["cost_pusd"] > 0
        if answer.usage is not None:
            assert answer.usage == (call["usage"]["prompt_tokens"], call["usage"]["completion_tokens"])


def test_cached_prompt_tokens_are_recorded(session: Session) -> None:
    for name in ("chat_cached", "chat_stream_cached"):
        usage = session.records[f"one-{name}"]["usage"]
        assert 0 < usage["cached_prompt_tokens"] < usage["prompt_tokens"]


def test_the_record_is_in_the_journal_when_the_client_has_read_the_end(session: Session) -> None:
    assert session.ended.unsealed == session.many_choices.unsealed == []


def test_a_client_sees_usage_in_a_stream_only_if_it_asked(session: Session) -> None:
    for request_id, case, answer in made(session):
        if answer.status == 200 and is_stream(case):
            assert (answer.usage_events > 0) == asked_for_usage(case), request_id


def test_the_answers_bytes_are_the_engines(session: Session, finding: Finding) -> None:
    compared = 0
    for request_id, case, answer in made(session):
        if answer.status != 200:
            continue
        front, back = response(session.front[request_id]), response(session.back[request_id])
        expected = back.body
        if is_stream(case) and not asked_for_usage(case):
            expected = without_usage_event(expected)
        assert front.body == expected, request_id
        assert front.content_type == back.content_type
        compared += len(expected)
    finding(f"bytes of answers compared between the taps: {compared}, all equal")


def test_the_requests_reach_the_engine_as_sent(session: Session) -> None:
    for request_id, case, answer in made(session):
        if answer.status != 200:
            continue
        front, back = session.front[request_id], session.back[request_id]
        sent, received = json.loads(front.body), json.loads(back.body)
        if is_stream(case):
            options = (sent.pop("stream_options", None) or {}) | {"include_usage": True}
            assert received.pop("stream_options") == options
        assert list(received.items()) == list(sent.items())
        assert back.header("authorization") is None
        assert back.header("user-agent") != front.header("user-agent")


@pytest.mark.parametrize("name", REFUSED)
def test_a_request_at_fault_is_told_so(session: Session, name: str) -> None:
    status, exception, code = REFUSED[name]
    answer = session.ended.answers[f"one-{name}"]
    assert answer.status == status
    if exception is not None:
        assert type(answer.error) is exception
        assert answer.error.code == code or code is None
    error = json.loads(response(session.front[f"one-{name}"]).body)["error"]
    assert error.keys() >= {"message", "type", "param", "code"}


def test_requests_at_fault_are_not_billed(session: Session) -> None:
    for name in REFUSED:
        call = session.records.get(f"one-{name}")  # none: it ended before admission
        if call is not None:
            assert (call["outcome"], call["status"]) == ("refused", 400)
            assert call["usage"]["prompt_tokens"] is None


def test_the_model_is_listed_under_its_name(session: Session) -> None:
    assert session.models == [MODEL]


def test_the_export_says_what_the_records_say(session: Session) -> None:
    assert session.exported.returncode == 0, session.exported.stderr
    rows = list(csv.DictReader(session.exported.stdout.splitlines()))
    exported = Tokens(
        sum(int(row["prompt_tokens"]) for row in rows), sum(int(row["completion_tokens"]) for row in rows)
    )
    assert exported == journal.tokens(session.records.values())
    assert sum(int(row["calls"]) for row in rows) == len(session.records)


def made(session: Session) -> list[tuple[str, Case, Answer]]:
    """All calls whose end was waited for."""
    parts = (session.ended, session.many_choices)
    return [(key, part.cases[key], answer) for part in parts for key, answer in part.answers.items()]


def answered(session: Session) -> list[tuple[Answer, Line]]:
    return [(answer, session.records[key]) for key, _, answer in made(session) if answer.status == 200]


def completed(session: Session, part: Part) -> list[Line]:
    calls = [session.records[key] for key in part.answers if key in session.records]
    return [call for call in calls if call["outcome"] == "completed"]


def is_stream(case: Case) -> bool:
    return isinstance(case.body, dict) and bool(case.body.get("stream"))


def asked_for_usage(case: Case) -> bool:
    assert isinstance(case.body, dict)
    return bool(case.body.get("stream_options", {}).get("include_usage"))


def response(passed: Passed) -> Response:
    assert passed.response is not None, "cut short"
    return passed.response


def without_usage_event(stream: bytes) -> bytes:
    """The stream without the one event that has a usage and no choice."""
    kept = [data for data in captures.events(stream) if not is_usage_event(data)]
    assert len(kept) == len(captures.events(stream)) - 1
    return b"".join(b"data: %b\n\n" % data for data in kept)


def is_usage_event(data: bytes) -> bool:
    if data == b"[DONE]":
        return False
    event = json.loads(data)
    return event["choices"] == [] and event.get("usage") is not None
