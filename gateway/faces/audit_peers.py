"""Asking other gateways for a call that they have recorded.

One hop: a gateway that is asked by another says what it has itself. Its own key opens the other's audit face, which
tells in its own journal who has looked.
"""

import http.client
import ssl
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from backends import tls
from gateway.configuration.config import Peer

HOP = "x-weighbridge-hop"
"""Sent along by a gateway: who gets it asks nobody else."""
WAIT_S = 5.0
ANSWER_BYTES_MAX = 1024 * 1024


class Found(NamedTuple):
    """What a gateway has answered. url: which."""

    url: str
    content: msgspec.Raw


class Asked(NamedTuple):
    """found: None: nobody has it. silent: those who may have it and have not said."""

    found: Found | None
    silent: tuple[str, ...]


def ask(peers: Sequence[Peer], keys: Mapping[str, str], path: str) -> Asked:
    """GET `path` of one gateway after another, until one has it. keys: by URL."""
    silent = []
    for peer in peers:
        try:
            status, body = _get(peer, keys[peer.url], path)
        except (OSError, ValueError, http.client.HTTPException):
            silent.append(peer.url)
            continue
        if status == http.client.OK and _is_json(body):
            return Asked(Found(peer.url, msgspec.Raw(body)), ())
        if status != http.client.NOT_FOUND:
            silent.append(peer.url)
    return Asked(None, tuple(silent))


def _get(peer: Peer, key: str, path: str) -> tuple[int, bytes]:
    parts = urllib.parse.urlsplit(peer.url)
    assert parts.hostname is not None
    connection = (
        http.client.HTTPSConnection(parts.hostname, parts.port, timeout=WAIT_S, context=_context(peer))
        if parts.scheme == "https"
        else http.client.HTTPConnection(parts.hostname, parts.port, timeout=WAIT_S)
    )
    try:
        connection.request("GET", path, headers={"authorization": f"Bearer {key}", HOP: "1"})
        answer = connection.getresponse()
        body = answer.read(ANSWER_BYTES_MAX + 1)
        if len(body) > ANSWER_BYTES_MAX:
            raise ValueError("the answer is too long")
        return answer.status, body
    finally:
        connection.close()


def _context(peer: Peer) -> ssl.SSLContext:
    return tls.client_context(peer.ca_file)


def _is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True
