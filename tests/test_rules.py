"""The alert rules: Prometheus's own tool reads them, and tries each on series that must and must not fire it."""

import pathlib
import re
import shutil
import subprocess

import pytest
import yaml

from metering.pages.families import FAMILIES

ROOT = pathlib.Path(__file__).parent.parent
RULES = ROOT / "deploy" / "prometheus-rules.yml"
REFERENCE = (ROOT / "deploy" / "reference" / "metrics.md").read_text()

pytestmark = pytest.mark.debian


def promtool() -> str:
    if (found := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed (Debian package `prometheus`)")
    return found


def rules() -> list[dict[str, str]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    found: list[dict[str, str]] = group["rules"]
    return found


def series(name: str, values: str) -> dict[str, str]:
    return {"series": name, "values": values}


DIFFERS = 'weighbridge_control_difference{instance="gw",pair="journal-ledger",unit="calls"}'
MADE = 'weighbridge_backend_unmetered_tokens{instance="gw",backend="inf2-a"}'
CASES = [  # alert, a series each minute, fires within an hour?
    ("WeighbridgeFiguresDiffer", series(DIFFERS, "0x10 3x60"), True),
    ("WeighbridgeFiguresDiffer", series(DIFFERS, "0x60"), False),
    ("WeighbridgeFiguresDiffer", series(DIFFERS, "0x10 3 0x60"), False),
    ("WeighbridgeControlStale", series("weighbridge_control_timestamp_seconds", "0x60"), True),
    ("WeighbridgeControlStale", series("weighbridge_control_timestamp_seconds", "0+60x60"), False),
    ("WeighbridgeCloseBehind", series("weighbridge_close_hours_behind", "0x5 2x60"), True),
    ("WeighbridgeCloseBehind", series("weighbridge_close_hours_behind", "0x5 2x20 0x60"), False),
    ("WeighbridgeCloseStale", series("weighbridge_close_timestamp_seconds", "-7200x60"), True),
    ("WeighbridgeCloseStale", series("weighbridge_close_timestamp_seconds", "-7200+60x60"), False),
    ("WeighbridgeDutyFails", series('weighbridge_duty_failing{duty="archive"}', "0x5 1x60"), True),
    ("WeighbridgeDutyFails", series('weighbridge_duty_failing{duty="archive"}', "0x5 1x10 0x60"), False),
    ("WeighbridgeLedgerBehind", series("weighbridge_ledger_lag_records", "0+5x60"), True),
    ("WeighbridgeLedgerBehind", series("weighbridge_ledger_lag_records", "900-10x60"), False),
    ("WeighbridgeLedgerBehind", series("weighbridge_ledger_lag_records", "0x60"), False),
    ("WeighbridgeUnmeteredTokens", series(MADE, "0+100x60"), True),
    ("WeighbridgeUnmeteredTokens", series(MADE, "70000x60"), False),
    ("WeighbridgeUnmeteredTokens", series(MADE, "0x35 30000x8 0 30000x20"), False),  # in flight
    ("WeighbridgeJournalFull", series("weighbridge_journal_full", "0x5 1x60"), True),
    ("WeighbridgeJournalFull", series("weighbridge_journal_full", "0x60"), False),
    ("WeighbridgeJournalSlow", series("weighbridge_journal_slow", "1x60"), True),
    ("WeighbridgeJournalSlow", series("weighbridge_journal_slow", "0x13 1 0x60"), False),
    (
        "WeighbridgeJournalUnsigned",
        series('weighbridge_journal_checkpoint_seq{writer="w"}', "7+3x9 34x60"),
        True,
    ),
    ("WeighbridgeJournalUnsigned", series('weighbridge_journal_checkpoint_seq{writer="w"}', "7+3x60"), False),
    (
        "WeighbridgeJournalUnwritten",
        series('weighbridge_journal_unwritten_total{kind="tick"}', "0x10 1+1x60"),
        True,
    ),
    (
        "WeighbridgeJournalUnwritten",
        series('weighbridge_journal_unwritten_total{kind="tick"}', "7x60"),
        False,
    ),
    ("WeighbridgeMirrorIncomplete", series("weighbridge_journal_mirror_dropped_total", "0x10 1+1x60"), True),
    ("WeighbridgeMirrorIncomplete", series("weighbridge_journal_mirror_dropped_total", "7x60"), False),
]


def test_prometheus_reads_them() -> None:
    checked = subprocess.run(
        [promtool(), "check", "rules", RULES], capture_output=True, timeout=60, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(rules())} rules found" in checked.stdout


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[2]}")
def test_a_rule_fires_when_it_must_and_only_then(
    case: tuple[str, dict[str, str], bool], tmp_path: pathlib.Path
) -> None:
    alert, one, fires = case
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [one],
                # Whether it fires is told by promtool's complaint that it was not expected: the labels and
                # words of an alert are not repeated here.
                "alert_rule_test": [
                    {"eval_time": f"{at}m", "alertname": alert, "exp_alerts": []} for at in (15, 30, 55)
                ],
            }
        ],
    }
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump(test))
    tried = subprocess.run([promtool(), "test", "rules", path], capture_output=True, timeout=60, text=True)
    said = tried.stdout + tried.stderr
    assert (tried.returncode != 0) == fires, said
    assert ("got:" in said) == fires, said


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_a_rule_names_metrics_that_are_documented_and_says_what_to_do(rule: dict[str, str]) -> None:
    names = set(re.findall(r"weighbridge_\w+", rule["expr"]))
    assert names
    for name in names:
        assert name in FAMILIES or f"`{name}`" in REFERENCE, name
    assert any(case[0] == rule["alert"] and case[2] for case in CASES)
    assert any(case[0] == rule["alert"] and not case[2] for case in CASES)
    assert "annotations" in rule
