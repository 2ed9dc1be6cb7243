"""Keys that are not known, by the address that they come from: so many a minute are answered as such. Pure.

What comes beyond gets a 429. A key that is known is let in from any address at any time: keys have 256 random bits, so
nobody guesses one, and a limit that kept good keys out would let anybody lock out his neighbours.

A generic cell rate: each address has a debt in time, which a failure adds to and time takes from. Memory is bounded:
the addresses that failed last are kept.
"""

import ipaddress

from gateway.api.auth import Address
from metering.units import NS_PER_MS, NS_PER_S

SOURCES_MAX = 10_000
_SITE_BITS = 64
"""Of IPv6: who has one address has all of its /64."""


class Attempts:
    """Of one worker. per_minute: how many failures of an address are answered as such."""

    def __init__(self, per_minute: int, sources_max: int = SOURCES_MAX) -> None:
        self._step_ns = 60 * NS_PER_S // per_minute
        self._debt_ns_max = self._step_ns * per_minute
        self._sources_max = sources_max
        self._even_ns: dict[Address | None, int] = {}  # when its debt is paid; the newest failure stands last

    def failed(self, address: Address | None, now_ns: int) -> int | None:
        """A key that is not known came from here. returns: None, or in how many ms the next will be heard.

        address: None: it could not be told; all such are one. now_ns: monotonic.
        """
        site = _site(address)
        even_ns = max(self._even_ns.pop(site, now_ns), now_ns)
        wait_ns = even_ns + self._step_ns - (now_ns + self._debt_ns_max)
        self._even_ns[site] = even_ns if wait_ns > 0 else even_ns + self._step_ns
        if len(self._even_ns) > self._sources_max:
            del self._even_ns[next(iter(self._even_ns))]
        return -(-wait_ns // NS_PER_MS) if wait_ns > 0 else None

    def __len__(self) -> int:
        return len(self._even_ns)


def _site(address: Address | None) -> Address | None:
    if isinstance(address, ipaddress.IPv6Address):
        return ipaddress.ip_network((address, _SITE_BITS), strict=False).network_address
    return address
