"""Cursors: the same back again, and no other text."""

import base64
import hashlib
import random
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.export import row_cursor
from metering.export.export_parts import Correction
from metering.export.row_cursor import (
    CURSOR_CHARACTERS_MAX,
    VERSION,
    Cursor,
    NotACursor,
    Pin,
    TooManyRevisions,
)

PINS = st.builds(
    Pin, st.integers(-9_000, 600_000), st.integers(1, 2**31 - 1), st.sampled_from([None, *Correction])
)
CURSORS = st.builds(
    Cursor, st.just(VERSION), st.integers(0, 500_000), st.integers(500_001, 600_000), st.integers(0, 2**31 - 1),
    st.lists(PINS, min_size=1, max_size=20).map(tuple),
)  # fmt: skip
ONE = Cursor(VERSION, 490_896, 490_900, 3, (Pin(490_896, 1), Pin(1, 2, Correction.RESTATED)))


@given(CURSORS)
def test_it_comes_back(cursor: Cursor) -> None:
    text = row_cursor.encode(cursor)
    assert row_cursor.decode(text) == cursor
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


@given(CURSORS, st.data())
def test_one_that_is_altered_anywhere_is_none(cursor: Cursor, data: st.DataObject) -> None:
    """Mutant: the digest is not looked at."""
    text = row_cursor.encode(cursor)
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from("AZaz09-_=+/ é").filter(lambda letter: letter != text[at]))
    for altered in (text[:at] + other + text[at + 1 :], text[:at], text + "A", text[:at] + text[at + 1 :]):
        if altered != text:
            with pytest.raises(NotACursor):
                row_cursor.decode(altered)


def sealed(packed: bytes) -> str:
    data = hashlib.sha256(packed).digest()[:8] + packed
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"no zlib",
        zlib.compress(b"no msgpack"),
        zlib.compress(msgspec.msgpack.encode([VERSION, 1])),
        zlib.compress(msgspec.msgpack.encode(msgspec.structs.replace(ONE, version=VERSION + 1))),
        zlib.compress(msgspec.msgpack.encode(msgspec.structs.replace(ONE, stop=ONE.start))),
        zlib.compress(msgspec.msgpack.encode(msgspec.structs.replace(ONE, pins=()))),
        zlib.compress(msgspec.msgpack.encode(msgspec.structs.replace(ONE, given=-1))),
        zlib.compress(bytes(2_000_000)),
    ],
)
def test_one_with_a_digest_of_its_own_is_looked_at_too(packed: bytes) -> None:
    with pytest.raises(NotACursor):
        row_cursor.decode(sealed(packed))


def test_a_long_text_is_none() -> None:
    with pytest.raises(NotACursor):
        row_cursor.decode("A" * (CURSOR_CHARACTERS_MAX + 1))


def test_a_year_that_was_closed_once_is_short_and_one_of_any_revisions_is_refused() -> None:
    year = 366 * 24
    once = Cursor(VERSION, 0, year, 0, tuple(Pin(1, 1) for _ in range(year)))
    corrected = Cursor(
        VERSION, 0, year, 0, tuple(Pin(n % 2, 1 + n % 2, list(Correction)[n % 2]) for n in range(2 * year))
    )
    assert len(row_cursor.encode(once)) < 200
    assert len(row_cursor.encode(corrected)) < 1_000
    rng = random.Random(1)
    wild = Cursor(VERSION, 0, year, 0, tuple(Pin(1, rng.randrange(1, 2**30)) for _ in range(year)))
    with pytest.raises(TooManyRevisions, match="ask for fewer"):
        row_cursor.encode(wild)
