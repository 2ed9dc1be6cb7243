"""A head that is known is one that a parser would read the same way: httptools is the judge."""

import inspect
import re
from collections.abc import Callable

import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backends import known_head
from backends.known_head import KnownHead

START = b"POST /v1/chat HTTP/1.1\r\n"


class Parsed:
    """What httptools finds in a read: of each message its headers in order, and its body; None: it is no HTTP."""

    def __init__(self, read: bytes) -> None:
        self.messages: list[tuple[list[tuple[bytes, bytes]], bytes]] = []
        self.whole = 0
        try:
            httptools.HttpRequestParser(self).feed_data(read)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.messages = []

    def on_message_begin(self) -> None:
        self.messages.append(([], b""))

    def on_header(self, name: bytes, value: bytes) -> None:
        self.messages[-1][0].append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        headers, before = self.messages[-1]
        self.messages[-1] = headers, before + body

    def on_message_complete(self) -> None:
        self.whole += 1

    @property
    def only(self) -> tuple[list[tuple[bytes, bytes]], bytes] | None:
        """The message, if there is one, whole, with nothing behind it; its headers but for the content-length."""
        if len(self.messages) != 1 or self.whole != 1:
            return None
        headers, body = self.messages[0]
        return [header for header in headers if header[0] != b"content-length"], body


def known(message: bytes) -> KnownHead[list[tuple[bytes, bytes]]] | None:
    parsed = Parsed(message)
    assert parsed.only is not None
    return KnownHead.of(message, len(parsed.only[1]), parsed.only[0])


def message(before: list[bytes], length: bytes, behind: list[bytes], body: bytes) -> bytes:
    return START + b"".join(line + b"\r\n" for line in [*before, length, *behind]) + b"\r\n" + body


LINES = st.lists(
    st.sampled_from(
        [
            b"host: a", b"x: content-length: 3", b"x-content-length: 4", b"x:", b"content-length : 3", b"\tfolded",
            b"Transfer-Encoding: chunked", b"content-length: 3", b"content-length: 0", b"x: a\nb: c", b"x: \r",
        ]
    ),
    max_size=3,
)  # fmt: skip
LENGTHS = st.sampled_from(
    [b"content-length: %d", b"Content-Length:%d", b"content-length: %d ", b"content-length: 0%d", b"x: %d"]
)
BODIES = st.sampled_from(
    [b"", b"abc", b"\r\n\r\n", b"ab\r\n\r\ncd", b"x" * 12, b"content-length: 3\r\n\r\nabc"]
)


@given(
    LINES,
    LENGTHS,
    LINES,
    BODIES,
    BODIES,
    st.binary(max_size=3),
    st.integers(0, 200),
    st.sampled_from([0, 0, -1, 1, 9]),
)
@example([], b"content-length: %d", [], b"abc", b"x" * 12, b"", 0, 0)
@example([], b"content-length: %d", [], b"abc", b"abc", b"", 0, -1)  # shorter than what came
@example([], b"content-length: %d", [], b"abc", b"x" * 9, b"", 0, 1)  # … where the length has a digit more
@example(
    [], b"content-length: %d", [b"x:"], b"abc", b"abc", b"y", len(START) + 19, 0
)  # another header behind it
@settings(max_examples=500, deadline=None)
def test_whatever_is_known_is_read_as_the_parser_reads_it(
    before: list[bytes],
    length: bytes,
    behind: list[bytes],
    body: bytes,
    other: bytes,
    instead: bytes,
    at: int,
    off: int,
) -> None:
    first = message(before, length % len(body), behind, body)
    if Parsed(first).only is None:
        return
    head = known(first)
    if head is None:
        return
    second = message(before, length % max(0, len(other) + off), behind, other)
    second = second[:at] + instead + second[at + len(instead) :]
    body_at = head.body_at(second)
    if body_at:
        assert Parsed(second).only == (head.found, second[body_at:])


def test_only_the_length_may_change() -> None:
    head = known(message([b"host: a"], b"content-length: 3", [b"accept: */*"], b"abc"))
    assert head is not None
    longer = message([b"host: a"], b"content-length: 12", [b"accept: */*"], b"x" * 12)
    assert longer[head.body_at(longer) :] == b"x" * 12
    empty = message([b"host: a"], b"content-length: 0", [b"accept: */*"], b"")
    assert head.body_at(empty) == len(empty)
    assert not head.body_at(message([b"host: b"], b"content-length: 12", [b"accept: */*"], b"x" * 12))
    assert not head.body_at(message([b"host: a"], b"content-length: 12", [b"accept: x"], b"x" * 12))
    assert not head.body_at(longer[:-1])
    assert not head.body_at(longer + b"G")
    assert not head.body_at(message([b"host: a"], b"content-length: 1_2", [b"accept: */*"], b"x" * 12))
    assert not head.body_at(b"")
    assert not head.body_at(
        message([b"host: a"], b"content-length: " + b"0" * 20 + b"3", [b"accept: */*"], b"abc")
    )


@pytest.mark.parametrize("edge", [10**digits for digits in range(1, 7)])
@pytest.mark.parametrize("off", [-1, 0, 1])
def test_every_length_is_known_and_no_other(edge: int, off: int) -> None:
    head = known(message([], b"content-length: 3", [], b"abc"))
    assert head is not None
    body_bytes = edge + off
    whole = message([], b"content-length: %d" % body_bytes, [], b"x" * body_bytes)
    assert head.body_at(whole) == len(whole) - body_bytes
    assert not head.body_at(whole[:-1])
    assert not head.body_at(whole + b"x")


@pytest.mark.parametrize(
    "no_head",
    [
        START + b"host: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        START + b"host: a\r\ncontent-length: 3 \r\n\r\nabc",
        START + b"host: a\r\n\r\n",
    ],
)
def test_a_length_that_cannot_be_told_is_not_known(no_head: bytes) -> None:
    assert known(no_head) is None


def test_a_read_that_does_not_begin_or_end_with_the_message_is_not_known() -> None:
    whole = message([b"host: a"], b"content-length: 3", [], b"abc")
    assert KnownHead.of(whole + whole, 3, None) is None
    assert KnownHead.of(whole[:-1], 3, None) is None


def body_at_without(rule: Callable[[str], str]) -> Callable[[KnownHead[object], bytes], int]:
    """`body_at` with one of its rules left out of its source."""
    source = rule(re.sub(r"^    ", "", inspect.getsource(KnownHead.body_at), flags=re.MULTILINE))
    names = dict(vars(known_head))
    exec(source, names)
    return names["body_at"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "rule",
    [
        (" if len(read) - body_at == body_bytes and read.startswith(head) else 0", ""),
        ("len(read) - body_at == body_bytes and ", ""),
        ("read.startswith(head)", "read.startswith(self._before)"),
    ],
)
def test_without_one_of_its_rules_the_parser_would_differ(
    rule: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = body_at_without(lambda source: source.replace(*rule))
    monkeypatch.setattr(KnownHead, "body_at", broken)
    with pytest.raises(AssertionError):
        test_whatever_is_known_is_read_as_the_parser_reads_it()
