"""A process that records calls until it is killed, and says through its stdout whom it has released.

    python -m tests.support.crashing_writer ROOT SEED KILLED_AT_RELEASE RECORDER

Each released entry is reported as `<kind> <call id>` by one write, from within `written()`.
KILLED_AT_RELEASE: after so many reports it kills itself, right there; 0: it waits to be killed.
RECORDER: `real`, or `releases_first`, the mutant that the crash test must find.
"""

import asyncio
import os
import pathlib
import random
import signal
import sys
import time

from metering.journal.journal import Journal, new_writer_id
from metering.journal.recorder import Recorder
from metering.journal.turns import Entry
from metering.record import Line
from tests.support import journals, signing
from tests.support.journals import Make

CALLS_OPEN_MAX = 24


class Told:
    """An entry that was told already what it waits for."""

    def __init__(self, entry: Entry) -> None:
        self.line = entry.line
        self.failed = entry.failed

    def written(self) -> None:
        pass


class ReleasesFirst(Recorder):
    """The mutant: those who wait are released, and then the turn is written."""

    def _flush(self) -> None:
        entries, self._entries = self._entries, []
        for entry in entries:
            entry.written()
        later, self._entries = self._entries, [Told(entry) for entry in entries]
        super()._flush()
        self._entries = later


class Step:
    """One line of one call."""

    def __init__(self, driver: "Driver", kind: str, call_id: str, make: Make) -> None:
        self._driver = driver
        self._kind = kind
        self._call_id = call_id
        self._make = make

    def line(self, seq: int, prev: str) -> Line:
        return self._make(seq, prev)

    def written(self) -> None:
        self._driver.released(self._kind, self._call_id)

    def failed(self, error: OSError) -> None:
        raise error


class Driver:
    """Admits calls and ends them, some of each in a turn, without end."""

    def __init__(self, recorder: Recorder, rng: random.Random, killed_at_release: int) -> None:
        self._recorder = recorder
        self._rng = rng
        self._until_killed = killed_at_release
        self._admitted: list[str] = []
        self._ended = 0

    def released(self, kind: str, call_id: str) -> None:
        os.write(1, f"{kind} {call_id}\n".encode())
        self._until_killed -= 1
        if self._until_killed == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "admitted":
            self._admitted.append(call_id)

    async def run(self) -> None:
        while True:
            for _ in range(self._rng.randrange(8)):
                if self._recorder.open_calls < CALLS_OPEN_MAX:
                    call_id = self._recorder.next_call_id()
                    self._recorder.append(Step(self, "admitted", call_id, journals.admitted(call_id)))
            for _ in range(self._rng.randrange(8)):
                if self._admitted:
                    call_id = self._admitted.pop(self._rng.randrange(len(self._admitted)))
                    self._recorder.append(Step(self, "call", call_id, journals.call(call_id)))
            await asyncio.sleep(0)


async def main(root: str, seed: str, killed_at_release: str, recorder: str) -> None:
    rng = random.Random(int(seed))
    writer = new_writer_id(os.urandom(10))
    made = RECORDERS[recorder](
        Journal.create(pathlib.Path(root), writer=writer, segment_bytes_max=rng.randrange(1, 100_000)),
        [],
        signing.notary(writer),
        loop=asyncio.get_running_loop(),
        clock=time.time_ns,
        bytes_max=1 << 30,
        fsync="interval",
        fsync_interval_ms=5,
        on_dead=lambda error: sys.exit(str(error)),
        unwritten=lambda _kind: None,
    )
    await made.start(config_digest="sha256:0", ended=(), pid=os.getpid(), version="0", worker=0)
    await Driver(made, rng, int(killed_at_release)).run()


RECORDERS: dict[str, type[Recorder]] = {"real": Recorder, "releases_first": ReleasesFirst}

if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
