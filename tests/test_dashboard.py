"""The dashboard, its provisioning and the metrics' reference page, against the families themselves."""

import itertools
import json
import pathlib
import re
import shutil
import subprocess

import pytest
import yaml

from grafana import generate
from metering.pages.board import GAUGES as GAUGES_BESIDE
from metering.pages.families import FAMILIES, GAUGES, Kind
from metering.pages.metrics import JOURNAL_HEAD_SEQ

ROOT = pathlib.Path(__file__).parent.parent
OVERVIEW = ROOT / "grafana" / "overview.json"
REFERENCE = ROOT / "deploy" / "reference" / "metrics.md"
RULES = ROOT / "deploy" / "prometheus-rules.yml"
SECONDS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0}

QUERIES = [query for panel in generate.PANELS for query in panel.queries]


def name_of(sample: str) -> str:
    return sample.removesuffix("_bucket")


def test_the_dashboard_is_what_its_code_says() -> None:
    """After a change of grafana/generate.py: `python grafana/generate.py`."""
    assert OVERVIEW.read_text() == generate.text()


def test_the_dashboard_has_nine_panels_that_explain_themselves() -> None:
    dashboard = json.loads(OVERVIEW.read_text())
    panels = dashboard["panels"]
    assert len(panels) == 9
    assert [panel["id"] for panel in panels] == list(range(1, 10))
    for panel in panels:
        assert "?" in panel["description"]  # the question that it answers
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert all(target["legendFormat"] for target in panel["targets"])
        assert panel["datasource"]["uid"] == "${datasource}"
    assert [one["name"] for one in dashboard["templating"]["list"]] == ["datasource", "tenant", "model"]


def test_no_panel_lies_on_another() -> None:
    places = [panel["gridPos"] for panel in json.loads(OVERVIEW.read_text())["panels"]]
    for a, b in itertools.combinations(places, 2):
        apart_x = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        apart_y = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert apart_x or apart_y
    assert all(place["x"] + place["w"] <= 24 for place in places)


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.legend)
def test_a_query_names_metrics_and_labels_that_exist(query: generate.Query) -> None:
    (sample,) = re.findall(r"weighbridge_\w+", query.expr)
    if sample in GAUGES_BESIDE:
        assert "rate(" not in query.expr
        assert "$" not in query.expr
        return
    family = FAMILIES[name_of(sample)]
    assert sample.endswith("_bucket") == (family.kind is Kind.HISTOGRAM)
    assert ("rate(" in query.expr) == (family.kind not in GAUGES)  # a counter's height says nothing
    matched = set(re.findall(r'(\w+)(?:=~|!=|=)"', query.expr))
    grouped = {label for by in re.findall(r"by \(([^)]*)\)", query.expr) for label in by.split(", ")}
    assert matched <= set(family.labels)
    assert grouped - {"le"} <= set(family.labels)
    assert set(re.findall(r"{{(\w+)}}", query.legend)) <= grouped
    assert ("$tenant" in query.expr) == ("tenant" in family.labels)  # the choices are always followed
    assert ("$model" in query.expr) == ("model" in family.labels)


def test_every_family_is_drawn_or_alerted_on() -> None:
    rules = [rule["expr"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    shown = [*(query.expr for query in QUERIES), *rules]
    named = {name_of(name) for expr in shown for name in re.findall(r"weighbridge_\w+", expr)}
    assert named == {*FAMILIES, *GAUGES_BESIDE}


def rows() -> dict[str, list[str]]:
    """The cells behind each metric's name in the reference page's tables."""
    found = re.findall(r"^\| `(weighbridge_\w+)` \| (.*) \|$", REFERENCE.read_text(), re.MULTILINE)
    assert len(found) == len({name for name, _ in found})
    return {name: cells.split(" | ") for name, cells in found}


def test_the_reference_page_has_every_metric_and_its_labels() -> None:
    documented = {name: tuple(re.findall(r"`(\w+)`", cells[0])) for name, cells in rows().items()}
    assert documented == {name: family.labels for name, family in FAMILIES.items()} | {
        JOURNAL_HEAD_SEQ: ("writer",)
    } | {name: gauge.labels for name, gauge in GAUGES_BESIDE.items()}


def test_the_reference_page_has_the_buckets() -> None:
    for name, family in FAMILIES.items():
        if family.kind is Kind.HISTOGRAM:
            edges: list[float] = []
            for group in re.findall(r"([\d., ]+) (µs|ms|s)", rows()[name][-1]):
                edges += [float(number) * SECONDS[group[1]] for number in group[0].strip(", ").split(", ")]
            assert edges == pytest.approx([edge / 1e9 for edge in family.edges_ns]), name


def test_provisioning_is_what_grafana_reads() -> None:
    datasources = yaml.safe_load((ROOT / "grafana/provisioning/datasources/weighbridge.yml").read_text())
    providers = yaml.safe_load((ROOT / "grafana/provisioning/dashboards/weighbridge.yml").read_text())
    assert datasources["apiVersion"] == providers["apiVersion"] == 1
    assert [one["type"] for one in datasources["datasources"]] == ["prometheus"]
    assert [one["type"] for one in providers["providers"]] == ["file"]


@pytest.mark.debian
def test_prometheus_takes_the_example(tmp_path: pathlib.Path) -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed (Debian package `prometheus`)")
    config = tmp_path / "prometheus.yml"
    config.write_text((ROOT / "deploy" / "prometheus.yml").read_text())
    shutil.copy(ROOT / "deploy" / "prometheus-rules.yml", tmp_path)
    (tmp_path / "weighbridge-operator-key").write_text("wb-key")
    checked = subprocess.run([promtool, "check", "config", config], capture_output=True, timeout=60)
    assert checked.returncode == 0, checked.stdout + checked.stderr
