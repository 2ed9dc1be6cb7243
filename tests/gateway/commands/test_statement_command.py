"""`weighbridge statement`: told before it is there, whole or not at all."""

import hashlib
import json
import pathlib

import pytest

from gateway.cli import main
from metering.archive.objects import LocalObjects
from metering.cost.close_row import RowKind
from metering.cost.closes import Closes
from metering.journal import chain
from metering.journal.journal import directories
from tests.support import closed
from tests.support.statements import Page

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    row = closed.row(
        kind=RowKind.TENANT, tenant="acme", model="llama", micro_hours=1, calls=3, estimated_pusd=7
    )
    (tmp_path / "state").mkdir()
    Closes(LocalObjects(tmp_path / "state")).commit(closed.manifest([row]), [row])
    return tmp_path


def statement(*more: str, tenant: str = "acme", month: str = "2026-01") -> int:
    return main(["statement", "--tenant", tenant, "--month", month, "--state-dir", "state", *more])


def told(here: pathlib.Path) -> list[dict[str, str]]:
    return [
        json.loads(line.data)["data"]
        for directory in directories(here / "state" / "journal")
        for line in directory.chained()
        if chain.decode(line.data).kind == "event"
    ]


def test_a_statement_is_told_and_then_there(here: pathlib.Path) -> None:
    assert statement("--out", "pages/") == 0
    data = (here / "pages" / "statement-2026-01-acme.html").read_bytes()
    assert Page(data).text("#total") == "0.000000000007"
    (event,) = told(here)
    assert (event["what"], event["tenant"], event["rows"]) == ("statement", "acme", "3")
    assert event["period"] == "2026-01-01T00:00:00Z/2026-02-01T00:00:00Z"
    assert event["sha256"] == hashlib.sha256(data).hexdigest()
    assert event["to"] == str(here / "pages" / "statement-2026-01-acme.html")


def test_without_a_place_it_goes_to_stdout(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert statement() == 0
    assert capfdbinary.readouterr().out.startswith(b"<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("tenant", "month", "code", "said"),
    [
        ("nobody", "2026-01", 1, "no closed hour of 2026-01 has a tenant 'nobody'"),
        ("acme", "2026-02", 1, "no closed hour of 2026-02 has a tenant 'acme'"),
        ("acme", "2026-1", 2, "'2026-1' is no month"),
    ],
)
def test_what_is_not_there_is_said(
    tenant: str, month: str, code: int, said: str, here: pathlib.Path, capsys: Capture
) -> None:
    assert statement("--out", "page.html", tenant=tenant, month=month) == code
    assert said in capsys.readouterr().err
    assert told(here) == []
    assert not (here / "page.html").exists()


def test_what_cannot_be_put_is_not_told(here: pathlib.Path, capsys: Capture) -> None:
    assert statement("--out", "missing/page.html") == 1
    assert "missing/page.html" in capsys.readouterr().err
    assert told(here) == []
