"""The call machine: every (state, event) pair, the laws, and the paths that people meet."""

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.errors import BackendDisconnected, BackendUnavailable
from gateway.api import errors
from gateway.api.operations import OPERATIONS
from gateway.calls import events as m
from gateway.calls.call import TABLE, Call
from gateway.calls.events import State
from gateway.calls.routing import Busy, Candidate, Plan
from metering.record import AttemptOutcome, CallRecord, LeftOut, Outcome
from metering.record import Params as CallParams
from metering.usage import Usage, UsageSource
from tests.support.machine import HEAD_JSON, HEAD_SSE, LIMITS, NO_ROOM, SECOND, World, facts, plan, target


def event(delta: dict | None = None, *, finish: str | None = None, **more: object) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    body = {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m1",
        "choices": choices,
        **more,
    }
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
ROLE, HE, LLO = (
    event({"role": "assistant", "content": ""}),
    event({"content": "he"}),
    event({"content": "llo"}),
)
FINISH, USAGE_EVENT, DONE = event({}, finish="stop"), event(usage=USAGE), b"data: [DONE]\n\n"
STREAM = (ROLE, HE, LLO, FINISH, USAGE_EVENT, DONE)
BODY = msgspec.json.encode(
    {
        "id": "c1",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
        ],
        "usage": USAGE,
    }
)  # fmt: skip

A, B, GPU = target("a"), target("b"), target("gpu", family="g6e", length=8192)


def world(*tiers, stream=True, include_usage=False, seats=None) -> World:
    call = Call(facts(stream=stream, include_usage=include_usage), plan(*(tiers or ((A, B), (GPU,)))), LIMITS)
    return World(call, seats=seats)


# -- how each state is reached, for the table test


def asking() -> World:
    return World(Call(facts(), plan((target("a"), target("b"))), LIMITS), limited=True)


def admitting() -> World:
    return world()


def queued() -> World:
    w = world(seats={"a": 0, "b": 0})
    w.flush()
    return w


def connecting() -> World:
    w = world()
    w.flush()
    return w


def waiting() -> World:
    w = connecting()
    w.feed(m.Connected(w.attempt))
    return w


def held() -> World:
    w = connecting()
    w.answer(200, HEAD_SSE)
    return w


def sized() -> World:
    w = world(stream=False)
    w.flush()
    w.answer(200, HEAD_JSON)
    return w


def rejected() -> World:
    w = connecting()
    w.answer(400, HEAD_JSON)
    return w


def streaming() -> World:
    w = connecting()
    w.answer(200, HEAD_SSE, ROLE, HE)
    return w


def ending() -> World:
    w = connecting()
    w.answer(200, HEAD_SSE, *STREAM)
    return w


def draining() -> World:
    w = connecting()
    w.answer(200, HEAD_SSE, ROLE, HE, FINISH)
    w.feed(m.ClientGone())
    return w


def sealing() -> World:
    w = ending()
    w.end()
    return w


def done() -> World:
    w = sealing()
    w.flush()
    return w


REACH = {
    State.ASKING: asking,
    State.ADMITTING: admitting, State.QUEUED: queued, State.CONNECTING: connecting, State.WAITING: waiting,
    State.HELD: held, State.SIZED: sized, State.REJECTED: rejected, State.STREAMING: streaming, State.ENDING: ending,
    State.DRAINING: draining, State.SEALING: sealing, State.DONE: done,
}  # fmt: skip

EVENTS = {
    m.Allowed: lambda n: m.Allowed(),
    m.Refused: lambda n: m.Refused(error=NO_ROOM),
    m.Admitted: lambda n: m.Admitted(),
    m.Seated: lambda n: m.Seated(backend="a"),
    m.Granted: lambda n: m.Granted(backend="b"),
    m.Connected: lambda n: m.Connected(n),
    m.Head: lambda n: m.Head(n, status=200, headers=HEAD_SSE),
    m.Data: lambda n: m.Data(n, data=HE),
    m.End: lambda n: m.End(n),
    m.Whole: lambda n: m.Whole(n, status=200, headers=HEAD_SSE, data=HE),
    m.Lost: lambda n: m.Lost(n, error=BackendDisconnected("a", "disconnected")),
    m.Timer: lambda n: m.Timer(),
    m.ClientGone: lambda n: m.ClientGone(),
    m.Stopping: lambda n: m.Stopping(error=errors.ShuttingDown("the gateway is shutting down")),
    m.Sealed: lambda n: m.Sealed(),
    m.Unrecorded: lambda n: m.Unrecorded(),
}

# What may come in which state; everything else is a driver's mistake. Written apart from the machine's own table.
ANYWHERE = {m.Timer, m.ClientGone, m.Stopping, m.Granted}
POSSIBLE = {
    State.ASKING: {m.Allowed, m.Refused},
    State.ADMITTING: {m.Admitted, m.Seated, m.Unrecorded},
    State.QUEUED: set(),
    State.CONNECTING: {m.Connected, m.Lost},
    State.WAITING: {m.Connected, m.Head, m.Whole, m.Lost},
    State.HELD: {m.Data, m.End, m.Lost},
    State.SIZED: {m.Data, m.End, m.Lost},
    State.REJECTED: {m.Data, m.End, m.Lost},
    State.STREAMING: {m.Data, m.End, m.Lost},
    State.ENDING: {m.Data, m.End, m.Lost},
    State.DRAINING: {m.Data, m.End, m.Lost},
    State.SEALING: {m.Sealed, m.Unrecorded},
    State.DONE: set(),
}


