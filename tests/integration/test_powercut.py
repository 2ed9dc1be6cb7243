"""The power fails: what is not synced is gone (tests/support/powercut.py), and who was told what is compared with it.

A client notes each answer whose end it has seen, and when. All processes are killed, the journal loses what was not
synced, and the gateway starts again. Journal and ledger are read by the oracle, which imports nothing of the product.
"""

import json
import os
import pathlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.oracle import journal, ledger
from tests.oracle.resp import Connection
from tests.support import processes
from tests.support.gateway import eventually
from tests.support.powercut import PowerCut
from tests.support.stage import R, Stage, staged

pytestmark = pytest.mark.integration

CLIENTS = 8
ENDS = 300
INTERVAL_MS = 300
LATE_S = 0.5
"""How late a sync may be on a busy machine, beyond its interval."""


class Seen(NamedTuple):
    """An answer whose end a client has seen."""

    call_id: str
    at_s: float


class Cut(NamedTuple):
    """What a power cut met, and what was left. missing: answers whose end was seen that have no record."""

    seen: list[Seen]
    missing: list[Seen]
    at_s: float
    bytes: int


def ask_until_it_ends(stage: Stage, seen: list[Seen]) -> None:
    """One client: a call after the other, until the gateway is gone."""
    while True:
        try:
            answer = stage.gateway.post("/v1/chat/completions", R)
            whole = answer.read()
        except OSError:
            return
        if answer.status == 200 and json.loads(whole)["choices"]:
            seen.append(Seen(answer.headers["x-weighbridge-call-id"], time.monotonic()))


def cut_the_power(tmp_path: pathlib.Path, fsync: str) -> Iterator[Cut]:
    """Twice: the second time on what the first has left."""
    power = PowerCut(tmp_path / "state" / "journal", tmp_path / "synced.log")
    how = {"fsync": fsync, "fsync_interval_ms": INTERVAL_MS}
    with staged(tmp_path, env=power.environment, journal=how, slots=CLIENTS) as stage:
        gateway = stage.gateway
        for _ in range(2):
            seen: list[Seen] = []
            clients = [threading.Thread(target=ask_until_it_ends, args=(stage, seen)) for _ in range(CLIENTS)]
            for client in clients:
                client.start()
            eventually(lambda seen=seen: len(seen) >= ENDS, within_s=60)
            pids = {gateway.process.pid} | processes.descendants(gateway.process.pid)
            at_s = time.monotonic()
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            gateway.process.wait(timeout=10)
            for client in clients:
                client.join()
            eventually(lambda pids=pids: not any(map(processes.is_alive, pids)))
            taken = power.cut()
            gateway.restart()
            gateway.wait_ready()
            writers = journal.read(gateway.state_dir / "journal")
            assert [fault for writer in writers for fault in writer.faults] == []
            ended = {call["call_id"] for call in journal.calls(writers) if call["outcome"] == "completed"}
            check_ledger(stage)
            missing = [one for one in seen if one.call_id not in ended]
            yield Cut(seen, missing, at_s, taken.bytes)


def check_ledger(stage: Stage) -> None:
    """It comes to equal the journals: it never got what they have lost."""

    def equal() -> bool:
        writers = journal.read(stage.gateway.state_dir / "journal")
        with Connection((stage.gateway.state_dir / "store" / "url").read_text().strip()) as store:
            return ledger.check(ledger.recompute(writers), ledger.read(store)) == []

    eventually(equal, within_s=20)


def test_with_always_no_answer_that_a_client_saw_is_missing(tmp_path: pathlib.Path) -> None:
    for cut in cut_the_power(tmp_path, "always"):
        assert cut.missing == []
        assert len(cut.seen) >= ENDS


def test_with_an_interval_only_the_last_ones_are_missing(tmp_path: pathlib.Path) -> None:
    """It is the mutant of the law above, too: without a sync before the end some are missing."""
    missing: list[Seen] = []
    for cut in cut_the_power(tmp_path, "interval"):
        assert cut.bytes > 0, "the layer has forgotten something"
        assert all(one.at_s > cut.at_s - INTERVAL_MS / 1000 - LATE_S for one in cut.missing)
        missing += cut.missing
    assert missing
