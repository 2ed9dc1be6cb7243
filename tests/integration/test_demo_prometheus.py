"""A real Prometheus scrapes the running demo, and real calls move every panel of the dashboard.

Each single query has its stimulus in test_prometheus.py; here the way from a call to a panel is the product's own.
"""

import json
import pathlib
import re
import shutil
import threading
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from grafana import generate
from tests.integration.test_demo import Demo
from tests.support.gateway import eventually
from tests.support.prometheus import Prometheus, scraping

pytestmark = [pytest.mark.integration, pytest.mark.debian]

ASK = {
    "model": "llama-3.1-8b",
    "stream": True,
    "max_tokens": 24,
    "messages": [{"role": "user", "content": "Weigh."}],
}


class Watched:
    """The demo, what Prometheus has of it, and the addresses of its simulators, Neuron's first."""

    def __init__(self, demo: Demo, prometheus: Prometheus) -> None:
        self.demo = demo
        self.prometheus = prometheus
        config = (demo.state_dir / "demo.yaml").read_text()
        self.servers = re.findall(r"url: ['\"]?(http://127\.0\.0\.1:\d+)", config)

    def shown(self, panel: generate.Panel) -> dict[tuple[str, ...], float]:
        """What the panel draws now: a value for each query and label set; what is at rest is not drawn."""
        return {
            (query.expr, *map(str, sorted(labels.items()))): value
            for query in panel.queries
            for labels, value in self.prometheus.panel(query.expr)
            if value
        }

    def call(self) -> None:
        """A streamed call of the demo's first tenant."""
        _post(f"{self.demo.base_url}/chat/completions", ASK, authorization=f"Bearer {self.demo.api_key}")

    def call_that_falls_back(self) -> None:
        """Both Neuron servers fail once: the call goes to the GPU."""
        for server in self.servers[:2]:
            _post(f"{server}/_sim/fault", {"kind": "error_500", "times": 1})
        self.call()


def _post(url: str, body: object, **headers: str) -> None:
    sent = {"content-type": "application/json"} | headers
    request = urllib.request.Request(url, json.dumps(body).encode(), sent)
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    if (program := shutil.which("prometheus")) is None:
        pytest.skip("prometheus is not installed (Debian package `prometheus`)")
    directory: pathlib.Path = tmp_path_factory.mktemp("watched")
    demo = Demo(directory, directory / "state")
    try:
        demo.ready()
        shown = re.search(r"^metrics +http://(127\.0\.0\.1:\d+)/metrics$", demo.out.read_text(), re.MULTILINE)
        assert shown is not None
        with scraping(program, directory, shown[1]) as prometheus:
            yield Watched(demo, prometheus)
    finally:
        demo.stop()


NO_CALLS = {"Closing of hours"}
"""Panels of what no call moves (tests/integration/test_prometheus.py)."""
MOVED = [panel for panel in generate.PANELS if panel.title not in NO_CALLS]
STIMULI: dict[str, Callable[[Watched], None]] = {panel.title: Watched.call for panel in MOVED} | {
    "Why calls went elsewhere": Watched.call_that_falls_back
}


def test_calls_move_eight_panels() -> None:
    assert len(STIMULI) == 8


@pytest.mark.parametrize("panel", MOVED, ids=lambda panel: panel.title)
def test_a_panel_moves_with_a_call(panel: generate.Panel, watched: Watched) -> None:
    eventually(lambda: not watched.shown(panel), within_s=30, every_s=0.2)  # the last one's calls have passed
    calling = threading.Thread(target=STIMULI[panel.title], args=(watched,))
    calling.start()
    try:
        eventually(lambda: watched.shown(panel), within_s=30, every_s=0.05)
    finally:
        calling.join()
