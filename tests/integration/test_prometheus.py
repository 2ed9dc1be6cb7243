"""A real Prometheus reads /metrics, and every panel of the dashboard shows what it is for."""

import http.server
import pathlib
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from grafana import generate
from metering.journal import journal
from metering.pages import board, gone, metrics
from metering.pages.board import Gauge
from metering.pages.families import CAPTURES, FAMILIES, GAUGES, Families, Family, Kind
from metering.record import AttemptOutcome, CallRecord, Outcome
from metering.units import NS_PER_S, PICO_USD_PER_USD
from tests.support import lines, writers
from tests.support.gateway import eventually
from tests.support.journals import Make
from tests.support.prometheus import Prometheus, scraping
from tests.support.signed import event
from tests.support.writers import Worker

pytestmark = [pytest.mark.integration, pytest.mark.debian]


class Workers:
    """Workers of one state directory, and an HTTP server whose /metrics is their scrape."""

    def __init__(self, state_dir: pathlib.Path) -> None:
        self.state_dir = state_dir
        self._rng = random.Random(3)
        self.retire()
        self.worker = Worker(state_dir, self._rng)

    def retire(self) -> None:
        journal.salvage_dead(self.state_dir / "journal")
        gone.retire(self.state_dir / "pages", self.state_dir / "journal")

    def call(self, **fields: object) -> None:
        """A call that bears on no panel but those that its fields are for."""
        plain: dict[str, object] = {"ttft_ns": None, "tpot_ns": None, "queue_wait_ns": None, "attempts": ()}
        self.worker.turn(lambda seq, prev: lines.call(seq, prev, **(plain | fields)))

    def kill_and_restart(self) -> None:
        self.worker.write(lines.call, lines.admitted)  # in the journal, not on the page
        self.worker.kill()
        self.retire()
        self.worker = Worker(self.state_dir, self._rng)

    def serve(self) -> http.server.ThreadingHTTPServer:
        pages_dir = self.state_dir / "pages"

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text, kind = metrics.render(metrics.scrape(pages_dir), self.headers.get("accept", ""))
                self.send_response(200)
                self.send_header("content-type", kind)
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        return http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    workers = Workers(tmp_path_factory.mktemp("state"))
    yield workers
    workers.worker.kill()


