"""A backend's own refusal on its way to the client and into the record."""

import json

from gateway.errors import CODE_CHARACTERS_MAX, rejected


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
