"""What a process that reads for a face says to the worker that started it. Pure.

    +-------------+--------+
    | length, 4 B | answer |   as JSON; all of it, unless the answer has a file_name
    +-------------+--------+
    | length, 4 B | piece  |   of the file, again and again; a length of 0: its end has come
    +-------------+--------+
    what was sent, as JSON     up to the end of the stream

Without the last part the file is not whole, whatever came before.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec

from metering.journal.events import Exported

LENGTH_BYTES = 4
ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""Of an answer that is no file, which the worker holds."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What is answered. status: 200, 400, 404 or 503; message, param: of all but 200.

    content: of a 200, unless a file follows; file_name, media_type: of that.
    """

    status: int
    content: msgspec.Raw = msgspec.Raw(b"null")
    message: str = ""
    param: str | None = None
    file_name: str | None = None
    media_type: str = "application/json"


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What a file was. period: "<from>/<to>"; rows: of the file; sha256: of its bytes, hex; tenant: whose alone."""

    what: Exported
    period: str
    rows: int
    sha256: str
    tenant: str | None = None


class Download(NamedTuple):
    """A file to be sent. answer: has its name; sent: once all its pieces were taken."""

    answer: Answer
    pieces: Iterable[bytes]
    sent: Callable[[], Sent]


def framed(answer: Answer) -> bytes:
    """The first frame."""
    return _frame(msgspec.json.encode(answer))


def frames(download: Download) -> Iterator[bytes]:
    """All of a file; the first frame comes with the first piece, so that what fails before that can still be said."""
    begin = framed(download.answer)
    for piece in download.pieces:
        if piece:
            yield begin + _frame(piece)
            begin = b""
    yield begin + _frame(b"") + msgspec.json.encode(download.sent())


def _frame(data: bytes) -> bytes:
    return len(data).to_bytes(LENGTH_BYTES) + data
