"""Points in time as people write them."""

import pytest

from metering.periods import parse_instant


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01Z", 1_000_000_000),
        ("1970-01-01t00:00:00.000001z", 1_000),
        ("1970-01-01 01:00:00+01:00", 0),
        ("1969-12-31T23:59:59Z", -1_000_000_000),
        ("2026-11-28T11:10:00.123456Z", 1_795_864_200_123_456_000),
    ],
)
def test_it_is_exact(text: str, ns: int) -> None:
    assert parse_instant(text) == ns


@pytest.mark.parametrize(
    "text", ["", "now", "2026", "2026-02-30", "2026-11-28T11:10:00", "20261128", "0001-01-01T00:00:00+24:00"]
)
def test_all_else_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="is no time"):
        parse_instant(text)
