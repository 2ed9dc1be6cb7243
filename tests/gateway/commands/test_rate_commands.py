"""`weighbridge rates review`: what it proposes can be pasted, says what it rests on, and changes nothing."""

import argparse
import fractions
import pathlib

import pytest
import yaml

from gateway import cli
from gateway.commands import rate_commands
from metering.archive.objects import LocalObjects
from metering.cost.close_manifest import MonthState
from metering.cost.close_row import RowKind
from metering.cost.closes import Closes
from tests.support.closed import manifest, row

Capture = pytest.CaptureFixture[str]
CONFIG = """\
state_dir: state
tenants: [{name: acme}]
models:
  - name: llama-3.1-8b
    tiers: [{backends: [inf2-a, gpu, bare]}]
    rate_cards:
      - {family: inf2, prompt: "0.2", cached_prompt: "0", completion: "1", date: 2026-07-20, source: ours}
      - {family: inf2, prompt: "9", completion: "9", date: 2199-01-01, source: later}
backends:
  - {name: inf2-a, url: "http://127.0.0.1:1", model: meta-llama/Llama-3.1-8B-Instruct, instance_type: inf2.48xlarge}
  - {name: gpu, url: "http://127.0.0.1:2", model: llama, instance_type: g6e.xlarge, precision: bf16, slots: 4}
  - {name: bare, url: "http://127.0.0.1:3", model: llama}
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("WEIGHBRIDGE_CONFIG", "WEIGHBRIDGE_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "weighbridge.yaml").write_text(CONFIG)


def close_a_month(root: pathlib.Path, *, state: MonthState | None = MonthState.CLOSED) -> None:
    """January 2026 with one hour, in which a tenant used two thirds of three GPU instances."""
    of = {"pool": "llama-3.1-8b", "instance_type": "g6e.xlarge", "region": "us-east-1"}
    tenant = {"kind": RowKind.TENANT, "tenant": "acme", "model": "llama-3.1-8b", "operation": "chat"}
    tokens = {
        "calls": 10,
        "prompt_tokens": 4_000_000,
        "cached_prompt_tokens": 0,
        "completion_tokens": 1_000_000,
    }
    rows = [row(**of, micro_hours=1_000_000), row(**of, **tenant, **tokens, micro_hours=2_000_000)]
    closes = Closes(LocalObjects(root / "state"))
    closes.commit(manifest(rows), rows)
    if state is not None:
        closes.commit_month("2026-01", state, bills=(), by="cli:test", at_ns=1)


def review(capsys: Capture, *words: str) -> str:
    assert cli.main(["rates", "review", *words]) == 0
    return capsys.readouterr().out


def pasted(page: str) -> list[dict[str, str]]:
    """What the lines are as YAML, comments aside."""
    sections = [yaml.safe_load(section) for section in page.split("\n\n")]
    return [card for section in sections if section for card in section["rate_cards"]]


def test_without_a_closed_month_it_is_the_benchmark(capsys: Capture) -> None:
    page = review(capsys, "--utilisation", "1")
    (card,) = pasted(page)
    assert (card["instance_type"], card["prompt"], card["cached_prompt"], card["completion"]) == (
        "inf2.48xlarge", "0.294091", "0.029409", "1.176364",
    )  # fmt: skip
    assert "basis: benchmark: Llama-3.1-8B on inf2.48xlarge, tensor parallel 8 x 3" in page
    assert "12.98127 USD/h on-demand (instances.csv" in page
    assert "now llama-3.1-8b/inf2@2026-07-20: prompt 0.2 -> 0.294091 (+47.0 %), cached_prompt 0 ->" in page
    assert "(from nothing)" in page
    assert "# llama-3.1-8b on g6e.xlarge\n#   no instance-hour of its use is in closed hours" in page
    assert 'utilisation 1"' in page


def test_what_is_pasted_is_a_good_configuration(tmp_path: pathlib.Path, capsys: Capture) -> None:
    (card,) = pasted(review(capsys))
    config = yaml.safe_load(CONFIG)
    config["models"][0]["rate_cards"] = [card | {"date": str(card["date"])}]
    (tmp_path / "next.yaml").write_text(yaml.safe_dump(config))
    assert cli.main(["check", "next.yaml"]) == 0


def test_a_closed_month_goes_before_the_benchmark(tmp_path: pathlib.Path, capsys: Capture) -> None:
    close_a_month(tmp_path)
    page = review(capsys, "--instance-type", "g6e.xlarge", "--utilisation", "0.5")
    (card,) = pasted(page)
    # Two hours made 4 M prompt and 1 M completion tokens, 8 G work units: 4 G an hour, of which half is to be sold.
    price = fractions.Fraction("1.861")
    assert fractions.Fraction(card["prompt"]) == round(price / 2, 6)
    assert fractions.Fraction(card["completion"]) == round(price * 2, 6)
    assert (
        "2026-01 (closed): 10 calls of 400000+100000 tokens, context ?, precision bf16, SDK ?, 4 slots"
        in page
    )
    assert "2.0 of 3.0 instance-hours used (66.7 %); capacity yielded while in use" in page
    assert "now: no rate card" in page


def test_the_price_is_that_of_how_the_instances_are_paid_for(tmp_path: pathlib.Path, capsys: Capture) -> None:
    spot = "purchase_option: spot, instance_type: inf2.48xlarge}"
    price = "{instance_type: inf2.48xlarge, usd_per_hour: '5', date: 2026-01-01, source: us, purchase_option: spot}"
    (tmp_path / "weighbridge.yaml").write_text(
        CONFIG.replace("instance_type: inf2.48xlarge}", spot) + f"prices: [{price}]\n"
    )
    page = review(capsys, "--instance-type", "inf2.48xlarge")
    assert "price: 5 USD/h spot (us, 2026-01-01)" in page


def test_a_month_that_is_named_need_not_be_closed(tmp_path: pathlib.Path, capsys: Capture) -> None:
    close_a_month(tmp_path, state=None)
    assert "no benchmark" in review(capsys)
    assert "2026-01 (provisional)" in review(capsys, "--month", "2026-01")
    for month, message in (("2026-02", "no hour of 2026-02 is closed"), ("soon", "'soon' is no month")):
        assert cli.main(["rates", "review", "--month", month]) == 2
        assert message in capsys.readouterr().err


def test_calibrated_capacity_goes_before_what_was_yielded(tmp_path: pathlib.Path, capsys: Capture) -> None:
    close_a_month(tmp_path)
    weights = "    work_units: [{family: g6e, per_hour: 8000000000, date: 2026-01-01, source: load test}]\n"
    (tmp_path / "weighbridge.yaml").write_text(
        CONFIG.replace("    rate_cards:\n", weights + "    rate_cards:\n")
    )
    page = review(capsys, "--instance-type", "g6e.xlarge", "--utilisation", "1")
    assert pasted(page)[0]["prompt"] == "0.232625"  # 1.861 USD / 8 G work units
    assert "capacity calibrated, llama-3.1-8b/g6e@2026-01-01" in page


def test_what_has_no_price_or_no_name_is_said(tmp_path: pathlib.Path, capsys: Capture) -> None:
    (tmp_path / "weighbridge.yaml").write_text(CONFIG.replace("inf2.48xlarge", "trn2.48xlarge"))
    assert cli.main(["rates", "review", "--instance-type", "trn2.48xlarge"]) == 1
    shown = capsys.readouterr()
    assert "no price of an hour is known" in shown.out
    assert "nothing could be proposed" in shown.err
    assert cli.main(["rates", "review", "--model", "qwen"]) == 2
    assert (
        "nothing to review: llama-3.1-8b on trn2.48xlarge, llama-3.1-8b on g6e.xlarge"
        in capsys.readouterr().err
    )


def test_a_broken_archive_is_named(tmp_path: pathlib.Path, capsys: Capture) -> None:
    close_a_month(tmp_path)
    (file,) = (tmp_path / "state" / "close" / "2026-01-01T00" / "rev-1").glob("*.json")
    file.write_bytes(b"{}")
    assert cli.main(["rates", "review"]) == 1
    assert "manifest.json" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "1.1", "-1", "half", "1/0"])
def test_a_share_is_above_0_and_at_most_1(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"as in 0\.6"):
        rate_commands.share(text)
    assert rate_commands.share("0.25") == fractions.Fraction(1, 4)
