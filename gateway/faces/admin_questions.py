"""What the admin face is asked, as a request has it. Pure. Every function raises InvalidRequest."""

import ipaddress
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.api.errors import InvalidRequest, shown
from gateway.directory.edits import OVERLAP_S_DEFAULT, OVERLAP_S_MAX

BODY_BYTES_MAX = 64 * 1024
LIMIT_DEFAULT = 100
LIMIT_MAX = 1_000
_VERSION = re.compile(r'(?:W/)?"?([1-9][0-9]{0,17})"?')
_NAMES_HERE = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")


def body(data: bytes) -> Mapping[str, Any]:
    """A JSON object."""
    if not data.strip():
        return {}
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidRequest("the body must be a JSON object")
    return found


def nothing(given: Mapping[str, Any]) -> None:
    """A body that says nothing, for none is wanted."""
    for name in given:
        raise InvalidRequest(f"there is no {shown(name)} here; this path takes no body", param=name[:64])


def overlap_s(given: Mapping[str, Any]) -> int:
    """For how many seconds the old key goes on."""
    for name in given.keys() - {"overlap_s"}:
        raise InvalidRequest(f"there is no {shown(name)} here; this path takes overlap_s", param=name[:64])
    value = given.get("overlap_s", OVERLAP_S_DEFAULT)
    if type(value) is not int or not 0 <= value <= OVERLAP_S_MAX:
        raise InvalidRequest(f"overlap_s must be 0 to {OVERLAP_S_MAX}", param="overlap_s")
    return value


def version(if_match: str | None) -> int | None:
    """The version that a change is about, of `If-Match`; None: whichever it is."""
    if if_match is None or if_match.strip() == "*":
        return None
    match = _VERSION.fullmatch(if_match.strip())
    if match is None:
        raise InvalidRequest('If-Match must be a version, as in "3"', param="If-Match")
    return int(match[1])


def is_of_this_machine(host: str | None, local: str | None) -> bool:
    """May a request to this local address name this host? host: of `Host`; local: the address that was connected to.

    What listens on the loopback is meant for this machine. A page of a stranger whose name leads there (DNS rebinding)
    sends that name, and can send no other; where a proxy or a port is open to others, names are theirs to choose.
    """
    if local is None or not _is_loopback(local):
        return True
    name = (host or "").strip().lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    return name in _NAMES_HERE or _is_address(name)


def _is_loopback(text: str) -> bool:
    return _is_address(text) and ipaddress.ip_address(text).is_loopback


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
