"""Exports as streams: in pieces, exact, with what the manifest says of them."""

import csv
import hashlib
import io
import json
from collections.abc import Iterator

import pytest

from metering.cost.close_manifest import WriterSeen
from metering.cost.close_row import RowKind
from metering.export import export_manifest
from metering.export.export_parts import Correction, ExportRow, Part
from metering.export.exports import Format, Options, Stream
from tests.support import closed

TEXTS = [Format.FOCUS_SPLIT, Format.FOCUS_CHARGEBACK, Format.CSV, Format.JSON]


def rows(count: int, correction: Correction | None = None) -> Iterator[ExportRow]:
    part = Part(closed.manifest([]), correction)
    for number in range(count):
        usage = {
            "kind": RowKind.TENANT,
            "tenant": "acme",
            "model": "llama",
            "operation": "chat",
            "tags": {"a": 'x,"\n'},
        }
        row = closed.row(**usage, instance_id=f"i-{number:06d}", micro_hours=1, calls=1, estimated_pusd=7)
        yield ExportRow(row, part)


@pytest.mark.parametrize("form", TEXTS)
def test_a_stream_comes_in_pieces_and_counts_them(form: Format) -> None:
    stream = Stream(form, rows(2_000), Options())
    pieces = list(stream)
    data = b"".join(pieces)
    assert len(pieces) > 3
    assert max(map(len, pieces)) < 200_000
    assert (stream.bytes, stream.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert stream.rows == (2_001 if form is Format.FOCUS_CHARGEBACK else 2_000)
    if form is not Format.JSON:
        header, *found = csv.reader(io.StringIO(data.decode(), newline=""), strict=True)
        assert header == list(stream.columns)
        assert len(found) == stream.rows
        assert {len(one) for one in found} == {len(header)}


def test_json_is_an_object_a_line() -> None:
    lines = b"".join(Stream(Format.JSON, rows(2, Correction.REVERSAL), Options())).splitlines()
    one = json.loads(lines[0])
    assert one["tags"] == {"a": 'x,"\n'}
    assert (one["hours"], one["allocated_usd"], one["calls"]) == ("-0.000001", "-0.000012981270", -1)
    assert (one["revision"], one["correction"], one["simulated"], one["project"]) == (
        1,
        "reversal",
        False,
        None,
    )


def test_parquet_is_no_stream() -> None:
    with pytest.raises(ValueError, match="not written row by row"):
        Stream(Format.PARQUET, [], Options())


def test_nothing_is_a_header() -> None:
    assert b"".join(Stream(Format.JSON, [], Options())) == b""
    stream = Stream(Format.CSV, [], Options())
    assert b"".join(stream).decode() == ",".join(stream.columns) + "\n"
    assert stream.sums == dict.fromkeys(
        ("list_usd", "allocated_usd", "shared_usd", "estimated_usd"), "0.000000000000"
    )


def test_the_manifest_names_the_furthest_line_of_each_journal() -> None:
    def part(*seen: tuple[str, int]) -> Part:
        writers = tuple(
            WriterSeen(complete="tick", leaf=f"{name}{seq}", seq=seq, writer=name) for name, seq in seen
        )
        return Part(closed.manifest([], writers=writers))

    found = export_manifest.journals_seen([part(("w2", 5), ("w1", 1)), part(("w2", 9)), part(("w2", 7))])
    assert [(one.writer, one.seq, one.leaf) for one in found] == [("w1", 1, "w11"), ("w2", 9, "w29")]


def test_hours_become_spans() -> None:
    hours = [closed.HOUR, closed.HOUR + 1, closed.HOUR + 3]
    assert export_manifest.spans(hours) == (
        "2026-01-01T00:00:00Z/2026-01-01T02:00:00Z",
        "2026-01-01T03:00:00Z/2026-01-01T04:00:00Z",
    )
    assert export_manifest.spans([]) == ()
