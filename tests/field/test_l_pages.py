"""Field reports of kind l that pages of rows answer for: none is lost, none comes twice."""

import csv
import io
import itertools
import pathlib
from typing import Any

import msgspec
import pytest

from gateway.api.errors import InvalidRequest
from gateway.configuration.config import Config
from gateway.faces import finance_answers, finance_questions
from gateway.faces.answers import Answer, Download
from metering.archive.objects import LocalObjects
from metering.cost.close_manifest import Reason
from metering.cost.close_row import CloseRow, RowKind
from metering.cost.closes import Closes
from metering.units import NS_PER_HOUR
from tests.support import closed

PERIOD = {"from": "2026-01-01", "to": "2026-01-02"}
HOURS = {closed.HOUR: 700, closed.HOUR + 2: 1_000, closed.HOUR + 5: 0, closed.HOUR + 6: 800}
"""2,500 rows, of which 1,000 are of one hour."""
PAGE = "100"


def rows_of(hour: int, count: int, *, first: int = 0) -> list[CloseRow]:
    """Each has an id of its own, which is its project."""
    return [
        closed.row(
            hour, kind=RowKind.TENANT, tenant=f"t{n % 7}", project=f"{hour}-{n}", micro_hours=n + 1, calls=1
        )
        for n in range(first, first + count)
    ]


def commit(
    closes: Closes, rows: list[CloseRow], *, revision: int = 1, closed_ns: int = 1, hour: int = 0
) -> None:
    reason = Reason.FIRST if revision == 1 else Reason.LATE
    made = closed.manifest(
        rows, hour=hour or rows[0].hour, revision=revision, reason=reason, closed_ns=closed_ns
    )
    closes.commit(made, rows)


class Desk:
    """Asks as a client of /finance/v1 does."""

    def __init__(self, state_dir: pathlib.Path) -> None:
        tree = {
            "state_dir": str(state_dir),
            "tenants": [{"name": "acme"}],
            "models": [{"name": "m1", "tiers": [{"backends": ["b1"]}]}],
            "backends": [{"name": "b1", "url": "http://127.0.0.1:1", "model": "m"}],
        }
        self._config = msgspec.convert(tree, Config)

    def page(self, query: dict[str, str]) -> dict[str, Any]:
        return self._json(finance_answers.answer(finance_questions.rows(query), self._config))

    def summary(self) -> dict[str, Any]:
        return self._json(finance_answers.answer(finance_questions.summary(PERIOD), self._config))

    def csv(self) -> list[dict[str, str]]:
        question = finance_questions.export("csv", PERIOD, is_manifest=False)
        found = finance_answers.answer(question, self._config)
        assert isinstance(found, Download)
        return list(csv.DictReader(io.StringIO(b"".join(found.pieces).decode())))

    def _json(self, found: Answer | Download) -> dict[str, Any]:
        assert isinstance(found, Answer)
        assert found.status == 200, found.message
        return dict(msgspec.json.decode(found.content))


def test_br_130_pages_neither_lose_nor_double_a_row(tmp_path: pathlib.Path) -> None:
    closes, desk = Closes(LocalObjects(tmp_path)), Desk(tmp_path)
    for hour, count in HOURS.items():
        commit(closes, rows_of(hour, count), hour=hour)
    wanted = [row["project"] for row in desk.csv()]
    total = desk.summary()["total"]
    late_ns = (closed.HOUR + 40) * NS_PER_HOUR
    arriving = iter(
        [
            # of an hour that was read, that is being read (its rows shift), that is to come; and new hours
            lambda: commit(closes, rows_of(closed.HOUR, 710), revision=2, closed_ns=late_ns),
            lambda: commit(closes, rows_of(closed.HOUR + 1, 5), closed_ns=late_ns),
            lambda: commit(closes, rows_of(closed.HOUR + 2, 1_010, first=0)[::-1], revision=2, closed_ns=1),
            lambda: commit(closes, rows_of(closed.HOUR + 5, 10), revision=2, closed_ns=late_ns),
            lambda: commit(closes, rows_of(closed.HOUR + 6, 810), revision=2, closed_ns=1),
            lambda: commit(closes, rows_of(closed.HOUR + 8, 5), closed_ns=1),
        ]
    )
    found: list[dict[str, Any]] = []
    query = PERIOD | {"limit": PAGE}
    for number in itertools.count():
        page = desk.page(query)
        found += page["data"]
        if page["next"] is None:
            break
        query = {"cursor": page["next"], "limit": PAGE}
        if number % 4 == 0:
            next(arriving, lambda: None)()
    assert next(arriving, None) is None
    assert len(found) == sum(HOURS.values())
    assert [row["project"] for row in found] == wanted
    assert sum(int(row["hours"].replace(".", "")) for row in found) == int(total["hours"].replace(".", ""))
    assert total["calls"] == len(found)
    assert len({row["project"] for row in desk.csv()}) == sum(HOURS.values()) + 50


@pytest.mark.parametrize(
    "alter", [lambda text: text[:-1], lambda text: text[::-1], lambda text: "x" + text[1:]]
)
def test_br_130_an_altered_cursor_is_refused(tmp_path: pathlib.Path, alter: Any) -> None:
    commit(Closes(LocalObjects(tmp_path)), rows_of(closed.HOUR, 3))
    cursor = Desk(tmp_path).page(PERIOD | {"limit": "2"})["next"]
    with pytest.raises(InvalidRequest, match="no cursor that was given out") as caught:
        finance_questions.rows({"cursor": alter(cursor)})
    assert (caught.value.status, caught.value.param) == (400, "cursor")