def test_the_table_has_every_pair() -> None:
    assert set(TABLE) == set(itertools.product(State, EVENTS))


@pytest.mark.parametrize(
    ("state", "kind"), list(itertools.product(State, EVENTS)), ids=lambda x: getattr(x, "__name__", str(x))
)
def test_every_event_in_every_state(state: State, kind: type[m.Event]) -> None:
    w = REACH[state]()
    assert w.call.state is state
    happening = EVENTS[kind](w.attempt)
    if kind not in POSSIBLE[state] | ANYWHERE:
        with pytest.raises(AssertionError):
            w.feed(happening)
        return
    if kind is m.Granted:
        w.holding.append("b")
        w.waiting = ()
    if kind is m.Allowed:
        w.allow()
    elif kind is m.Refused:
        w.refuse()
    elif kind in (m.Admitted, m.Seated, m.Sealed):
        w.at_once = kind is m.Seated
        w.flush()
    elif kind is m.Unrecorded:
        w.fail_flush()
    elif state is not State.DONE or kind not in (m.Granted,):
        w.feed(happening)
    if kind is m.Unrecorded or (state is State.ASKING and kind in (m.Refused, m.ClientGone, m.Stopping)):
        assert w.finished
        assert (w.holding, w.asking) == ([], False)
        return
    w.run_on()
    if not w.allowed:
        assert w.lines == []
        return
    if state is State.DONE and kind is m.Granted:
        w.holding.remove("b")
    w.check_books()


# -- the paths that people meet


def test_a_stream_passes_as_it_came_and_its_end_waits_for_the_record() -> None:
    w = ending()
    w.end()
    assert w.client == ROLE + HE + LLO + FINISH  # the end is held
    assert not w.finished
    w.flush()
    assert w.client == ROLE + HE + LLO + FINISH + DONE  # the usage event was only ours
    assert w.record.outcome is Outcome.COMPLETED
    assert w.record.usage.completion_tokens == 5
    assert w.record.cost_pusd == 15
    assert w.record.mended == ("usage_removed",)
    assert w.headers[b"x-weighbridge-served-by"] == b"inf2"
    w.check_books()


def test_a_client_that_asked_for_usage_gets_its_event() -> None:
    w = world(include_usage=True)
    w.flush()
    w.answer(200, HEAD_SSE, b"".join(STREAM))
    w.end()
    w.flush()
    assert w.client == b"".join(STREAM)
    assert w.record.response_bytes == len(b"".join(STREAM))
    w.check_books()


def test_a_sized_answer_is_held_whole_until_the_record_is_written() -> None:
    w = sized()
    w.feed(m.Data(w.attempt, data=BODY[:10]))
    w.feed(m.Data(w.attempt, data=BODY[10:]))
    w.end()
    assert w.status is None
    w.flush()
    assert (w.status, w.client) == (200, BODY)
    assert w.headers[b"content-length"] == str(len(BODY)).encode()
    assert w.record.finish_reasons == ("stop",)
    w.check_books()


def test_a_failure_before_the_commit_point_falls_back_and_leaves_no_trace_at_the_client() -> None:
    w = connecting()
    w.answer(200, HEAD_SSE, b": ping\n\n")
    w.feed(m.Lost(w.attempt, error=BackendDisconnected("a", "disconnected")))
    w.answer(200, HEAD_SSE, *STREAM)
    w.end()
    w.flush()
    assert w.connects == ["a", "b"]
    assert w.client == ROLE + HE + LLO + FINISH + DONE
    assert w.headers[b"x-weighbridge-fallback"] == b"disconnected"
    assert [a.outcome for a in w.record.attempts] == [AttemptOutcome.FAILED, AttemptOutcome.COMPLETED]
    assert w.record.cost_pusd == 15
    w.check_books()


def test_an_error_in_the_same_read_as_the_first_token_comes_after_it() -> None:
    w = connecting()
    w.answer(200, HEAD_SSE, ROLE + HE + b'data: {"error":{"message":"engine died"}}\n\n')
    w.flush()
    assert w.connects == ["a"]  # the commit point is an event, not a read
    assert w.client.startswith(ROLE + HE + b'data: {"error":')
    assert (w.record.outcome, w.record.usage.completion_tokens) == (Outcome.BACKEND_FAILED, 1)
    w.check_books()


def test_a_failure_after_the_commit_point_is_an_error_event_never_a_second_voice() -> None:
    w = streaming()
    w.feed(m.Lost(w.attempt, error=BackendDisconnected("a", "disconnected")))
    w.flush()
    assert w.connects == ["a"]
    assert w.client.startswith(ROLE + HE + b'data: {"error":')
    assert b"[DONE]" not in w.client
    assert w.record.outcome is Outcome.BACKEND_FAILED
    assert w.record.usage == Usage(prompt_tokens=25, completion_tokens=1, source=UsageSource.COUNTED)
    assert (w.record.cost_pusd, w.record.mended) == (26, ("prompt_estimated",))
    w.check_books()


