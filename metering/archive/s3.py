"""A bucket, as far as obstore has no word for it: objects under lock, their versions, how the bucket is set up.

Signed requests by http.client, one connection each: what is asked here is asked a few times a minute at most. Path
style, like obstore. Answers: https://docs.aws.amazon.com/AmazonS3/latest/API/API_Operations_Amazon_Simple_Storage_Service.html
"""

import datetime
import http.client
import os
import ssl
import time
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import NamedTuple

from metering.archive import sigv4
from metering.archive.credentials import Finder, NoCredentials, of_environment
from metering.archive.objects import ArchiveUnavailable
from metering.archive.sigv4 import Asked
from metering.units import NS_PER_S

_TIMEOUT_S = 60.0
_TRIES = 3
_AGAIN_S = 0.5
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


class Refused(ArchiveUnavailable):
    """The bucket answered that it will not. status: HTTP; code: S3's, "" if it told none."""

    def __init__(self, message: str, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Version(NamedTuple):
    """One version of an object, or a delete marker that hides it. path: below the prefix; latest: it is the newest."""

    path: str
    id: str
    modified_ns: int
    latest: bool
    marker: bool


class Setup(NamedTuple):
    """How a bucket is set up. default_mode, default_days: what it locks each new object with; None: nothing."""

    versioned: bool
    locks: bool
    default_mode: str | None
    default_days: int | None


class Bucket:
    """A bucket below a prefix. Every method raises ArchiveUnavailable, and Refused."""

    def __init__(
        self,
        name: str,
        prefix: str,
        endpoint: str | None,
        region: str | None,
        finder: Finder | None = None,
    ) -> None:
        """endpoint, region: as of `open_objects`; else what the environment says; else Amazon's, us-east-1."""
        env = os.environ
        self._region = region or env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or "us-east-1"
        given = endpoint or next((env[one] for one in _ENDPOINTS if env.get(one)), None)
        self._url = urllib.parse.urlsplit(given or f"https://s3.{self._region}.amazonaws.com")
        self._name = name
        self._prefix = f"{prefix}/" if prefix else ""
        self._finder = finder or of_environment(time.time_ns)

    def __str__(self) -> str:
        return f"s3://{self._name}/{self._prefix}".rstrip("/")

    def put(self, path: str, data: bytes, headers: Mapping[str, str]) -> None:
        """Put an object, with these headers."""
        self._ask("PUT", path, headers=headers, body=data)

    def locked_until_ns(self, path: str) -> int:
        """Until when the object's lock holds, wall clock; 0: it has none, or there is no such object."""
        try:
            headers, _ = self._ask("HEAD", path)
        except Refused as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return 0
            raise
        until = headers.get("x-amz-object-lock-retain-until-date")
        return 0 if until is None else _moment(until)

    def get_version(self, one: Version) -> bytes:
        """The bytes of a version."""
        return self._ask("GET", one.path, {"versionId": one.id})[1]

    def delete_version(self, one: Version) -> None:
        """Delete a version for good; one that is locked is refused."""
        self._ask("DELETE", one.path, {"versionId": one.id})

    def versions(self, prefix: str) -> Iterator[Version]:
        """All versions of all objects below `prefix`, by path, the newest of each first."""
        asked = {"versions": "", "prefix": self._prefix + prefix}
        while True:
            root = _parsed(self._ask("GET", None, asked)[1])
            for element in root:
                kind = _name(element)
                if kind in ("Version", "DeleteMarker"):
                    yield self._version(element, marker=kind == "DeleteMarker")
            if _text(root, "IsTruncated") != "true":
                return
            asked |= {
                "key-marker": _text(root, "NextKeyMarker"),
                "version-id-marker": _text(root, "NextVersionIdMarker"),
            }

    def setup(self) -> Setup:
        """What the bucket itself says of versions and locks."""
        versioned = _text(_parsed(self._ask("GET", None, {"versioning": ""})[1]), "Status") == "Enabled"
        try:
            root = _parsed(self._ask("GET", None, {"object-lock": ""})[1])
        except Refused as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return Setup(versioned, False, None, None)
        locks = _text(root, "ObjectLockEnabled") == "Enabled"
        mode, days, years = (_text(root, name) for name in ("Mode", "Days", "Years"))
        lasts = int(days) if days else 365 * int(years) if years else None
        return Setup(versioned, locks, mode or None, lasts)

    def _version(self, element: ET.Element, *, marker: bool) -> Version:
        key = _text(element, "Key")
        return Version(
            path=key.removeprefix(self._prefix),
            id=_text(element, "VersionId"),
            modified_ns=_moment(_text(element, "LastModified")),
            latest=_text(element, "IsLatest") == "true",
            marker=marker,
        )

    def _ask(
        self,
        method: str,
        path: str | None,
        query: Mapping[str, str] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> tuple[Mapping[str, str], bytes]:
        """path: of an object, below the prefix; None: the bucket. returns: headers (lower case), body."""
        what = str(self) if path is None else f"s3://{self._name}/{self._prefix}{path}"
        key = "" if path is None else f"/{self._prefix}{path}"
        asked = Asked(
            method,
            f"{self._url.path.rstrip('/')}/{self._name}{key}",
            query or {},
            {"host": self._url.netloc, **(headers or {})},
            body,
        )
        for left in reversed(range(_TRIES)):
            try:
                status, found, data = self._send(asked)
            except NoCredentials as error:
                raise ArchiveUnavailable(f"{what}: {error}") from error
            except (OSError, http.client.HTTPException) as error:
                if left:
                    time.sleep(_AGAIN_S)
                    continue
                raise ArchiveUnavailable(f"{what}: {error or type(error).__name__}") from error
            if status < HTTPStatus.INTERNAL_SERVER_ERROR or not left:
                break
            time.sleep(_AGAIN_S)
        if status >= HTTPStatus.MULTIPLE_CHOICES:
            code, message = _error(data)
            raise Refused(f"{what}: {status} {code or 'refused'}{message and f': {message}'}", status, code)
        return found, data

    def _send(self, asked: Asked) -> tuple[int, Mapping[str, str], bytes]:
        host, port = self._url.hostname or "", self._url.port
        connection = (
            http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
            if self._url.scheme == "http"
            else http.client.HTTPSConnection(
                host, port, timeout=_TIMEOUT_S, context=ssl.create_default_context()
            )
        )
        try:
            headers = sigv4.signed_headers(
                asked, self._finder.find(), region=self._region, now_ns=time.time_ns()
            )
            connection.request(asked.method, sigv4.target(asked), body=asked.body or None, headers=headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()


def _parsed(data: bytes) -> ET.Element:
    try:
        return ET.fromstring(data)
    except ET.ParseError as error:
        raise ArchiveUnavailable(f"the bucket's answer cannot be read: {error}") from error


def _error(data: bytes) -> tuple[str, str]:
    try:
        root = ET.fromstring(data)
    except ET.ParseError:
        return "", ""
    return _text(root, "Code"), _text(root, "Message")


def _name(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def _text(element: ET.Element, name: str) -> str:
    """The text of the first element of this name below; "": there is none."""
    found = next((one.text for one in element.iter() if _name(one) == name), None)
    return found or ""


def _moment(text: str) -> int:
    return int(datetime.datetime.fromisoformat(text).timestamp()) * NS_PER_S
