"""Where the next page of rows begins, as a text that a client hands back. Pure.

    cursor = base64url( SHA-256 of what follows, its first 8 bytes │ zlib( [version, period, rows given, pins] ) )

The digest tells that a cursor is not as it was given, by accident or not; it hides nothing and guards nothing.
"""

import base64
import hashlib
import zlib
from typing import Annotated

import msgspec

from metering.export.export_parts import Correction

CURSOR_CHARACTERS_MAX = 6_144
"""A longer one does not fit into the URLs that proxies let pass, 8 KiB with the usual settings."""
VERSION = 1
_DIGEST_BYTES = 8
_PLAIN_BYTES_MAX = 1 << 20

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class NotACursor(ValueError):
    """It was not given out like this."""


class TooManyRevisions(ValueError):
    """What is to come does not fit into a cursor."""


class Pin(msgspec.Struct, frozen=True, array_like=True):
    """A revision, and what it does. hours: since that of the pin before."""

    hours: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
    revision: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    correction: Correction | None = None


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """A place between two rows. given: rows of the first pin that were given; pins: what is still to come."""

    version: int
    start: Count
    stop: Count
    given: Count
    pins: tuple[Pin, ...]

    @property
    def period(self) -> range:
        """The hours that were asked for."""
        return range(self.start, self.stop)


def encode(cursor: Cursor) -> str:
    """As a client gets it. Raises TooManyRevisions."""
    packed = zlib.compress(msgspec.msgpack.encode(cursor), 9)
    text = _text(_digest(packed) + packed)
    if len(text) > CURSOR_CHARACTERS_MAX:
        raise TooManyRevisions(
            "the hours of this period were revised too variously to be paged; ask for fewer"
        )
    return text


def decode(text: str) -> Cursor:
    """The reverse. Raises NotACursor."""
    try:
        if len(text) > CURSOR_CHARACTERS_MAX:
            raise ValueError
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        digest, packed = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if digest != _digest(packed) or _text(data) != text:
            raise ValueError
        cursor = msgspec.msgpack.decode(
            zlib.decompressobj().decompress(packed, _PLAIN_BYTES_MAX), type=Cursor
        )
        if cursor.version != VERSION or not cursor.period or not cursor.pins:
            raise ValueError
    except (ValueError, zlib.error, msgspec.MsgspecError) as error:
        raise NotACursor("this is no cursor that was given out here") from error
    return cursor


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _digest(packed: bytes) -> bytes:
    return hashlib.sha256(packed).digest()[:_DIGEST_BYTES]
