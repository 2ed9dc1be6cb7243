"""AWS Signature Version 4 of one request to S3. Pure.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html, with what is particular to
S3: the path is encoded once and not normalised, and the body's digest is a header.
"""

import datetime
import hashlib
import hmac
import urllib.parse
from collections.abc import Mapping
from typing import NamedTuple

from metering.units import NS_PER_S

_ALGORITHM = "AWS4-HMAC-SHA256"
_UNRESERVED = "-_.~"


class Credentials(NamedTuple):
    """Who asks. token: of temporary ones; until_ns: when they end (wall clock); None: never."""

    access_key_id: str
    secret_access_key: str
    token: str | None = None
    until_ns: int | None = None


class Asked(NamedTuple):
    """A request. path: not encoded yet; query: names and values likewise; headers: names in lower case, with `host`."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""


def target(asked: Asked) -> str:
    """The request target: path and query, encoded as they are signed."""
    query = _query(asked)
    return _path(asked) + (f"?{query}" if query else "")


def signed_headers(
    asked: Asked, who: Credentials, *, region: str, now_ns: int, service: str = "s3"
) -> dict[str, str]:
    """All headers of the request, those among them that sign it. now_ns: wall clock."""
    at = datetime.datetime.fromtimestamp(now_ns // NS_PER_S, datetime.UTC)
    moment, day = at.strftime("%Y%m%dT%H%M%SZ"), at.strftime("%Y%m%d")
    digest = hashlib.sha256(asked.body).hexdigest()
    headers = {**asked.headers, "x-amz-content-sha256": digest, "x-amz-date": moment}
    if who.token is not None:
        headers["x-amz-security-token"] = who.token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{' '.join(headers[name].split())}\n" for name in sorted(headers))
    canonical = "\n".join((asked.method, _path(asked), _query(asked), lines, names, digest))
    scope = f"{day}/{region}/{service}/aws4_request"
    to_sign = "\n".join((_ALGORITHM, moment, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{who.secret_access_key}".encode()
    for part in (day, region, service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    headers["authorization"] = (
        f"{_ALGORITHM} Credential={who.access_key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers


def _path(asked: Asked) -> str:
    return urllib.parse.quote(asked.path, safe="/" + _UNRESERVED)


def _query(asked: Asked) -> str:
    pairs = sorted((_encoded(name), _encoded(value)) for name, value in asked.query.items())
    return "&".join(f"{name}={value}" for name, value in pairs)


def _encoded(text: str) -> str:
    return urllib.parse.quote(text, safe=_UNRESERVED)
