"""Forms by position: what vLLM's own parser finds, and nothing that another could read differently."""

import asyncio
import itertools
import warnings
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from gateway.api.errors import InvalidRequest, WrongMediaType
from gateway.api.multipart import BOUNDARY_BYTES_MAX, PADDING_BYTES_MAX, PARTS_MAX, boundary_of, read_form

TYPE = b"multipart/form-data; boundary="


def part(disposition: bytes, content: bytes, *, boundary: bytes = b"B", more: bytes = b"") -> bytes:
    return b"--%b\r\nContent-Disposition: form-data; %b\r\n%b\r\n%b\r\n" % (
        boundary,
        disposition,
        more,
        content,
    )


def found(body: bytes, boundary: bytes = b"B") -> list[tuple[bytes, bytes, bool]]:
    """Name, content and whether it is a file, of each part."""
    form = read_form(body, boundary)
    assert body.startswith(form.delimiter, form.start)
    return [(each.name, body[each.start : each.end], each.is_file) for each in form.parts]


def found_by_the_server(
    body: bytes, boundary: bytes, cuts: list[int]
) -> list[tuple[bytes, bytes, bool]] | None:
    """The same as Starlette reads it, from pieces; None: it refuses it."""

    async def pieces() -> AsyncIterator[bytes]:
        for begin, end in itertools.pairwise([0, *sorted(cuts), len(body)]):
            yield body[begin:end]

    async def read() -> list[tuple[bytes, bytes, bool]]:
        headers = Headers(raw=[(b"content-type", TYPE + b'"%b"; charset=latin-1' % boundary)])
        form = await MultiPartParser(headers, pieces()).parse()  # type: ignore[arg-type]
        read: list[tuple[bytes, bytes, bool]] = []
        for name, value in form.multi_items():
            content = await value.read() if isinstance(value, UploadFile) else value.encode("latin-1")
            read.append((name.encode("latin-1"), content, isinstance(value, UploadFile)))
        await form.close()
        return read

    try:
        return asyncio.run(read())
    except MultiPartException:
        return None


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        (b"multipart/form-data; boundary=abc", b"abc"),
        (b"Multipart/Form-Data ; Boundary=aBc", b"aBc"),
        (b'multipart/form-data; boundary="a b:c=d?"', b"a b:c=d?"),
        (
            b"multipart/form-data; charset=UTF-8; boundary=----WebKitFormBoundary7MA4",
            b"----WebKitFormBoundary7MA4",
        ),
        (b"multipart/form-data; boundary==_Part_1_2.3; charset=utf8", b"=_Part_1_2.3"),
        (b"multipart/form-data; boundary=" + b"x" * BOUNDARY_BYTES_MAX, b"x" * BOUNDARY_BYTES_MAX),
    ],
)
def test_the_boundary(content_type: bytes, boundary: bytes) -> None:
    assert boundary_of(content_type) == boundary


