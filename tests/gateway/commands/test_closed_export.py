"""`weighbridge export` of closed hours: every format, whole or not at all, told before, with its manifest."""

import csv
import hashlib
import json
import os
import pathlib
import random
from typing import Any

import duckdb
import pytest

from gateway.cli import main
from gateway.commands import closed_export, commands, export_places
from gateway.commands.commands import CommandError
from gateway.configuration.config import Journal
from metering.archive.objects import LocalObjects
from metering.cost.close_manifest import MonthState, Reason, hour_text, month_hours
from metering.cost.close_row import CloseRow, RowKind
from metering.cost.closes import Closes
from metering.journal import chain
from metering.journal.journal import directories
from tests.support import closed, closed_fleet
from tests.support.closed_fleet import Hour

Capture = pytest.CaptureFixture[str]
FORMATS = {"focus-split": ".csv", "focus-chargeback": ".csv", "csv": ".csv", "json": ".jsonl", "parquet": ""}
PERIOD = ["--from", "2026-01-01", "--to", "2026-01-01T04:00:00Z"]


@pytest.fixture(autouse=True)
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "state").mkdir()
    return tmp_path


@pytest.fixture
def closes(here: pathlib.Path) -> Closes:
    return Closes(LocalObjects(here / "state"))


def fleet(closes: Closes, count: int = 4, first: int = closed.HOUR) -> list[Hour]:
    rng = random.Random(3)
    hours = closed_fleet.hours(rng, closed_fleet.cards(rng), count=count, first=first)
    for hour in hours:
        closes.commit(hour.manifest, hour.rows)
    return hours


def export(form: str, *more: str, period: list[str] = PERIOD) -> int:
    basis = ["--basis", "allocated"] if form == "csv" else []
    return main(["export", *period, "--format", form, *basis, "--state-dir", "state", *more])


def manifest(path: str) -> dict:
    return json.loads(pathlib.Path(path + ".manifest.json").read_text())


def told(here: pathlib.Path) -> list[dict]:
    return [
        json.loads(line.data)["data"]
        for directory in directories(here / "state" / "journal")
        for line in directory.chained()
        if chain.decode(line.data).kind == "event"
    ]


def total(hours: list[Hour], field: str) -> int:
    return sum(getattr(row, field) or 0 for hour in hours for row in hour.rows)


@pytest.mark.parametrize("form", FORMATS)
def test_an_export_is_told_and_has_its_manifest(
    form: str, closes: Closes, here: pathlib.Path, capsys: Capture
) -> None:
    hours = fleet(closes)
    out = f"out{FORMATS[form]}"
    assert export(form, "--out", out) == 0
    made = manifest(out)
    (event,) = told(here)
    assert event["what"] == ("csv-allocated" if form == "csv" else form)
    assert event["sha256"] == made["file"]["sha256"]
    assert event["rows"] == str(made["file"]["rows"])
    assert event["period"] == "2026-01-01T00:00:00Z/2026-01-01T04:00:00Z"
    assert event["to"] == str(here / out)
    assert [one["hour"] for one in made["hours"]] == [hour_text(hour.manifest.hour) for hour in hours]
    assert made["complete"] is True
    if form != "parquet":
        assert hashlib.sha256(pathlib.Path(out).read_bytes()).hexdigest() == made["file"]["sha256"]
    cost = made["file"]["sums"].get("EffectiveCost") or made["file"]["sums"]["allocated_usd"]
    assert cost == f"{total(hours, 'allocated_pusd') / 10**12:.12f}"
    assert sorted(path.name for path in here.iterdir()) == [out, f"{out}.manifest.json", "state"]
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if "no configuration file was read" not in line] == []


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_hours_give_the_same_bytes(form: str, closes: Closes, here: pathlib.Path) -> None:
    fleet(closes, count=2)
    for out in ("one", "two"):
        assert export(form, "--out", out) == 0
    one, two = manifest("one"), manifest("two")
    assert one["file"]["sha256"] == two["file"]["sha256"]
    assert one["schema_sha256"] == two["schema_sha256"]


@pytest.mark.parametrize("form", ["focus-split", "focus-chargeback"])
@pytest.mark.parametrize("out", ["focus.csv", "focus.parquet"])
def test_focus_files_pass_the_check(form: str, out: str, closes: Closes, capsys: Capture) -> None:
    fleet(closes)
    assert export(form, "--out", out) == 0
    assert main(["focus", "check", out]) == 0
    assert f"{out}: ok, {manifest(out)['file']['rows']} rows, FOCUS 1.4" in capsys.readouterr().out
    assert hashlib.sha256(pathlib.Path(out).read_bytes()).hexdigest() == manifest(out)["file"]["sha256"]


