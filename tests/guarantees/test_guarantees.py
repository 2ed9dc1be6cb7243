"""What a gateway's end leaves behind, by how it ended: the rows of the README's table that no other test has.

A process killed: tests/integration/test_kill.py, test_crash.py. Power cut: test_powercut.py. Store lost: test_flush.py.
"""

import contextlib
import pathlib
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from metering.embedded import find_binary
from tests.crash import bed as beds
from tests.crash import faults
from tests.crash.bed import Bed, Options
from tests.oracle import journal, ledger
from tests.oracle.ledger import Ledger
from tests.oracle.resp import Connection
from tests.support.gateway import ROOT, eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

ENDS = 25
SETTLE_S = 45.0


@pytest.fixture
def bed(tmp_path: pathlib.Path) -> Iterator[Bed]:
    with beds.running(tmp_path, Options("interval", find_binary())) as bed:
        yield bed


@contextlib.contextmanager
def under_load(bed: Bed) -> Iterator[None]:
    """Answers have ended and others are under way; on leaving the clients have come to their ends."""
    bed.client.begin("g", 1)
    assert bed.wait_for_ends(ENDS)
    try:
        yield
    finally:
        bed.front.kill()  # nobody listens any more, so that none of them waits
        bed.client.finish()


def held(bed: Bed) -> Ledger:
    with Connection(bed.store.url) as store:
        return ledger.read(store)


def folded_elsewhere(bed: Bed) -> None:
    """Another host has the volume now, and closes and folds what is on it."""
    command = [sys.executable, "-m", "tests.crash.fold", str(bed.journals), bed.store.url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_pod_deleted_whose_volume_goes_to_another_host_has_lost_nothing(bed: Bed) -> None:
    with under_load(bed):
        bed.kill(bed.everybody())
    folded_elsewhere(bed)
    assert bed.books.settle(SETTLE_S) == []
    outcomes = {line["outcome"] for line in journal.calls(bed.books.writers())}
    assert {"completed", "lost"} <= outcomes


def test_a_pod_deleted_whose_volume_comes_back_to_it_has_lost_nothing(bed: Bed) -> None:
    with under_load(bed):
        bed.kill(bed.everybody())
    bed.restart()
    bed.client.begin("again", 2)
    assert bed.wait_for_ends(ENDS)
    bed.client.finish()
    assert bed.books.settle(SETTLE_S) == []


def test_a_volume_that_two_hosts_have_one_after_another_counts_once(bed: Bed) -> None:
    """The other host folds a copy; then the first one is back with the original."""
    with under_load(bed):
        bed.kill(bed.everybody())
    folded_elsewhere(bed)
    once = held(bed)
    bed.restart()
    bed.front.wait_ready()
    assert bed.books.settle(SETTLE_S) == []
    assert held(bed) == once


def test_a_node_lost_with_its_disk_leaves_in_the_ledger_what_it_had_shipped(bed: Bed) -> None:
    """No more than its journal had, and all that was durable when the load had come to rest."""
    bed.client.begin("rest", 3)
    assert bed.wait_for_ends(ENDS)
    bed.client.finish()
    assert bed.books.settle(SETTLE_S) == []
    shipped = held(bed)
    assert shipped.balances
    with under_load(bed):
        bed.kill(bed.everybody())
    whole = ledger.recompute(bed.books.writers())
    with bed.books.still(counters_restart=True):
        shutil.rmtree(bed.journals)
        shutil.rmtree(bed.pages)
        bed.journals.mkdir()
    kept = held(bed)
    assert all(kept.balances[name] >= value for name, value in shipped.balances.items())
    assert ledger.above(whole, kept) == []
    bed.restart()
    bed.client.begin("anew", 4)
    assert bed.wait_for_ends(ENDS)
    bed.client.finish()
    eventually(lambda: not bed.books.writers() or bed.books.settle(0.0) is not None)
    after = held(bed)
    assert all(after.balances[name] >= value for name, value in kept.balances.items())
    mine = ledger.recompute(bed.books.writers())
    assert after.marks == kept.marks | mine.marks, "the lost writers' marks stay, and name them"


def test_a_power_cut_takes_no_more_than_the_last_interval(bed: Bed) -> None:
    bed.client.begin("power", 5)
    assert bed.wait_for_ends(ENDS)
    faults.power_cut(bed, random.Random(5))
    assert bed.wait_for_ends(ENDS)
    bed.client.finish()
    assert bed.books.settle(SETTLE_S) == []
