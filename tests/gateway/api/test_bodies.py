"""Packed bodies: what is read, what is not, and that a small one cannot become a large one."""

import contextlib
import gzip
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api import bodies
from gateway.api.errors import BodyTooLarge, EncodingUnknown, GatewayError, InvalidRequest, WrongMediaType

MIB = 1024 * 1024


def encoded(value: bytes) -> dict[bytes, bytes]:
    return {b"content-encoding": value}


@pytest.mark.parametrize(
    ("headers", "packed"),
    [
        ({}, False),
        (encoded(b""), False),
        (encoded(b"identity"), False),
        (encoded(b" Identity "), False),
        (encoded(b"gzip"), True),
        (encoded(b"GZIP"), True),
        (encoded(b"x-gzip"), True),
    ],
)
def test_encodings_that_are_read(headers: dict[bytes, bytes], packed: bool) -> None:
    assert bodies.is_packed(headers) is packed
    bodies.check(headers, MIB)


@pytest.mark.parametrize(
    "value", [b"br", b"zstd", b"deflate", b"gzip, gzip", b"gzip,", b"identity, gzip", b"\xff"]
)
def test_other_encodings_are_not(value: bytes) -> None:
    with pytest.raises(EncodingUnknown) as caught:
        bodies.check(encoded(value), MIB)
    assert caught.value.status == 415
    assert caught.value.message.endswith(f" not in content-encoding {value.decode('latin-1')!r}")


@pytest.mark.parametrize(
    "value",
    [
        b"application/json",
        b"application/json; charset=utf-8",
        b'Application/JSON;charset="UTF-8"',
        b"application/json;charset=utf8",
        b"application/json; version=1; charset=UTF-8",
        b"application/json;",
        b"application/json; profile=x",
    ],
)
def test_json_is_read_whatever_its_parameters(value: bytes) -> None:
    bodies.check({b"content-type": value}, MIB)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (b"text/plain", "'text/plain'"),
        (b"application/x-www-form-urlencoded", "'application/x-www-form-urlencoded'"),
        (b" Multipart/form-data ; boundary=x", "'Multipart/form-data'"),
        (b"application/json; charset=utf-16", "'utf-16'"),
        (b"application/json; x=y; charset=latin-1", "'latin-1'"),
        (b"application/jsonx", "'application/jsonx'"),
        (b"text/\xff\x00'", '"text/ÿ\\x00\'"'),
        (b"x" * 5000, "'" + "x" * 100 + "…'"),
        (b"", "''"),
    ],
)
def test_nothing_else_is_and_what_came_is_named(value: bytes, named: str) -> None:
    with pytest.raises(WrongMediaType) as caught:
        bodies.check({b"content-type": value}, MIB)
    assert caught.value.status == 415
    assert caught.value.message.endswith(f", not {named}")


def test_a_length_above_the_bound_is_refused_by_the_head() -> None:
    bodies.check({b"content-length": b"1000"}, 1000)
    with pytest.raises(BodyTooLarge) as caught:
        bodies.check({b"content-length": b"1001"}, 1000)
    assert caught.value.message == "the body is larger than 1,000 bytes"


@given(st.binary(max_size=2000), st.integers(0, 9))
def test_a_body_comes_out_as_it_went_in(body: bytes, level: int) -> None:
    packed = gzip.compress(body, level)
    assert bodies.unpack_at_once(packed, 2000) == bodies.unpack(packed, 2000) == body


@given(st.integers(0, 3000), st.integers(1, 3000))
def test_the_bound_is_exact(length: int, bytes_max: int) -> None:
    packed = gzip.compress(b" " * length)
    for unpack in (bodies.unpack_at_once, bodies.unpack):
        if length > bytes_max:
            with pytest.raises(BodyTooLarge) as caught:
                unpack(packed, bytes_max)
            assert caught.value.status == 413
        else:
            assert unpack(packed, bytes_max) == b" " * length


def test_a_long_body_is_not_unpacked_at_once() -> None:
    most = b" " * bodies.AT_ONCE_BYTES_MAX
    assert bodies.unpack_at_once(gzip.compress(most), 32 * MIB) == most
    packed = gzip.compress(most + b" ")
    assert bodies.unpack_at_once(packed, 32 * MIB) is None
    assert bodies.unpack(packed, 32 * MIB) == most + b" "


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
    if len(packed) < 1000:
        with pytest.raises(InvalidRequest):
            bodies.unpack_at_once(packed, 32 * MIB)


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
        for unpack in (bodies.unpack_at_once, bodies.unpack):
            with contextlib.suppress(GatewayError):
                unpack(packed, 1000)


FORM = b"multipart/form-data; boundary=a"


@pytest.mark.parametrize(
    "headers", [{}, {b"content-length": b"5"}, encoded(b"gzip"), {b"content-length": b"x"}]
)
def test_a_form_is_read(headers: dict[bytes, bytes]) -> None:
    bodies.check_form({b"content-type": FORM} | headers, 5)


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({}, WrongMediaType),
        ({b"content-type": b"application/json"}, WrongMediaType),
        ({b"content-type": b"multipart/form-data"}, InvalidRequest),
        ({b"content-type": FORM, b"content-length": b"6"}, BodyTooLarge),
        ({b"content-type": FORM} | encoded(b"br"), EncodingUnknown),
    ],
)
def test_what_is_no_form_or_too_long_is_refused_by_the_head(
    headers: dict[bytes, bytes], error: type[GatewayError]
) -> None:
    with pytest.raises(error) as raised:
        bodies.check_form(headers, 5)
    assert type(raised.value) is error
