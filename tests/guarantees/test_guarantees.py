"""What a gateway's end leaves behind, by how it ended: the rows of the README's table that no other test has.

A process killed: tests/integration/test_kill.py, test_crash.py. Power cut: test_powercut.py. Store lost: test_flush.py.
"""

import contextlib
import json
import pathlib
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from metering.ledger.embedded import find_binary
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


def test_a_pod_deleted_whose_volume_goes_to_another_host_has_lost_nothing(bed: Bed) -> None:
    with under_load(bed):
        bed.kill(bed.everybody())
    assert bed.fold_elsewhere(bed.journals) == ""
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
    assert bed.fold_elsewhere(bed.journals) == ""
    once = held(bed)
    bed.restart()
    bed.front.wait_ready()
    assert bed.books.settle(SETTLE_S) == []
    assert held(bed) == once


def test_a_node_lost_with_its_disk_leaves_what_it_had_shipped_and_its_writers_are_named(bed: Bed) -> None:
    """In the ledger is all that was durable when the load had come to rest, and no more than the journal had."""
    bed.client.begin("rest", 3)
    assert bed.wait_for_ends(ENDS)
    bed.client.finish()
    assert bed.books.settle(SETTLE_S) == []
    shipped = held(bed)
    assert shipped.balances
    with under_load(bed):
        bed.kill(bed.everybody())
    whole = ledger.recompute(bed.books.writers())
    lost = {writer.name for writer in bed.books.writers()}
    with bed.books.still(counters_restart=True):
        shutil.rmtree(bed.journals)
        shutil.rmtree(bed.pages)
        bed.journals.mkdir()
    kept = held(bed)
    assert all(kept.balances[name] >= value for name, value in shipped.balances.items())
    assert ledger.above(whole, kept) == []

    bed.restart()
    bed.front.wait_ready()
    eventually(lambda: missing(bed) == lost, within_s=SETTLE_S)
    bed.store.flush()  # and now nobody has what those writers had
    bed.client.begin("anew", 4)
    assert bed.wait_for_ends(ENDS)
    bed.client.finish()
    eventually(lambda: unready(bed) == dict.fromkeys(beds.TENANTS, lost), within_s=SETTLE_S)


def status(bed: Bed) -> dict[str, Any]:
    """What `weighbridge ledger status` says."""
    words = ["ledger", "status", "--json", "-c", str(bed.front.config_file)]
    command = [sys.executable, "-m", "gateway.cli", *words]
    found: dict[str, Any] = json.loads(
        subprocess.run(command, cwd=ROOT, capture_output=True, check=False).stdout
    )
    return found


def missing(bed: Bed) -> set[str]:
    """Writers that the ledger knows, whose end nobody has seen, and whose journals are not here."""
    return {one["writer"] for one in status(bed)["writers"] if one["state"] == "open" and not one["here"]}


def unready(bed: Bed) -> dict[str, set[str]]:
    """Tenants of whom the ledger does not say that it has all, and the writers that it lacks."""
    return {one["tenant"]: set(one["unfolded"]) for one in status(bed)["tenants"] if not one["ready"]}


def test_a_power_cut_takes_no_more_than_the_last_interval(bed: Bed) -> None:
    bed.client.begin("power", 5)
    assert bed.wait_for_ends(ENDS)
    faults.power_cut(bed, random.Random(5))
    assert bed.wait_for_ends(ENDS)
    bed.client.finish()
    assert bed.books.settle(SETTLE_S) == []
