"""What a browser is told, by origin."""

import json

import pytest

from gateway.api.cors import CorsPolicy
from gateway.configuration.config import Cors

APP = b"https://app.example.com"
ONE = CorsPolicy(Cors(origins=(APP.decode(), "http://localhost:3000"), max_age_s=60))
ANY = CorsPolicy(Cors(origins=("*",)))
ASKS = {b"origin": APP, b"access-control-request-method": b"POST"}
NAMES = b"authorization, content-type,x-stainless-lang"


def test_a_preflight_of_a_known_origin_needs_no_key() -> None:
    answer = ONE.preflight("OPTIONS", ASKS | {b"access-control-request-headers": NAMES})
    assert answer is not None
    status, headers, body = answer
    assert (status, body) == (204, b"")
    assert dict(headers) == {
        b"access-control-allow-origin": APP,
        b"access-control-allow-methods": b"GET, HEAD, POST",
        b"access-control-allow-headers": NAMES,
        b"access-control-max-age": b"60",
        b"vary": b"origin, access-control-request-method, access-control-request-headers",
    }


@pytest.mark.parametrize("names", [b"", b" ", b"a b", b"a,,b", b"a\r\nset-cookie: x", b"*", b"\xff"])
def test_headers_that_are_no_names_are_not_repeated(names: bytes) -> None:
    answer = ONE.preflight("OPTIONS", ASKS | {b"access-control-request-headers": names})
    assert answer is not None
    assert b"access-control-allow-headers" not in dict(answer[1])


@pytest.mark.parametrize(
    "origin",
    [b"https://evil.example", b"null", b"https://app.example.com:8443", b"http://app.example.com", b""],
)
def test_another_origin_is_told_no_and_nothing_else(origin: bytes) -> None:
    answer = ONE.preflight("OPTIONS", ASKS | {b"origin": origin})
    assert answer is not None
    status, headers, body = answer
    assert (status, json.loads(body)["error"]["type"]) == (403, "invalid_request_error")
    assert not any(name.startswith(b"access-control") for name, _ in headers)
    assert dict(headers)[b"content-length"] == b"%d" % len(body)
    assert ONE.headers(origin) == [(b"vary", b"origin")]


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("POST", ASKS),
        ("OPTIONS", {b"origin": APP}),
        ("OPTIONS", {b"access-control-request-method": b"POST"}),
        ("OPTIONS", {}),
    ],
)
def test_what_is_no_preflight_goes_on(method: str, headers: dict[bytes, bytes]) -> None:
    assert ONE.preflight(method, headers) is None


def test_an_answer_to_a_page_names_its_origin_and_what_it_may_read() -> None:
    headers = dict(ONE.headers(APP))
    assert headers[b"access-control-allow-origin"] == APP
    assert headers[b"vary"] == b"origin"
    assert b"x-request-id" in headers[b"access-control-expose-headers"]
    assert b"retry-after" in headers[b"access-control-expose-headers"]


def test_an_answer_to_no_page_says_that_it_would_differ() -> None:
    assert ONE.headers(None) == [(b"vary", b"origin")]


def test_any_origin_and_never_with_credentials() -> None:
    answer = ANY.preflight("OPTIONS", ASKS | {b"origin": b"null"})
    assert answer is not None
    for headers in (answer[1], ANY.headers(b"https://whoever.example")):
        assert dict(headers)[b"access-control-allow-origin"] == b"*"
        assert b"access-control-allow-credentials" not in dict(headers)
    assert ANY.headers(None) == []