def test_rate_cards_of_the_configuration_price_the_chargeback(closes: Closes, here: pathlib.Path) -> None:
    row = closed.row(
        kind=RowKind.TENANT, tenant="acme", model="llama", operation="chat", micro_hours=1_000_000, calls=1,
        prompt_tokens=18, cached_prompt_tokens=8, completion_tokens=24, estimated_pusd=33_000_000,
    )  # fmt: skip
    closes.commit(closed.manifest([row]), [row])
    card = {
        "family": "inf2",
        "prompt": "0.5",
        "cached_prompt": "0.5",
        "completion": "1",
        "date": "2025-12-01",
        "source": "ours",
    }
    config = {
        "state_dir": "state",
        "exports": {"account": "llm-platform", "issuer": "Example Corp"},
        "chargeback": "rate-card",
        "tenants": [{"name": "acme"}],
        "models": [{"name": "llama", "tiers": [{"backends": ["inf2-a"]}], "rate_cards": [card]}],
        "backends": [
            {
                "name": "inf2-a",
                "url": "http://127.0.0.1:1",
                "model": "llama",
                "instance_type": "inf2.48xlarge",
            }
        ],
    }
    (here / "weighbridge.yaml").write_text(json.dumps(config))
    assert main(["export", *PERIOD, "--format", "focus-chargeback", "--out", "cb.csv"]) == 0
    with open("cb.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [
        (one["SkuPriceId"], one["PricingQuantity"], one["ListUnitPrice"], one["ListCost"]) for one in rows
    ] == [
        ("llama/inf2@2025-12-01/prompt", "0.000010", "0.500000000000", "0.000005000000"),
        ("llama/inf2@2025-12-01/cached-prompt", "0.000008", "0.500000000000", "0.000004000000"),
        ("llama/inf2@2025-12-01/completion", "0.000024", "1.000000000000", "0.000024000000"),
        ("", "", "", "12.981237000000"),
    ]
    assert (
        main(
            [
                "export",
                *PERIOD,
                "--format",
                "focus-chargeback",
                "--chargeback",
                "allocated",
                "--out",
                "cb.csv",
            ]
        )
        == 0
    )
    assert manifest("cb.csv")["terms"]["2026-01"]["chargeback"] == "allocated"
    assert {(one["BillingAccountId"], one["InvoiceIssuerName"], one["InvoiceId"]) for one in rows} == {
        ("llm-platform", "Example Corp", "llm-platform-2026-01")
    }
    with open("cb.csv", newline="") as file:
        assert [one["ListCost"] for one in csv.DictReader(file)] == ["12.981270000000", "0.000000000000"]


def test_what_has_no_price_stops_a_focus_file_and_can_be_left_out(
    closes: Closes, here: pathlib.Path, capsys: Capture
) -> None:
    rows = [
        closed.row(micro_hours=1_000_000),
        closed.row(instance_id="i-2", instance_type="inf9.xlarge", uusd_per_hour=None, micro_hours=1_000_000),
    ]
    closes.commit(closed.manifest(rows, unpriced=("inf9.xlarge",)), rows)
    assert export("focus-split", "--out", "split.csv") == 1
    assert "no price is known of inf9.xlarge" in capsys.readouterr().err
    assert told(here) == []
    assert not pathlib.Path("split.csv").exists()
    assert export("focus-split", "--omit-unpriced", "--out", "split.csv") == 0
    made = manifest("split.csv")
    assert (made["unpriced"], made["complete"], made["file"]["rows"]) == (["inf9.xlarge"], False, 1)
    assert export("csv", "--out", "all.csv") == 0
    with open("all.csv", newline="") as file:
        assert [(one["hours"], one["allocated_usd"]) for one in csv.DictReader(file)] == [
            ("1.000000", "12.981270000000"),
            ("1.000000", ""),
        ]


