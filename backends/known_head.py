"""The head of an HTTP message that comes again, with nothing changed but its length. Pure.

A peer on a kept connection says the same with each message. A head that a parser has taken once need not be parsed
again: what was found in it still holds. Only whole messages are known, and only if nothing follows them: so the
parser, which has not seen the second one, still stands where the next one begins.

    POST /v1/chat/completions HTTP/1.1\r\nhost: …\r\ncontent-length: 568\r\nauthorization: …\r\n\r\n{"model":…}
    └── the same bytes ───────────────────────────────────────────┘└┬┘└── the same bytes ──┘└─ 568 bytes ─┘
                                                                 digits
"""

import re
from bisect import bisect_right
from typing import Generic, TypeVar

T = TypeVar("T")

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})\r\n", re.IGNORECASE)
_DIGITS_MAX = 15
_LEAST = [10**digits + digits + 1 for digits in range(1, _DIGITS_MAX)]
"""How long a body and the digits of its length are at least, together, where these are two, three, …"""


class KnownHead(Generic[T]):
    """A head, and what was found in it."""

    __slots__ = ("_before", "_behind", "_fixed_bytes", "found")

    def __init__(self, before: bytes, behind: bytes, found: T) -> None:
        """Use `of`."""
        self._before = before
        self._behind = behind
        self._fixed_bytes = len(before) + len(behind)
        self.found = found

    @classmethod
    def of(cls, message: bytes, body_bytes: int, found: T) -> "KnownHead[T] | None":
        """From a whole message, as it came in one read, and the length of the body that a parser has found in it.

        None: its end or its length is not where it can be told without a parser.
        """
        body_at = message.find(b"\r\n\r\n") + 4
        lengths = list(_LENGTH.finditer(message, 0, body_at))
        if len(lengths) != 1 or len(message) - body_at != body_bytes:
            return None
        start, end = lengths[0].span(1)
        known = cls(message[:start], message[end:body_at], found)
        return known if known.body_at(message) == body_at else None

    def body_at(self, read: bytes) -> int:
        """Where the body begins, if this read is a whole message with this head; 0: it is not, or writes its length
        in another way than all do.

        How long the body would have to be follows from the read's own length, and so all of the head.
        """
        variable = len(read) - self._fixed_bytes
        body_bytes = variable - 1 - bisect_right(_LEAST, variable)
        head = b"%b%d%b" % (self._before, body_bytes, self._behind)
        body_at = len(head)
        return body_at if len(read) - body_at == body_bytes and read.startswith(head) else 0
