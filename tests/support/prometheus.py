"""A real Prometheus (Debian's), as a child that scrapes one address five times a second."""

import contextlib
import json
import math
import pathlib
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator

from tests.support.gateway import eventually

WINDOW = "3s"
"""What tests put for Grafana's $__rate_interval."""

CONFIG = """
global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}
scrape_configs:
  - job_name: weighbridge
    metrics_path: {path}
    static_configs: [{{targets: ["{address}"]}}]
"""


class Prometheus:
    """A running Prometheus; `query` asks its HTTP API."""

    def __init__(self, address: str) -> None:
        self._address = address

    def query(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """The labels and values that an expression has now; NaN is left out."""
        query = urllib.parse.urlencode({"query": expr})
        with urllib.request.urlopen(f"http://{self._address}/api/v1/query?{query}", timeout=30) as answer:
            found = json.load(answer)["data"]["result"]
        values = [(one["metric"], float(one["value"][1])) for one in found]
        return [(labels, value) for labels, value in values if not math.isnan(value)]

    def panel(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """A dashboard's expression, with «All» chosen."""
        for variable, value in (("$tenant", ".*"), ("$model", ".*"), ("$__rate_interval", WINDOW)):
            expr = expr.replace(variable, value)
        return self.query(expr)


@contextlib.contextmanager
def scraping(
    program: str, directory: pathlib.Path, address: str, path: str = "/metrics"
) -> Iterator[Prometheus]:
    """Run `program` on a free port until the block ends; at its begin one scrape has succeeded.

    address: host:port of what is scraped. directory: for its configuration, data and log.
    """
    config, log = directory / "prometheus.yml", directory / "prometheus.log"
    config.write_text(CONFIG.format(address=address, path=path))
    command = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'data'}",
        "--web.listen-address=127.0.0.1:0",
    ]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            listening = re.compile(r'msg="Listening on" address=(\S+)')
            found = eventually(lambda: listening.search(log.read_text()), within_s=30)
            prometheus = Prometheus(found[1])
            eventually(lambda: _is_up(prometheus), within_s=30)
            yield prometheus
        finally:
            process.kill()


def _is_up(prometheus: Prometheus) -> bool:
    try:
        return [value for _, value in prometheus.query("up")] == [1]
    except OSError:  # it listens before it answers
        return False
