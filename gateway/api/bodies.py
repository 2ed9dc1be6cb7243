"""Bodies of requests: which are read, and how a packed one is unpacked within a bound. Pure.

A small gzip may hold a thousand times its size. So a long body is measured before it is kept: its pieces are unpacked
and dropped until its end or the bound has come; only then is it unpacked into one buffer of just that size.
"""

import zlib
from collections.abc import Mapping

from gateway.api import multipart
from gateway.api.errors import BodyTooLarge, EncodingUnknown, InvalidRequest, WrongMediaType, shown_bytes

AT_ONCE_BYTES_MAX = 1024 * 1024
"""Up to this size a body is unpacked at once: 2 ms of work. A longer one belongs into a thread (zlib lets others
run)."""

_GZIP_NAMES = (b"gzip", b"x-gzip")  # RFC 9110 §8.4.1.3
_GZIP_WBITS = 16 + zlib.MAX_WBITS
_PIECE_BYTES = 256 * 1024
_NO_GZIP = "the body is no gzip, though its content-encoding says so"


def check(headers: Mapping[bytes, bytes], bytes_max: int) -> None:
    """What the head says of the body. headers: names in lower case. Raises WrongMediaType, BodyTooLarge.

    JSON only: a browser can send text/plain across sites without asking. Without a content-type it is taken for JSON.
    """
    kind = headers.get(b"content-type", b"application/json")
    if kind != b"application/json":
        _check_kind(kind)
    _check_size(headers, bytes_max)


def check_form(headers: Mapping[bytes, bytes], bytes_max: int) -> None:
    """The same for a form. Raises WrongMediaType, BodyTooLarge; InvalidRequest: there is no boundary."""
    multipart.boundary_of(headers.get(b"content-type", b""))
    _check_size(headers, bytes_max)


def _check_size(headers: Mapping[bytes, bytes], bytes_max: int) -> None:
    if b"content-encoding" in headers:
        is_packed(headers)
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > bytes_max:
        raise too_large(bytes_max)


def _check_kind(kind: bytes) -> None:
    media, _, params = kind.partition(b";")
    if media.strip().lower() != b"application/json":
        raise WrongMediaType(f"content-type must be application/json, not {shown_bytes(media.strip())}")
    for param in params.split(b";"):
        name, _, value = param.partition(b"=")
        if name.strip().lower() == b"charset" and value.strip().strip(b'"').lower() not in (
            b"utf-8",
            b"utf8",
        ):
            raise WrongMediaType(f"the charset must be utf-8, not {shown_bytes(value.strip())}")


def is_packed(headers: Mapping[bytes, bytes]) -> bool:
    """Is the body to be unpacked? Raises EncodingUnknown."""
    given = headers.get(b"content-encoding", b"")
    name = given.strip().lower()
    if name in (b"", b"identity"):
        return False
    if name in _GZIP_NAMES:
        return True
    raise EncodingUnknown(
        f"the body may come as it is or in gzip, not in content-encoding {shown_bytes(given.strip())}"
    )


def too_large(bytes_max: int) -> BodyTooLarge:
    """What a longer body than the bound is answered."""
    return BodyTooLarge(f"the body is larger than {bytes_max:,} bytes")


def unpack_at_once(body: bytes, bytes_max: int) -> bytes | None:
    """A packed body as it was; None: it is above AT_ONCE_BYTES_MAX, work for `unpack`.

    Raises InvalidRequest: it is no whole gzip; BodyTooLarge: it is above bytes_max.
    """
    packed = zlib.decompressobj(_GZIP_WBITS)
    try:
        unpacked = packed.decompress(body, min(bytes_max, AT_ONCE_BYTES_MAX) + 1)
    except zlib.error as error:
        raise InvalidRequest(_NO_GZIP) from error
    if len(unpacked) > bytes_max:
        raise too_large(bytes_max)
    if len(unpacked) > AT_ONCE_BYTES_MAX:
        return None
    _check_end(packed)
    return unpacked


def unpack(body: bytes, bytes_max: int) -> bytes:
    """A packed body of any length as it was. Raises as `unpack_at_once`."""
    length = measure(body, bytes_max)
    return zlib.decompress(body, _GZIP_WBITS, max(length, 1))


def measure(body: bytes, bytes_max: int) -> int:
    """How long a packed body is. It is never held, but for a piece of it. Raises as `unpack_at_once`."""
    packed = zlib.decompressobj(_GZIP_WBITS)
    length, rest = 0, body
    try:
        while not packed.eof:
            piece = packed.decompress(rest, _PIECE_BYTES)
            length += len(piece)
            rest = packed.unconsumed_tail
            if length > bytes_max:
                raise too_large(bytes_max)
            if not piece and not rest:
                break
    except zlib.error as error:
        raise InvalidRequest(_NO_GZIP) from error
    _check_end(packed)
    return length


def _check_end(packed: "zlib._Decompress") -> None:
    if not packed.eof:
        raise InvalidRequest("the body is a gzip that has no end")
    if packed.unused_data:
        raise InvalidRequest("something stands behind the body's gzip")