def test_hours_that_are_not_closed_are_named(closes: Closes, capsys: Capture) -> None:
    fleet(closes, count=2)
    rows = [closed.row(closed.HOUR + 3, micro_hours=7)]
    closes.look(closed.manifest(rows, hour=closed.HOUR + 3, revision=0, reason=Reason.NOW), rows)
    assert export("json", "--out", "out.jsonl") == 0
    says = "2 hours of this period not closed, and not in it: 2026-01-01T02:00:00Z/2026-01-01T04:00:00Z"
    assert says in capsys.readouterr().err
    made = manifest("out.jsonl")
    assert made["not_closed"] == ["2026-01-01T02:00:00Z/2026-01-01T04:00:00Z"]
    assert made["complete"] is False
    assert export("json", "--running", "--out", "out.jsonl") == 0
    assert "1 hour of" in capsys.readouterr().err
    assert [one["reason"] for one in manifest("out.jsonl")["hours"]] == ["first", "first", "now"]


def test_a_closed_month_never_changes_and_what_comes_late_is_in_the_month_it_comes_in(closes: Closes) -> None:
    """Mutant: the newest revision is taken of a month that is closed; and its file changes."""
    hours = fleet(closes)
    closes.commit_month("2026-01", MonthState.CLOSED, bills=(), by="cli:test", at_ns=1)
    january, february = (
        ["--from", "2026-01-01", "--to", "2026-02-01"],
        ["--from", "2026-02-01", "--to", "2026-03-01"],
    )
    before = {}
    for form in ("focus-split", "focus-chargeback", "csv"):
        assert export(form, "--out", form, period=january) == 0
        before[form] = pathlib.Path(form).read_bytes()
    late = closed_fleet.hours(random.Random(8), {}, first=closed.HOUR + 2, count=1)[0]
    made_ns = (closed.HOUR + 24 * 40) * 3_600 * 10**9
    closes.commit(
        closed.manifest(late.rows, hour=closed.HOUR + 2, revision=2, reason=Reason.LATE, closed_ns=made_ns),
        late.rows,
    )
    for form, was in before.items():
        assert export(form, "--out", form, period=january) == 0
        assert pathlib.Path(form).read_bytes() == was
        assert export(form, "--out", f"{form}-late", period=february) == 0
        assert [
            (one["hour"], one["correction"], one["revision"]) for one in manifest(f"{form}-late")["hours"]
        ] == [
            ("2026-01-01T02", "reversal", 1),
            ("2026-01-01T02", "restated", 2),
        ]
    difference = total([late], "allocated_pusd") - total([hours[2]], "allocated_pusd")
    for form in ("focus-split", "focus-chargeback"):
        assert main(["focus", "check", f"{form}-late"]) == 0
        assert manifest(f"{form}-late")["file"]["sums"]["EffectiveCost"] == f"{difference / 10**12:.12f}"
    assert manifest("csv-late")["file"]["sums"]["allocated_usd"] == f"{difference / 10**12:.12f}"


def configure(here: pathlib.Path, chargeback: str, account: str, prompt: str) -> None:
    card = {
        "family": "inf2",
        "prompt": prompt,
        "cached_prompt": "0.1",
        "completion": "2",
        "date": "2025-12-01",
        "source": account,
    }
    config = {
        "state_dir": "state",
        "exports": {"account": account, "issuer": f"{account} Corp"},
        "chargeback": chargeback,
        "tenants": [{"name": "acme"}],
        "models": [{"name": "llama", "tiers": [{"backends": ["inf2-a"]}], "rate_cards": [card]}],
        "backends": [
            {
                "name": "inf2-a",
                "url": "http://127.0.0.1:1",
                "model": "llama",
                "instance_type": "inf2.48xlarge",
            }
        ],
    }
    (here / "weighbridge.yaml").write_text(json.dumps(config))


def by_card(hour: int) -> list[CloseRow]:
    """Rows of an hour whose calls a prompt price of 0.5 explains."""
    tenant = closed.row(
        hour, kind=RowKind.TENANT, tenant="acme", model="llama", operation="chat", micro_hours=600_000, calls=1,
        prompt_tokens=1_000, completion_tokens=500, estimated_pusd=1_500_000_000,
    )  # fmt: skip
    return [closed.row(hour, micro_hours=400_000), tenant]


def january(closes: Closes, here: pathlib.Path) -> range:
    """The last hours of a month that is closed with rate cards of account `old`; then all is configured anew."""
    hours = range(month_hours("2026-01").stop - 2, month_hours("2026-01").stop)
    for hour in hours:
        closes.commit(closed.manifest(by_card(hour), hour=hour), by_card(hour))
    (here / "state" / "journal").mkdir(exist_ok=True)
    configure(here, "rate-card", "old", "0.5")
    assert main(["close", "month", "2026-01", "--without-bill"]) == 0
    return hours


