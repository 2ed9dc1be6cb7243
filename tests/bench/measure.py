"""One measurement: a scenario sent to a target, and what it cost there."""

import json
import pathlib
import subprocess
import time

import msgspec

from tests.bench import proc
from tests.bench.cache import BIN, CACHE
from tests.bench.process import BenchError
from tests.bench.samples import Load, Sample, faults
from tests.bench.scenarios import Scenario, body
from tests.bench.targets import Target

WARM_UP_REQUESTS = 64
SLOW_MS = 1000
"""Streams as slow as these are not warmed up for: it would take as long as the measurement."""
SETTLE_S = 0.3
"""After the load, before CPU time is read: what a gateway does behind its answers (folds, syncs, logs) counts."""
MEMORY_EACH_S = 0.25
LOAD_S_MAX = 180


def measure(target: Target, scenario: Scenario, repetition: int) -> Sample:
    """Warm up, send, wait for the books. Raises BenchError if the load generator fails."""
    if scenario.pace_ms < SLOW_MS:
        run_load(target, scenario, requests=WARM_UP_REQUESTS)
    if target.books is not None:
        target.books.count()
    before = cpu_ns(target)
    pss_before = pss_kib(target)
    load, pss_max = run_load(target, scenario, requests=scenario.requests, memory=scenario.name == "open")
    time.sleep(SETTLE_S)
    after = cpu_ns(target)
    outcomes = target.books.count() if target.books is not None else None
    return Sample(
        target=target.name,
        scenario=scenario.name,
        repetition=repetition,
        load=load,
        cpu_us={role: (after[role] - before.get(role, 0)) / 1e3 for role in after},
        pss_before_kib=pss_before,
        pss_max_kib=max(pss_max, pss_before),
        records=None if outcomes is None else sum(outcomes.values()),
        faults=faults(scenario, load, outcomes),
    )


def run_load(target: Target, scenario: Scenario, *, requests: int, memory: bool = False) -> tuple[Load, int]:
    """Send it. returns: what the generator says, and the most memory seen in KiB (0 if not asked for)."""
    file = CACHE / "run" / f"{scenario.name}.json"
    file.write_bytes(body(scenario))
    words = [BIN / "load", "-p", target.port, "-b", file, "-c", scenario.connections, "-n", requests,
             "-d", scenario.seconds]  # fmt: skip
    for name, value in target.headers.items():
        if target.keys is None or name != "authorization":
            words += ["-H", f"{name}: {value}"]
    if target.keys is not None:
        words += ["-K", target.keys]
    child = subprocess.Popen(
        [str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        pss_max = _watch(child, target) if memory else 0
        said, complaint = child.communicate(timeout=LOAD_S_MAX)
    except subprocess.TimeoutExpired:
        raise BenchError(f"{target.name} did not finish {scenario.name} within {LOAD_S_MAX} s") from None
    finally:
        child.kill()
        child.wait()
    if child.returncode:
        raise BenchError(f"{scenario.name} to {target.name}: {complaint.strip() or child.returncode}")
    if complaint:
        print(f"{scenario.name} to {target.name}: {complaint.strip()[:300]}", flush=True)
    return msgspec.json.decode(said, type=Load), pss_max


def _watch(child: subprocess.Popen[str], target: Target) -> int:
    """The most memory that the target took while the load ran."""
    most, deadline = 0, time.monotonic() + LOAD_S_MAX
    while child.poll() is None and time.monotonic() < deadline:
        most = max(most, pss_kib(target))
        try:
            child.wait(MEMORY_EACH_S)
        except subprocess.TimeoutExpired:
            continue
    return most


def cpu_ns(target: Target) -> dict[str, int]:
    """CPU time so far, by what a process is."""
    found: dict[str, int] = {}
    for pid, role in target.processes().items():
        found[role] = found.get(role, 0) + proc.cpu_ns(pid)
    return found


def pss_kib(target: Target) -> int:
    return sum(map(proc.pss_kib, target.processes()))


def append(path: pathlib.Path, sample: Sample) -> None:
    """Keep a raw sample: a line of JSON."""
    with path.open("a") as file:
        file.write(json.dumps(msgspec.to_builtins(sample)) + "\n")
