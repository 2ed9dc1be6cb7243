"""The parts of a multipart/form-data body, by position. Pure.

    --BOUNDARY CRLF
    Content-Disposition: form-data; name="model" CRLF
    CRLF
    whisper-large                            start … end: what a part holds
    CRLF --BOUNDARY CRLF … CRLF --BOUNDARY-- CRLF

RFC 7578. The parser is python-multipart, Starlette's and so vLLM's: what it takes for a part, the server behind takes
for one. Where other parsers, or older releases of this one, read another name or another part, the body is refused.
Nothing is decoded and nothing copied but the heads of parts.
"""

import re

import msgspec
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError, ParseError
from python_multipart.multipart import parse_options_header

from gateway.api.errors import InvalidRequest, WrongMediaType, shown_bytes

PARTS_MAX = 200
"""vLLM's forms have some thirty fields. Each part, and each line that begins as a boundary does, costs work."""

PADDING_BYTES_MAX = 64
"""Blanks behind a boundary, which some mail transports added (RFC 2046 §5.1.1); the parser takes them one by one."""

BOUNDARY_BYTES_MAX = 70
"""RFC 2046 §5.1.1."""

_MEDIA = b"multipart/form-data"
_SECOND_BOUNDARY = re.compile(rb";\s*boundary\s*(?:\*[0-9*]*)?\s*=", re.IGNORECASE)
_NAME = re.compile(rb";\s*name\s*(\*[0-9*]*)?\s*=", re.IGNORECASE)
_QUOTED = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_LINE_ENDS = re.compile(rb"[\r\n]*")


class Part(msgspec.Struct, frozen=True):
    """One part. name: of its field. body[start:end] is what it holds. is_file: it has a file name."""

    name: bytes
    start: int
    end: int
    is_file: bool


class Form(msgspec.Struct, frozen=True):
    """A whole body. delimiter: what each part begins with; the first one stands at `start`."""

    delimiter: bytes
    start: int
    parts: tuple[Part, ...]


def boundary_of(content_type: bytes) -> bytes:
    """The boundary that a content-type names. Raises WrongMediaType, InvalidRequest."""
    media, params = parse_options_header(content_type)
    if media.strip() != _MEDIA:
        raise WrongMediaType(f"content-type must be multipart/form-data, not {shown_bytes(media.strip())}")
    charset = params.get(b"charset", b"utf-8")
    if charset.lower() not in (b"utf-8", b"utf8"):
        raise WrongMediaType(f"the charset must be utf-8, not {shown_bytes(charset)}")
    boundary = params.get(b"boundary", b"")
    if not boundary:
        raise InvalidRequest("content-type must name the boundary: multipart/form-data; boundary=…")
    if len(_SECOND_BOUNDARY.findall(content_type)) > 1:
        raise InvalidRequest("content-type names more than one boundary")
    if len(boundary) > BOUNDARY_BYTES_MAX:
        raise InvalidRequest(f"the boundary is longer than {BOUNDARY_BYTES_MAX} bytes")
    return boundary


def read_form(body: bytes, boundary: bytes) -> Form:
    """Find the parts of a whole body. Raises InvalidRequest, which says what is wrong, and where."""
    dashes = b"--" + boundary
    start = _start(body, dashes)
    _check_lines(body, b"\r\n" + dashes)
    reader = _Reader(body)
    parser = MultipartParser(boundary, {
        "on_part_begin": reader.begin_part,
        "on_header_field": reader.field,
        "on_header_value": reader.value,
        "on_header_end": reader.end_header,
        "on_headers_finished": reader.end_head,
        "on_part_data": reader.data,
        "on_part_end": reader.end_part,
        "on_end": reader.end,
    })  # fmt: skip
    try:
        parser.write(body)
    except FormParserError as error:
        at = f" at byte {error.offset:,}" if isinstance(error, ParseError) and error.offset >= 0 else ""
        raise InvalidRequest(f"the body is not valid multipart/form-data{at}: {error}") from error
    if not reader.ended:
        raise InvalidRequest(f"the body has no end: {reader.where} is not followed by the closing boundary")
    return Form(dashes, start, tuple(reader.parts))


def _start(body: bytes, dashes: bytes) -> int:
    """Where the first boundary stands: at the body's beginning, or behind line ends."""
    blank = _LINE_ENDS.match(body)
    assert blank is not None
    if body.startswith(dashes, blank.end()):
        return blank.end()
    if blank.end() == len(body):
        raise InvalidRequest("the body is empty")
    raise InvalidRequest("the body does not begin with the boundary that its content-type names")


def _check_lines(body: bytes, delimiter: bytes) -> None:
    """Are there so few lines that may be boundaries that the parser is soon done with them?"""
    at = lines = 0
    while (at := body.find(delimiter, at)) >= 0:
        lines += 1
        if lines > PARTS_MAX:
            raise InvalidRequest(f"the body has more than {PARTS_MAX} parts")
        at += len(delimiter)
        if body[at : at + 1] in (b" ", b"\t"):
            padded = body[at : at + PADDING_BYTES_MAX + 2].lstrip(b" \t")
            if not padded.startswith(b"\r\n"):
                raise InvalidRequest(
                    f"the boundary before byte {at:,} is not followed by the end of its line"
                )


class _Reader:
    """Takes what the parser finds. All of the body is parsed at once, so its offsets are the body's."""

    def __init__(self, body: bytes) -> None:
        self.parts: list[Part] = []
        self.ended = False
        self.where = "the first boundary"
        self._body = body
        self._field = b""
        self._value = b""
        self._field_end = 0
        self._disposition: bytes | None = None
        self._name = b""
        self._is_file = False
        self._start = self._end = 0

    def begin_part(self) -> None:
        """Behind a boundary."""
        self._disposition = None
        self.where = f"the head of part {len(self.parts) + 1}"

    def field(self, data: bytes, start: int, end: int) -> None:
        """The name of a header."""
        self._field, self._field_end = data[start:end].lower(), end
        self._value = b""

    def value(self, data: bytes, start: int, end: int) -> None:
        """The value of a header; not told of an empty one."""
        self._value = data[start:end]

    def end_header(self) -> None:
        """A header is complete."""
        if self._field != b"content-disposition":
            return
        if self._disposition is not None:
            raise InvalidRequest(f"{self.where} has more than one content-disposition")
        self._disposition = self._value

    def end_head(self) -> None:
        """The blank line of a part."""
        _, params = parse_options_header(self._disposition)
        if b"name" not in params:
            raise InvalidRequest(f"{self.where} has no content-disposition with a name")
        # Quoted text is left out: a file may be called `; name=`.
        names = _NAME.findall(_QUOTED.sub(b'""', self._disposition or b""))
        if len(names) > 1 or any(names):
            raise InvalidRequest(f"{self.where} has more than one name, or one in an extended notation")
        self._name, self._is_file = params[b"name"], b"filename" in params
        self._start = self._end = self._body.index(b"\r\n\r\n", self._field_end) + 4
        self.where = f"the part {_shown(self._name)}, which begins at byte {self._start:,},"

    def data(self, _data: bytes, _start: int, end: int) -> None:
        """What a part holds; not told of one that is empty."""
        self._end = end

    def end_part(self) -> None:
        """The boundary behind a part."""
        self.parts.append(Part(self._name, self._start, self._end, self._is_file))

    def end(self) -> None:
        """The closing boundary."""
        self.ended = True


def _shown(name: bytes) -> str:
    """A client's text for a message to that client: bounded."""
    return repr(name[:100].decode("utf-8", "replace"))
