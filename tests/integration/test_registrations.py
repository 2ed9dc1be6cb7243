"""Instances as a running gateway tells of them: a server that comes and goes, workers and gateways that are killed."""

import contextlib
import datetime
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec
import pytest

from metering.cost import intervals
from metering.cost.hours import PaidHour, Told, paid_hours
from metering.record import Registration
from metering.units import NS_PER_HOUR
from tests.integration.test_events import restart, wait_for
from tests.support import gateway
from tests.support.gateway import ROOT, Gateway, eventually, free_port
from tests.support.processes import descendants

pytestmark = pytest.mark.integration

MODEL = "meta-llama/Llama-3.1-8B-Instruct"


@contextlib.contextmanager
def simulator(port: int) -> Iterator[None]:
    """A server that is there once it has loaded, and is killed at the end."""
    command = [sys.executable, "-m", "gateway.cli", "simulate", "--instance-type", "inf2.48xlarge"]
    with subprocess.Popen(
        [*command, "--model", MODEL, "--port", str(port)], cwd=ROOT, stdout=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            process.kill()


def told(front: Gateway) -> list[dict]:
    """Its words in the order of time, without those that a writer repeats at a full hour."""
    found: list[dict] = []
    said: dict[str, tuple[str, str]] = {}
    for line in sorted(front.lines("registration"), key=lambda line: (line["at_ns"], line["seq"])):
        writer, word = writer_of(front, line), (line["instance_id"], line["state"])
        if said.get(writer) != word:
            said[writer] = word
            found.append(line)
    return found


def states(front: Gateway) -> list[tuple[str, str]]:
    return [(line["instance_id"], line["state"]) for line in told(front)]


def writers(front: Gateway) -> dict[str, list[dict]]:
    """Every writer's lines."""
    by_writer: dict[str, list[dict]] = {}
    for line in front.lines():
        if line["kind"] == "start":
            writer = line["writer"]
        by_writer.setdefault(writer, []).append(line)
    return by_writer


def writer_of(front: Gateway, wanted: dict) -> str:
    return next(writer for writer, lines in writers(front).items() if wanted in lines)


def worker_pid(front: Gateway, index: int) -> int:
    """The newest worker of this index, as its journal's `start` has it."""
    starts = [line for line in front.lines("start") if line["worker"] == index]
    return max(starts, key=lambda line: line["at_ns"])["pid"]


def hours(front: Gateway) -> list[PaidHour]:
    """What its journals come to, from an hour ago to now."""
    words, last_ns = [], {}
    for writer, lines in writers(front).items():
        last_ns[writer] = max(line["at_ns"] for line in lines)
        words += [
            Told(writer, msgspec.convert(line, Registration))
            for line in lines
            if line["kind"] == "registration"
        ]
    hour = time.time_ns() // NS_PER_HOUR
    return paid_hours(words, last_ns, range(hour - 2, hour + 1))


def test_a_server_that_comes_and_goes_and_a_worker_that_is_killed(tmp_path: pathlib.Path) -> None:
    port = free_port()
    launched_ns = time.time_ns() // 10**9 * 10**9 - NS_PER_HOUR // 2
    launched = datetime.datetime.fromtimestamp(launched_ns // 10**9, datetime.UTC).isoformat()
    backend = {
        "name": "inf2-a", "url": f"http://127.0.0.1:{port}", "model": MODEL, "instance_type": "inf2.48xlarge",
        "instance_id": "i-1", "units": 8, "slots": 32, "launched": launched,
    }  # fmt: skip
    with gateway.running(tmp_path, [backend], workers=2, ready=False) as front:
        wait_for(front, 2)
        eventually(lambda: states(front) == [("i-1", "starting")])
        with simulator(port):
            eventually(lambda: states(front)[1:] == [("i-1", "ready")], within_s=30)
            os.kill(worker_pid(front, 0), signal.SIGKILL)  # nothing can be told at its end
            eventually(lambda: states(front)[2:] == [("i-1", "ready")], within_s=30)
            assert len({writer_of(front, line) for line in told(front)}) == 2
        eventually(lambda: states(front)[3:] == [("i-1", "down")], within_s=30)
        starting, ready, _, down = told(front)
        assert (starting["launched_ns"], starting["units"], starting["units_total"]) == (launched_ns, 8, 24)
        assert (starting["model"], ready["simulated"], ready["source"]) == ("m1", True, "config")

        restart(front, 5, backends=[backend | {"instance_id": "i-2", "launched": None}], drain_s=0)
        eventually(lambda: states(front)[4:] == [("i-1", "gone"), ("i-2", "starting")], within_s=30)
        *_, gone, _ = told(front)
        front.stop()
        found = [one for one in hours(front) if one.instance_id == "i-1"]
        assert sum(one.paid_ns for one in found) == gone["at_ns"] - launched_ns
        stays = [stay for one in found for stay in one.stays]
        assert sum(intervals.length_ns(stay.owned) for stay in stays) == gone["at_ns"] - launched_ns
        assert sum(intervals.length_ns(stay.ready) for stay in stays) == down["at_ns"] - ready["at_ns"]
        assert {one.facts.simulated for one in found} == {True}


def test_a_gateway_that_is_killed_whole_leaves_no_gap(tmp_path: pathlib.Path) -> None:
    port = free_port()
    backend = {"name": "a", "url": f"http://127.0.0.1:{port}", "model": MODEL}
    with simulator(port), gateway.running(tmp_path, [backend]) as front:
        eventually(lambda: states(front) == [("backend:a", "ready")], within_s=10)
        (first,) = told(front)
        front.kill()
        eventually(lambda: not descendants(front.process.pid))
        front.restart()
        eventually(lambda: len(states(front)) == 2, within_s=gateway.READY_S)
        _, again = told(front)
        assert writer_of(front, first) != writer_of(front, again)
        found = hours(front)
        paid = intervals.union(part for one in found for part in one.paid)
        assert len(paid) == 1
        assert paid[0].from_ns == first["at_ns"]
        assert [stay.ready for one in found for stay in one.stays] == [one.paid for one in found]
