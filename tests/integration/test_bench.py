"""The benchmark and the soak run, and judge. What they measure here, on a busy machine, says nothing."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent
CORES = {0, 1}

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.integration,
    pytest.mark.skipif(
        not hasattr(os, "sched_getaffinity") or not os.sched_getaffinity(0) >= CORES,
        reason="needs cores 0 and 1",
    ),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]


def run(cache: pathlib.Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "BENCH_CACHE_DIR": str(cache), "BENCH_OUT_DIR": str(cache / "out")}
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280
    )


def test_a_short_soak_finds_every_call_in_the_journal_and_the_memory_flat(tmp_path: pathlib.Path) -> None:
    done = run(tmp_path, "tests.bench.soak", "--minutes", "0.2")
    found = {line[5:].partition(":")[0]: line[:4].strip() for line in done.stdout.splitlines()}
    assert found.pop("loop lag p99.99", None) is not None, done.stdout + done.stderr
    assert found == {
        "memory of the worker is flat": "ok",
        "journal equals requests": "ok",
        "clients saw what they should": "ok",
    }, done.stdout + done.stderr
    assert len(list((tmp_path / "out").glob("raw-soak-*.jsonl"))) == 1


def test_a_short_benchmark_counts_its_requests_and_says_what_is_missing(tmp_path: pathlib.Path) -> None:
    if "tmpfs" in (kind := filesystem(tmp_path)):
        pytest.skip(f"the journal would be on {kind}")
    out = tmp_path / "result.json"
    words = ("--only", "ours", "--scenarios", "json,paced", "--repetitions", "1", "--out", str(out))
    done = run(tmp_path, "tests.bench", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| ours + missing" in done.stdout
    assert '"missing_us": 2.9' in out.read_text()


def filesystem(path: pathlib.Path) -> str:
    return subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True).stdout.strip()
