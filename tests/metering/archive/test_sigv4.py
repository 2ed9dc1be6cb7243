"""Signatures, compared with botocore's of the same requests."""

import datetime
import urllib.parse
from unittest import mock

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.archive import sigv4
from metering.archive.sigv4 import Asked, Credentials
from metering.units import NS_PER_S

AT_S = 1_795_863_600
NAMES = st.text("abcxyz-_.~ =&+%/ü0123", min_size=1, max_size=12)


def botocores(asked: Asked, who: Credentials, region: str) -> dict[str, str]:
    """The headers that botocore signs this request with."""
    url = f"https://{asked.headers['host']}{sigv4.target(asked)}"
    headers = {name: value for name, value in asked.headers.items() if name != "host"}
    request = botocore.awsrequest.AWSRequest(asked.method, url, headers, asked.body)
    credentials = botocore.credentials.Credentials(who.access_key_id, who.secret_access_key, who.token)
    auth = botocore.auth.S3SigV4Auth(credentials, "s3", region)
    at = datetime.datetime.fromtimestamp(AT_S, datetime.UTC)
    with mock.patch("botocore.auth.get_current_datetime", return_value=at.replace(tzinfo=None)):
        auth.add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


@given(
    method=st.sampled_from(["GET", "PUT", "HEAD", "DELETE"]),
    steps=st.lists(NAMES.filter(lambda text: "/" not in text), min_size=1, max_size=4),
    query=st.dictionaries(NAMES, NAMES | st.just(""), max_size=4),
    body=st.binary(max_size=50),
    token=st.none() | st.just("a-token"),
)
def test_they_are_botocores(
    method: str, steps: list[str], query: dict[str, str], body: bytes, token: str | None
) -> None:
    headers = {
        "host": "s3.eu-central-1.amazonaws.com",
        "if-none-match": "*",
        "x-amz-object-lock-mode": "COMPLIANCE",
    }
    asked = Asked(method, "/" + "/".join(steps), query, headers, body)
    who = Credentials("AKIDEXAMPLE", "secret", token)
    ours = sigv4.signed_headers(asked, who, region="eu-central-1", now_ns=AT_S * NS_PER_S)
    theirs = botocores(asked, who, "eu-central-1")
    assert ours["x-amz-content-sha256"] == theirs["x-amz-content-sha256"]
    assert ours["authorization"] == theirs["authorization"]


def test_the_target_is_what_was_signed() -> None:
    asked = Asked("GET", "/b/facts/day=2026-11-28/ü", {"versionId": "a+b", "list": ""}, {"host": "h"})
    path, _, query = sigv4.target(asked).partition("?")
    assert path == "/b/facts/day%3D2026-11-28/%C3%BC"
    assert urllib.parse.parse_qsl(query, keep_blank_values=True) == [("list", ""), ("versionId", "a+b")]


@pytest.mark.parametrize("mutant", ["path", "token"])
def test_another_request_has_another_signature(mutant: str) -> None:
    who = Credentials("AKIDEXAMPLE", "secret", "t")
    asked = Asked("GET", "/b/k", {}, {"host": "h"})
    other = asked._replace(path="/b/l") if mutant == "path" else asked
    whose = who._replace(token="u") if mutant == "token" else who
    one = sigv4.signed_headers(asked, who, region="r", now_ns=0)
    assert one["authorization"] != sigv4.signed_headers(other, whose, region="r", now_ns=0)["authorization"]