@pytest.fixture(scope="module")
def prometheus(workers: Workers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    if (program := shutil.which("prometheus")) is None:
        pytest.skip("prometheus is not installed (Debian package `prometheus`)")
    with workers.serve() as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            address = f"127.0.0.1:{server.server_address[1]}"
            with scraping(program, tmp_path_factory.mktemp("prometheus"), address) as prometheus:
                yield prometheus
        finally:
            server.shutdown()
            serving.join()


class Stimulus(NamedTuple):
    """What is done, and what must then be drawn: a series with these labels and a value above this one."""

    act: Callable[[Workers], None]
    labels: dict[str, str]
    above: float = 0


def calls(labels: dict[str, str] | None = None, above: float = 0, **fields: object) -> Stimulus:
    return Stimulus(lambda workers: workers.call(**fields), labels or {}, above)


def gauge(act: Callable[[Worker], None], labels: dict[str, str] | None = None) -> Stimulus:
    def publish(workers: Workers) -> None:
        act(workers.worker)
        workers.worker.page.publish()

    return Stimulus(publish, labels or {})


def line(make: Make, labels: dict[str, str]) -> Stimulus:
    return Stimulus(lambda workers: workers.worker.turn(make), labels)


def beside(name: str, value: float) -> Stimulus:
    """A gauge of a process that is no writer, and of no other."""

    def show(workers: Workers) -> None:
        board.show(workers.state_dir / "pages", "closer", [Gauge(name=name, value=value)])

    return Stimulus(show, {})


failed = lines.attempt("b-fails", AttemptOutcome.FAILED)
STIMULI = {
    ("Calls by outcome", "{{outcome}}"): calls({"outcome": "timed_out"}, outcome=Outcome.TIMED_OUT),
    ("Calls by outcome", "{{tenant}}: {{limit}}"): line(
        lambda seq, prev: lines.refused(
            seq,
            prev,
            tenant="limited",
            reason="RateLimited",
            status=429,
            limit="concurrency of the tenant: 4",
        ),
        {"tenant": "limited", "limit": "concurrency"},
    ),
    ("Tokens by hardware", "{{family}} {{kind}}"): calls(
        {"family": "trn9", "kind": "cached_prompt"}, instance_family="trn9"
    ),
    ("Estimated cost per hour", "{{tenant}}"): calls(
        {"tenant": "spender"}, above=1, tenant="spender", cost_pusd=PICO_USD_PER_USD
    ),
    ("Estimated cost per hour", "{{tenant}}: {{percent}} % of a {{kind}} budget"): line(
        event("budget", tenant="spender", scope="t", kind="soft", percent="80"),
        {"tenant": "spender", "kind": "soft", "percent": "80"},
    ),
    ("Estimated cost per hour", "unpriced: {{reason}}"): calls(
        {"reason": "slots_unknown"}, cost_pusd=None, unpriced_reason="slots_unknown"
    ),
    **{
        (title, f"{{{{family}}}} {p}"): calls(
            {"family": f"inf{p}"}, above=0.5, instance_family=f"inf{p}", **{field: NS_PER_S}
        )
        for p in ("p50", "p95", "p99")
        for title, field in (("Time to first token", "ttft_ns"), ("Time per output token", "tpot_ns"))
    },
    ("Backends", "{{backend}}"): gauge(lambda w: w.page.gauges.in_flight("b-busy", 3), {"backend": "b-busy"}),
    ("Backends", "{{backend}} is {{state}}"): gauge(
        lambda w: w.page.gauges.backend_state("b-dead", "down"), {"backend": "b-dead", "state": "down"}
    ),
    ("Backends", "clients' connections"): gauge(lambda w: w.page.gauges.client_connections(7)),
    ("Why calls went elsewhere", "bound: {{bound}}"): line(
        lambda seq, prev: lines.refused(seq, prev, reason="QueueFull", status=503), {"bound": "queue_calls"}
    ),
    ("Why calls went elsewhere", "spill: {{reason}}"): calls({"reason": "full"}, spill_reason="full"),
    ("Why calls went elsewhere", "fallback: {{reason}}"): calls(
        {"reason": "connect refused"}, fallback_reason="connect refused"
    ),
    ("Why calls went elsewhere", "{{backend}} {{outcome}}"): calls(
        {"backend": "b-fails", "outcome": "failed"}, attempts=(failed,)
    ),
    ("The gateway itself", "queue wait p95"): calls(above=4, queue_wait_ns=5 * NS_PER_S),
    ("The gateway itself", "overhead p50"): calls(queue_wait_ns=0),
    ("The gateway itself", "overhead p99"): calls(
        above=0.1, queue_wait_ns=0, dispatched_ns=lines.AT_NS + NS_PER_S // 2
    ),
    ("The gateway itself", "loop lag"): gauge(lambda w: w.page.gauges.loop_lag(NS_PER_S)),
    ("The gateway itself", "ledger lag"): gauge(lambda w: w.page.gauges.ledger_lag(5)),
    ("The gateway itself", "workers that cannot check limits"): gauge(
        lambda w: w.page.gauges.limits_unchecked(away=True)
    ),
    ("The gateway itself", "content not kept whole: {{outcome}}"): gauge(
        lambda w: w.page.captured("disk_full"), {"outcome": "disk_full"}
    ),
    ("Closing of hours", "hours behind"): beside(board.CLOSE_BEHIND, 5),
    ("Closing of hours", "since it was looked at"): beside(board.CLOSE_TIMESTAMP, 1_000_000_000),
}
DRAWN = [(panel.title, query) for panel in generate.PANELS for query in panel.queries]


def test_every_query_has_a_stimulus() -> None:
    assert set(STIMULI) == {(title, query.legend) for title, query in DRAWN}


@pytest.mark.parametrize(("title", "query"), DRAWN, ids=lambda one: getattr(one, "legend", one))
def test_a_panel_shows_its_stimulus(
    title: str, query: generate.Query, prometheus: Prometheus, workers: Workers
) -> None:
    act, labels, above = STIMULI[title, query.legend]

    def shown() -> bool:
        found = prometheus.panel(query.expr)
        return any(labels.items() <= of.items() and value > above for of, value in found)

    eventually(lambda: not shown(), within_s=30)  # what another stimulus left has passed

    def acted() -> bool:
        act(workers)
        return shown()

    eventually(acted, within_s=30, every_s=0.1)


def samples_of(family: Family) -> list[str]:
    suffixes = ("_bucket", "_sum", "_count") if family.kind is Kind.HISTOGRAM else ("",)
    return [family.name + suffix for suffix in suffixes]


def test_prometheus_sees_no_reset_and_ends_with_the_journals_figures(
    prometheus: Prometheus, workers: Workers
) -> None:
    for _ in range(5):
        before = prometheus.query("sum(weighbridge_calls_total)")
        for _ in range(3):
            workers.call()
        workers.kill_and_restart()
        eventually(lambda before=before: prometheus.query("sum(weighbridge_calls_total)") > before)

    whole = Families()
    for line in writers.journalled(workers.state_dir):
        whole.observe(line)
    counted = {
        (one.family, *one.labels): value[0]
        for one, value in whole.cells.totals().items()
        if FAMILIES[one.family].kind in (Kind.COUNT, Kind.AMOUNT)
    }
    read = '{__name__=~"weighbridge_.*_total"}'

    def agrees() -> bool:
        found = {
            (name, *(of[label] for label in FAMILIES[name].labels)): value
            for of, value in prometheus.query(read)
            for name in [of["__name__"]]
            if name != CAPTURES.name  # it is counted where content is written, and folded from no line
        }
        return found == {key: value / FAMILIES[key[0]].unit for key, value in counted.items()}

    eventually(agrees)
    assert sum(isinstance(line, CallRecord) for line in writers.journalled(workers.state_dir)) > 15
    for family in FAMILIES.values():
        if family.kind not in GAUGES:
            for sample in samples_of(family):
                assert all(resets == 0 for _, resets in prometheus.query(f"resets({sample}[10m])")), sample
