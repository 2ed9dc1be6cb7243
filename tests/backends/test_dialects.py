"""Parameters that hardware does not apply, and errors in the words of many versions."""

import json

import msgspec
import pytest

from backends.dialects import UNREADABLE, ErrorShape, error_of, ignored, is_context_length
from tests.support import captures

OPENAI = {"message": "no", "type": "BadRequestError", "param": "n", "code": 400}


@pytest.mark.parametrize(
    ("family", "found"),
    [
        ("inf2", ("logprobs", "seed")),
        ("trn1", ("logprobs", "seed")),
        ("trn1n", ("logprobs", "seed")),
        ("g6e", ()),
        ("p5", ()),
        (None, ()),  # unknown hardware: nothing is known to be dropped
    ],
)
def test_on_device_sampling_ignores_parameters(family: str | None, found: tuple[str, ...]) -> None:
    assert ignored(family, ["seed", "temperature", "top_p", "top_k", "logprobs", "model", "seed"]) == found


BAD_REQUEST = ErrorShape(message="no", type="BadRequestError", param="n")


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ({"error": OPENAI}, msgspec.structs.replace(BAD_REQUEST, openai=True)),
        ({"error": OPENAI | {"code": "bad"}}, msgspec.structs.replace(BAD_REQUEST, code="bad", openai=True)),
        ({"error": {"message": "no"}}, ErrorShape(message="no")),  # not all four: not as OpenAI sends it
        (
            {"error": OPENAI | {"message": 5}},
            msgspec.structs.replace(BAD_REQUEST, message=UNREADABLE.message),
        ),
        ({"object": "error", **OPENAI}, BAD_REQUEST),  # V0, flat
        ({"error": "Unauthorized"}, ErrorShape(message="Unauthorized")),
        ({"detail": "Not Found"}, ErrorShape(message="Not Found")),
        (
            {"detail": [{"loc": ["body", "n", 0], "msg": "required"}]},
            ErrorShape(message="required", param="n"),
        ),
        ({"detail": [{"loc": None, "msg": "wrong"}]}, ErrorShape(message="wrong")),
        ({"detail": [{"msg": 5}]}, UNREADABLE),
        ({"detail": []}, UNREADABLE),
        ({"detail": ["x"]}, UNREADABLE),
        ({}, UNREADABLE),
        ([], UNREADABLE),
    ],
)
def test_every_shape_of_an_error_is_read(body: object, shape: ErrorShape) -> None:
    assert error_of(json.dumps(body).encode()) == shape


@pytest.mark.parametrize("body", [b"", b"<html>nginx</html>", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_unreadable(body: bytes) -> None:
    assert error_of(body) is UNREADABLE


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.",
        "However, the model's context length is only 2048 tokens, resulting in a maximum input length of 9.",
        "The decoder prompt (length 9000) is longer than the maximum model length of 2048.",
        "Make sure that `max_model_len` is no smaller than the number of text tokens.",
    ],
)
def test_a_wall_is_known_in_all_wordings(message: str) -> None:
    nested = json.dumps({"error": {**OPENAI, "message": message}}).encode()
    flat = json.dumps({"object": "error", **OPENAI, "message": message}).encode()
    assert is_context_length(400, nested)
    assert is_context_length(400, flat)
    assert not is_context_length(500, nested)


def test_a_code_names_the_wall_too() -> None:
    assert is_context_length(
        400, json.dumps({"error": {**OPENAI, "code": "context_length_exceeded"}}).encode()
    )


def test_other_rejections_are_not_the_wall() -> None:
    assert not is_context_length(400, json.dumps({"error": OPENAI}).encode())
    assert not is_context_length(400, b"maximum context length")  # not an error's message


@pytest.mark.parametrize("name", ["too_long", "too_long_stream", "completions_too_long"])
def test_the_recorded_walls(name: str) -> None:
    response = captures.load(name).response
    assert is_context_length(response.status, response.body)


@pytest.mark.parametrize(
    "name", ["wrong_type", "no_messages", "empty_messages", "unknown_model", "broken_json"]
)
def test_other_recorded_rejections(name: str) -> None:
    response = captures.load(name).response
    assert not is_context_length(response.status, response.body)
    assert error_of(response.body).openai
