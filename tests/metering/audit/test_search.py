"""Lines found by their bytes: those that a plain reading finds."""

from hypothesis import given
from hypothesis import strategies as st

from metering.audit.search import last_line_with, lines_with

DATA = st.lists(st.sampled_from([b"ab", b"b", b"\n", b"xabx", b"ba"])).map(b"".join)


@given(DATA)
def test_it_finds_each_whole_line_that_holds_it_once(data: bytes) -> None:
    whole = data.split(b"\n")[:-1]
    expected = [line for line in whole if b"ab" in line]
    assert list(lines_with(data, b"ab")) == expected
    assert last_line_with(data, b"ab") == (expected[-1] if expected else None)