MONTH = ["--from", "2026-01-01", "--to", "2026-02-01"]


def focus(form: str, out: str, *more: str, period: list[str] = MONTH) -> list[dict[str, str]]:
    assert main(["export", *period, "--format", form, "--out", out, *more]) == 0
    with open(out, newline="") as file:
        return list(csv.DictReader(file))


def test_a_closed_months_files_hang_on_no_configuration(closes: Closes, here: pathlib.Path) -> None:
    january(closes, here)
    rows = focus("focus-chargeback", "cb.csv")
    focus("focus-split", "split.csv")
    assert [one["SkuPriceId"] for one in rows[:2]] == [
        "llama/inf2@2025-12-01/prompt",
        "llama/inf2@2025-12-01/completion",
    ]
    configure(here, "allocated", "new", "9")
    for form, was in (("focus-chargeback", "cb.csv"), ("focus-split", "split.csv")):
        focus(form, "again.csv")
        assert pathlib.Path("again.csv").read_bytes() == pathlib.Path(was).read_bytes()
    (here / "weighbridge.yaml").unlink()
    assert export("focus-chargeback", "--out", "again.csv", period=MONTH) == 0
    assert pathlib.Path("again.csv").read_bytes() == pathlib.Path("cb.csv").read_bytes()
    assert manifest("again.csv")["terms"] == {
        "2026-01": {
            "account": "old",
            "cards": ["llama/inf2@2025-12-01"],
            "chargeback": "rate-card",
            "issuer": "old Corp",
            "kept": True,
        }
    }


def test_the_mutant_that_takes_the_configuration_of_the_day_is_seen(
    closes: Closes, here: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closed_export, "kept", lambda asked, _found: asked)
    with pytest.raises(AssertionError):
        test_a_closed_months_files_hang_on_no_configuration(closes, here)


def test_a_closed_month_is_charged_in_no_other_way(
    closes: Closes, here: pathlib.Path, capsys: Capture
) -> None:
    january(closes, here)
    period = ["--from", "2026-01-31", "--to", "2026-02-02"]
    asked = ["export", *period, "--format", "focus-chargeback", "--out", "cb.csv", "--chargeback"]
    before = told(here)
    assert main([*asked, "allocated"]) == commands.EXIT_USAGE
    says = (
        "2026-01 was closed with chargeback rate-card, and its file never changes: leave the chargeback out"
    )
    assert says in capsys.readouterr().err
    assert not pathlib.Path("cb.csv").exists()
    assert told(here) == before
    assert main([*asked, "rate-card"]) == 0


def test_each_month_of_a_period_has_its_own_terms_and_corrections_those_of_what_they_take_back(
    closes: Closes, here: pathlib.Path
) -> None:
    hours = january(closes, here)
    configure(here, "allocated", "new", "9")
    late = [row for row in by_card(hours[1]) if row.tenant is None]
    made_ns = (hours.stop + 30) * 3_600 * 10**9
    changed = closed.manifest(late, hour=hours[1], revision=2, reason=Reason.LATE, closed_ns=made_ns)
    closes.commit(changed, late)
    closes.commit(closed.manifest(by_card(hours.stop), hour=hours.stop), by_card(hours.stop))
    rows = focus("focus-chargeback", "cb.csv", period=["--from", "2026-01-01", "--to", "2026-03-01"])
    mine = [one for one in rows if one["SubAccountId"] == "acme"]
    assert [
        (one["ChargePeriodStart"][:10], one["BillingAccountId"], one["InvoiceId"], one["ChargeClass"], one["x_Kind"])
        for one in mine
        if one["SkuMeter"] != "Completion Tokens"
    ] == [
        ("2026-01-31", "old", "old-2026-01", "", "tenant"),
        ("2026-01-31", "old", "old-2026-01", "", "tenant"),
        ("2026-02-01", "new", "new-2026-02", "", "tenant"),
        ("2026-01-31", "new", "new-2026-02", "Correction", "tenant"),
    ]  # fmt: skip
    assert [one["SkuMeter"] for one in mine if one["ChargeClass"]] == ["Prompt Tokens", "Completion Tokens"]
    terms = manifest("cb.csv")["terms"]
    assert {month: (one["chargeback"], one["kept"]) for month, one in terms.items()} == {
        "2026-01": ("rate-card", True),
        "2026-02": ("allocated", False),
    }


