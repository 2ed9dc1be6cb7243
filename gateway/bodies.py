"""Bodies of requests that come in an encoding: gzip is unpacked, within a bound. Pure.

A small gzip may hold a thousand times its size. So a body is measured before it is kept: its pieces are unpacked
and dropped until its end or the bound has come; only then is it unpacked into one buffer of just that size.
"""

import zlib

from gateway.errors import BodyTooLarge, EncodingUnknown, InvalidRequest

AT_ONCE_BYTES_MAX = 1024 * 1024
"""Up to this size a body is unpacked at once: 5 ms of work. A longer one belongs into a thread (zlib lets others
run)."""

_GZIP_NAMES = (b"gzip", b"x-gzip")  # RFC 9110 §8.4.1.3
_GZIP_WBITS = 16 + zlib.MAX_WBITS
_PIECE_BYTES = 256 * 1024


def is_packed(content_encoding: bytes) -> bool:
    """Is a body with this header's value to be unpacked? Raises EncodingUnknown."""
    name = content_encoding.strip().lower()
    if name in (b"", b"identity"):
        return False
    if name in _GZIP_NAMES:
        return True
    raise EncodingUnknown("the body may come as it is or in gzip, no other content-encoding")


def measure(body: bytes, bytes_max: int) -> int:
    """How long a packed body is, up to bytes_max; holds no more than a piece of it at a time.

    returns: its length; bytes_max + 1 if it is longer than bytes_max. Raises InvalidRequest: it is no whole gzip.
    """
    unpack = zlib.decompressobj(_GZIP_WBITS)
    length, rest = 0, body
    try:
        while not unpack.eof:
            piece = unpack.decompress(rest, _PIECE_BYTES)
            length += len(piece)
            if length > bytes_max:
                return bytes_max + 1
            rest = unpack.unconsumed_tail
            if not piece and not rest and not unpack.eof:
                raise InvalidRequest("the body is a gzip that has no end")
    except zlib.error as error:
        raise InvalidRequest("the body is no gzip") from error
    if unpack.unused_data:
        raise InvalidRequest("something stands behind the body's gzip")
    return length


def unpack(body: bytes, bytes_max: int) -> bytes:
    """A packed body as it was. Raises InvalidRequest: it is no whole gzip; BodyTooLarge: it is above bytes_max."""
    length = measure(body, bytes_max)
    if length > bytes_max:
        raise BodyTooLarge(f"the body is larger than {bytes_max:,} bytes, unpacked")
    return zlib.decompress(body, _GZIP_WBITS, max(length, 1))
