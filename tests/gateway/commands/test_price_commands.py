"""`weighbridge prices show, import, diff`, on real directories."""

import argparse
import json
import pathlib

import pytest

from gateway import cli
from gateway.commands import price_commands
from metering.archive.objects import LocalObjects
from metering.cost.aws_prices import Lease
from metering.cost.price_versions import PriceVersions
from metering.journal.journal import directories
from metering.periods import parse_instant
from metering.record import Event, Line
from tests.support import signing

Capture = pytest.CaptureFixture[str]
DATA = pathlib.Path(__file__).parent.parent.parent / "data" / "aws-prices"
HEAD = "instance_type,region,purchase_option,usd_per_hour,valid_from,date,source\n"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("WEIGHBRIDGE_CONFIG", "WEIGHBRIDGE_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    signing.keys(tmp_path / "state")


def run(*words: str) -> int:
    return cli.main(["prices", *words, "--state-dir", "state"])


def csv(tmp_path: pathlib.Path, *rows: str) -> str:
    file = tmp_path / "prices.csv"
    file.write_text(HEAD + "".join(f"{row}\n" for row in rows))
    return str(file)


def shown(capsys: Capture, *words: str) -> list[dict[str, str | None]]:
    capsys.readouterr()
    assert run("show", "--json", *words) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def told(root: pathlib.Path) -> list[dict[str, str]]:
    lines: list[Line] = [line for one in directories(root / "journal") for line, _, _ in one.records()]
    return [line.data for line in lines if isinstance(line, Event) and line.topic == "prices"]


def test_the_shipped_prices_are_shown_with_date_and_source(capsys: Capture) -> None:
    assert run("show", "--type", "inf2.48xlarge") == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["instance", "type", "region"]
    for part in ("inf2.48xlarge", "us-east-1", "on-demand", "12.981270", "ever", "2026-07-20", "shipped"):
        assert part in row.split()
    assert [one["instance_type"] for one in shown(capsys, "--type", "inf1")] == [
        f"inf1.{size}" for size in ("24xlarge", "2xlarge", "6xlarge", "xlarge")
    ]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--type", "inf2.49xlarge"],
            "no price is known of inf2.49xlarge at that time; did you mean inf2.48xlarge?",
        ),
        (["--type", "quantum"], "no price is known of quantum at that time; weighbridge prices import FILE"),
    ],
)
def test_a_type_without_a_price_is_an_error_with_a_hint(words: list[str], says: str, capsys: Capture) -> None:
    assert run("show", *words) == 1
    printed = capsys.readouterr()
    assert (printed.out, says in printed.err) == ("", True)


def test_an_import_is_told_then_kept_and_then_shown(tmp_path: pathlib.Path, capsys: Capture) -> None:
    file = csv(
        tmp_path, "inf2.48xlarge,eu-west-1,,14.5,2026-01-01,,our list", "trn2.48xlarge,,,40,,,our list"
    )
    assert run("diff", file) == 0
    assert PriceVersions(LocalObjects(tmp_path / "state")).all() == []
    changes = capsys.readouterr().out.splitlines()
    assert changes[1].split()[1:5] == ["on-demand", "none", "14.500000", "2026-01-01T00:00:00Z"]
    assert run("import", file) == 0
    (stored,) = PriceVersions(LocalObjects(tmp_path / "state")).all()
    (event,) = told(tmp_path / "state")
    assert (event["what"], event["version"], event["added"]) == ("import", "1", "2")
    assert event["sha256"] == stored.version.file_sha256
    assert event["before"] != event["after"]
    _, row = shown(capsys, "--type", "trn2.48xlarge")  # behind the shipped one of a capacity block
    assert (row["from"], row["usd_per_hour"], row["region"]) == ("imported", "40.000000", None)
    assert shown(capsys, "--type", "inf2.48xlarge", "--at", "2025-12-31")[0]["region"] == "us-east-1"
    assert run("import", file) == 0
    assert "nothing new" in capsys.readouterr().err
    assert len(told(tmp_path / "state")) == 1
    assert run("diff", "1") == 0
    assert "version 1 of 20" in capsys.readouterr().err
    assert run("diff", "2") == 1
    assert "there is no version 2" in capsys.readouterr().err


def test_nothing_is_imported_that_goes_backwards(tmp_path: pathlib.Path, capsys: Capture) -> None:
    file = csv(tmp_path, "inf2.48xlarge,us-east-1,,14.5,2026-01-01,,our list", "inf2.xlarge,eu-west-1,,1,,,x")
    assert run("import", file) == 2
    message = capsys.readouterr().err
    assert "nothing was imported" in message
    assert "prices.csv: line 2: from 2026-01-01T00:00:00Z on inf2.48xlarge@us-east-1" in message
    assert not (tmp_path / "state" / "prices").exists()
    assert told(tmp_path / "state") == []


