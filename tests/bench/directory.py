"""What a large directory costs: 1,000 tenants with 10,000 keys beside one tenant with one.

    python -m tests.bench.directory                     10 pairs of 2,000 calls each
    python -m tests.bench.directory --pairs 4 --calls 500

Two gateways, one of each kind, before one backend; they are measured in turns, first the one, then the other. Printed
are the CPU time of a call in each one's worker, what the sign test says of the pairs, how long each took to start, its
worker's memory, and what all processes of each take at rest. The exit status is 1 if the large one's calls are dearer,
and not by chance.
"""

import argparse
import concurrent.futures
import contextlib
import hashlib
import http.client
import json
import math
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import NamedTuple

from gateway.directory import entries
from gateway.directory.entries import KeySettings, TenantSettings
from metering.ledger.directory_file import DirectoryFile
from metering.record import Entry
from tests.bench import ours, proc
from tests.support import gateway
from tests.support.gateway import Gateway
from tests.support.rawbackend import Scripted
from tests.support.stage import SIZED, R

TENANTS = 1_000
KEYS_EACH = 10
CONNECTIONS = 16
THREADS = 4
SETTLE_S = 1.5
"""Behind the calls, before CPU time is read: folds and syncs count."""
REST_S = 35.0
"""A round of the ledger's upkeep, and more."""
ALPHA = 0.05


class Subject(NamedTuple):
    """A gateway that is measured. keys: of its clients, one a connection; started_s: how long its start took."""

    name: str
    front: Gateway
    keys: Sequence[str]
    started_s: float


def key_of(tenant: int, number: int) -> str:
    return f"wb-{tenant:04d}-{number:02d}" + "x" * 40


def large_directory() -> list[Entry]:
    """All entries."""
    made = []
    for tenant in range(TENANTS):
        name = f"tenant-{tenant:04d}"
        settings = TenantSettings(name=name, projects=("web",), tags={"cost_center": f"cc-{tenant}"})
        made.append(entries.entry("tenant", name, settings, None, 1))
        for number in range(KEYS_EACH):
            digest = hashlib.sha256(key_of(tenant, number).encode()).hexdigest()
            key = KeySettings(hash=f"sha256:{digest}", tenant=name, name=f"key-{number}")
            made.append(entries.entry("key", digest[:12], key, None, 1))
    return made


def calls(front: Gateway, keys: Sequence[str], count: int) -> None:
    """So many calls over kept connections, one for each key. Raises RuntimeError: one failed."""

    def some(key: str) -> None:
        body, headers = json.dumps(R), {"authorization": f"Bearer {key}", "content-type": "application/json"}
        connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=30)
        with contextlib.closing(connection):
            for _ in range(count // len(keys)):
                connection.request("POST", "/v1/chat/completions", body, headers)
                answer = connection.getresponse()
                answer.read()
                if answer.status != 200:
                    raise RuntimeError(f"a call was answered {answer.status}")

    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(some, keys))


def cpu_us(subject: Subject, count: int) -> float:
    """CPU time of a call, in microseconds."""
    pid = worker(subject.front)
    before = proc.cpu_ns(pid)
    calls(subject.front, subject.keys, count)
    time.sleep(SETTLE_S)
    return (proc.cpu_ns(pid) - before) / count / 1_000


def rest_per_cent(front: Gateway) -> float:
    """What all of it takes of a core while nobody calls."""
    before, began_s = total_ns(front), time.monotonic()
    time.sleep(REST_S)
    return (total_ns(front) - before) / (time.monotonic() - began_s) / 1e7


def total_ns(front: Gateway) -> int:
    return sum(map(proc.cpu_ns, proc.tree(front.process.pid)))


def worker(front: Gateway) -> int:
    (pid,) = [pid for pid in proc.tree(front.process.pid) if ours.role(proc.command_line(pid)) == "worker"]
    return pid


def sign_test(pairs: Sequence[tuple[float, float]]) -> float:
    """The chance of at least so many pairs whose second is the dearer, were both the same: one-sided."""
    dearer, count = sum(second > first for first, second in pairs), len(pairs)
    return sum(math.comb(count, number) for number in range(dearer, count + 1)) / 2**count


def start(name: str, directory: pathlib.Path, port: int, stack: contextlib.ExitStack) -> Subject:
    large = name == "large"
    (directory / name / "state").mkdir(parents=True)
    if large:
        DirectoryFile(directory / name / "state").join(large_directory())
    backend = {"name": "b1", "url": f"http://127.0.0.1:{port}", "model": "m1", "slots": 64}
    began_s = time.monotonic()
    front = stack.enter_context(gateway.running(directory / name, [backend]))
    started_s = time.monotonic() - began_s
    step = TENANTS // CONNECTIONS
    keys = (
        [key_of(step * one, one % KEYS_EACH) for one in range(CONNECTIONS)]
        if large
        else [front.keys["acme"]] * CONNECTIONS
    )
    return Subject(name, front, keys, started_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--calls", type=int, default=2_000)
    args = parser.parse_args()
    pairs: list[tuple[float, float]] = []
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        backend = Scripted(SIZED)
        stack.callback(backend.stop)
        small, large = (start(name, directory, backend.port, stack) for name in ("small", "large"))
        for one in (small, large):
            cpu_us(one, args.calls)  # warm
        for number in range(args.pairs):
            order = (small, large) if number % 2 else (large, small)
            found = {one.name: cpu_us(one, args.calls) for one in order}
            pairs.append((found["small"], found["large"]))
            print(f"pair {number + 1}: small {pairs[-1][0]:.1f} µs, large {pairs[-1][1]:.1f} µs")
        for one in (small, large):
            memory, rest = proc.rss_kib(worker(one.front)) / 1024, rest_per_cent(one.front)
            print(
                f"{one.name}: started in {one.started_s:.2f} s, its worker has {memory:.1f} MiB; at rest {rest:.1f} %"
            )
    medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
    chance = sign_test(pairs)
    print(f"median: small {medians[0]:.1f} µs, large {medians[1]:.1f} µs; sign test p={chance:.3f}")
    return int(chance < ALPHA)


if __name__ == "__main__":
    sys.exit(main())