@pytest.mark.parametrize(
    ("content_type", "error", "words"),
    [
        (b"", WrongMediaType, "must be multipart/form-data, not ''"),
        (b"application/json", WrongMediaType, "must be multipart/form-data, not 'application/json'"),
        (
            b"multipart/mixed; boundary=a",
            WrongMediaType,
            "must be multipart/form-data, not 'multipart/mixed'",
        ),
        (
            b"multipart/form-data; boundary=a; charset=utf-16",
            WrongMediaType,
            "charset must be utf-8, not 'utf-16'",
        ),
        (b"multipart/form-data", InvalidRequest, "must name the boundary"),
        (b"multipart/form-data; boundary=", InvalidRequest, "must name the boundary"),
        (b'multipart/form-data; boundary=""', InvalidRequest, "must name the boundary"),
        (b"multipart/form-data; boundary*=utf-8''a", InvalidRequest, "must name the boundary"),
        (b"multipart/form-data; boundary=a; boundary=b", InvalidRequest, "more than one boundary"),
        (b"multipart/form-data; boundary=a;BOUNDARY = b", InvalidRequest, "more than one boundary"),
        (b"multipart/form-data; boundary=a; boundary*0=b", InvalidRequest, "more than one boundary"),
        (TYPE + b"x" * (BOUNDARY_BYTES_MAX + 1), InvalidRequest, "longer than 70 bytes"),
    ],
)
def test_a_type_without_one_boundary(content_type: bytes, error: type[InvalidRequest], words: str) -> None:
    with pytest.raises(error, match=words) as raised:
        boundary_of(content_type)
    assert type(raised.value) is error


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (part(b'name="a"', b"1"), [(b"a", b"1", False)]),
        (part(b'name="a"', b""), [(b"a", b"", False)]),
        (part(b'name="a"', b"", more=b"X-Empty:\r\n"), [(b"a", b"", False)]),
        (part(b'name="a"', b"1", more=b"Content-Length: 7\r\n"), [(b"a", b"1", False)]),
        (part(b"name=a", b"1"), [(b"a", b"1", False)]),
        (part(b'NAME="a"', b"1"), [(b"a", b"1", False)]),
        (part(b'name="a\\"b\\\\"', b"1"), [(b'a"b\\', b"1", False)]),
        (part(b'name="a;b"', b"1"), [(b"a;b", b"1", False)]),
        (part('name="größe"'.encode(), b"1"), [("größe".encode(), b"1", False)]),
        (part(b'name="f"; filename="x.wav"', b"\x00\xff"), [(b"f", b"\x00\xff", True)]),
        (part(b'name="f"; filename=""', b""), [(b"f", b"", True)]),
        (part(b'name="f"; filename="; name=model"', b"1"), [(b"f", b"1", True)]),
        (part(b'name="f"; filename="a\\"; name=\\"b"', b"1"), [(b"f", b"1", True)]),
        (part(b"name=\"f\"; filename=\"a\"; filename*=utf-8''b", b"1"), [(b"f", b"1", True)]),
        (part(b"name=\"f\"; filename*=utf-8''b", b"1"), [(b"f", b"1", False)]),  # no file to the server either
        (part(b'name="a"', b"\r\n--A\r\n--\r\nB\r\n-"), [(b"a", b"\r\n--A\r\n--\r\nB\r\n-", False)]),
        (part(b'name="a"', b"\r\n--Bx\r\n--B-x"), [(b"a", b"\r\n--Bx\r\n--B-x", False)]),
        (b"\r\n\r\n" + part(b'name="a"', b"1"), [(b"a", b"1", False)]),
        (part(b'name="a"', b"1") + b"--B \t\r\n" + part(b'name="a"', b"1")[5:], [(b"a", b"1", False)] * 2),
        (part(b'name="a"', b"1") * 2, [(b"a", b"1", False)] * 2),
        (part(b'name="a"', b"1") * PARTS_MAX, [(b"a", b"1", False)] * PARTS_MAX),
    ],
)  # fmt: skip
def test_parts(body: bytes, parts: list[tuple[bytes, bytes, bool]]) -> None:
    for end in (b"--B--", b"--B--\r\n", b"--B--\r\nwhat follows is no part of it\r\n--B\r\n"):
        if len(parts) < PARTS_MAX or end.count(b"--B") == 1:
            assert found(body + end) == parts
    assert found_by_the_server(body + b"--B--\r\n", b"B", []) == parts


