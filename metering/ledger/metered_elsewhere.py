"""What other gateways have metered of a server that this one uses too, by what each states in the store. Pure.

    wb:1:backends   hash   <gateway>|<backend>|<address> → <beat>:<tokens>

gateway: a random name of one state directory; backend: its name there; address: a digest of its URL. One that has this
name or this address is the same server: counting somebody too much hides a bypass, too little makes one up. beat: grows
with each statement, which a minute apart tell who is alive without a clock.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

SILENT_LOOKS = 5
"""Who has stated nothing new for so many looks may have metered what we can't know."""
FORGOTTEN_LOOKS = 24 * 60
"""After so many it is taken for gone, with all that it had stated."""
_ADDRESS_HEX = 8


class Statement(NamedTuple):
    """tokens: prompt and completion, of all records that gateway has of the server."""

    gateway: str
    backend: str
    address: str
    beat: int
    tokens: int

    @property
    def field(self) -> str:
        """Its field in the store."""
        return f"{self.gateway}|{self.backend}|{self.address}"

    @property
    def value(self) -> str:
        """What it says there."""
        return f"{self.beat}:{self.tokens}"


def address_of(url: str) -> str:
    """The digest of a server's URL."""
    return hashlib.sha256(url.encode()).hexdigest()[:_ADDRESS_HEX]


def parse(fields: Mapping[str, str]) -> list[Statement]:
    """The statements of a store; what is none is left out."""
    found = []
    for field, value in fields.items():
        gateway, _, rest = field.partition("|")
        backend, _, address = rest.partition("|")
        beat, _, tokens = value.partition(":")
        if address and beat.isdecimal() and tokens.isdecimal():
            found.append(Statement(gateway, backend, address, int(beat), int(tokens)))
    return found


class _Known(msgspec.Struct):
    """The last statement of another gateway. silent: looks since it was new."""

    beat: int
    tokens: int
    silent: int = 0


class Elsewhere(msgspec.Struct):
    """Of one of our servers. known: others, by field; past: tokens of those that are gone, or begun anew."""

    known: dict[str, _Known] = {}
    past: int = 0

    @property
    def tokens(self) -> int:
        """What others have metered, as far as they have stated it. It never falls."""
        return self.past + sum(one.tokens for one in self.known.values())

    @property
    def is_silent(self) -> bool:
        """May one of them have metered what it has not stated?"""
        return any(one.silent >= SILENT_LOOKS for one in self.known.values())

    def take(self, statements: Iterable[Statement]) -> list[str]:
        """Take in what the others state now. returns: fields that may be dropped from the store."""
        stated = {one.field: one for one in statements}
        for field, one in stated.items():
            before = self.known.get(field)
            if before is None:
                self.known[field] = _Known(one.beat, one.tokens)
            elif one.beat != before.beat:
                if one.tokens < before.tokens:  # its journals are gone, or its memory of them
                    self.past += before.tokens
                self.known[field] = _Known(one.beat, one.tokens)
            else:
                before.silent += 1
        for field in self.known.keys() - stated.keys():  # the store has lost it
            self.known[field].silent += 1
        gone = [field for field, one in self.known.items() if one.silent >= FORGOTTEN_LOOKS]
        for field in gone:
            self.past += self.known.pop(field).tokens
        return gone
