"""`weighbridge report` over closed hours in a state directory."""

import json
import pathlib

import pytest

from gateway import cli
from metering.archive.objects import LocalObjects
from metering.cost.close_row import RowKind
from metering.cost.closes import Closes
from tests.support import closed

MONTH = "2026-01"


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("state")
    closes = Closes(LocalObjects(root))
    for hour in (closed.HOUR, closed.HOUR + 25):
        rows = [
            closed.row(hour, micro_hours=900_000),
            closed.row(
                hour,
                kind=RowKind.TENANT,
                tenant="acme",
                project="search",
                model="llama",
                operation="chat",
                tags={"cost-center": "cc-1"},
                micro_hours=100_000,
                calls=3,
                prompt_tokens=1_000,
                completion_tokens=500,
                estimated_pusd=10**12,
            ),
        ]
        closes.commit(closed.manifest(rows, hour=hour), rows)
    return root


def run(state_dir: pathlib.Path, *flags: str) -> int:
    return cli.main(["report", "--month", MONTH, "--state-dir", str(state_dir), *flags])


def test_a_waterfall_of_each_pool(state_dir: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(state_dir) == 0
    page = capsys.readouterr().out.splitlines()
    assert page[0] == "2026-01: provisional, 2 of 744 hours closed; USD, rounded"
    assert "pool llama" in page
    assert any(line.split()[:2] == ["billed", "25.96"] for line in page)
    assert any(line.split()[1:3] == ["tenants", "2.60"] for line in page)
    assert any("inf2.48xlarge  12.98127 USD/h, 2.00 h" in line for line in page)
    assert max(map(len, page)) <= 100


def test_exact_figures_as_json(state_dir: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(state_dir, "--json") == 0
    page = json.loads(capsys.readouterr().out)
    assert (page["month"], page["state"], page["simulated"]) == (MONTH, "provisional", [])
    (pool,) = page["pools"]
    assert (pool["billed_usd"], pool["tenants_usd"]) == ("25.962540000000", "2.596254000000")
    assert pool["under_recovery_usd"] == "23.962540000000"


def test_sums_by_what_is_named(state_dir: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(state_dir, "--by", "cost_centre,day", "--json") == 0
    sums = json.loads(capsys.readouterr().out)["sums"]
    found = {(one["cost_centre"], one["day"], one["kind"]): one["allocated_usd"] for one in sums}
    assert found == {
        ("cc-1", "2026-01-01", "tenant"): "1.298127000000",
        ("cc-1", "2026-01-02", "tenant"): "1.298127000000",
        (None, "2026-01-01", "idle"): "11.683143000000",
        (None, "2026-01-02", "idle"): "11.683143000000",
    }


def test_a_tenants_month(state_dir: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(state_dir, "--tenant", "acme") == 0
    page = capsys.readouterr().out
    assert "estimated 2.00  allocated 2.60  variance 0.596254" in page
    assert "nothing is known of the month before" in page


def test_hardware_that_cannot_be_compared_says_why(
    state_dir: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(state_dir, "--compare", "inf2.48xlarge,g6e.xlarge", "--model", "llama") == 1
    assert "no closed hour of this month has 'llama' on 'g6e.xlarge'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (["--by", "nobody"], 2, "there is no sum by 'nobody'"),
        (["--tenant", "nobody"], 1, "a tenant 'nobody'"),
        (["--pool", "nobody"], 1, "a pool 'nobody'"),
        (["--tenant", "acme", "--by", "day"], 2, "--tenant and --by do not go together"),
        (["--compare", "a,b"], 2, "--compare and --model go together"),
        (["--compare", "a", "--model", "m"], 2, "two instance types"),
        (["--month", "2026-02"], 1, "no hour of 2026-02 is closed"),
        (["--month", "2026-13"], 2, "is no month"),
        (["--tz", "Mars/Olympus"], 2, "is no time zone"),
    ],
)
def test_what_cannot_be_shown_is_said(
    state_dir: pathlib.Path, capsys: pytest.CaptureFixture[str], flags: list[str], status: int, words: str
) -> None:
    assert run(state_dir, *flags) == status
    assert words in capsys.readouterr().err


def test_shared_costs_are_said_beside_what_instances_cost(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        closed.row(micro_hours=1_000_000),
        *(
            closed.row(kind=RowKind.SHARED_COST, tenant=name, pool=None, backend="storage", instance_id=None,
                       instance_type=None, instance_family=None, uusd_per_hour=None, allocated_pusd=amount * 10**12)
            for name, amount in (("acme", 2), ("globex", 3))
        ),
        closed.row(kind=RowKind.TENANT, tenant="acme", model="llama", calls=1),
    ]  # fmt: skip
    Closes(LocalObjects(tmp_path)).commit(closed.manifest(rows), rows)
    assert run(tmp_path) == 0
    page = capsys.readouterr().out
    assert "\nshared costs 5.00, not in any pool above\n" in page
    assert "billed                    12.98" in page
    assert run(tmp_path, "--tenant", "acme") == 0
    assert "\nshared costs 2.00, split out to acme, charged besides\n" in capsys.readouterr().out
    assert run(tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["shared_costs_usd"] == "5.000000000000"
    assert run(tmp_path, "--by", "tenant") == 0
    assert "shared costs" not in capsys.readouterr().out
