"""Bodies in a content encoding, decoded as they come. Pure.

We ask for `identity`; a server, or a proxy before it, may compress all the same. Each read is decoded by itself, so
an event that was flushed is there at once.
"""

import zlib

UNPACKED_BYTES_MAX = 8 * 1024 * 1024
"""What one read (256 KiB at most) may become: text packs 3 to 30 times, a bomb 1,000 times."""

_BROKEN = "content encoding broken"
_GZIP = 16 + zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS


class EncodingError(ValueError):
    """The body cannot be decoded; the message is a fixed phrase."""


class Decoder:
    """Decodes one body. encoding: the value of its content-encoding. Raises EncodingError if it is not one of ours.

    `complete`: the body so far is a whole one; so is none at all, as in a 204.
    """

    __slots__ = ("_gzip", "_unpacker", "complete")

    def __init__(self, encoding: bytes) -> None:
        kind = encoding.strip().lower()
        if kind not in (b"gzip", b"x-gzip", b"deflate"):
            raise EncodingError("unknown content encoding")
        self.complete = True
        self._gzip = kind != b"deflate"
        self._unpacker: zlib._Decompress | None = None

    def feed(self, data: bytes) -> bytes:
        """More of the body, not empty; returns what it says, which may be nothing. Raises EncodingError."""
        assert data
        unpacker = self._unpacker
        if unpacker is None:
            unpacker = zlib.decompressobj(_GZIP if self._gzip else _deflate_form(data[0]))
            self._unpacker = unpacker
        elif self.complete:
            raise EncodingError(_BROKEN)
        try:
            out = unpacker.decompress(data, UNPACKED_BYTES_MAX + 1)
        except zlib.error as error:
            raise EncodingError(_BROKEN) from error
        if len(out) > UNPACKED_BYTES_MAX:
            raise EncodingError("answer too large")
        if unpacker.unused_data:  # gzip allows more members; no server is known that sends them
            raise EncodingError(_BROKEN)
        self.complete = unpacker.eof
        return out


def _deflate_form(first: int) -> int:
    """«deflate» is in zlib's wrapper by the RFC and without it by some servers; the first byte tells them apart."""
    return zlib.MAX_WBITS if first & 0x0F == 8 else _RAW
