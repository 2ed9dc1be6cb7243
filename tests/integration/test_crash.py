"""`make crash` in small: each fault once. The whole of it, and its mutants, are run by hand (tests/crash)."""

import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT = pathlib.Path(__file__).parents[2]
RESULT = re.compile(
    r"crash: rounds=(?P<rounds>\d+) calls=(?P<calls>\d+) faults=(?P<faults>\d+) lost=0 doubled=0 difference_pusd=0 "
    r"seed=20261128"
)


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.crash", "--seed", "20261128", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_each_fault_once() -> None:
    done = run("--each-once")
    assert done.returncode == 0, done.stdout + done.stderr
    match = RESULT.fullmatch(done.stdout.splitlines()[-1])
    assert match is not None, done.stdout
    assert int(match["rounds"]) == int(match["faults"]) >= 12
    assert int(match["calls"]) >= 50 * int(match["rounds"])


def test_a_broken_product_is_found_in_a_few_rounds() -> None:
    """The other breaks take more rounds: `make crash MUTANT=…`."""
    done = run("--mutant", "lost_not_closed", "--rounds", "10")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mutant lost_not_closed: found in round" in done.stdout.splitlines()[-1]
    assert "WRONG no_record" in done.stdout
