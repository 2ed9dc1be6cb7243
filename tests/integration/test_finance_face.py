"""The face for finance of a running gateway: what it shows, to whom, and files that are sent while they are made."""

import contextlib
import csv
import hashlib
import http.client
import io
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from metering.archive.objects import LocalObjects
from metering.cost.charge_terms import Charged, ChargeTerms
from metering.cost.close_manifest import MonthState
from metering.cost.close_row import CloseRow, RowKind
from metering.cost.closes import Closes
from tests.support import closed, closed_fleet, gateway, mutants, statements
from tests.support.gateway import Gateway, eventually
from tests.support.ports import free_port

pytestmark = pytest.mark.integration

BACKEND = {"name": "b1", "model": "m", "instance_type": "inf2.48xlarge", "slots": 8}
SCOPES = {"acme": ["inference"], "books": ["finance"], "staff": ["inference", "operator", "auditor"]}
PERIOD = "from=2026-01-01&to=2026-01-01T04:00:00Z"
LARGE = "from=2026-01-02&to=2026-01-03"
LARGE_HOURS, LARGE_ROWS = 24, 1_000
"""Rows of an hour: 13 MB of JSON lines together."""
PATHS = [
    f"/finance/v1/summary?{PERIOD}&by=tenant",
    f"/finance/v1/rows?{PERIOD}",
    f"/finance/v1/hours?{PERIOD}",
    "/finance/v1/months",
    "/finance/v1/prices",
    "/finance/v1/waterfall?month=2026-01",
    "/finance/v1/report?month=2026-01&tenant=acme",
    f"/finance/v1/exports/csv?{PERIOD}",
    f"/finance/v1/exports/focus-split/manifest?{PERIOD}",
    "/finance/v1/statements/acme?month=2026-01",
]
SMALL_PIECE = 4096
AT_NS = 1_769_990_400 * 10**9  # 2026-02-02


def small() -> list[closed_fleet.Hour]:
    rng = random.Random(3)
    return closed_fleet.hours(rng, closed_fleet.cards(rng), count=4, first=closed.HOUR)


def large(hour: int) -> list[CloseRow]:
    return [
        closed.row(hour, kind=RowKind.TENANT, tenant="acme", project=f"p{n}", model="llama", micro_hours=n)
        for n in range(LARGE_ROWS)
    ]


@contextlib.contextmanager
def running(
    directory: pathlib.Path, *, terms: ChargeTerms | None = None, **more: object
) -> Iterator[Gateway]:
    """With closed hours, of a month that was closed with these terms. What its readers fetch is under directory/tmp."""
    closes = Closes(LocalObjects(directory / "state"))
    for hour in small():
        closes.commit(msgspec.structs.replace(hour.manifest, simulated=("trn1.32xlarge",)), hour.rows)
    # No journal knows of these hours, so the gateway's own close will find them changed; a closed month stays.
    closes.commit_month("2026-01", MonthState.CLOSED, bills=(), by="cli:test", at_ns=AT_NS, terms=terms)
    (directory / "tmp").mkdir()
    env = {"TMPDIR": str(directory / "tmp")} | dict(more.pop("env", {}))  # type: ignore[call-overload]
    backend = BACKEND | {"url": f"http://127.0.0.1:{free_port()}"}
    with gateway.running(
        directory, [backend], tenants=tuple(SCOPES), scopes=SCOPES, ready=False, env=env, **more
    ) as one:
        eventually(one.alive, within_s=60)
        yield one


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    directory = tmp_path_factory.mktemp("finance")
    closes = Closes(LocalObjects(directory / "state"))
    for hour in range(closed.HOUR + 24, closed.HOUR + 24 + LARGE_HOURS):
        rows = large(hour)
        closes.commit(closed.manifest(rows, hour=hour), rows)
    with running(directory) as one:
        yield one


class Answer(NamedTuple):
    """A whole answer. headers: by their names in lower case."""

    status: int
    headers: dict[str, str]
    content: bytes

    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.content))


def ask(front: Gateway, path: str, tenant: str | None = "books", method: str = "GET") -> Answer:
    headers = {"authorization": f"Bearer {front.keys[tenant]}"} if tenant else {}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", front.port, timeout=60)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        named = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, named, answer.read())


def told(front: Gateway, topic: str) -> list[dict]:
    found = [line for line in front.lines("event") if line["topic"] == topic]
    return sorted(found, key=lambda line: (line["at_ns"], line["seq"]))


def exact(text: str) -> int:
    """A decimal with 12 places, in picodollars."""
    whole, _, places = text.partition(".")
    assert len(places) == 12
    return int(whole + places)


