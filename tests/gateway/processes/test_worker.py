"""What a worker process asks of the system before it serves."""

import subprocess
import sys

from tests.support.gateway import ROOT

SCRIPT = """
import logging, resource, sys
from gateway.processes import logs, worker
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
logs.set_up(sys.stderr, worker=0)
print(worker.raise_open_files({needed}), resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def raised(*, soft: int, hard: int, needed: int) -> tuple[str, str]:
    """What it returns and the limits afterwards; and what it logs."""
    script = SCRIPT.format(soft=soft, hard=hard, needed=needed)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip(), done.stderr


def test_as_many_files_may_be_open_as_the_system_allows() -> None:
    out, log = raised(soft=100, hard=300, needed=300)
    assert (out, log) == ("300 (300, 300)", "")


def test_too_few_are_told() -> None:
    out, log = raised(soft=300, hard=300, needed=301)
    assert out == "300 (300, 300)"
    assert "fewer open files" in log
    assert "301" in log
