"""Where a reader who asks for rows page after page has come to, as a word that only we make. Pure.

A cursor names what is read, not how many rows came before: the moment as of which hours are taken (later revisions are
not seen), the hour, and how many of its rows were given out. The rows of a revision never change, so that pages neither
lose nor double one, whatever is closed between them. A word that was altered, or that is of another question, is told.
"""

import base64
import hashlib
import hmac

import msgspec

_DIGEST_BYTES = 12


class NotACursor(ValueError):
    """It is no cursor of ours, or was made for another question."""


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """as_of_ns: of revisions the newest made by then. hour, after: the next row is this hour's, past so many."""

    as_of_ns: int
    hour: int
    after: int


def encode(cursor: Cursor, question: str, key: bytes) -> str:
    """The word for a client. question: what was asked, in any fixed form; key: known to us alone."""
    data = msgspec.json.encode(cursor)
    return _word(_digest(data, question, key) + data)


def decode(text: str, question: str, key: bytes) -> Cursor:
    """The reverse. Raises NotACursor."""
    try:
        whole = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError as error:
        raise NotACursor("this cursor is none of ours") from error
    digest, data = whole[:_DIGEST_BYTES], whole[_DIGEST_BYTES:]
    if not hmac.compare_digest(digest, _digest(data, question, key)) or _word(whole) != text:
        raise NotACursor("this cursor was altered, or is of another question")
    return msgspec.json.decode(data, type=Cursor)


def _word(whole: bytes) -> str:
    """The one word for these bytes: base64 knows several, and a cursor has one."""
    return base64.urlsafe_b64encode(whole).decode().rstrip("=")


def _digest(data: bytes, question: str, key: bytes) -> bytes:
    return hmac.digest(key, question.encode() + b"\0" + data, hashlib.sha256)[:_DIGEST_BYTES]