def in_all(field: str) -> int:
    return sum(getattr(row, field) or 0 for hour in small() for row in hour.rows)


def readers(front: Gateway) -> list[int]:
    """Processes of this gateway that read for this face."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"gateway.faces.finance_reader" in path.read_bytes():
                reader = int(path.parent.name)
                found += [reader] if os.getsid(reader) == front.process.pid else []
    return found


def test_sums_rows_hours_and_files_agree_to_the_picodollar(front: Gateway) -> None:
    summary = ask(front, f"/finance/v1/summary?{PERIOD}&by=tenant,day").json()
    rows = ask(front, f"/finance/v1/rows?{PERIOD}").json()
    hours = ask(front, f"/finance/v1/hours?{PERIOD}").json()
    file = list(csv.DictReader(io.StringIO(ask(front, f"/finance/v1/exports/csv?{PERIOD}").content.decode())))
    assert rows["next"] is None
    assert len(rows["data"]) == len(file) == sum(one["rows"]["count"] for one in hours["data"])
    for name in ("allocated", "list", "estimated"):
        wanted = in_all(f"{name}_pusd")
        assert exact(summary["total"][f"{name}_usd"]) == wanted
        assert sum(exact(one[f"{name}_usd"]) for one in summary["data"]) == wanted
        for listed in (rows["data"], file):
            assert sum(exact(one[f"{name}_usd"]) for one in listed if one[f"{name}_usd"]) == wanted
    assert {one["day"] for one in summary["data"]} == {"2026-01-01"}
    assert sum(exact(one["totals"]["estimated"]) for one in hours["data"]) == in_all("estimated_pusd")
    assert summary["not_closed"] == hours["not_closed"] == []


def test_months_and_reports(front: Gateway) -> None:
    january = ask(front, "/finance/v1/months").json()["data"][0]
    assert (january["month"], january["state"], january["hours"]) == ("2026-01", "closed", 744)
    (step,) = january["states"]
    assert step | {"hours": 0} == {
        "number": 1, "state": "closed", "at": "2026-02-02T00:00:00Z", "by": "cli:test", "bills": [], "hours": 0,
    }  # fmt: skip
    falls = ask(front, "/finance/v1/waterfall?month=2026-01").json()
    assert (falls["state"], falls["simulated"]) == ("closed", ["trn1.32xlarge"])
    for one in falls["data"]:
        rest = sum(map(exact, one["rest_usd"].values()))
        assert exact(one["billed_usd"]) == exact(one["tenants_usd"]) + rest
    report = ask(front, "/finance/v1/report?month=2026-01&tenant=acme").json()
    assert (report["chargeback"], report["data"][0]["model"]) == ("rate-card", "llama")
    assert ask(front, "/finance/v1/report?month=2026-01&tenant=nobody").status == 404
    prices = ask(front, "/finance/v1/prices?at=2026-11-01").json()["data"]
    (price,) = [
        one["usd_per_hour"] for one in prices
        if (one["instance_type"], one["purchase_option"]) == ("inf2.48xlarge", "on-demand")
    ]  # fmt: skip
    assert price == "12.981270"


@pytest.mark.parametrize("form", ["focus-split", "focus-chargeback", "csv", "json"])
def test_a_file_is_that_of_the_command_and_the_journal_has_its_digest(
    front: Gateway, tmp_path: pathlib.Path, form: str
) -> None:
    answer = ask(front, f"/finance/v1/exports/{form}?{PERIOD}")
    assert answer.status == 200
    assert answer.headers["transfer-encoding"] == "chunked"
    name = answer.headers["content-disposition"].partition('filename="')[2].rstrip('"')
    basis = ["--basis", "allocated"] if form == "csv" else []
    subprocess.run(
        [sys.executable, "-m", "gateway.cli", "export", "--from", "2026-01-01", "--to", "2026-01-01T04:00:00Z",
         "--format", form, *basis, "-c", front.config_file, "--out", tmp_path / name],
        cwd=gateway.ROOT, check=True,
    )  # fmt: skip
    assert (tmp_path / name).read_bytes() == answer.content
    digest = hashlib.sha256(answer.content).hexdigest()
    event = [one for one in told(front, "export") if one["data"]["to"] == f"/finance/v1/exports/{form}"][-1]
    assert event["data"]["sha256"] == digest
    manifest = ask(front, f"/finance/v1/exports/{form}/manifest?{PERIOD}").json()
    beside = json.loads((tmp_path / f"{name}.manifest.json").read_text())
    assert manifest["file"] == beside["file"] | {"sha256": digest, "name": name}
    assert manifest | {"created": ""} == beside | {"created": ""}


def test_a_statement_says_what_the_sums_say_and_the_journal_has_its_digest(front: Gateway) -> None:
    path = "/finance/v1/statements/acme"
    answer = ask(front, f"{path}?month=2026-01")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert 'filename="statement-2026-01-acme.html"' in answer.headers["content-disposition"]
    assert answer.headers["content-disposition"].startswith("attachment")
    page = statements.Page(answer.content)
    sums = ask(front, f"/finance/v1/summary?{PERIOD}&by=tenant").json()["data"]
    (estimated,) = {
        one["estimated_usd"] for one in sums if (one["tenant"], one["kind"]) == ("acme", "tenant")
    }
    assert page.table("Use by day").column("USD")[-1] == estimated
    event = [one["data"] for one in told(front, "export") if one["data"]["to"] == path][-1]
    assert event["sha256"] == hashlib.sha256(answer.content).hexdigest()
    assert (event["what"], event["tenant"]) == ("statement", "acme")


def test_each_look_is_in_the_journal_before_its_answer_leaves(front: Gateway) -> None:
    before = len(told(front, "finance_read"))
    for number, path in enumerate([*PATHS, "/finance/v1/rows?limit=0"], 1):
        status = ask(front, path).status
        found = told(front, "finance_read")
        assert len(found) == before + number
        assert found[-1]["data"]["path"] == path
        assert found[-1]["data"]["status"] == str(status)


@pytest.mark.parametrize("path", PATHS)
def test_nobody_else_sees_anything_and_who_tried_is_told(front: Gateway, path: str) -> None:
    def refused() -> list[tuple[str, str]]:
        return [(one["data"]["face"], one["data"]["status"]) for one in told(front, "sign_in_refused")]

    before, reads = len(refused()), len(told(front, "finance_read"))
    for tenant, status in ((None, 401), ("acme", 403), ("staff", 403)):
        answer = ask(front, path, tenant)
        assert answer.status == status
        assert answer.json().keys() == {"error"}
    eventually(lambda: len(refused()) == before + 3)
    assert sorted(refused()[before:]) == [("finance", "401"), ("finance", "403"), ("finance", "403")]
    assert len(told(front, "finance_read")) == reads


@pytest.mark.parametrize(
    ("path", "status", "param"),
    [
        ("summary?from=2026-01-01", 400, "to"),
        ("summary?from=2026-01-01&to=2026-01-02&by=colour", 400, "by"),
        ("summary?from=2026-01-01&to=2026-01-02&tz=Mars/Olympus", 400, "tz"),
        ("summary?from=2026-01-01&to=2028-01-01", 400, "to"),
        ("hours?from=2026-01-01&to=2026-03-01", 400, "to"),
        ("hours?from=2026-01-02&to=2026-01-01", 400, None),
        ("rows?cursor=AAAA", 400, "cursor"),
        ("waterfall?month=2026-13", 400, "month"),
        ("prices?at=soon", 400, "at"),
        (f"exports/csv?{PERIOD}&focus_version=1.2", 400, "focus_version"),
        (f"exports/focus-split?{PERIOD}&focus_version=1.2", 400, "focus_version"),
        (f"exports/parquet?{PERIOD}", 404, None),
        (f"exports/xls?{PERIOD}", 404, None),
        ("statements/nobody?month=2026-01", 404, "tenant"),
        ("statements/acme?month=2026-13", 400, "month"),
        ("statements/acme", 400, "month"),
        ("statements/acme?month=2026-01&tz=UTC", 400, "tz"),
    ],
)
def test_what_makes_no_sense_is_told_why(front: Gateway, path: str, status: int, param: str | None) -> None:
    answer = ask(front, f"/finance/v1/{path}")
    assert (answer.status, answer.json()["error"]["param"]) == (status, param)


def test_a_head_has_no_body(front: Gateway) -> None:
    answer = ask(front, f"/finance/v1/exports/json?{LARGE}", method="HEAD")
    assert (answer.status, answer.content) == (200, b"")
    assert answer.headers["content-type"] == "application/x-ndjson"
    eventually(lambda: not readers(front))


@contextlib.contextmanager
def begun(front: Gateway) -> Iterator[tuple[socket.socket, int]]:
    """A download of which a client has taken the first bytes, and the process that makes it."""
    with socket.create_connection(("127.0.0.1", front.port), timeout=30) as client:
        head = f"GET /finance/v1/exports/json?{LARGE} HTTP/1.1\r\nHost: x\r\n"
        client.sendall(f"{head}Authorization: Bearer {front.keys['books']}\r\n\r\n".encode())
        assert client.recv(SMALL_PIECE).startswith(b"HTTP/1.1 200")
        (reader,) = eventually(lambda: len(found := readers(front)) == 1 and found)
        yield client, reader


def written(reader: int) -> int:
    """What a process has written until now, in bytes; 0: it is gone."""
    with contextlib.suppress(OSError):
        fields = dict(
            line.split(": ") for line in pathlib.Path(f"/proc/{reader}/io").read_text().splitlines()
        )
        return int(fields["wchar"])
    return 0


def test_a_slow_client_is_waited_for_and_one_that_leaves_ends_the_process(front: Gateway) -> None:
    """Mutant: what a client does not take is held in the worker; and the process goes on for nobody."""
    exports = len(told(front, "export"))
    with begun(front) as (client, reader):
        seen = [0]

        def stands_still() -> bool:
            seen.append(written(reader))
            return seen[-1] == seen[-2] != 0

        eventually(stands_still, within_s=60, every_s=2.0)
        size = LARGE_HOURS * LARGE_ROWS * 500
        assert seen[-1] < size // 2
        assert front.alive()  # and all others are served
        del client
    eventually(lambda: not readers(front))
    eventually(lambda: not list((front.directory / "tmp").glob("weighbridge-*")))
    assert len(told(front, "export")) == exports


def test_a_file_whose_maker_dies_is_seen_to_be_cut_short(front: Gateway) -> None:
    exports = len(told(front, "export"))
    with begun(front) as (client, reader):
        os.kill(reader, signal.SIGKILL)
        data = b""
        while piece := client.recv(1 << 16):
            data += piece
    assert not data.endswith(b"0\r\n\r\n")
    assert len(told(front, "export")) == exports
    eventually(lambda: "file cut short" in front.log.read_text())
    assert ask(front, f"/finance/v1/exports/csv?{PERIOD}").status == 200


def test_a_question_whose_reader_dies_is_a_fault_of_ours(front: Gateway) -> None:
    found: list[Answer] = []
    asking = threading.Thread(
        target=lambda: found.append(ask(front, f"/finance/v1/summary?{LARGE}&by=project"))
    )
    asking.start()
    (reader,) = eventually(lambda: readers(front), every_s=0.001)
    os.kill(reader, signal.SIGKILL)
    asking.join(30)
    assert (found[0].status, found[0].json()["error"]["code"]) == (500, "internal_error")
    assert told(front, "finance_read")[-1]["data"]["status"] == "500"


def test_a_closed_month_is_charged_as_it_was_closed(tmp_path: pathlib.Path) -> None:
    with running(tmp_path, terms=ChargeTerms(account="old", chargeback=Charged.ALLOCATED)) as front:
        path = f"/finance/v1/exports/focus-chargeback/manifest?{PERIOD}"
        terms = ask(front, path).json()["terms"]["2026-01"]
        assert (terms["account"], terms["chargeback"], terms["kept"]) == ("old", "allocated", True)
        refused = ask(front, f"{path}&chargeback=rate-card")
        assert (refused.status, refused.json()["error"]["param"]) == (400, "chargeback")
        report = ask(front, "/finance/v1/report?month=2026-01&tenant=acme").json()
        assert report["chargeback"] == "allocated"


def test_the_charge_is_as_configured_and_the_port_for_operations_has_it_too(tmp_path: pathlib.Path) -> None:
    port = free_port()
    with running(tmp_path, chargeback="allocated", ops={"listen": f"127.0.0.1:{port}"}) as front:
        front.port = port
        path = f"/finance/v1/exports/focus-chargeback/manifest?{PERIOD}"
        assert ask(front, path, None).status == 401
        assert ask(front, path).json()["terms"]["2026-01"]["chargeback"] == "allocated"
        other = ask(front, f"{path}&chargeback=rate-card").json()
        assert other["terms"]["2026-01"]["chargeback"] == "rate-card"
        manifest = front.state_dir / "close" / "2026-01-01T00" / "rev-1" / "manifest.json"
        manifest.write_text("altered")
        answer = ask(front, f"/finance/v1/hours?{PERIOD}")
        assert (answer.status, answer.json()["error"]["code"]) == (503, "archive_unreadable")
        assert str(tmp_path) not in answer.content.decode()


@pytest.mark.parametrize(
    ("mutant", "law"),
    [
        ("look_not_told", test_each_look_is_in_the_journal_before_its_answer_leaves),
        ("scope_not_checked", lambda front: test_nobody_else_sees_anything_and_who_tried_is_told(front, PATHS[3])),
    ],
)  # fmt: skip
def test_the_laws_are_seen_to_break(tmp_path: pathlib.Path, mutant: str, law: object) -> None:
    with running(tmp_path, env=mutants.environment(mutant)) as front, pytest.raises(AssertionError):
        law(front)  # type: ignore[operator]
