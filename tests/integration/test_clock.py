"""The wall clock is set under load, by hours, forward and back (tests/mutants: it is off by what a file says)."""

import collections
import json
import os
import pathlib
import re
import time

import pytest

from tests.integration.test_disk_full import LONG_S, SLOTS, STREAMS, streams_under_way
from tests.oracle import journal, ledger
from tests.oracle.resp import Connection
from tests.support import mutants
from tests.support.gateway import Gateway, eventually
from tests.support.stage import R, Stage, staged
from tests.support.valkey import Valkey

pytestmark = pytest.mark.integration

STEPS_S = (-5 * 3600, 3 * 3600, 0)
"""Off by so much, one after the other."""
CALLS = 20


def events(stage: Stage) -> list[int]:
    return [int(line["data"]["by_ms"]) for line in stage.gateway.lines("event") if line["topic"] == "clock"]


def test_a_clock_that_is_set_harms_nothing(tmp_path: pathlib.Path) -> None:
    off = tmp_path / "off"
    env = mutants.environment("clock_set") | {"KILL_TEST_CLOCK": str(off)}
    with staged(tmp_path, env=env, timeouts=LONG_S, slots=SLOTS) as stage:
        gateway = stage.gateway
        with streams_under_way(stage) as (opened, held):
            for told, off_s in enumerate(STEPS_S, 1):
                (tmp_path / "off.tmp").write_text(str(off_s))
                (tmp_path / "off.tmp").rename(off)
                for _ in range(CALLS):
                    assert stage.post(R).status == 200
                eventually(lambda told=told: len(events(stage)) == told, within_s=10)
            held.let_go()
            for one in opened:
                one.rest()
                assert (one.status, one.complete) == (200, True)
        steps = [round(by_ms / 3_600_000) for by_ms in events(stage)]
        assert steps == [-5, 8, -3]
        said = [json.loads(line) for line in gateway.log.read_text().splitlines()]
        assert [line["event"] for line in said].count("clock jumped") == len(STEPS_S)
        stage.check()
        calls = gateway.lines("call")
        assert collections.Counter(call["outcome"] for call in calls) == {
            "completed": STREAMS + CALLS * len(STEPS_S)
        }
        spans = ("ttft_ns", "tpot_ns", "slot_ns", "queue_wait_ns")
        assert all(call[name] is None or call[name] >= 0 for call in calls for name in spans)
        for call in calls:
            assert call["received_ns"] <= call["admitted_ns"] <= call["finished_ns"]
            assert call["finished_ns"] - call["received_ns"] < 120 * 1_000_000_000
        (directory,) = (gateway.state_dir / "journal").iterdir()
        assert len(list(directory.glob("[0-9]*.jsonl*"))) <= 1 + 2 * len(STEPS_S), "no storm of segments"
        assert gateway.stop() == 0
        writers = journal.read(gateway.state_dir / "journal")
        assert [fault for writer in writers for fault in writer.faults] == []
        gateway.restart()
        gateway.wait_ready()

        def equal() -> bool:
            found = journal.read(gateway.state_dir / "journal")
            with Connection((gateway.state_dir / "store" / "url").read_text().strip()) as store:
                return ledger.check(ledger.recompute(found), ledger.read(store)) == []

        eventually(equal, within_s=20)


@pytest.mark.parametrize(("mutant", "kept"), [("clock_set", True), ("clock_believed", False)])
def test_a_start_with_a_clock_that_is_two_years_ahead_deletes_nothing(
    tmp_path: pathlib.Path, mutant: str, kept: bool
) -> None:
    """Neither journals nor the ledger's hours; what is wrong is shown. With the mutant all of it goes."""
    off = tmp_path / "off"
    env = mutants.environment(mutant) | {"KILL_TEST_CLOCK": str(off)}
    with staged(tmp_path, env=env) as stage:
        gateway = stage.gateway
        for _ in range(3):
            assert stage.post(R).status == 200
        eventually(lambda: duty_failing(gateway, "clock") == 0, within_s=20)
        (before,) = [path.name for path in (gateway.state_dir / "journal").iterdir()]
        eventually(lambda: hours(gateway))
        assert gateway.stop() == 0
        ended_s = time.time() - 120
        for path in (gateway.state_dir / "journal" / before).iterdir():
            os.utime(path, (ended_s, ended_s))
        off.write_text(str(2 * 365 * 24 * 3600))
        gateway.restart()
        gateway.wait_ready()
        if kept:
            eventually(lambda: duty_failing(gateway, "clock") == 1, within_s=20)
            assert duty_failing(gateway, "retention") == 0  # it was looked for what is old
            assert (gateway.state_dir / "journal" / before).is_dir()
            assert hours(gateway)
            assert "nothing is deleted by that time" in gateway.log.read_text()
        else:
            eventually(lambda: not (gateway.state_dir / "journal" / before).is_dir(), within_s=40)
            eventually(lambda: not hours(gateway), within_s=40)


def hours(gateway: Gateway) -> list[str]:
    with Valkey((gateway.state_dir / "store" / "url").read_text().strip()) as store:
        return store.ask("KEYS", "wb:1:{*}:h:*")


def duty_failing(gateway: Gateway, duty: str) -> float:
    _, page = gateway.get("/metrics", gateway.keys["acme"])
    found = re.search(rf'^weighbridge_duty_failing\{{duty="{duty}"\}} (\S+)$', page.decode(), re.MULTILINE)
    return float(found[1]) if found else -1