def test_a_stream_that_ends_without_a_finish_is_a_failure() -> None:
    w = streaming()
    w.end()
    w.flush()
    assert w.record.outcome is Outcome.BACKEND_FAILED
    assert w.client.count(b'"error"') == 1


def test_an_error_as_the_last_event_is_a_failure_also_without_its_blank_line_and_after_a_finish() -> None:
    w = connecting()
    w.answer(200, HEAD_SSE, ROLE, HE, FINISH, b'data: {"error":{"message":"engine died","code":500}}')
    w.end()
    w.flush()
    assert w.record.outcome is Outcome.BACKEND_FAILED
    assert w.client.startswith(ROLE + HE + FINISH + b'data: {"error":')
    assert DONE not in w.client
    w.check_books()


def test_a_missing_done_after_a_finish_is_mended() -> None:
    w = connecting()
    w.answer(200, HEAD_SSE, ROLE, HE, FINISH, USAGE_EVENT)
    w.end()
    w.flush()
    assert w.record.outcome is Outcome.COMPLETED
    assert w.client.endswith(DONE)
    assert "done_added" in w.record.mended


def test_a_whole_stream_in_one_read_whose_last_event_has_no_blank_line() -> None:
    w = connecting()
    w.answer(200, HEAD_SSE, event({"content": "hi"}, finish="stop")[:-2])
    w.end()
    w.flush()
    assert w.record.outcome is Outcome.COMPLETED
    assert w.client.endswith(DONE)
    w.check_books()


def test_an_error_event_first_falls_back_and_later_ends_the_stream() -> None:
    broken = b'data: {"error":{"message":"engine died at 10.0.0.5","type":"server_error","code":500}}\n\n'
    w = connecting()
    w.answer(200, HEAD_SSE, broken)
    assert w.connects == ["a", "b"]
    w.answer(200, HEAD_SSE, ROLE, HE, broken)
    w.flush()
    assert w.client.startswith(ROLE + HE)
    assert b"10.0.0.5" not in w.client
    assert w.record.outcome is Outcome.BACKEND_FAILED
    w.check_books()


@pytest.mark.parametrize(("status", "outcome", "shown"), [
    (502, Outcome.BACKEND_FAILED, 502),
    (503, Outcome.BACKEND_FAILED, 503),
    (401, Outcome.BACKEND_FAILED, 502),  # it refuses our key: not the client's fault
    (302, Outcome.BACKEND_FAILED, 502),  # a redirect is not followed
])  # fmt: skip
def test_every_backend_is_tried_before_the_client_sees_an_error(status, outcome, shown) -> None:
    w = connecting()
    for _ in range(3):
        w.answer(status, HEAD_JSON)
    w.flush()
    assert w.connects == ["a", "b", "gpu"]
    assert (w.status, w.record.outcome) == (shown, outcome)
    assert w.record.cost_pusd == 0
    assert set(msgspec.json.decode(w.client)["error"]) == {"message", "type", "param", "code"}
    w.check_books()


def test_a_rejected_request_goes_to_the_client_and_to_no_other_backend() -> None:
    body = (
        b'{"error":{"message":"bad temperature","type":"BadRequestError","param":"temperature","code":400}}'
    )
    w = rejected()
    w.feed(m.Data(w.attempt, data=body))
    w.end()
    w.flush()
    assert w.connects == ["a"]
    assert (w.status, w.client) == (400, body)
    assert (w.record.outcome, w.record.status, w.record.cost_pusd) == (Outcome.REFUSED, 400, 0)


LENGTH = msgspec.json.encode(
    {
        "error": {
            "message": "This model's maximum context length is 4096 tokens.",
            "type": "BadRequestError",
            "code": 400,
        }
    }
)


def test_a_context_length_refusal_moves_on_once_to_a_longer_wall() -> None:
    w = rejected()
    w.feed(m.Data(w.attempt, data=LENGTH))
    w.end()
    assert w.connects == ["a", "gpu"]  # b's wall is no longer than a's
    w.answer(400, HEAD_JSON, LENGTH)
    w.end()
    w.flush()
    assert msgspec.json.decode(w.client)["error"]["code"] == "context_length_exceeded"
    assert w.record.error_code == "context_length_exceeded"
    assert w.record.fallback_reason == "context length"
    w.check_books()


def test_a_full_tier_spills_after_its_patience_and_says_so() -> None:
    w = queued()
    assert w.waiting == ("a", "b")
    w.tick()
    assert w.connects == ["gpu"]
    w.answer(200, HEAD_SSE, *STREAM)
    w.end()
    w.flush()
    assert (w.record.spill_reason, w.record.tier, w.record.instance_family) == ("full", 1, "g6e")
    assert w.record.queue_wait_ns == SECOND // 2
    assert w.headers[b"x-weighbridge-spill"] == b"full"


def test_a_seat_in_the_first_tier_that_comes_free_after_the_spill_is_no_spill() -> None:
    w = world(seats={"a": 0, "b": 0, "gpu": 0})
    w.flush()
    w.tick()
    assert w.waiting == ("a", "b", "gpu")
    w.grant("b")
    w.answer(200, HEAD_SSE, *STREAM)
    w.end()
    w.flush()
    assert (w.record.spill_reason, w.record.tier) == (None, 0)


