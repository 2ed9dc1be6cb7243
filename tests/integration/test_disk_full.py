"""A disk that is really full: a tmpfs of its own under the state directory (tests/support/disks.py).

Calls that run end with their records and their clients see their ends; new ones are refused before a backend is asked;
when there is room again calls are served again, by the same process.
"""

import asyncio
import collections
import contextlib
import json
import os
import pathlib
import signal
import threading
from collections.abc import Iterator

import pytest

from tests.support import mutants, processes
from tests.support.disks import Filler, mounted
from tests.support.gateway import eventually
from tests.support.opened import Opened
from tests.support.rawbackend import Asked
from tests.support.stage import DONE, FINISH, ROLE, RS, RSU, USAGE, R, Stage, content, framed, opening, staged

pytestmark = pytest.mark.integration

MIB = 1024 * 1024
DISK_BYTES = 64 * MIB
STREAMS = 40
SLOTS = 64
LONG_S = {"first_event_s": 60.0, "between_events_s": 60.0, "sized_answer_s": 60.0}


class Held:
    """Streams that have begun, and end when they are told to."""

    def __init__(self) -> None:
        self._end = threading.Event()

    async def __call__(
        self, _asked: Asked, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(opening(ROLE, content("he")))
        await asyncio.to_thread(self._end.wait, 60)
        writer.write(framed(FINISH + USAGE + DONE) + b"0\r\n\r\n")

    def let_go(self) -> None:
        self._end.set()


@contextlib.contextmanager
def staged_on_a_small_disk(
    directory: pathlib.Path, env: dict[str, str] | None = None
) -> Iterator[tuple[Stage, Filler]]:
    with (
        mounted(directory / "state", DISK_BYTES) as disk,
        staged(directory, slots=SLOTS, env=env or {}, timeouts=LONG_S) as stage,
    ):
        yield stage, Filler(disk / "filler")


@contextlib.contextmanager
def streams_under_way(stage: Stage) -> Iterator[tuple[list[Opened], Held]]:
    held = Held()
    stage.b1.script += [held] * STREAMS
    with contextlib.ExitStack() as stack:
        try:
            opened = [stack.enter_context(stage.open(RSU)) for _ in range(STREAMS)]
            for one in opened:
                one.read_until(b"he")
            yield opened, held
        finally:
            held.let_go()


def refusal(stage: Stage) -> tuple[int, str] | None:
    """How a call is refused; None: it is served."""
    answer = stage.gateway.post("/v1/chat/completions", R)
    body = json.loads(answer.read())
    return None if answer.status == 200 else (answer.status, body["error"]["code"])


def served_until_refused(stage: Stage) -> int:
    """Calls that still found room in the segment's last block. The one behind them finds out."""
    return next(served for served in range(100) if refusal(stage) is not None)


def test_records_are_written_and_calls_refused_until_there_is_room(tmp_path: pathlib.Path) -> None:
    with staged_on_a_small_disk(tmp_path) as (stage, filler):
        workers = processes.descendants(stage.gateway.process.pid)
        with streams_under_way(stage) as (opened, held):
            filler.fill()
            served = served_until_refused(stage)
            stage.b1.asked.clear()
            assert {refusal(stage) for _ in range(3)} == {(503, "journal_full")}
            assert stage.b1.asked == []
            status, page = stage.gateway.get("/readyz")
            assert (status, json.loads(page)["reasons"]) == (503, ["the journal is full"])
            eventually(lambda: stage.count("weighbridge_journal_full") == 1)
            held.let_go()
            for one in opened:
                one.rest()
                assert (one.status, one.complete) == (200, True)
                assert one.body.endswith(b"data: [DONE]\n\n")
        records = {line["call_id"]: line["outcome"] for line in stage.gateway.lines("call")}
        assert len(records) == STREAMS + served
        assert records.items() >= {(one.headers["x-weighbridge-call-id"], "completed") for one in opened}
        assert refusal(stage) == (503, "journal_full")
        filler.remove()
        eventually(lambda: stage.gateway.alive("/readyz"))
        assert stage.post(R).status == 200
        assert processes.descendants(stage.gateway.process.pid) == workers, "by the same processes"
        assert stage.count("weighbridge_journal_full") == 0
        assert stage.count("weighbridge_journal_unwritten_total", kind="refused") >= 1
        eventually(lambda: stage.count("weighbridge_ledger_lag_records") == 0, within_s=30)
        assert len(stage.gateway.lines("call")) == STREAMS + served + 1
        said = [json.loads(line)["event"] for line in stage.gateway.log.read_text().splitlines()]
        assert said.count("disk full, no call is admitted") == said.count("disk has room again") == 1


def test_who_is_killed_on_a_full_disk_is_closed_and_succeeded_on_it(tmp_path: pathlib.Path) -> None:
    with staged_on_a_small_disk(tmp_path) as (stage, filler):
        with streams_under_way(stage) as (_, held):
            filler.fill()
            served = served_until_refused(stage)
            (worker,) = [
                pid
                for pid in processes.descendants(stage.gateway.process.pid)
                if b"gateway.processes.worker" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
            os.kill(worker, signal.SIGKILL)
            held.let_go()
            eventually(lambda: len(stage.gateway.lines("call")) == STREAMS + served, within_s=20)
        outcomes = collections.Counter(line["outcome"] for line in stage.gateway.lines("call"))
        assert outcomes == collections.Counter(lost=STREAMS, completed=served)
        filler.remove()
        eventually(lambda: stage.gateway.alive("/readyz"), within_s=20)
        assert stage.post(RS).status == 200


def test_without_ballast_the_records_would_be_lost(tmp_path: pathlib.Path) -> None:
    """The law's mutant: room is not kept."""
    with staged_on_a_small_disk(tmp_path, mutants.environment("no_ballast")) as (stage, filler):
        with streams_under_way(stage) as (opened, held):
            filler.fill()
            held.let_go()
            for one in opened:
                one.rest()
        ended = [one for one in opened if one.body.endswith(b"data: [DONE]\n\n")]
        assert len(ended) < STREAMS
