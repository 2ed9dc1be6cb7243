"""Asking a running gateway's admin face, for the commands that manage tenants and keys."""

import argparse
import json
import pathlib
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

from gateway.commands.commands import EXIT_USAGE, CommandError, add_place, place
from gateway.commands.keys import ADMIN_KEY_FILE
from gateway.configuration.config import host_and_port

Json = dict[str, Any]
"""What the face says; its forms are those of deploy/reference/api.md."""

_PREFIX = "/admin/v1"
_TIMEOUT_S = 30.0
_ANSWER_BYTES_MAX = 64 * 1024 * 1024
_EVERYWHERE = ("", "0.0.0.0", "::")


def add_flags(command: argparse.ArgumentParser) -> None:
    """The flags that `Admin` reads."""
    command.add_argument("--url", metavar="URL", help="the gateway (default: that of the configuration)")
    command.add_argument(
        "--key-file",
        metavar="FILE",
        type=pathlib.Path,
        help="a file with an operator's key (default: admin-key)",
    )
    command.add_argument("--json", action="store_true", help="as the gateway answers")
    add_place(command)


class Admin:
    """A gateway that is asked with an operator's key."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Raises CommandError: there is no key to ask with, or no place to ask at."""
        where = place(args)
        self._url = (args.url or _url_of(where.ops.listen or where.listen)).rstrip("/")
        if not self._url.startswith(("http://", "https://")):
            raise CommandError(
                f"{self._url} is no URL: write http://host:port or https://host:port", EXIT_USAGE
            )
        file = args.key_file or pathlib.Path(where.state_dir) / ADMIN_KEY_FILE
        try:
            self._key = file.read_text().strip()
        except OSError as error:
            hint = "make a first one with `weighbridge keys bootstrap`, or name one with --key-file"
            raise CommandError(f"{file}: {error.strerror}; {hint}", EXIT_USAGE) from error
        # A gateway is reached directly, whatever http_proxy says.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(self, path: str) -> Json:
        """GET below the face. Raises CommandError."""
        return self._ask("GET", path, None, None)

    def listed(self, path: str, **query: str | None) -> Iterator[Json]:
        """All items of a list, page by page. Raises CommandError."""
        cursor: str | None = None
        while True:
            given = {name: value for name, value in (query | {"cursor": cursor}).items() if value is not None}
            page = self.get(f"{path}?{urllib.parse.urlencode(given | {'limit': '1000'})}")
            yield from page["data"]
            cursor = page["next"]
            if cursor is None:
                return

    def post(self, path: str, body: Json | None = None) -> Json:
        """POST below the face. Raises CommandError."""
        return self._ask("POST", path, body or {}, None)

    def patch(self, path: str, body: Json, version: int | None) -> Json:
        """PATCH below the face; version: that the change is about. Raises CommandError."""
        return self._ask("PATCH", path, body, version)

    def _ask(self, method: str, path: str, body: Json | None, version: int | None) -> Json:
        headers = {"authorization": f"Bearer {self._key}", "accept": "application/json"}
        data = None
        if body is not None:
            data, headers["content-type"] = json.dumps(body).encode(), "application/json"
        if version is not None:
            headers["if-match"] = f'"{version}"'
        request = urllib.request.Request(self._url + _PREFIX + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                found = json.loads(answer.read(_ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            with error:
                raise CommandError(
                    f"{self._url} says {error.code}: {_words(error.read(_ANSWER_BYTES_MAX))}"
                ) from error
        except (OSError, ValueError) as error:
            cause = getattr(error, "reason", error)
            reason = getattr(cause, "strerror", None) or str(cause) or type(error).__name__
            raise CommandError(f"{self._url} cannot be asked: {reason}") from error
        if not isinstance(found, dict):
            raise CommandError(f"{self._url} answers something that is no answer")
        return found


def part(name: str) -> str:
    """A name as a part of a path."""
    return urllib.parse.quote(name, safe="")


def _words(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return "it does not say why"


def _url_of(listen: str) -> str:
    host, port = host_and_port(listen)
    host = "127.0.0.1" if host in _EVERYWHERE else host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
