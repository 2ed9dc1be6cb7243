"""The wall clock is set under load, by hours, forward and back (tests/mutants: it is off by what a file says)."""

import collections
import json
import pathlib

import pytest

from tests.integration.test_disk_full import LONG_S, SLOTS, STREAMS, streams_under_way
from tests.oracle import journal, ledger
from tests.oracle.resp import Connection
from tests.support import mutants
from tests.support.gateway import eventually
from tests.support.stage import R, Stage, staged

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
