"""Retry-After in every form that RFC 9110 allows, and in forms that it does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.retry_after import RETRY_AFTER_S_MAX, read

NOW_S = 784111777.0
"""Sun, 06 Nov 1994 08:49:37 GMT, the example of RFC 9110."""


@pytest.mark.parametrize(("value", "wait_s"), [
    (b"7", 7),
    (b" 7 ", 7),
    (b"0", 0),
    (b"007", 7),
    (b"3600", 3600),
    (b"3601", RETRY_AFTER_S_MAX),
    (b"9" * 10_000, RETRY_AFTER_S_MAX),
    (b"Sun, 06 Nov 1994 08:49:44 GMT", 7),
    (b"Sunday, 06-Nov-94 08:49:44 GMT", 7),
    (b"Sun Nov  6 08:49:44 1994", 7),
    (b"Sun, 06 Nov 1994 09:49:44 +0100", 7),
    (b"Sun, 06 Nov 1994 08:49:44 -0000", 7),
    (b"Sun, 06 Nov 1994 08:49:30 GMT", 0),           # over already
    (b"Mon, 07 Nov 1994 08:49:44 GMT", RETRY_AFTER_S_MAX),
    (b"Fri, 31 Dec 9999 23:59:59 GMT", RETRY_AFTER_S_MAX),
    (b"Sun, 99 Nov 1994 08:49:44 GMT", None),
    (b"-1", None),
    (b"1.5", None),
    (b"soon", None),
    (b"", None),
    (b"\xff", None),
])  # fmt: skip
def test_forms(value: bytes, wait_s: int | None) -> None:
    assert read([(b"retry-after", value)], NOW_S) == wait_s


def test_a_part_of_a_second_is_waited_for() -> None:
    assert read([(b"retry-after", b"Sun, 06 Nov 1994 08:49:44 GMT")], NOW_S + 0.5) == 7


def test_absent() -> None:
    assert read([], NOW_S) is None
    assert read([(b"content-type", b"7")], NOW_S) is None


def test_the_first_one_counts() -> None:
    assert read([(b"retry-after", b"1"), (b"retry-after", b"2")], NOW_S) == 1


@given(st.binary(max_size=60) | st.text(alphabet="0123456789 :,-+GMTSunNov", max_size=40).map(str.encode))
def test_whatever_it_says_the_wait_is_bounded(value: bytes) -> None:
    wait_s = read([(b"retry-after", value)], NOW_S)
    assert wait_s is None or 0 <= wait_s <= RETRY_AFTER_S_MAX
