"""Where a request comes from: the connection's other end, or what a proxy that is trusted says of it. Pure.

    client ──▶ proxy ──▶ proxy ──▶ here          X-Forwarded-For: <anything the client likes>, client, proxy
                                                                                             ◀── read from here

A proxy puts the address of whoever asked it behind what was there. So the list is read from its end, as long as what
stands there is a proxy of ours; the first that is none is the client, and what stands before it nobody has to believe.
"""

import ipaddress
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from gateway.api.auth import Address, Network

_HEADER = b"x-forwarded-for"


class Origin(NamedTuple):
    """A request as it came. peer: the address of the connection's other end; None: not known. headers: in order."""

    peer: str | None
    headers: Iterable[tuple[bytes, bytes]]


Origins = Callable[[], Origin]
"""Tells it when it is needed, which it seldom is."""


class Sources:
    """Knows the proxies that are trusted. networks: as in `server.trusted_proxies`."""

    def __init__(self, networks: Sequence[str]) -> None:
        self._proxies: tuple[Network, ...] = tuple(map(ipaddress.ip_network, networks))

    def of(self, origin: Origin) -> Address | None:
        """The client's address; None: it cannot be told."""
        address = _address(origin.peer or "")
        if address is None or not self._is_proxy(address):
            return address
        values = [value for name, value in origin.headers if name == _HEADER]
        hops = [hop for value in values for hop in value.decode("latin-1").split(",")]
        for hop in reversed(hops):
            address = _address(hop.strip())
            if address is None or not self._is_proxy(address):
                return address
        return address

    def _is_proxy(self, address: Address) -> bool:
        return any(address in network for network in self._proxies)


def _address(text: str) -> Address | None:
    """An address, with a port behind it or none; one of IPv4 that is written as one of IPv6 is the former."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        return address.ipv4_mapped or address
    return address
