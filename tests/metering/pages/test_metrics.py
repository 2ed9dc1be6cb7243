"""The text that Prometheus reads."""

import pathlib
import random
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text
from prometheus_client.samples import Sample

from metering.pages import gone, metrics
from metering.pages.families import FAMILIES, Kind
from metering.pages.metrics import JOURNAL_HEAD_SEQ
from metering.pages.pages import PageError
from tests.support import lines
from tests.support.writers import Worker


@pytest.fixture
def workers(tmp_path: pathlib.Path) -> Iterator[list[Worker]]:
    gone.retire(tmp_path / "pages", tmp_path / "journal")
    rng = random.Random(1)
    two = [Worker(tmp_path, rng), Worker(tmp_path, rng)]
    yield two
    for worker in two:
        worker.kill()


def samples(state_dir: pathlib.Path) -> list[Sample]:
    text, _ = metrics.render(metrics.scrape(state_dir / "pages"))
    return [sample for family in read_text(text.decode()) for sample in family.samples]


def value(state_dir: pathlib.Path, name: str, **labels: str) -> float:
    (found,) = [one.value for one in samples(state_dir) if one.name == name and one.labels == labels]
    return found


def test_workers_are_summed_and_no_counter_names_one(tmp_path: pathlib.Path, workers: list[Worker]) -> None:
    for worker in workers:
        worker.page.gauges.in_flight("b1", 2)
        worker.page.gauges.ledger_lag(3)
        worker.page.gauges.backend_state("b1", "ready")
        worker.turn(lines.call, lines.refused)
    of = {"tenant": "acme", "model": "llama", "family": "inf2"}
    assert value(tmp_path, "weighbridge_calls_total", **of, outcome="completed") == 2
    assert value(tmp_path, "weighbridge_tokens_total", **of, kind="completion", source="reported") == 14
    assert value(tmp_path, "weighbridge_estimated_cost_usd_total", **of) == pytest.approx(2 * 12_345_678e-12)
    assert value(tmp_path, "weighbridge_in_flight", backend="b1") == 4
    assert value(tmp_path, "weighbridge_ledger_lag_records") == 6
    assert value(tmp_path, "weighbridge_backend_state", backend="b1", state="ready") == 1
    assert value(tmp_path, "weighbridge_backend_state", backend="b1", state="down") == 0
    heads = {one.labels["writer"]: one.value for one in samples(tmp_path) if one.name == JOURNAL_HEAD_SEQ}
    assert heads == {worker.writer: 3 for worker in workers}
    named = {one.name for one in samples(tmp_path) if "writer" in one.labels}
    assert named == {JOURNAL_HEAD_SEQ}


def test_a_histogram_is_cumulative_and_in_seconds(tmp_path: pathlib.Path, workers: list[Worker]) -> None:
    workers[0].turn(
        *[lambda seq, prev, ms=ms: lines.call(seq, prev, ttft_ns=ms * 1_000_000) for ms in (4, 80, 99_000)]
    )
    name = "weighbridge_ttft_seconds"
    of = {"model": "llama", "family": "inf2"}
    found = {
        one.labels["le"]: one.value
        for one in samples(tmp_path)
        if one.name == f"{name}_bucket" and one.labels
    }
    assert [found[le] for le in ("0.005", "0.06", "0.08", "80.0", "+Inf")] == [1, 1, 2, 2, 3]
    assert value(tmp_path, f"{name}_count", **of) == 3
    assert value(tmp_path, f"{name}_sum", **of) == pytest.approx(99.084)


def test_every_family_is_described_before_anything_was_counted(tmp_path: pathlib.Path) -> None:
    gone.retire(tmp_path / "pages", tmp_path / "journal")
    text, content_type = metrics.render(metrics.scrape(tmp_path / "pages"))
    kinds = {Kind.HISTOGRAM: "histogram", Kind.GAUGE_SUM: "gauge", Kind.GAUGE_MAX: "gauge"}
    for name, family in FAMILIES.items():
        assert f"# HELP {name} {family.help}\n" in text.decode()
        assert f"# TYPE {name} {kinds.get(family.kind, 'counter')}\n" in text.decode()
    assert content_type.startswith("text/plain; version=0.0.4")


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
        "application/openmetrics-text; version=!",
    ],
)
def test_open_metrics_for_those_who_ask(tmp_path: pathlib.Path, workers: list[Worker], accept: str) -> None:
    workers[0].turn(lines.call)
    found = metrics.scrape(tmp_path / "pages")
    text, content_type = metrics.render(found, accept)
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")
    open_families = list(read_openmetrics(text.decode()))
    plain_families = list(read_text(metrics.render(found)[0].decode()))
    assert [f.samples for f in open_families] == [f.samples for f in plain_families]


def test_label_values_are_escaped(tmp_path: pathlib.Path, workers: list[Worker]) -> None:
    odd = 'a "quoted"\\\nline'
    workers[0].turn(lambda seq, prev: lines.call(seq, prev, fallback_reason=odd))
    assert value(tmp_path, "weighbridge_fallbacks_total", model="llama", reason=odd) == 1


def test_no_figures_without_a_gone_page(tmp_path: pathlib.Path) -> None:
    with pytest.raises(PageError, match="there is no gone page"):
        metrics.scrape(tmp_path / "pages")


def test_a_scrape_that_always_meets_a_retirement_gives_up(
    tmp_path: pathlib.Path, workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanished(path: pathlib.Path) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr("metering.pages.pages.read", vanished)
    with pytest.raises(PageError, match="retired in each"):
        metrics.scrape(tmp_path / "pages")


@pytest.mark.debian
def test_promtool_finds_nothing_to_say(tmp_path: pathlib.Path, workers: list[Worker]) -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed (Debian package `prometheus`)")
    workers[0].page.gauges.in_flight("b1", 2)
    workers[0].turn(lines.call, lines.refused)
    text, _ = metrics.render(metrics.scrape(tmp_path / "pages"))
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, timeout=60)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, b"")
