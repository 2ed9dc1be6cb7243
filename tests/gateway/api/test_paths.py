"""What a path that is not served may have meant."""

import pytest

from gateway.api.operations import OPERATIONS
from gateway.api.paths import meant

SERVED = {*OPERATIONS, "/v1/models", "/v1/models/m1", "/healthz"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/v1/messages", "/v1/messages"),  # Anthropic's client adds /v1 itself
        ("/v1/v1/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/v1/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/models/m1", "/v1/models/m1"),
        ("/chat/completions", "/v1/chat/completions"),  # OpenAI's does not
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("//v1/chat/completions", "/v1/chat/completions"),
        ("/v1//chat/completions", "/v1/chat/completions"),
        ("/v1/tokenize", "/tokenize"),
        ("/v1/healthz/", "/healthz"),
        ("/v1/score/", "/v1/score"),  # before /score
        ("/", None),
        ("/v1", None),
        ("/v1/v1", None),
        ("*", None),
        ("/v1/audio/speech", None),
        ("/V1/chat/completions", None),
    ],
)
def test_a_wrong_base_url_is_seen_through(path: str, expected: str | None) -> None:
    assert meant(path, SERVED.__contains__) == expected