def test_a_month_that_was_closed_without_terms_says_so(
    closes: Closes, here: pathlib.Path, capsys: Capture
) -> None:
    fleet(closes)
    closes.commit_month("2026-01", MonthState.CLOSED, bills=(), by="cli:test", at_ns=1)
    assert export("focus-split", "--out", "split.csv") == 0
    says = "2026-01 was closed before months kept how they are charged: the configuration of today counts"
    assert says in capsys.readouterr().err
    assert manifest("split.csv")["terms"]["2026-01"] == {
        "account": "weighbridge",
        "cards": [],
        "chargeback": None,
        "issuer": "Weighbridge",
        "kept": False,
    }


def test_parquet_is_partitioned_by_day_and_tenant(closes: Closes, here: pathlib.Path) -> None:
    hours = fleet(closes, first=closed.HOUR + 22)
    assert export("parquet", "--out", "rows", period=["--from", "2026-01-01", "--to", "2026-01-03"]) == 0
    assert {path.name for path in (here / "rows").iterdir()} == {"day=2026-01-01", "day=2026-01-02"}
    assert "tenant=acme" in {path.name for path in (here / "rows" / "day=2026-01-01").iterdir()}
    by_tenant = duckdb.sql(
        "SELECT tenant, sum(micro_hours)::BIGINT, min(period_start)::VARCHAR, min(revision) FROM "
        "read_parquet('rows/*/*/*.parquet', hive_partitioning = true) WHERE tenant = 'acme' GROUP BY tenant"
    ).fetchall()
    wanted = sum(row.micro_hours for hour in hours for row in hour.rows if row.tenant == "acme")
    assert [(one[0], one[1], one[3]) for one in by_tenant] == [("acme", wanted, 1)]
    inside = "SELECT DISTINCT day, tenant FROM read_parquet('rows/*/tenant=acme/*.parquet', hive_partitioning = false)"
    assert set(duckdb.sql(inside).fetchall()) == {("2026-01-01", "acme"), ("2026-01-02", "acme")}
    before = told(here)
    assert export("parquet", "--out", "rows") == 1  # what is there is not replaced
    assert told(here) == before
    west = ["--from", "2026-01-01", "--to", "2026-01-02", "--tz", "America/Los_Angeles"]
    assert export("parquet", "--out", "west", period=west) == 0
    assert {path.name for path in (here / "west").iterdir()} == {"day=2026-01-01"}


def test_formulas_are_words_in_every_text(closes: Closes) -> None:
    row = closed.row(instance_id="=1+1", region="@x", price_source="-2", price_date="+3", micro_hours=5)
    closes.commit(closed.manifest([row]), [row])
    for form in ("csv", "focus-split", "focus-chargeback"):
        assert export(form, "--out", "out.csv") == 0
        with open("out.csv", newline="") as file:
            found = [cell for one in csv.reader(file) for cell in one]
        assert "'@x" in found
        assert not [cell for cell in found if cell.startswith(("=", "+", "@", "\t", "\r"))]
    assert export("json", "--out", "out.jsonl") == 0
    assert (
        json.loads(pathlib.Path("out.jsonl").read_text())["instance_id"] == "=1+1"
    )  # no spreadsheet opens that


