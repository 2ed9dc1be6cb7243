"""A disk that stands still for ten seconds under load: streams flow, calls wait or are shed, nothing is lost."""

import asyncio
import collections
import contextlib
import http.client
import json
import pathlib
import threading
import time

import pytest

from tests.support import mutants, processes
from tests.support.gateway import eventually
from tests.support.rawbackend import Asked
from tests.support.stage import DONE, FINISH, ROLE, RSU, USAGE, R, Stage, content, framed, opening, staged

pytestmark = pytest.mark.integration

STOPPED_S = 10.0
EVERY_S = 0.05
GAP_S_MAX = 1.5
CONNECTIONS_MAX = 40
CALLS = 80


class Steady:
    """A stream with an event each 50 ms, until it is told to end."""

    def __init__(self) -> None:
        self.end = threading.Event()

    async def __call__(
        self, _asked: Asked, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(opening(ROLE))
        while not self.end.is_set():
            writer.write(framed(content("x")))
            await asyncio.sleep(EVERY_S)
        writer.write(framed(FINISH + USAGE + DONE) + b"0\r\n\r\n")


class Calls:
    """Calls that are begun while the disk stands still: what became of each."""

    def __init__(self, stage: Stage) -> None:
        self.answers: list[tuple[int, str]] = []
        self._stage = stage
        self._threads = [threading.Thread(target=self._ask) for _ in range(CALLS)]

    def _ask(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):  # cut off: that, too, is shed
            answer = self._stage.gateway.post("/v1/chat/completions", R)
            body = json.loads(answer.read())
            self.answers.append((answer.status, body.get("error", {}).get("code", "")))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


def test_streams_flow_and_calls_wait(tmp_path: pathlib.Path) -> None:
    stopped, steady = tmp_path / "stopped", Steady()
    env = mutants.environment("disk_stopped") | {"KILL_TEST_STOPPED": str(stopped)}
    bounds = {"connections_max": CONNECTIONS_MAX}
    with staged(tmp_path, env=env, bounds=bounds, slots=CALLS + 1) as stage:
        stage.b1.script.append(steady)
        workers = processes.descendants(stage.gateway.process.pid)
        with stage.open(RSU) as stream:
            stream.read_until(b'"x"')
            assert stage.post(R).status == 200  # something to sync
            stopped.touch()
            began_s = last_s = time.monotonic()
            gap_s, calls, slow = 0.0, Calls(stage), False
            stage.gateway.post("/v1/chat/completions", R).read()  # it still finds the page cache
            while (now_s := time.monotonic()) - began_s < STOPPED_S:
                assert stream.read_some()
                gap_s, last_s = max(gap_s, time.monotonic() - last_s), time.monotonic()
                if not slow and now_s - began_s > 2:
                    calls.start()
                    slow = True
            shown = stage.count("weighbridge_journal_slow") if not calls.answers else 1
            assert gap_s < GAP_S_MAX, "the stream flowed on"
            assert not [answer for answer in calls.answers if answer[0] == 200], "no call without its line"
            stopped.unlink()
            calls.join()
            steady.end.set()
            stream.rest()
            assert stream.complete
        assert shown == 1
        statuses = collections.Counter(status for status, _ in calls.answers)
        assert statuses[200] >= CONNECTIONS_MAX // 2, "those that waited were served"
        assert statuses[200] < CALLS, "those above the bounds were shed"
        assert {answer for answer in calls.answers if answer[0] != 200} <= {(503, "overloaded")}
        eventually(
            lambda: stage.post(R).status == 200 and stage.count("weighbridge_journal_slow") == 0, within_s=20
        )
        assert processes.descendants(stage.gateway.process.pid) == workers
        stage.check()
        said = [json.loads(line)["event"] for line in stage.gateway.log.read_text().splitlines()]
        assert {"journal slow, a thread writes it", "journal quick again"} <= set(said)