def test_nobody_free_in_time_is_shed_with_a_record() -> None:
    w = world(seats={"a": 0, "b": 0, "gpu": 0})
    w.flush()
    w.tick()
    w.tick()
    w.flush()
    assert (w.status, w.record.outcome, w.record.cost_pusd) == (503, Outcome.SHED, 0)
    assert b"retry-after" in w.headers
    w.check_books()


def test_a_backend_that_never_answers_is_left_for_the_next() -> None:
    w = waiting()
    w.tick()
    assert w.aborts == 1
    assert w.connects == ["a", "b"]


def test_an_answer_that_is_not_streamed_has_a_deadline_for_its_first_byte_and_another_backend_has_as_long() -> (
    None
):
    w = sized()
    w.tick()
    assert (w.now_ns, w.connects) == (300 * SECOND, ["a", "b"])
    w.answer(200, HEAD_JSON, BODY)
    w.end()
    w.flush()
    assert (w.status, w.record.outcome, len(w.record.attempts)) == (200, Outcome.COMPLETED, 2)
    w.check_books()


def test_an_answer_that_has_begun_may_not_stall() -> None:
    w = sized()
    w.feed(m.Data(w.attempt, data=BODY[:10]))
    w.tick()
    assert (w.now_ns, w.connects) == (10 * SECOND, ["a", "b"])


def test_the_total_deadline_ends_a_call_that_is_not_streamed() -> None:
    w = sized()
    w.tick()
    w.feed(m.Connected(w.attempt))
    w.tick()
    w.flush()
    assert (w.now_ns, w.status, w.record.outcome) == (600 * SECOND, 504, Outcome.TIMED_OUT)
    w.check_books()


def test_comments_do_not_keep_a_dead_stream_alive() -> None:
    w = streaming()
    before = w.call.deadline_ns
    w.now_ns += SECOND
    w.feed(m.Data(w.attempt, data=b": ping\n\n"))
    assert w.call.deadline_ns == before
    w.feed(m.Data(w.attempt, data=LLO))
    assert w.call.deadline_ns == before + SECOND


def test_a_client_that_leaves_stops_the_backend_at_once() -> None:
    w = streaming()
    w.feed(m.ClientGone())
    assert w.aborts == 1
    assert w.holding == []
    w.flush()
    assert w.record.outcome is Outcome.CLIENT_GONE
    assert w.record.usage == Usage(prompt_tokens=25, completion_tokens=1, source=UsageSource.COUNTED)
    assert w.record.cost_pusd == 26
    w.check_books()


@pytest.mark.parametrize(("reach", "tokens", "cost"), [
    (waiting, 0, 25),  # its prompt may have been computed
    (held, 0, 25),
    (sized, 0, 25),
    (connecting, None, 0),
    (rejected, None, 0),
])  # fmt: skip
def test_a_client_that_leaves_before_any_token_pays_for_its_prompt_by_estimate(reach, tokens, cost) -> None:
    w = reach()
    w.feed(m.ClientGone())
    w.flush()
    assert (w.aborts, w.holding, w.record.outcome) == (1, [], Outcome.CLIENT_GONE)
    assert (w.record.usage.completion_tokens, w.record.cost_pusd) == (tokens, cost)
    assert w.record.usage.source is (UsageSource.UNKNOWN if tokens is None else UsageSource.ESTIMATED)
    w.check_books()


def test_a_count_of_tokens_that_the_client_did_not_wait_for_costs_nothing() -> None:
    asked = msgspec.structs.replace(facts(stream=False), operation=OPERATIONS["/tokenize"])
    w = World(Call(asked, plan((A,)), LIMITS))
    w.flush()
    w.feed(m.Connected(w.attempt))
    assert w.call.deadline_ns == 60 * SECOND  # it is not generated: its first byte is soon there
    w.feed(m.ClientGone())
    w.flush()
    assert (w.record.usage.prompt_tokens, w.record.cost_pusd) == (0, 0)


def test_running_counts_of_a_cut_stream_are_billed_as_the_last_one_stood() -> None:
    w = connecting()
    running = [event({"content": "x y"}, usage=USAGE | {"completion_tokens": tokens}) for tokens in (2, 4)]
    w.answer(200, HEAD_SSE, ROLE, *running)
    w.feed(m.ClientGone())
    w.flush()
    assert w.record.usage == Usage(prompt_tokens=10, completion_tokens=4, source=UsageSource.COUNTED)
    assert w.record.mended == ()


def test_what_a_failed_attempt_has_made_is_not_billed() -> None:
    w = held()
    w.feed(m.Data(w.attempt, data=b"data: {}\n\n"))
    w.feed(m.Lost(w.attempt, error=BackendDisconnected("a", "disconnected")))
    w.answer(200, HEAD_SSE, *STREAM)
    w.end()
    w.flush()
    assert [attempt.usage.source for attempt in w.record.attempts] == [
        UsageSource.UNKNOWN,
        UsageSource.REPORTED,
    ]
    assert w.record.cost_pusd == 15


def test_a_500_is_read_for_its_reason_and_then_another_backend_is_tried() -> None:
    w = connecting()
    w.answer(500, HEAD_JSON, b"Internal Server Error")
    assert (w.connects, w.call.deadline_ns) == (["a"], SECOND)
    w.end()
    assert (w.connects, w.aborts) == (["a", "b"], 0)


