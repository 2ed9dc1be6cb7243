"""Field reports of kind l that exports answer for: days of other zones, drift of sums."""

import csv
import datetime
import io
import pathlib
from collections.abc import Iterator

import pytest

from gateway import cli
from metering.cost.close_row import RowKind
from metering.export.export_parts import ExportRow, Part
from metering.export.exports import Format, Options, Stream
from metering.ledger import ledger
from metering.units import NS_PER_HOUR, PICO_USD_PER_USD, usd_text
from tests.support import closed, journals

Capture = pytest.CaptureFixture[str]
SPANS = (("2025-03-08", "2025-03-12"), ("2025-03-29", "2025-04-01"), ("2025-11-01", "2025-11-04"))
NANO_USD = 1_000
"""In picodollars."""


def hour_of(day: str) -> int:
    moment = datetime.datetime.fromisoformat(day).replace(tzinfo=datetime.UTC)
    return int(moment.timestamp()) // 3_600


@pytest.fixture
def records(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """A record at each full hour of UTC. returns: how many."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "America/New_York")
    hours = [hour for start, end in SPANS for hour in range(hour_of(start), hour_of(end))]
    makes = [
        make
        for number, hour in enumerate(hours)
        for make in (
            journals.admitted(f"{journals.WRITER}-{number}", at_ns=hour * NS_PER_HOUR),
            journals.call(f"{journals.WRITER}-{number}", at_ns=hour * NS_PER_HOUR),
        )
    ]
    begin = journals.start(at_ns=hours[0] * NS_PER_HOUR)
    journals.write_directory(tmp_path / "state" / "journal", [begin, *makes, journals.stop()])
    return len(hours)


def exported(zone: str, start: datetime.date, end: datetime.date, capsys: Capture) -> list[str]:
    """The hours of the rows of such a period."""
    period = ["--from", start.isoformat(), "--to", end.isoformat(), "--tz", zone]
    assert cli.main(["export", *period, "--state-dir", "state"]) == 0
    return [row["period_start"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))]


@pytest.mark.parametrize(
    ("zone", "day", "count"),
    [
        ("UTC", "2025-03-09", 24),
        ("America/Los_Angeles", "2025-03-09", 23),
        ("America/Los_Angeles", "2025-11-02", 25),
        ("Europe/Berlin", "2025-03-30", 23),
        ("Asia/Kolkata", "2025-03-09", 24),
        ("Pacific/Kiritimati", "2025-03-09", 24),
    ],
)
def test_br_129_days_of_any_zone_part_the_records(
    zone: str, day: str, count: int, records: int, capsys: Capture
) -> None:
    one_day = datetime.timedelta(days=1)
    date = datetime.date.fromisoformat(day)
    assert len(exported(zone, date, date + one_day, capsys)) == count
    found: list[str] = []
    for start, end in SPANS:
        at = datetime.date.fromisoformat(start) - one_day
        while at <= datetime.date.fromisoformat(end):
            found += exported(zone, at, at + one_day, capsys)
            at += one_day
    assert len(found) == len(set(found)) == records
    assert cli.main(["export", "--from", day, "--to", "2026-01-01", "--tz", "Mars/Olympus"]) == 2


def test_br_132_sums_do_not_drift() -> None:
    """A million calls of one nano-USD beside nine million USD: in the ledger's sums, and in an export's."""
    amounts = [0, 0, 0, 0, 9_000_000 * PICO_USD_PER_USD, 0]
    for _ in range(1_000_000):
        ledger.add(amounts, (1, 0, 0, 0, NANO_USD, 0))
    assert amounts == [1_000_000, 0, 0, 0, 9_000_000 * PICO_USD_PER_USD + 1_000_000 * NANO_USD, 0]
    assert usd_text(amounts[4]) == "9000000.001000000000"

    def rows() -> Iterator[ExportRow]:
        part = Part(closed.manifest([]))
        yield ExportRow(
            closed.row(kind=RowKind.IDLE, list_pusd=0, allocated_pusd=9_000_000 * PICO_USD_PER_USD), part
        )
        tiny = ExportRow(closed.row(kind=RowKind.IDLE, list_pusd=0, allocated_pusd=NANO_USD), part)
        for _ in range(10_000):
            yield tiny

    for form in (Format.JSON, Format.CSV, Format.FOCUS_SPLIT):
        stream = Stream(form, rows(), Options())
        assert sum(map(len, stream)) == stream.bytes
        total = stream.sums.get("allocated_usd") or stream.sums["EffectiveCost"]
        assert total == "9000000.000010000000"
