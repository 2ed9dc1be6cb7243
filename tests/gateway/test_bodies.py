"""Packed bodies: what is read, what is not, and that a small one cannot become a large one."""

import contextlib
import gzip
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import bodies
from gateway.errors import BodyTooLarge, EncodingUnknown, GatewayError, InvalidRequest

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("value", "packed"),
    [
        (b"", False),
        (b"identity", False),
        (b" Identity ", False),
        (b"gzip", True),
        (b"GZIP", True),
        (b"x-gzip", True),
    ],
)
def test_encodings_that_are_read(value: bytes, packed: bool) -> None:
    assert bodies.is_packed(value) is packed


@pytest.mark.parametrize(
    "value", [b"br", b"zstd", b"deflate", b"gzip, gzip", b"gzip,", b"identity, gzip", b"\xff"]
)
def test_other_encodings_are_not(value: bytes) -> None:
    with pytest.raises(EncodingUnknown) as caught:
        bodies.is_packed(value)
    assert caught.value.status == 415


@given(st.binary(max_size=2000), st.integers(0, 9))
def test_a_body_comes_out_as_it_went_in(body: bytes, level: int) -> None:
    assert bodies.unpack(gzip.compress(body, level), 2000) == body


@given(st.integers(0, 3000), st.integers(1, 3000))
def test_the_bound_is_exact(length: int, bytes_max: int) -> None:
    packed = gzip.compress(b" " * length)
    assert bodies.measure(packed, bytes_max) == min(length, bytes_max + 1)
    if length > bytes_max:
        with pytest.raises(BodyTooLarge) as caught:
            bodies.unpack(packed, bytes_max)
        assert caught.value.status == 413
    else:
        assert len(bodies.unpack(packed, bytes_max)) == length


def test_a_body_of_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_PIECE_BYTES", 100)
    body = bytes(range(256)) * 40
    assert bodies.unpack(gzip.compress(body), MIB) == body


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"{}",
        gzip.compress(b"{}")[:-1],
        gzip.compress(b"{}")[:5],
        gzip.compress(b" " * 3 * MIB)[:-9],
        gzip.compress(b"{}")[:-8] + b"\0" * 8,  # a wrong checksum
        gzip.compress(b"{}") + b"x",
        gzip.compress(b"{") + gzip.compress(b"}"),
        zlib.compress(b"{}"),
    ],
)
def test_what_is_no_whole_gzip_is_refused(packed: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        bodies.unpack(packed, 32 * MIB)
    assert caught.value.status == 400


def test_a_bomb_is_refused_in_little_memory() -> None:
    pack = zlib.compressobj(9, wbits=31)
    bomb = b"".join(pack.compress(b" " * MIB) for _ in range(1024)) + pack.flush()
    assert len(bomb) < 2 * MIB
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLarge):
            bodies.unpack(bomb, 32 * MIB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB


@given(st.binary(max_size=300))
def test_nothing_but_errors_for_a_client_comes_of_any_bytes(data: bytes) -> None:
    for packed in (data, gzip.compress(b"{}")[:10] + data):
        with contextlib.suppress(GatewayError):
            bodies.unpack(packed, 1000)