@pytest.mark.parametrize("how", ["stalls", "breaks off", "never ends"])
def test_a_500_without_its_page_is_one_all_the_same(how: str) -> None:
    w = connecting()
    w.answer(500, HEAD_JSON, b"Internal")
    if how == "stalls":
        w.tick()
    elif how == "breaks off":
        w.feed(m.Lost(w.attempt, error=BackendDisconnected("a", "disconnected")))
    else:
        w.feed(m.Data(w.attempt, data=b"x" * (2 << 20)))
    assert w.connects == ["a", "b"]
    assert w.holding == ["b"]


def test_a_500_that_says_the_prompt_is_too_long_is_tried_once_more_at_most() -> None:
    page = b"Traceback: ValueError: This model's maximum context length is 4096 tokens."
    w = world((A, B), (GPU,))
    w.flush()
    w.answer(500, HEAD_JSON, page)
    w.end()
    assert w.connects == ["a", "gpu"]
    w.answer(500, HEAD_JSON, page)
    w.end()
    w.flush()
    assert (w.status, w.record.error_code, w.connects) == (502, "backend_failed", ["a", "gpu"])
    assert b"Traceback" not in w.client


def test_a_refusal_that_breaks_off_is_one_all_the_same() -> None:
    w = rejected()
    w.feed(m.Lost(w.attempt, error=BackendDisconnected("a", "disconnected")))
    w.flush()
    assert (w.status, w.record.outcome, w.connects) == (400, Outcome.REFUSED, ["a"])


def test_a_client_that_leaves_after_the_finish_is_billed_by_the_usage_that_is_due() -> None:
    w = draining()
    w.feed(m.Data(w.attempt, data=USAGE_EVENT + DONE))
    w.flush()
    assert (w.record.outcome, w.record.cost_pusd) == (Outcome.CLIENT_GONE, 15)
    w.check_books()


def test_the_usage_that_is_due_may_be_the_streams_last_event_without_its_blank_line() -> None:
    w = draining()
    w.feed(m.Data(w.attempt, data=USAGE_EVENT.rstrip()))
    w.end()
    w.flush()
    assert (w.record.usage.source, w.record.cost_pusd) == (UsageSource.REPORTED, 15)


@pytest.mark.parametrize(("reach", "status"), [(queued, None), (sized, None), (held, None), (streaming, 200)])
def test_the_status_of_a_client_that_left_is_what_it_was_sent(reach, status) -> None:
    w = reach()
    w.feed(m.ClientGone())
    w.flush()
    assert (w.record.status, w.status) == (status, status)


def test_a_client_that_leaves_between_the_end_and_the_write_is_gone() -> None:
    w = sealing()
    w.feed(m.ClientGone())
    w.flush()
    assert w.record.outcome is Outcome.CLIENT_GONE
    assert w.record.cost_pusd == 15


def test_a_call_that_cannot_be_admitted_reaches_no_backend() -> None:
    w = admitting()
    w.fail_flush()
    assert (w.status, w.connects, w.lines) == (503, [], [])
    assert b"journal_full" in w.client


def test_an_answer_that_cannot_be_recorded_has_no_good_end() -> None:
    w = sealing()
    w.fail_flush()
    assert w.finished
    assert b"[DONE]" not in w.client
    assert b"journal_full" in w.client


def test_bytes_after_done_are_dropped_and_the_wait_for_the_end_is_bounded() -> None:
    w = ending()
    w.feed(m.Data(w.attempt, data=LLO + DONE))
    w.tick()
    assert w.aborts == 1
    w.flush()
    assert w.client.count(b"[DONE]") == 1
    assert "after_done_dropped" in w.record.mended
    w.check_books()


@pytest.mark.parametrize("body", [b"not json", b"[]", b"", b'{"error":{"message":"x"}}'])
def test_an_unreadable_200_is_a_failure_and_never_shown(body: bytes) -> None:
    w = world((A,), stream=False)
    w.flush()
    w.answer(200, HEAD_JSON, body)
    w.end()
    w.flush()
    assert (w.status, w.record.outcome, w.record.cost_pusd) == (502, Outcome.BACKEND_FAILED, 0)


def test_ttft_is_the_first_content_not_the_role_and_tpot_is_by_tokens() -> None:
    w = connecting()
    w.answer(200, HEAD_SSE, ROLE)
    w.now_ns = SECOND
    w.feed(m.Data(w.attempt, data=HE))
    w.now_ns = 3 * SECOND
    w.feed(m.Data(w.attempt, data=LLO))
    w.now_ns = 4 * SECOND
    w.feed(m.Data(w.attempt, data=FINISH + USAGE_EVENT + DONE))
    w.end()
    w.flush()
    assert w.record.ttft_ns == SECOND
    assert w.record.tpot_ns == 2 * SECOND // 4
    assert w.record.attempts[0].first_event_ns is not None


