"""Writers are killed with -9 while another process scrapes: real processes, real files."""

import contextlib
import json
import pathlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from metering.journal import journal
from metering.pages import families, gone, metrics
from metering.pages.families import Families
from tests.support import writers

pytestmark = pytest.mark.integration

ROOT = pathlib.Path(__file__).parent.parent.parent
KILLS = 8
LIVE = 2


@contextlib.contextmanager
def process(role: str, state_dir: pathlib.Path, seed: int) -> Iterator["subprocess.Popen[bytes]"]:
    started = subprocess.Popen(
        [sys.executable, "-m", "tests.support.page_processes", role, str(state_dir), str(seed)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with started:
        try:
            yield started
        finally:
            started.kill()


def supervise(state_dir: pathlib.Path) -> None:
    journal.salvage_dead(state_dir / "journal")
    gone.retire(state_dir / "pages", state_dir / "journal")


def wait_for_lines(state_dir: pathlib.Path, lines: int) -> None:
    """Until the live writers' pages stand for so many lines together."""
    deadline = time.monotonic() + 30
    while sum(metrics.scrape(state_dir / "pages").heads.values()) < lines:
        assert time.monotonic() < deadline, "the writers do not get on"


def test_no_counter_falls_while_writers_are_killed(tmp_path: pathlib.Path) -> None:
    rng = random.Random(11)
    supervise(tmp_path)
    with process("scraper", tmp_path, 0) as scraper, contextlib.ExitStack() as stack:
        live: list[subprocess.Popen[bytes]] = []
        for seed in range(LIVE + KILLS):
            worker = stack.enter_context(process("worker", tmp_path, seed))
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"began\n"
            live.append(worker)
            if len(live) > LIVE:
                wait_for_lines(tmp_path, rng.randrange(50, 1_500))
                victim = live.pop(rng.randrange(len(live)))
                victim.kill()
                victim.wait()
                supervise(tmp_path)
        for worker in live:
            worker.kill()
            worker.wait()
        supervise(tmp_path)
        out, _ = scraper.communicate(timeout=30)
        assert scraper.returncode == 0, out
        assert json.loads(out)["looks"] > KILLS
    whole = Families()
    for line in writers.journalled(tmp_path):
        whole.observe(line)
    last = metrics.scrape(tmp_path / "pages")
    assert last.totals == whole.cells.totals() == families.counters(last.totals)
    assert last.heads == {}
    lost = sum(value[0] for one, value in last.totals.items() if one.labels[-1:] == ("lost",))
    assert lost > 0