def test_aws_list_is_taken_for_the_accelerated_types(tmp_path: pathlib.Path, capsys: Capture) -> None:
    assert run("import", str(DATA / "bulk.json"), "--reserved", "3yr,standard,all-upfront") == 0
    assert "passed over: 3 with another system, licence or tenancy" in capsys.readouterr().err
    rows = shown(capsys, "--type", "inf2.48xlarge")
    assert [(row["purchase_option"], row["usd_per_hour"], row["from"]) for row in rows] == [
        ("on-demand", "13.100000", "imported"),  # from now on: the shipped one held until today
        ("reserved", "5.607991", "imported"),
    ]
    assert shown(capsys, "--type", "inf2.48xlarge", "--at", "2026-11-27")[0]["usd_per_hour"] == "12.981270"
    assert run("import", str(DATA / "get_products.json"), "--all-types") == 0
    assert shown(capsys, "--type", "m5.large")[0]["usd_per_hour"] == "0.096000"


def test_the_operators_price_is_shown_before_all_others(tmp_path: pathlib.Path, capsys: Capture) -> None:
    (tmp_path / "weighbridge.yaml").write_text(
        "prices:\n- {instance_type: inf2.48xlarge, usd_per_hour: '9', date: 2026-11-01, source: contract,"
        " region: us-east-1}\n"
    )
    (row,) = shown(capsys, "--type", "inf2.48xlarge")
    assert (row["from"], row["usd_per_hour"], row["source"]) == ("config", "9.000000", "contract")
    (before,) = shown(capsys, "--type", "inf2.48xlarge", "--at", "2026-10-31T23:59:59Z")
    assert before["from"] == "shipped"
    (tmp_path / "weighbridge.yaml").write_text(
        "prices:\n- {instance_type: t, usd_per_hour: '9 USD', date: soon, source: s}\n"
    )
    assert run("show") == 2
    assert "prices[0].usd_per_hour" in capsys.readouterr().err


def test_with_an_archive_both_have_all_imports(tmp_path: pathlib.Path, capsys: Capture) -> None:
    assert run("import", csv(tmp_path, "inf2.xlarge,eu-west-1,,1,,,before there was an archive")) == 0
    (tmp_path / "weighbridge.yaml").write_text("journal:\n  archive: archive\n")
    assert run("import", csv(tmp_path, "inf2.xlarge,eu-west-2,,2,,,x")) == 0
    for place in ("archive", "state"):
        prices = PriceVersions(LocalObjects(tmp_path / place)).prices()
        assert [price.uusd_per_hour for price in prices] == [1_000_000, 2_000_000]
    (tmp_path / "archive" / "prices" / "000001.json").write_bytes(b"{}")
    assert run("show") == 1
    assert "prices/000001.json is no version" in capsys.readouterr().err
    assert run("import", csv(tmp_path, "inf2.xlarge,eu-west-2,,3,,,x")) == 1
    assert run("diff", "1") == 1


def test_check_knows_of_what_was_imported(tmp_path: pathlib.Path, capsys: Capture) -> None:
    (tmp_path / "w.yaml").write_text(
        "state_dir: state\ntenants: [{name: acme}]\nmodels: [{name: m, tiers: [{backends: [b]}]}]\n"
        "backends: [{name: b, url: 'http://127.0.0.1:1', model: m, instance_type: trn2.48xlarge, slots: 4}]\n"
    )
    assert cli.main(["check", "w.yaml"]) == 0
    assert "no price of trn2.48xlarge" in capsys.readouterr().out
    assert run("import", csv(tmp_path, "trn2.48xlarge,,,40,,,our list")) == 0
    assert cli.main(["check", "w.yaml"]) == 0
    assert "note:" not in capsys.readouterr().out
    (tmp_path / "state" / "prices" / "000001.json").write_bytes(b"")
    assert cli.main(["check", "w.yaml"]) == 0
    assert "note: imported prices cannot be used: prices/000001.json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "neither a CSV in UTF-8 nor JSON"),
        (b"{}", "is no price list of AWS"),
        (b"", "is missing"),
    ],
)
def test_a_file_that_is_neither(
    tmp_path: pathlib.Path, capsys: Capture, content: bytes, message: str
) -> None:
    (tmp_path / "some.csv").write_bytes(content)
    assert run("import", str(tmp_path / "some.csv")) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path: pathlib.Path, capsys: Capture) -> None:
    assert run("import", str(tmp_path / "none.csv")) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err


def test_flags_are_read_or_refused() -> None:
    assert price_commands.lease("1yr,convertible,no-upfront") == Lease("1yr", "convertible", "No Upfront")
    with pytest.raises(argparse.ArgumentTypeError, match="1yr or 3yr"):
        price_commands.lease("2yr")
    assert price_commands.instant("2026-11-01") == parse_instant("2026-11-01")
    with pytest.raises(argparse.ArgumentTypeError, match="is no time"):
        price_commands.instant("yesterday")
