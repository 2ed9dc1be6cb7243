"""The ledger as CSV: periods, rows, bytes."""

import datetime
import io
import pathlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.export import export
from metering.export.export import COLUMNS, Row
from metering.journal.chain import Broken
from metering.journal.journal import Directory, segment_name
from metering.ledger.ledger import UNITS, Account
from metering.units import NS_PER_HOUR
from tests.support import journals, lines
from tests.support.ledgers import HOUR, MemoryDirectory, random_directory

HEADER = (
    "period_start,period_end,tenant,project,model,instance_family,calls,prompt_tokens,cached_prompt_tokens,"
    "completion_tokens,estimated_usd,unpriced_calls\n"
)


@pytest.mark.parametrize(
    ("text", "hour"),
    [
        ("1970-01-01", 0),
        ("2026-11-01", 498_192),
        ("2026-11-01T06:00:00Z", 498_198),
        ("2026-11-01t06:00:00z", 498_198),
        ("2026-11-01 06:00:00Z", 498_198),
        ("2026-11-01T06:00:00.000Z", 498_198),
        ("2026-11-01T06:00:00+00:00", 498_198),
        ("2026-11-01T08:00:00+02:00", 498_198),
        ("2026-10-31T22:00:00-08:00", 498_198),
        ("2026-11-01T11:30:00+05:30", 498_198),
    ],
)
def test_moments(text: str, hour: int) -> None:
    assert export.parse_moment(text) == hour


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "2026-11", "2026-11-31", "20261101", "2026-W44-7", "2026-11-01T06:00:00", "2026-11-01T06:00Z",
     "2026-11-01T25:00:00Z", "2026-11-01T06:00:00 Z", "1790000000", "2026-11-01T06:00:00+5"],
)  # fmt: skip
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(ValueError, match="is no time; write a date"):
        export.parse_moment(text)


@pytest.mark.parametrize(
    "text",
    ["2026-11-01T06:30:00Z", "2026-11-01T06:00:01Z", "2026-11-01T06:00:00.5Z",
     "2026-11-01T06:00:00+05:30"],
)  # fmt: skip
def test_what_is_not_on_a_full_hour(text: str) -> None:
    with pytest.raises(ValueError, match="not on a full hour of UTC"):
        export.parse_moment(text)


def test_what_is_before_1970() -> None:
    with pytest.raises(ValueError, match="'1969-12-31' is before 1970"):
        export.parse_moment("1969-12-31")


@given(st.datetimes(datetime.datetime(1970, 1, 2), datetime.datetime(9999, 1, 1)), st.integers(-14, 14))
def test_a_moment_does_not_depend_on_how_it_is_written(moment: datetime.datetime, offset: int) -> None:
    utc = moment.replace(minute=0, second=0, microsecond=0, tzinfo=datetime.UTC)
    local = utc.astimezone(datetime.timezone(datetime.timedelta(hours=offset)))
    assert export.parse_moment(local.isoformat()) == utc.timestamp() // 3_600


def test_periods_are_half_open() -> None:
    assert export.parse_period("2026-11-01", "2026-11-02") == range(498_192, 498_216)
    with pytest.raises(ValueError, match="not after its start"):
        export.parse_period("2026-11-01", "2026-11-01")
    with pytest.raises(ValueError, match="not after its start"):
        export.parse_period("2026-11-02", "2026-11-01")


def written(rows: list[Row]) -> str:
    out = io.StringIO()
    export.export_csv(rows, out)
    return out.getvalue()


def test_the_csv() -> None:
    account = Account(498_215, "web", "llama", "inf2")
    rows = [
        Row("acme", account, (3, 30, 12, 21, 1_500_000_000_001, 1)),
        Row("acme", account._replace(project=""), (1, 0, 0, 0, 0, 0)),
    ]
    assert written(rows) == (
        HEADER + "2026-11-01T23:00:00Z,2026-11-02T00:00:00Z,acme,web,llama,inf2,3,30,12,21,1.500000000001,1\n"
        "2026-11-01T23:00:00Z,2026-11-02T00:00:00Z,acme,,llama,inf2,1,0,0,0,0.000000000000,0\n"
    )
    assert ",".join(COLUMNS) + "\n" == HEADER


def test_nothing_is_a_header() -> None:
    assert written([]) == HEADER
    assert written(export.rows_from_journal([], range(10))) == HEADER


def test_rows_of_the_journal() -> None:
    directory = MemoryDirectory("w")
    at_ns = HOUR * NS_PER_HOUR
    for finished_ns, fields in [
        (at_ns - 1, {}),  # before
        (at_ns, {"tenant": "globex"}),
        (at_ns, {"project": "web"}),
        (at_ns + NS_PER_HOUR - 1, {"cost_pusd": None}),
        (at_ns + 5, {}),
        (at_ns + NS_PER_HOUR, {}),  # after: half-open
    ]:
        directory.add(lines.call(finished_ns=finished_ns, **fields))
    directory.add(lines.refused())
    plain = Account(HOUR, "", "llama", "inf2")
    assert export.rows_from_journal([directory], range(HOUR, HOUR + 1)) == [
        Row("acme", plain, (2, 20, 8, 14, 12_345_678, 1)),
        Row("acme", plain._replace(project="web"), (1, 10, 4, 7, 12_345_678, 0)),
        Row("globex", plain, (1, 10, 4, 7, 12_345_678, 0)),
    ]


def test_a_journal_that_was_altered_after_its_end_is_named(tmp_path: pathlib.Path) -> None:
    writer = journals.WRITER
    makes = [
        journals.start(),
        journals.call("c-1"),
        journals.call("c-2"),
        journals.call("c-3"),
        journals.stop(),
    ]
    path = journals.write_directory(tmp_path, makes)
    hours = range(journals.AT_NS // NS_PER_HOUR + 1)
    broken: list[Broken] = []
    (whole,) = export.rows_from_journal([Directory(path)], hours, broken.append)
    assert (whole.amounts[0], broken) == (3, [])
    segment = path / segment_name(1)
    segment.write_bytes(segment.read_bytes().replace(b'"c-2"', b'"c-5"'))
    (part,) = export.rows_from_journal([Directory(path)], hours, broken.append)
    assert (part.amounts[0], broken) == (2, [Broken(writer, 3)])


@given(st.randoms(use_true_random=False))
def test_rows_are_sorted_by_the_bytes_of_their_key(rng: random.Random) -> None:
    directories = [random_directory(rng, f"w{index}", 20) for index in range(3)]
    rows = export.rows_from_journal(directories, range(HOUR + 5))
    keys = [
        (row.account.hour, row.tenant.encode(), *(part.encode() for part in row.account[1:])) for row in rows
    ]
    assert keys == sorted(keys)
    rng.shuffle(directories)
    assert export.rows_from_journal(directories, range(HOUR + 5)) == rows


def test_every_unit_has_its_column() -> None:
    assert len(COLUMNS) == 6 + len(UNITS)