@pytest.mark.parametrize(("usage", "billed", "flags"), [
    (USAGE | {"prompt_tokens_details": {"cached_tokens": 99}}, 15, ["usage_clamped"]),
    (USAGE | {"prompt_tokens": -10}, 25 + 5, ["usage_invalid", "prompt_estimated"]),
    (USAGE | {"completion_tokens": 1.5}, 10 + 2, ["usage_invalid"]),  # of 5 bytes of text
    (USAGE | {"total_tokens": 999}, 15, []),  # the bill is made from the parts
])  # fmt: skip
def test_a_usage_that_cannot_be_is_flagged_and_never_billed_below_zero(usage, billed, flags) -> None:
    w = sized()
    body = {"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}], "usage": usage}
    w.feed(m.Data(w.attempt, data=msgspec.json.encode(body)))
    w.end()
    w.flush()
    assert (w.record.cost_pusd, list(w.record.mended)) == (billed, flags)


def test_no_patience_spills_at_once() -> None:
    limits = msgspec.structs.replace(LIMITS, patience_ns=(0, 0))
    w = World(Call(facts(), plan((A,), (GPU,)), limits), seats={"a": 0})
    w.flush()
    assert w.connects == ["gpu"]
    w.answer(200, HEAD_SSE, *STREAM)
    w.end()
    w.flush()
    assert w.record.spill_reason == "full"


def test_news_of_a_past_attempt_changes_nothing() -> None:
    w = connecting()
    w.answer(502, HEAD_JSON)
    assert w.connects == ["a", "b"]
    w.feed(m.Data(1, data=HE))
    w.feed(m.End(1))
    assert w.call.state is State.CONNECTING


def test_a_stream_of_nothing_but_its_end_mark_is_no_answer() -> None:
    w = connecting()
    w.answer(200, HEAD_SSE, DONE)
    assert w.connects == ["a", "b"]


@pytest.mark.parametrize("status", [200, 400])
def test_an_answer_without_bound_is_left(status: int) -> None:
    w = world(stream=False)
    w.flush()
    w.answer(status, HEAD_JSON, *[b"x" * (32 << 20)] * 3)
    assert w.connects == ["a", "b"]
    assert w.aborts == 1


def test_a_sized_answer_that_cannot_be_recorded_is_an_error() -> None:
    w = sized()
    w.feed(m.Data(w.attempt, data=BODY))
    w.end()
    w.fail_flush()
    assert (w.status, w.finished) == (503, True)
    assert b"hello" not in w.client


def test_ignored_parameters_are_named_in_the_head_of_the_answer() -> None:
    w = World(Call(facts(keys=("seed", "top_k", "logit_bias")), plan((A,)), LIMITS))
    w.flush()
    w.answer(200, HEAD_SSE, *STREAM)
    assert w.headers[b"x-weighbridge-ignored"] == b"logit_bias,seed"
    w.end()
    w.flush()
    assert w.record.params_ignored == ("logit_bias", "seed")


def test_shutdown_ends_calls_with_a_record_and_its_code() -> None:
    w = streaming()
    w.feed(m.Stopping(error=errors.ShuttingDown("the gateway is shutting down")))
    w.flush()
    assert (w.record.outcome, w.record.error_code) == (Outcome.BACKEND_FAILED, "shutdown")
    w.check_books()


# -- comments in a silent stream

COMMENT = b": keepalive\n\n"


def alive(*tiers, stream=True, seats=None) -> World:
    limits = msgspec.structs.replace(LIMITS, keepalive_ns=4 * SECOND)
    w = World(Call(facts(stream=stream), plan(*(tiers or ((A, B), (GPU,)))), limits), seats=seats)
    w.flush()
    return w


def test_a_silent_stream_gets_comments_and_its_fallback_stays_free() -> None:
    w = alive()
    w.feed(m.Connected(w.attempt))
    w.tick()
    assert (w.now_ns, w.status, w.client) == (4 * SECOND, 200, COMMENT)
    w.tick()
    assert (w.now_ns, w.client) == (8 * SECOND, COMMENT * 2)
    w.feed(m.Lost(w.attempt, error=BackendDisconnected("a", "disconnected")))
    assert w.connects == ["a", "b"]
    w.answer(200, HEAD_SSE, *STREAM)
    w.end()
    w.flush()
    assert w.client == COMMENT * 2 + ROLE + HE + LLO + FINISH + DONE
    assert w.record.response_bytes == len(w.client)
    assert not [
        name for name in w.headers if name.startswith(b"x-weighbridge-") and not name.endswith(b"call-id")
    ]
    assert w.headers[b"content-type"] == b"text/event-stream; charset=utf-8"
    w.check_books()


def test_a_call_that_waits_for_a_seat_is_kept_alive_too() -> None:
    w = alive((A,), seats={"a": 0})
    w.tick()
    w.tick()
    assert (w.now_ns, w.client, w.waiting) == (8 * SECOND, COMMENT * 2, ("a",))
    w.tick()
    w.flush()
    assert (w.now_ns, w.status, w.record.status, w.record.error_code) == (10 * SECOND, 200, 200, "no_backend")
    assert w.record.outcome is Outcome.SHED
    assert w.client.startswith(COMMENT * 2 + b'data: {"error":')
    w.check_books()


def test_the_silence_is_counted_from_the_last_byte_to_the_client() -> None:
    w = alive()
    w.answer(200, HEAD_SSE, ROLE)
    w.now_ns = 3 * SECOND
    w.feed(m.Data(w.attempt, data=HE))
    w.tick()
    assert (w.now_ns, w.client) == (7 * SECOND, ROLE + HE + COMMENT)
    w.tick()
    assert w.now_ns == 11 * SECOND
    w.tick()  # a comment of ours is no sign of the backend's life
    assert (w.now_ns, w.aborts) == (13 * SECOND, 1)
    w.flush()
    assert (w.record.outcome, w.record.error_code) == (Outcome.TIMED_OUT, "timeout")


def test_tokens_that_pass_by_themselves_do_not_make_a_comment_a_sign_of_life() -> None:
    w = alive()
    w.answer(200, HEAD_SSE, ROLE, HE)
    w.now_ns = SECOND
    assert w.call.passes(w.attempt, LLO, 0, len(LLO), w.now_ns)
    w.now_ns = 2 * SECOND
    w.feed(m.Data(w.attempt, data=b": ping\n\n"))
    for _ in range(10):
        w.tick()
    assert (w.now_ns, w.aborts) == (11 * SECOND, 1)


def test_a_slow_client_excuses_a_silent_backend_but_not_one_that_has_said_all() -> None:
    assert queued().call.unread_deadline_ns == queued().call.deadline_ns
    assert connecting().call.unread_deadline_ns == 2 * SECOND
    assert streaming().call.unread_deadline_ns == 600 * SECOND
    assert ending().call.unread_deadline_ns == SECOND
    assert draining().call.unread_deadline_ns == SECOND


def test_the_backends_comments_before_its_answer_are_held_and_do_not_count() -> None:
    w = alive()
    w.answer(200, HEAD_SSE, b": ping\n\n")
    w.tick()
    assert (w.now_ns, w.client) == (4 * SECOND, COMMENT)
    w.feed(m.Data(w.attempt, data=ROLE))
    assert w.client == COMMENT + b": ping\n\n" + ROLE


def test_no_comment_stands_within_an_event() -> None:
    w = alive()
    long = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"x" * 8192
    w.answer(200, HEAD_SSE, ROLE, HE, long)
    w.tick()
    assert (w.now_ns, w.client) == (4 * SECOND, ROLE + HE + long)
    w.feed(m.Data(w.attempt, data=b'"}}]}\n\n'))
    w.tick()
    assert w.client == ROLE + HE + long + b'"}}]}\n\n' + COMMENT


def test_what_comes_after_a_comment_and_is_no_stream_is_a_failure() -> None:
    w = alive()
    w.feed(m.Connected(w.attempt))
    w.tick()
    w.feed(m.Head(w.attempt, status=200, headers=HEAD_JSON))
    assert (w.connects, w.aborts) == (["a", "b"], 1)


def test_a_refusal_after_a_comment_is_an_event_on_one_line() -> None:
    w = alive()
    w.feed(m.Connected(w.attempt))
    w.tick()
    w.feed(m.Head(w.attempt, status=400, headers=HEAD_JSON))
    w.feed(m.Data(w.attempt, data=b'{"error": {"message": "no",\n "type": "t", "param": null, "code": "c"}}'))
    w.end()
    w.flush()
    assert w.client == COMMENT + b'data: {"error":{"message":"no","type":"t","param":null,"code":"c"}}\n\n'
    assert (w.record.outcome, w.record.status, w.record.error_code) == (Outcome.REFUSED, 200, "c")
    w.check_books()


def test_a_call_that_is_not_streamed_gets_no_comments() -> None:
    w = alive(stream=False)
    w.feed(m.Connected(w.attempt))
    assert w.call.deadline_ns == 300 * SECOND
    w.now_ns = 200 * SECOND
    w.feed(m.Timer())
    assert (w.status, w.client) == (None, b"")


def test_a_stop_while_a_call_is_being_admitted_ends_it_at_its_admission() -> None:
    w = admitting()
    w.feed(m.Stopping(error=errors.ShuttingDown("the gateway is shutting down")))
    w.flush()
    w.flush()
    assert (w.status, w.connects, w.record.error_code) == (503, [], "shutdown")
    w.check_books()


def test_a_cold_backend_is_warm_once_it_has_answered_and_not_by_a_comment() -> None:
    cold = msgspec.structs.replace(A, cold=True)
    w = alive((cold,))
    w.feed(m.Connected(w.attempt))
    w.tick()
    assert w.warmed == []
    w.feed(m.Head(w.attempt, status=200, headers=HEAD_SSE))
    w.feed(m.Data(w.attempt, data=ROLE))
    assert w.warmed == ["a"]


def busy(w: World, status: int, *retry_after: bytes) -> None:
    w.feed(m.Connected(w.attempt))
    w.feed(m.Head(w.attempt, status=status, headers=[(b"retry-after", value) for value in retry_after]))


@pytest.mark.parametrize(("statuses", "waits", "shown", "wait"), [
    ((429, 429), (b"7", b"9"), 429, b"7"),
    ((429, 503), (b"7", b"5"), 503, b"5"),
    ((429, 429), (b"Sun, 28 Nov 2032 00:00:00 GMT", b"0"), 429, b"1"),  # 0 would be a loop
])  # fmt: skip
def test_when_all_are_busy_the_client_hears_when_the_first_is_free(statuses, waits, shown, wait) -> None:
    w = world((A, B))
    w.flush()
    for status, value in zip(statuses, waits, strict=True):
        busy(w, status, value)
    w.flush()
    assert (w.status, w.headers[b"retry-after"]) == (shown, wait)
    assert msgspec.json.decode(w.client)["error"]["code"] == "no_backend"
    assert [name for name, _ in w.held_back] == ["a", "b"]
    assert [attempt.outcome for attempt in w.record.attempts] == [AttemptOutcome.UNAVAILABLE] * 2
    assert (w.record.status, w.record.cost_pusd) == (shown, 0)
    w.check_books()


def test_busy_backends_that_do_not_say_when_are_asked_again_in_a_second() -> None:
    w = world((A,))
    w.flush()
    busy(w, 429)
    w.flush()
    assert (w.status, w.headers[b"retry-after"], w.held_back) == (429, b"1", [("a", None)])


def test_a_busy_one_after_a_failure_is_no_429() -> None:
    w = world((A, B))
    w.flush()
    w.answer(502, HEAD_JSON)
    busy(w, 429, b"7")
    w.flush()
    assert (w.status, w.headers[b"retry-after"]) == (503, b"7")


def test_one_that_became_busy_while_a_call_waited_is_no_news_and_counts_as_busy() -> None:
    w = world((A,), (GPU,))
    w.flush()
    w.feed(m.Lost(w.attempt, error=BackendUnavailable("a", "busy", status=429, retry_after_s=5)))
    assert (w.connects, w.held_back) == (["a", "gpu"], [])
    busy(w, 429, b"7")
    w.flush()
    assert (w.status, w.headers[b"retry-after"], w.record.fallback_reason) == (429, b"5", "busy")
    assert w.record.attempts[0].status is None


def test_one_left_out_as_busy_counts_as_busy() -> None:
    left = Plan(
        able=(Candidate(A, 0),),
        left_out=(LeftOut(backend="b", reason="busy"),),
        busy=(Busy(status=429, retry_after_s=3),),
    )
    w = World(Call(facts(), left, LIMITS))
    w.flush()
    busy(w, 429, b"7")
    w.flush()
    assert (w.status, w.headers[b"retry-after"]) == (429, b"3")


def test_a_client_that_leaves_before_all_choices_have_finished_stops_the_backend_at_once() -> None:
    asked = msgspec.structs.replace(facts(), params=CallParams(n=2))
    w = World(Call(asked, plan((A,)), LIMITS))
    w.flush()
    w.answer(200, HEAD_SSE, ROLE, HE, FINISH)
    w.feed(m.ClientGone())
    assert w.aborts == 1


# -- the laws, whatever happens

steps = st.lists(
    st.sampled_from(
        ["data", "end", "lost", "timer", "gone", "stop", "flush", "grant", "refused", "head", "connected"]
    ),
    max_size=60,
)


@settings(max_examples=600, deadline=None)
@given(data=st.data(), order=steps, stream=st.booleans(), full=st.booleans())
def test_the_books_balance_in_any_order_of_events(data: st.DataObject, order, stream, full) -> None:
    w = world(stream=stream, seats={"a": 0} if full else {"b": 0})
    payload = b"".join(STREAM) if stream else BODY
    status = data.draw(st.sampled_from([200, 200, 200, 400, 404, 429, 500, 503]))
    position = 0
    for step in order:
        if w.finished:
            break
        state = w.call.state
        if step == "flush":
            w.flush()
        elif step == "timer":
            w.tick()
        elif step == "gone":
            w.feed(m.ClientGone())
        elif step == "stop":
            w.feed(m.Stopping(error=errors.ShuttingDown("stop")))
        elif step == "grant" and w.waiting:
            w.grant(data.draw(st.sampled_from(w.waiting)))
            position = 0
        elif step == "connected" and w.attempt and state is State.CONNECTING:
            w.feed(m.Connected(w.attempt))
            position = 0
        elif step == "head" and w.attempt and state is State.WAITING:
            w.feed(m.Head(w.attempt, status=status, headers=HEAD_SSE if stream else HEAD_JSON))
        elif step == "lost" and w.attempt:
            w.feed(m.Lost(w.attempt, error=BackendUnavailable("x", "connect failed")))
        elif w.attempt and m.Data in POSSIBLE[state]:
            if step == "data" and position < len(payload):
                size = data.draw(st.integers(1, len(payload)))
                w.feed(m.Data(w.attempt, data=payload[position : position + size]))
                position += size
            elif step == "end":
                w.end()
        if not w.sealed:
            assert DONE not in w.client  # no end before the seal
            if not stream:
                assert w.client == b""
    w.run_on()
    w.check_books()
    completed = w.record.outcome is Outcome.COMPLETED
    if stream and w.status == 200:
        assert completed == (DONE in w.client)
    if completed:
        assert w.client == (b"".join((ROLE, HE, LLO, FINISH, DONE)) if stream else BODY)
        assert w.record.cost_pusd == 15


class Released(World):
    """A mutant: it releases the end before its line is written."""

    def _seal(self, action: m.Seal) -> None:
        super()._seal(action)
        make, _ = self.unwritten.pop()
        self.feed(m.Sealed())
        self.unwritten.append((make, m.Timer()))


def test_the_books_see_an_end_that_leaves_before_its_record() -> None:
    w = Released(Call(facts(), plan((A,)), LIMITS))
    w.flush()
    w.answer(200, HEAD_SSE, *STREAM)
    w.end()
    with pytest.raises(AssertionError):
        assert not w.finished or any(isinstance(line, CallRecord) for line in w.lines)
