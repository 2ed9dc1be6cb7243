"""A backend's own refusal on its way to the client and into the record."""

import json

import pytest

from backends.errors import BackendError, BackendFaulted, BackendTimeout, BackendUnavailable
from gateway.api.errors import (
    CODE_CHARACTERS_MAX,
    BackendBroke,
    BodyTooLarge,
    Fault,
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    NoBackend,
    OutOfBudget,
    RateLimited,
    ScopeMissing,
    Shape,
    TimedOut,
    UnknownKey,
    WrongMediaType,
    error_body,
    error_event,
    from_backend,
    rejected,
)


def test_an_openai_error_passes_as_it_came_and_its_code_is_cut_for_the_record() -> None:
    error = {"message": "no", "type": "invalid_request_error", "param": None, "code": "c" * 1_000}
    body = json.dumps({"error": error}).encode()
    assert rejected(400, body) == (body, "c" * CODE_CHARACTERS_MAX)


def test_a_context_length_has_its_code_also_in_the_message_where_a_client_looks_for_it() -> None:
    words = "This model's maximum context length is 2048 tokens."
    error = {"message": words, "type": "BadRequestError", "param": "input_tokens", "code": 400}
    body, code = rejected(400, json.dumps({"error": error}).encode())
    assert code == "context_length_exceeded"
    assert json.loads(body)["error"]["message"] == f"{words} (context_length_exceeded)"


def test_an_openai_error_without_a_code_has_none_in_the_record() -> None:
    error = {"message": "no", "type": "invalid_request_error", "param": None, "code": None}
    body = json.dumps({"error": error}).encode()
    assert rejected(400, body) == (body, None)


# -- Anthropic's shape, and the events

KINDS = [
    (InvalidRequest("no", param="n"), "invalid_request_error"),
    (UnknownKey("no"), "authentication_error"),
    (ScopeMissing("no"), "permission_error"),
    (ModelNotFound("no"), "not_found_error"),
    (BodyTooLarge("no"), "request_too_large"),
    (WrongMediaType("no"), "invalid_request_error"),
    (Fault("no"), "api_error"),
    (BackendBroke("no"), "api_error"),
    (NoBackend("no"), "overloaded_error"),
    (TimedOut("no"), "timeout_error"),
]


@pytest.mark.parametrize(("error", "kind"), KINDS)
def test_an_error_in_anthropics_shape(error: GatewayError, kind: str) -> None:
    shown = {"type": "error", "error": {"type": kind, "message": "no"}}
    assert json.loads(error_body(error, Shape.ANTHROPIC)) == shown
    name, data, *rest = error_event(error, Shape.ANTHROPIC).split(b"\n")
    assert (name, json.loads(data.removeprefix(b"data: ")), rest) == (b"event: error", shown, [b"", b""])


@pytest.mark.parametrize("shape", [Shape.OPENAI, Shape.RESPONSES])
def test_an_error_in_openais_shape_has_all_four_fields(shape: Shape) -> None:
    fields = {"message": "no", "type": "invalid_request_error", "param": "n", "code": None}
    assert json.loads(error_body(InvalidRequest("no", param="n"), shape)) == {"error": fields}


def test_an_error_event_of_a_response_is_found_at_the_top_and_under_error() -> None:
    name, data, *rest = error_event(TimedOut("late"), Shape.RESPONSES, sequence=7).split(b"\n")
    assert (name, rest) == (b"event: error", [b"", b""])
    fields = {"message": "late", "param": None, "code": "timeout"}
    assert json.loads(data.removeprefix(b"data: ")) == {
        "type": "error", **fields, "sequence_number": 7, "error": {"type": "server_error", **fields},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("status", "answer", "kind", "code"),
    [
        (400, {"type": "error", "error": {"type": "rate_limit_error", "message": "no"}}, "rate_limit_error", None),
        (404, {"type": "error", "error": {"type": "NotFoundError", "message": "no"}}, "not_found_error", None),
        (404, {"detail": "no"}, "not_found_error", None),
        (400, {"error": {"message": "no", "type": "x", "param": "n", "code": "c"}}, "invalid_request_error", "c"),
        (422, {"error": "no"}, "invalid_request_error", None),
    ],
)  # fmt: skip
def test_a_backends_refusal_of_a_message_has_anthropics_words(
    status: int, answer: dict[str, object], kind: str, code: str | None
) -> None:
    body, said = rejected(status, json.dumps(answer).encode(), Shape.ANTHROPIC)
    assert json.loads(body) == {"type": "error", "error": {"type": kind, "message": "no"}}
    assert said == code


def test_a_message_that_is_too_long_is_told_in_anthropics_shape_and_recorded_by_its_code() -> None:
    words = "This model's maximum context length is 2048 tokens."
    error = {"type": "error", "error": {"type": "BadRequestError", "message": words}}
    body, code = rejected(400, json.dumps(error).encode(), Shape.ANTHROPIC)
    assert code == "context_length_exceeded"
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert json.loads(body)["error"]["message"].startswith(f"prompt is too long: {words}")


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (BackendTimeout("b", "timeout"), 504, "timeout"),
        (BackendUnavailable("b", "connect refused"), 503, "no_backend"),
        (BackendFaulted("b", "status 500"), 502, "backend_failed"),
    ],
)
def test_a_failed_attempt_is_told_without_its_backend(error: BackendError, status: int, code: str) -> None:
    shown = from_backend(error)
    assert (shown.status, shown.code) == (status, code)
    assert error.reason not in shown.message


@pytest.mark.parametrize("shape", Shape)
def test_a_refusal_of_another_form_gets_ours(shape: Shape) -> None:
    body, code = rejected(400, b'{"detail":[{"loc":["body","n"],"msg":"too many"}]}', shape)
    assert code is None
    assert json.loads(body)["error"]["message"] == "too many"


# -- limits of the tenant's own


@pytest.mark.parametrize(
    ("error", "headers"),
    [
        (RateLimited("no", wait_ms=1), {"retry-after": "1", "retry-after-ms": "1", "x-should-retry": "true"}),
        (RateLimited("no", wait_ms=1_001), {"retry-after": "2", "retry-after-ms": "1001", "x-should-retry": "true"}),
        (RateLimited("it never fits"), {"x-should-retry": "false"}),
        (OutOfBudget("no", wait_ms=5_000), {"retry-after": "5", "retry-after-ms": "5000", "x-should-retry": "false"}),
        (NoBackend("no", retry_after_s=3), {"retry-after": "3"}),
        (Fault("no"), {}),
    ],
)  # fmt: skip
def test_a_client_hears_when_to_try_again_and_whether_to(
    error: GatewayError, headers: dict[str, str]
) -> None:
    assert {name.decode(): value.decode() for name, value in error.retry_headers} == headers


def test_a_limit_is_worded_as_each_api_words_it() -> None:
    tokens = RateLimited("too many tokens a minute", limit="tokens_per_minute of key k1", of="tokens")
    money = OutOfBudget("the budget is spent")
    assert json.loads(error_body(tokens))["error"] == {
        "message": "too many tokens a minute", "type": "tokens", "param": None, "code": "rate_limit_exceeded",
    }  # fmt: skip
    assert json.loads(error_body(money))["error"] == {
        "message": "the budget is spent", "type": "insufficient_quota", "param": None, "code": "insufficient_quota",
    }  # fmt: skip
    for error in (tokens, money):
        assert json.loads(error_body(error, Shape.ANTHROPIC))["error"]["type"] == "rate_limit_error"
