"""Whose requests to a bucket are: found where AWS' own tools find it, in their order, and had again before it ends.

    AWS_ACCESS_KEY_ID …  ─▶  a web identity  ─▶  the container's role  ─▶  the instance's role

As obstore does for what it sends (metering/archive/objects.py); it does not tell what it has found.
https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html
"""

import datetime
import json
import os
import pathlib
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from typing import Protocol

from metering.archive.sigv4 import Credentials
from metering.units import NS_PER_S

EARLY_NS = 300 * NS_PER_S
"""So long before they end, credentials are had anew."""
_TIMEOUT_S = 5.0
_INSTANCE = "http://169.254.169.254"
_CONTAINER = "http://169.254.170.2"
_STS = "{https://sts.amazonaws.com/doc/2011-06-15/}"


class NoCredentials(Exception):
    """There are none, or who gives them can't be asked; the message says which."""


class Fetch(Protocol):
    """Does a request; returns the body. Raises OSError: it can't be done, or its answer is no success."""

    def __call__(self, url: str, headers: Mapping[str, str], method: str = "GET") -> bytes: ...


def fetch(url: str, headers: Mapping[str, str], method: str = "GET") -> bytes:
    """As Fetch."""
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        return bytes(answer.read())


class Finder:
    """Finds credentials, and keeps them for as long as they are good. clock: wall clock in ns since 1970 (UTC)."""

    def __init__(self, env: Mapping[str, str], clock: Callable[[], int], fetch: Fetch = fetch) -> None:
        self._env = env
        self._clock = clock
        self._fetch = fetch
        self._found: Credentials | None = None

    def find(self) -> Credentials:
        """Raises NoCredentials."""
        found = self._found
        if found is None or (found.until_ns is not None and found.until_ns - EARLY_NS <= self._clock()):
            try:
                found = self._found = self._look()
            except (OSError, KeyError, ValueError, AttributeError, ET.ParseError) as error:
                raise NoCredentials(f"no credentials of AWS can be had: {error}") from error
        return found

    def _look(self) -> Credentials:
        env = self._env
        if env.get("AWS_ACCESS_KEY_ID") and env.get("AWS_SECRET_ACCESS_KEY"):
            token = env.get("AWS_SESSION_TOKEN") or None
            return Credentials(env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"], token)
        if env.get("AWS_WEB_IDENTITY_TOKEN_FILE") and env.get("AWS_ROLE_ARN"):
            return self._of_web_identity()
        if env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") or env.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"):
            return self._of_container()
        return self._of_instance()

    def _of_web_identity(self) -> Credentials:
        env = self._env
        region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION")
        host = f"https://sts.{region}.amazonaws.com" if region else "https://sts.amazonaws.com"
        asked = {
            "Action": "AssumeRoleWithWebIdentity",
            "Version": "2011-06-15",
            "RoleArn": env["AWS_ROLE_ARN"],
            "RoleSessionName": env.get("AWS_ROLE_SESSION_NAME") or "weighbridge",
            "WebIdentityToken": pathlib.Path(env["AWS_WEB_IDENTITY_TOKEN_FILE"]).read_text().strip(),
        }
        endpoint = env.get("AWS_ENDPOINT_URL_STS") or host
        root = ET.fromstring(self._fetch(f"{endpoint}/?{urllib.parse.urlencode(asked)}", {}, "POST"))
        (given,) = root.iter(f"{_STS}Credentials")

        def text(name: str) -> str:
            found = given.findtext(f"{_STS}{name}")
            if not found:
                raise KeyError(name)
            return found

        return Credentials(
            text("AccessKeyId"), text("SecretAccessKey"), text("SessionToken"), _moment(text("Expiration"))
        )

    def _of_container(self) -> Credentials:
        env = self._env
        relative = env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
        url = _CONTAINER + relative if relative else env["AWS_CONTAINER_CREDENTIALS_FULL_URI"]
        token = env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN")
        if file := env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
            token = pathlib.Path(file).read_text().strip()
        return _of_json(self._fetch(url, {"authorization": token} if token else {}))

    def _of_instance(self) -> Credentials:
        """The instance's role, by IMDSv2."""
        base = self._env.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _INSTANCE
        lasts = {"x-aws-ec2-metadata-token-ttl-seconds": "600"}
        token = self._fetch(f"{base}/latest/api/token", lasts, "PUT").decode()
        headers = {"x-aws-ec2-metadata-token": token}
        roles = f"{base}/latest/meta-data/iam/security-credentials/"
        role = self._fetch(roles, headers).decode().split()[0]
        return _of_json(self._fetch(roles + role, headers))


def _of_json(data: bytes) -> Credentials:
    given = json.loads(data)
    return Credentials(
        given["AccessKeyId"], given["SecretAccessKey"], given["Token"], _moment(given["Expiration"])
    )


def _moment(text: str) -> int:
    return int(datetime.datetime.fromisoformat(text).timestamp()) * NS_PER_S


def of_environment(clock: Callable[[], int]) -> Finder:
    """By the process' own environment."""
    return Finder(os.environ, clock)
