"""Cursors: what was made is read, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.export import cursor
from metering.export.cursor import Cursor, NotACursor

KEY = b"k" * 32
INTS = st.integers(0, 1 << 62)
CURSORS = st.builds(Cursor, INTS, INTS, INTS)


@given(CURSORS, st.text(max_size=9))
def test_what_was_made_is_read(one: Cursor, question: str) -> None:
    word = cursor.encode(one, question, KEY)
    assert cursor.decode(word, question, KEY) == one
    assert word.replace("-", "").replace("_", "").isalnum()


@given(CURSORS, st.data())
def test_any_change_is_told(one: Cursor, data: st.DataObject) -> None:
    word = cursor.encode(one, "q", KEY)
    at = data.draw(st.integers(0, len(word) - 1))
    letter = data.draw(st.characters(codec="ascii").filter(lambda letter: letter != word[at]))
    for altered in (word[:at] + letter + word[at + 1 :], word[:at], word + letter):
        with pytest.raises(NotACursor):
            cursor.decode(altered, "q", KEY)


def test_it_is_of_one_question_and_one_gateway() -> None:
    word = cursor.encode(Cursor(1, 2, 3), "from=a", KEY)
    for question, key in (("from=b", KEY), ("from=a", b"x")):
        with pytest.raises(NotACursor, match="altered, or is of another question"):
            cursor.decode(word, question, key)
    with pytest.raises(NotACursor, match="none of ours"):
        cursor.decode("ü", "from=a", KEY)
