"""/metrics: the sum of all pages, in Prometheus' text. Owner of prometheus-client.

A scrape reads pages only, never a worker or a journal: any process that sees the state directory
can serve it. Counters are the fold of all journals up to the seq of each page; a worker's gauges
are those of live workers. Reference: deploy/reference/metrics.md.
"""

import itertools
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client import exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from metering.pages import board, families, gone, pages
from metering.pages.board import Gauge
from metering.pages.families import FAMILIES, Family, Kind, Totals
from metering.pages.pages import PageError
from metering.units import NS_PER_S

JOURNAL_HEAD_SEQ = "weighbridge_journal_head_seq"
_SCRAPES_MAX = 100
_OPENMETRICS = "application/openmetrics-text"


class Scrape(NamedTuple):
    """One look at all pages. heads: the seq that each live writer's page stands for.

    gauges: of processes that are no writers (metering/pages/board.py), by name.
    """

    totals: Totals
    heads: dict[str, int]
    gauges: Sequence[Gauge] = ()


def scrape(pages_dir: pathlib.Path) -> Scrape:
    """Sum the gone page and the pages of the writers that it does not hold.

    Raises PageError if one can't be read: no figures are better than figures that fell.
    """
    for _ in range(_SCRAPES_MAX):
        try:
            return _scrape(pages_dir)
        except FileNotFoundError:  # a page that we saw was retired since: the next gone page holds it
            continue
    raise PageError(f"pages were retired in each of {_SCRAPES_MAX} scrapes")


def _scrape(pages_dir: pathlib.Path) -> Scrape:
    # The pages are listed before `gone` is read: what is retired in between is found in both, and
    # left out once. The other way round it would be found in neither.
    listed = [path for path in pages.files(pages_dir) if path.suffix == pages.SUFFIX]
    dead = gone.load(pages_dir)
    totals, heads = dict(dead.totals), {}
    for path in listed:
        if path.stem in dead.writers:
            continue
        page = pages.read(path)
        if page.live:
            heads[page.writer] = page.seq
            families.merge(totals, page.totals)
        else:
            families.merge(totals, families.counters(page.totals))
    return Scrape(totals, heads, board.read(pages_dir))


def render(found: Scrape, accept: str = "") -> tuple[bytes, str]:
    """The text of a scrape, and its content type: OpenMetrics if the Accept header names it."""
    if _OPENMETRICS in accept:
        text: bytes = openmetrics.generate_latest(_Pages(found))  # type: ignore[no-untyped-call]
        return text, openmetrics.CONTENT_TYPE_LATEST
    return exposition.generate_latest(_Pages(found)), exposition.CONTENT_TYPE_PLAIN_0_0_4


class _Pages(Collector):
    """A scrape as prometheus-client's collector."""

    def __init__(self, found: Scrape) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        shown = {name: _metric(family) for name, family in FAMILIES.items()}
        for one, value in sorted(self._found.totals.items()):
            _add(shown[one.family], FAMILIES[one.family], one.labels, value)
        yield from shown.values()
        heads = GaugeMetricFamily(
            JOURNAL_HEAD_SEQ,
            "Last journal line of each live writer that its page stands for.",
            labels=("writer",),
        )
        for writer, seq in self._found.heads.items():
            heads.add_metric((writer,), seq)
        yield heads
        for name, gauges in itertools.groupby(self._found.gauges, key=lambda gauge: gauge.name):
            yield _gauge(name, gauges)


def _gauge(name: str, gauges: Iterable[Gauge]) -> Metric:
    labels, about = board.GAUGES[name]
    metric = GaugeMetricFamily(name, about, labels=labels)
    for gauge in gauges:
        metric.add_metric(gauge.labels, gauge.value)
    return metric


def _metric(family: Family) -> Metric:
    if family.kind in (Kind.COUNT, Kind.AMOUNT):
        return CounterMetricFamily(family.name, family.help, labels=family.labels)
    if family.kind is Kind.HISTOGRAM:
        return HistogramMetricFamily(family.name, family.help, labels=family.labels)
    return GaugeMetricFamily(family.name, family.help, labels=family.labels)


def _add(metric: Metric, family: Family, labels: tuple[str, ...], value: tuple[int, ...]) -> None:
    if isinstance(metric, HistogramMetricFamily):
        *counts, total = value
        bounds = [*(repr(edge / NS_PER_S) for edge in family.edges_ns), "+Inf"]
        metric.add_metric(
            labels, list(zip(bounds, itertools.accumulate(counts), strict=True)), total / family.unit
        )
    else:
        assert isinstance(metric, CounterMetricFamily | GaugeMetricFamily)
        metric.add_metric(labels, value[0] / family.unit)
