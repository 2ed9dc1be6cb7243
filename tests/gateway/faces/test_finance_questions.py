"""Questions to the finance face: what is understood, and what is told of what is not."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.errors import InvalidRequest, NotFound
from gateway.faces import finance_questions as questions
from gateway.faces.finance_questions import ROWS_DEFAULT, ROWS_MAX, Period
from metering.export import row_cursor
from metering.export.row_cursor import VERSION, Cursor, Pin

PERIOD = {"from": "2026-01-01", "to": "2026-02-01"}
MONTH = Period(start="2026-01-01", end="2026-02-01", zone="UTC")
CURSOR = Cursor(VERSION, 10, 20, 0, (Pin(10, 1),))


def export(form: str) -> Callable[[dict[str, str]], Any]:
    return lambda query: questions.export(form, query, is_manifest=False)


def test_what_is_understood() -> None:
    assert questions.summary(PERIOD).by == ()
    assert questions.summary(PERIOD | {"by": "tenant,tag:team", "tz": "Europe/Berlin"}).by == (
        "tenant",
        "tag:team",
    )
    assert questions.rows(PERIOD) == questions.Rows(period=MONTH, cursor=None, limit=ROWS_DEFAULT)
    text = row_cursor.encode(CURSOR)
    assert questions.rows({"cursor": text, "limit": "7"}) == questions.Rows(
        period=None, cursor=CURSOR, limit=7
    )
    assert questions.rows(PERIOD | {"cursor": text}).period == MONTH
    assert questions.hours(PERIOD).period == MONTH
    assert questions.months({}) == questions.Months()
    assert (questions.prices({}).at, questions.prices({"at": "2026-01-01"}).at) == (None, "2026-01-01")
    assert questions.waterfall({"month": "2026-01"}).month == "2026-01"
    assert questions.report({"month": "2026-01", "tenant": "acme"}).tenant == "acme"
    found = questions.export(
        "focus-chargeback", PERIOD | {"chargeback": "allocated", "omit_unpriced": "true"}, is_manifest=True
    )
    assert (found.charged, found.omit_unpriced, found.is_manifest, found.focus_version) == (
        "allocated", True, True, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("read", "query", "param"),
    [
        (questions.summary, {"from": "2026-01-01"}, "to"),
        (questions.summary, PERIOD | {"by": ""}, "by"),
        (questions.summary, PERIOD | {"by": ",".join("abcdefghi")}, "by"),
        (questions.summary, PERIOD | {"tz": "x" * 129}, "tz"),
        (questions.rows, {}, "from"),
        (questions.rows, PERIOD | {"limit": str(ROWS_MAX + 1)}, "limit"),
        (questions.rows, {"cursor": "AAAA"}, "cursor"),
        (questions.rows, {"cursor": row_cursor.encode(CURSOR), "from": "2026-01-01"}, "to"),
        (questions.months, {"month": "2026-01"}, "month"),
        (questions.waterfall, {}, "month"),
        (questions.report, {"month": "2026-01"}, "tenant"),
        (export("csv"), PERIOD | {"chargeback": "allocated"}, "chargeback"),
        (export("focus-split"), PERIOD | {"focus_version": "2.0"}, "focus_version"),
        (export("focus-chargeback"), PERIOD | {"chargeback": "never"}, "chargeback"),
        (export("focus-chargeback"), PERIOD | {"omit_unpriced": "yes"}, "omit_unpriced"),
    ],
)
def test_what_is_wrong_is_named(
    read: Callable[[dict[str, str]], Any], query: dict[str, str], param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(query)
    assert caught.value.param == param


@pytest.mark.parametrize(("form", "says"), [("parquet", "weighbridge export"), ("xls", "focus-split")])
def test_what_is_not_sent_says_what_is(form: str, says: str) -> None:
    with pytest.raises(NotFound, match=says):
        export(form)(PERIOD)


@given(
    st.dictionaries(st.sampled_from(["from", "to", "tz", "by", "cursor", "limit", "x"]), st.text(max_size=20))
)
def test_whatever_is_asked_it_is_a_question_or_an_error(query: dict[str, str]) -> None:
    for read in (questions.summary, questions.rows, questions.hours, export("json")):
        with contextlib.suppress(InvalidRequest):
            assert read(query) is not None