END = b"--B--\r\n"
ONE = part(b'name="file"; filename="x"', b"\x00" * 20)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "the body is empty"),
        (b"\r\n\r\n", "the body is empty"),
        (b"{}", "does not begin with the boundary"),
        (b"preamble\r\n" + ONE + END, "does not begin with the boundary"),
        (b"\r\npreamble\r\n" + ONE + END, "does not begin with the boundary"),
        (b"--C" + ONE + END, "does not begin with the boundary"),
        (ONE[:-2], "the part 'file', which begins at byte 66, is not followed by the closing boundary"),
        (ONE + b"--B", "the part 'file', which begins at byte 66, is not followed by"),
        (ONE + b"--B-", "the part 'file', which begins at byte 66, is not followed by"),
        (ONE + b"--B\r\n", "the head of part 2 is not followed by"),
        (ONE + b"--B\r\nContent-Disposition: form-data", "the head of part 2 is not followed by"),
        (b"--B", "the first boundary is not followed by"),
        (b"--B\r\nX: y\r\n\r\n1\r\n" + END, "the head of part 1 has no content-disposition with a name"),
        (b"--B\r\n\r\n1\r\n" + END, "the head of part 1 has no content-disposition with a name"),
        (ONE + part(b"filename=x", b"1") + END, "the head of part 2 has no content-disposition with a name"),
        (part(b"name*=utf-8''model", b"1") + END, "no content-disposition with a name"),
        (part(b"name=a; name*=utf-8''model", b"1") + END, "more than one name, or one in an extended"),
        (part(b"name=a; name*0=model", b"1") + END, "more than one name, or one in an extended"),
        (part(b"name=a; name=model", b"1") + END, "more than one name, or one in an extended"),
        (part(b'name="a"', b"1", more=b'Content-Disposition: form-data; name="b"\r\n') + END, "than one content-disp"),
        (part(b'name="a"', b"1", more=b"B\xe4d: 1\r\n") + END, "not valid multipart/form-data at byte 48"),
        (part(b'name="a"', b"1", more=b"X: 1\n\r\n").replace(b"\n\r\n1", b"\r1") + END, "not valid multipart"),
        (part(b'name="a"', b"1", more=b"X: 1\r\n" * 20) + END, "not valid multipart/form-data at byte"),
        (part(b'name="a"', b"1", more=b"X: %b\r\n" % (b"1" * 9000)) + END, "not valid multipart/form-data"),
        (b"--Bx\r\n" + ONE + END, "not valid multipart/form-data at byte 3"),
        (part(b'name="a"', b"1") * (PARTS_MAX + 1) + END, "more than 200 parts"),
        (part(b'name="a"', b"\r\n--Bx" * PARTS_MAX) + END, "more than 200 parts"),
        (ONE + b"--B" + b" " * (PADDING_BYTES_MAX + 1) + b"\r\n" + END, "is not followed by the end of its line"),
        (ONE + b"--B x\r\n" + END, "is not followed by the end of its line"),
    ],
)  # fmt: skip
def test_a_body_that_is_refused_is_told_what_and_where(body: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read_form(body, b"B")
    assert words in raised.value.message


def test_a_name_in_a_message_is_bounded() -> None:
    with pytest.raises(InvalidRequest) as raised:
        read_form(part(b'name="%b"' % (b"x" * 3000), b"1"), b"B")
    assert len(raised.value.message) < 250


# -- laws

BOUNDARIES = st.text("0123456789abcXYZ'()+_,-./:=?", min_size=1, max_size=70).map(str.encode)
NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters='\r\n"\\', exclude_categories=["Cs", "Cc"]), min_size=1
)
PIECES = st.sampled_from([b"\r\n", b"\r", b"\n", b"--", b"-", b"\r\n--", b"\x00", b"\xff", b"x", b": ", b'"'])


@st.composite
def forms(draw: st.DrawFn) -> tuple[bytes, bytes, list[tuple[bytes, bytes, bool]]]:
    """A body, its boundary, and what is in it: contents are made of what boundaries are made of."""
    boundary = draw(BOUNDARIES)
    like = st.integers(0, len(boundary)).map(lambda n: b"\r\n--" + boundary[:n])
    contents = st.lists(PIECES | like | st.binary(max_size=9), max_size=8).map(b"".join)
    fields, body = [], b""
    for name in draw(st.lists(NAMES, max_size=4)):
        content = draw(contents)
        if b"\r\n--" + boundary in b"\r\n" + content + b"\r\n--" + boundary[:-1]:
            content = b"said"  # RFC 2046: no content has a line that begins so
        is_file = draw(st.booleans())
        disposition = b'name="%b"' % name.encode() + (b'; filename="%b"' % name.encode() if is_file else b"")
        body += part(disposition, content, boundary=boundary)
        fields.append((name.encode(), content, is_file))
    fields = fields or [(b"x", b"", False)]
    body = body or part(b'name="x"', b"", boundary=boundary)
    return body + b"--%b--\r\n" % boundary, boundary, fields


@given(forms())
def test_whatever_is_put_into_a_form_is_found_there(
    form: tuple[bytes, bytes, list[tuple[bytes, bytes, bool]]],
) -> None:
    body, boundary, fields = form
    assert found(body, boundary) == fields


@given(forms(), st.data())
def test_it_is_what_the_server_finds_whatever_the_body_is_and_however_it_comes(
    form: tuple[bytes, bytes, list[tuple[bytes, bytes, bool]]], data: st.DataObject
) -> None:
    """Damaged bodies too: one that is not refused here is read by the server, and read the same."""
    body, boundary, _ = form
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(body)))
        until = data.draw(st.integers(at, min(len(body), at + 6)))
        body = (
            body[:at] + data.draw(PIECES | st.just(b"\r\n--" + boundary) | st.just(b"; name=")) + body[until:]
        )
    try:
        here = found(body, boundary)
    except InvalidRequest:
        return
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of the files that Starlette keeps parts in
        assert found_by_the_server(body, boundary, cuts) == here