def test_where_an_export_goes(
    closes: Closes, here: pathlib.Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    fleet(closes, count=2)
    assert export("csv", "--out", "out.csv") == 0
    for stdout in ([], ["--out", "-"]):
        assert export("csv", *stdout) == 0
        assert capsysbinary.readouterr().out == pathlib.Path("out.csv").read_bytes()
    (here / "files").mkdir()
    assert export("csv", "--out", "files") == 0
    assert export("json", "--out", "files/") == 0
    assert sorted(path.name for path in (here / "files").iterdir()) == [
        "csv-2026-01-01--2026-01-01T04.csv",
        "csv-2026-01-01--2026-01-01T04.csv.manifest.json",
        "json-2026-01-01--2026-01-01T04.jsonl",
        "json-2026-01-01--2026-01-01T04.jsonl.manifest.json",
    ]
    assert export("csv", "--out", "nowhere/out.csv") == 1
    assert b"nowhere/out.csv: No such file or directory" in capsysbinary.readouterr().err


def test_what_a_killed_export_left_is_deleted(closes: Closes, here: pathlib.Path) -> None:
    fleet(closes, count=1)
    for name, is_old in ((".out.csv.00000000.part", True), (".out.csv.11111111.part", False)):
        (here / name).mkdir()
        if is_old:
            os.utime(here / name, (1, 1))
    assert export("csv", "--out", "out.csv") == 0
    assert [path.name for path in here.glob(".*")] == [".out.csv.11111111.part"]


def test_what_cannot_be_told_is_not_exported(
    closes: Closes, here: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet(closes, count=1)

    def refuse(*_: object) -> None:
        raise CommandError("the disk is full")

    monkeypatch.setattr("gateway.commands.export_commands.tell", refuse)
    for form, suffix in FORMATS.items():
        assert export(form, "--out", f"out{suffix}") == 1
    assert [path.name for path in here.iterdir()] == ["state"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--format", "focus-split", "--focus-version", "1.2"], "FOCUS 1.2 has no split charges"),
        (["--format", "json", "--basis", "estimated"], "--basis estimated goes with csv"),
        (["--format", "csv", "--omit-unpriced"], "--omit-unpriced does not go with this export"),
        (["--format", "csv", "--running"], "--running does not go with this export"),
        (
            ["--format", "focus-split", "--chargeback", "allocated"],
            "--chargeback does not go with this export",
        ),
        (["--format", "parquet"], "name it with --out"),
        (["--tz", "Mars/Olympus"], "is no time zone"),
        (["--tz", "../../etc/passwd"], "is no time zone"),
    ],
)
def test_flags_that_do_not_go_together(flags: list[str], says: str, capsys: Capture) -> None:
    assert main(["export", *PERIOD, "--state-dir", "state", *flags]) == commands.EXIT_USAGE
    assert says in capsys.readouterr().err


def test_an_archive_that_is_none_is_named(closes: Closes, here: pathlib.Path, capsys: Capture) -> None:
    hours = fleet(closes, count=1)
    (here / "state" / closes.hours(range(closed.HOUR, closed.HOUR + 1))[0].rows.path).write_bytes(b"x")
    assert hours
    assert export("csv", "--out", "out.csv") == 1
    assert "is not what its manifest says" in capsys.readouterr().err
    assert export("csv", "--out", "ftp://host/out.csv") == 1


def test_places() -> None:
    assert export_places.place_of("s3://b", "n.csv", Journal()).text == "s3://b/n.csv"
    assert export_places.place_of("s3://b/p/", "n.csv", Journal()).text == "s3://b/p/n.csv"
    assert export_places.place_of("s3://b/p/x.csv", "n.csv", Journal()).text == "s3://b/p/x.csv"


def test_the_mutant_that_writes_before_it_tells_is_seen(
    closes: Closes, here: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = closed_export.make

    def make_in_place(closes: Closes, asked: closed_export.Asked, *more: Any) -> Any:
        made = make(closes, asked, *more)
        more[1].rename(here / str(asked.out))
        return made

    monkeypatch.setattr(closed_export, "make", make_in_place)
    with pytest.raises(AssertionError):
        test_what_cannot_be_told_is_not_exported(closes, here, monkeypatch)


def test_a_directory_is_made_if_its_name_says_that_it_is_one(closes: Closes, here: pathlib.Path) -> None:
    fleet(closes)
    assert export("json", "--out", "new/deep/") == 0
    assert sorted(file.name for file in (here / "new/deep").iterdir()) == [
        "json-2026-01-01--2026-01-01T04.jsonl",
        "json-2026-01-01--2026-01-01T04.jsonl.manifest.json",
    ]


def test_without_a_file_the_chargeback_says_that_it_knows_no_cards(closes: Closes, capsys: Capture) -> None:
    fleet(closes)
    assert export("focus-chargeback") == 0
    assert (
        "no configuration file was read (-c FILE): tenants are charged by rate card"
        in capsys.readouterr().err
    )
    assert export("focus-chargeback", "--chargeback", "allocated") == 0
    assert "no configuration file" not in capsys.readouterr().err


@pytest.mark.parametrize("out", ["new/", "there"])
def test_the_ledgers_file_goes_into_a_directory_too(out: str, closes: Closes, here: pathlib.Path) -> None:
    (here / "there").mkdir()
    (here / "state/journal").mkdir()
    assert main(["export", *PERIOD, "--state-dir", "state", "--out", out]) == 0
    (file,) = (here / out).iterdir()
    assert file.name == "estimated-2026-01-01--2026-01-01T040000Z.csv"
    assert file.read_text().startswith("period_start,")


def test_the_ledgers_file_goes_to_no_bucket(capsys: Capture) -> None:
    assert main(["export", *PERIOD, "--out", "s3://bucket/x.csv"]) == 2
    assert "s3:// is for closed hours" in capsys.readouterr().err
