"""Content encodings: any cut gives the same bytes, a flush is there at once, a bomb is stopped."""

import gzip
import itertools
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.encoding import UNPACKED_BYTES_MAX, Decoder, EncodingError


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


PACKERS = {
    b"gzip": gzip.compress,
    b"X-GZip ": gzip.compress,
    b"deflate": zlib.compress,
    b"Deflate": raw_deflate,
}


@given(st.sampled_from(sorted(PACKERS)), st.binary(max_size=2000), st.data())
def test_what_was_packed_comes_out_however_it_is_cut(
    encoding: bytes, text: bytes, data: st.DataObject
) -> None:
    packed = PACKERS[encoding](text)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(packed) - 1), max_size=8)))
    decoder = Decoder(encoding)
    out = b""
    for start, end in itertools.pairwise([0, *cuts, len(packed)]):
        out += decoder.feed(packed[start:end])
        assert decoder.complete is (end == len(packed))
    assert out == text


@pytest.mark.parametrize(("encoding", "wbits"), [(b"gzip", 31), (b"deflate", 15), (b"deflate", -15)])
def test_an_event_that_was_flushed_is_there_at_once(encoding: bytes, wbits: int) -> None:
    packer = zlib.compressobj(wbits=wbits)
    decoder = Decoder(encoding)
    for number in range(5):
        event = b'data: {"n":%d}\n\n' % number
        assert decoder.feed(packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH)) == event
        assert not decoder.complete
    assert decoder.feed(packer.flush()) == b""
    assert decoder.complete


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("more", [b"x", gzip.compress(b"cd")])
def test_nothing_may_follow_its_end(more: bytes, cut: bool) -> None:
    decoder = Decoder(b"gzip")
    packed = gzip.compress(b"ab")
    if cut:
        assert decoder.feed(packed) == b"ab"
    with pytest.raises(EncodingError, match="content encoding broken"):
        decoder.feed(more if cut else packed + more)


def test_no_body_at_all_is_complete() -> None:
    assert Decoder(b"gzip").complete


@pytest.mark.parametrize("encoding", [b"br", b"zstd", b"gzip, gzip", b"", b"\xff"])
def test_other_encodings(encoding: bytes) -> None:
    with pytest.raises(EncodingError, match="unknown content encoding"):
        Decoder(encoding)


@pytest.mark.parametrize(
    "body", [b"plain text", gzip.compress(b"x" * 100)[:-8] + b"12345678", b"\x1f\x8b\x08" + b"\xff" * 9]
)
def test_what_is_not_in_the_encoding(body: bytes) -> None:
    with pytest.raises(EncodingError, match="content encoding broken"):
        Decoder(b"gzip").feed(body)


def test_a_read_may_become_so_much_and_no_more() -> None:
    assert len(Decoder(b"gzip").feed(gzip.compress(bytes(UNPACKED_BYTES_MAX)))) == UNPACKED_BYTES_MAX
    with pytest.raises(EncodingError, match="answer too large"):
        Decoder(b"gzip").feed(gzip.compress(bytes(UNPACKED_BYTES_MAX + 1)))
