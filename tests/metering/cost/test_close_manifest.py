"""What a closed hour says of itself: sums, ratios, names of hours and months."""

import datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.archive.manifest import NotAManifest
from metering.cost import close_manifest
from metering.cost.charge_terms import Charged, ChargeTerms
from metering.cost.close_manifest import (
    Month,
    MonthState,
    PoolTime,
    hour_text,
    month_hours,
    month_of,
    parse_hour,
)
from metering.cost.close_row import RowKind
from metering.cost.pricing import RateCard
from tests.support.closed import HOUR, manifest, row


@given(st.integers(0, 2_000_000))
def test_hours_are_read_as_they_are_written(hour: int) -> None:
    moment = datetime.datetime.fromtimestamp(hour * 3_600, datetime.UTC)
    assert hour_text(hour) == moment.strftime("%Y-%m-%dT%H")
    assert parse_hour(hour_text(hour)) == hour
    assert hour in month_hours(month_of(hour))


@pytest.mark.parametrize(
    "text", ["", "2026-11-28", "2026-11-28T24", "2026-02-30T01", "2026-11-28T1", "months"]
)
def test_what_is_no_hour(text: str) -> None:
    assert parse_hour(text) is None


@pytest.mark.parametrize("text", ["", "2026-13", "2026-11-01", "1969-12", "9999-12", "26-11"])
def test_what_is_no_month(text: str) -> None:
    with pytest.raises(ValueError, match="is no month since 1970"):
        month_hours(text)


def test_a_month_has_its_hours() -> None:
    assert [len(month_hours(month)) for month in ("2026-01", "2026-02", "2028-02")] == [744, 672, 696]


def test_sums_are_of_all_rows() -> None:
    found = close_manifest.totals(
        [
            row(micro_hours=600_000),
            row(kind=RowKind.TENANT, micro_hours=400_000, estimated_pusd=5_000_000_000_000, calls=3),
            row(kind=RowKind.HEADROOM, micro_hours=5, uusd_per_hour=None),
        ]
    )
    assert (found.instances, found.tenants) == ("12.981270000000", "5.192508000000")
    assert found.rest == {"idle": "7.788762000000"}
    assert found.micro_hours == {"idle": 600_000, "tenant": 400_000, "headroom": 5}
    assert (found.estimated, found.under_recovery, found.calls) == ("5.000000000000", "7.981270000000", 3)


def test_ratios_are_of_sums() -> None:
    time = PoolTime(busy_ns=1, owned_ns=4, slot_ns=3, slots_ns=9) + PoolTime(busy_ns=1, owned_ns=4)
    assert time.ratios() == close_manifest.Ratios(busy=250_000, used=333_333, capacity=None)
    assert close_manifest.sum_of({"a": time, "b": time}).owned_ns == 16


def test_manifests_are_read_as_they_are_written() -> None:
    one = manifest([row()])
    assert close_manifest.decode(close_manifest.encode(one)) == one
    month = Month(at_ns=1, bills=(), by="", hours={}, month="2026-01", number=1, state=MonthState.CLOSED)
    assert close_manifest.decode_month(close_manifest.encode(month)) == month
    card = RateCard(
        model="llama",
        hardware="inf2",
        prompt=1,
        cached_prompt=2,
        completion=3,
        date="2026-01-01",
        source="ours",
    )
    terms = ChargeTerms(account="a", cards=(card,), chargeback=Charged.ALLOCATED, issuer="i")
    with_terms = msgspec.structs.replace(month, terms=terms)
    assert close_manifest.decode_month(close_manifest.encode(with_terms)) == with_terms
    for decode in (close_manifest.decode, close_manifest.decode_month):
        with pytest.raises(NotAManifest):
            decode(b'{"hour":"x"}')
    assert month_of(HOUR) == "2026-01"


def test_months_that_were_closed_before_they_kept_terms_are_read() -> None:
    old = b'{"at_ns":1,"bills":[],"by":"","hours":{},"month":"2026-01","number":1,"state":"closed","v":1}\n'
    assert close_manifest.decode_month(old).terms is None
