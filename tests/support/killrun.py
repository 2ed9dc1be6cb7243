"""A gateway before two simulated servers, under load, whose processes are killed with -9; and what is left of it.

A round:  load ─▶ calls have ended, and enough streams are midway and before their commit point ─▶ kill ─▶
          calls are served again ─▶ the load ends ─▶ the books are settled: journal closed, store equal to it
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

from backends.simulator.settings import Settings
from tests.oracle import join, journal, ledger
from tests.oracle.faults import Fault
from tests.oracle.journal import Writer
from tests.oracle.resp import Connection
from tests.support import gateway, mutants, simulator
from tests.support.gateway import Gateway, eventually
from tests.support.scraper import Scraper
from tests.support.streamload import Entry, Load, Target

T = TypeVar("T")
Victim = Literal["worker", "supervisor", "all"]

OURS = "KILL_TEST_RUN"
"""Names a run in the environment of all its processes."""

MODEL = "llama-2-70b"
SLOTS = 96
CLIENTS = 120
TENANTS = ("acme", "globex")
# Times that hardly depend on the load: first token in 0.2 to 0.9 s, then ten tokens a second.
FLEET = (
    Settings(instance_type="trn1.32xlarge", model=MODEL, slots=SLOTS, max_model_len=2048, time_scale=4.0),
    Settings(instance_type="inf2.48xlarge", model=MODEL, slots=SLOTS, max_model_len=2048, time_scale=7.0),
)
RATE_CARDS = [
    {"family": "inf2", "prompt": "0.72", "cached_prompt": "0.36", "completion": "0.88", "date": "2026-01-01",
     "source": "of this test"},
]  # fmt: skip

ENDS_BEFORE_MIN = 30
MIDWAY_MIN = 30
UNCOMMITTED_MIN = 5
EVENTS_MORE_MAX = 200
"""The kill comes a seeded number of events after the round is ripe."""
ENDS_AFTER_MIN = 20
SETTLE_S = 30.0
WAIT_S = 120.0
"""For the load to bring about what a round waits for."""


@dataclasses.dataclass(frozen=True)
class Round:
    """What a kill met and what came of it. midway, uncommitted: streams of the victim (of all workers, unless it was
    one of them); faults: what was still wrong when the books had had time to settle."""

    victim: Victim
    midway: int
    uncommitted: int
    lost: int
    settled_s: float
    faults: list[Fault]


@dataclasses.dataclass(frozen=True)
class _Streams:
    """Processes that could be killed, and the streams that hang on them."""

    pids: tuple[int, ...]
    midway: int
    uncommitted: int

    @property
    def enough(self) -> bool:
        return self.midway >= MIDWAY_MIN and self.uncommitted >= UNCOMMITTED_MIN


class KillRun:
    """The processes of one run. Made by `running`."""

    def __init__(self, front: Gateway, servers: list[simulator.Running], seed: int) -> None:
        self.front = front
        self.seed = seed
        self.rounds: list[Round] = []
        self.clients: list[Entry] = []
        self.scraper = Scraper(front.port, front.keys[TENANTS[0]])
        self._servers = servers
        self._rng = random.Random(seed)
        self._closed: dict[str, Writer] = {}

    # One round

    def round(self, victim: Victim, *, settle_s: float = SETTLE_S) -> Round:
        """Kill one process under load, and see whether everything comes right again within `settle_s`."""
        target = Target(self.front.port, self.front.keys, MODEL)
        load = Load(target, CLIENTS, self.seed, f"r{len(self.rounds) + 1}")
        seen = [len(server.log()) for server in self._servers]
        lost_before = self._lost()
        self._arm("die", after_events=5)
        self._arm("error_500")
        load.start()
        try:
            _until(lambda: _ends(load.entries) >= ENDS_BEFORE_MIN)
            self._arm("slow_head", times=6, delay_ms=1_500)
            streams = self._ripe(load, victim, seen)
            for pid in streams.pids:
                os.kill(pid, signal.SIGKILL)
            asked = len(load.entries)
            if victim != "worker":
                self.front.process.wait(timeout=10)
                self.front.restart()
            _until(lambda: _ends(load.entries[asked:]) >= ENDS_AFTER_MIN)
        finally:
            load.finish()
        self.clients += load.entries
        began_s = time.monotonic()
        faults = self._settle(began_s + settle_s)
        settled_s, lost = time.monotonic() - began_s, self._lost() - lost_before
        self.rounds.append(Round(victim, streams.midway, streams.uncommitted, lost, settled_s, faults))
        return self.rounds[-1]

    def _arm(self, kind: str, **fields: int) -> None:
        for server in self._servers:
            server.arm(kind, **fields)

    def _ripe(self, load: Load, victim: Victim, seen: list[int]) -> _Streams:
        """Wait until enough streams hang on the victim, and then for some events more. seen: entries of each
        backend's log that are of earlier rounds."""

        def check() -> _Streams | None:
            streams = self._streams(load, victim, seen)
            return streams if streams.enough else None

        _until(check)
        events = load.events + self._rng.randrange(EVENTS_MORE_MAX)
        _until(lambda: load.events >= events)
        return _until(check)

    def _streams(self, load: Load, victim: Victim, seen: list[int]) -> _Streams:
        """Of the worker that has most, or of all."""
        asked = {entry.request_id: entry for entry in tuple(load.entries)}
        silent = {
            entry["request_id"]
            for server, before in zip(self._servers, seen, strict=True)
            for entry in server.log(before + 1)
            if entry["outcome"] == "open" and entry["events"] == 0
        }
        workers = [_Streams((), 0, 0)]
        for writer in self._writers():
            if writer.closed or not writer.lines:
                continue
            midway = sum(entry.midway and entry.writer == writer.name for entry in asked.values())
            admitted = {line["request_id"] for line in writer.of("admitted") if line["stream"]}
            workers.append(_Streams((writer.lines[0]["pid"],), midway, len(admitted & silent & asked.keys())))
        if victim == "worker":
            return max(workers, key=lambda one: one.midway)
        pids = [self.front.process.pid]
        if victim == "all":
            pids += [pid for one in workers for pid in one.pids]
        return _Streams(
            tuple(pids), sum(one.midway for one in workers), sum(one.uncommitted for one in workers)
        )

    # The books

    def _settle(self, deadline_s: float) -> list[Fault]:
        """Wait until nothing is wrong. returns: what still is at the deadline."""
        while True:
            faults = self._faults()
            if not faults or time.monotonic() > deadline_s:
                return faults
            time.sleep(0.1)

    def _faults(self) -> list[Fault]:
        """What is wrong now, with a gateway that runs and has no call."""
        clients, writers = [dataclasses.asdict(entry) for entry in self.clients], self._writers()
        faults = [fault for writer in writers for fault in writer.faults]
        faults += join.check(clients, self._backends(), writers)
        return faults + ledger.check(ledger.recompute(writers), self._store())

    def _writers(self) -> list[Writer]:
        """All journals as they are; what is closed is read once."""
        names = [path.name for path in journal.directories(self.front.state_dir / "journal")]
        found = [
            self._closed.get(name) or journal.read_one(self.front.state_dir / "journal" / name)
            for name in names
        ]
        self._closed |= {writer.name: writer for writer in found if writer.closed}
        return found

    def _lost(self) -> int:
        return sum(call["outcome"] == "lost" for call in journal.calls(self._writers()))

    def _store(self) -> ledger.Ledger:
        """What the embedded store holds."""
        with Connection((self.front.state_dir / "store" / "url").read_text().strip()) as store:
            return ledger.read(store)

    def _backends(self) -> list[dict[str, Any]]:
        return [entry for server in self._servers for entry in server.log()]

    def warnings(self) -> list[str]:
        """What the gateway's log holds above `info`: to be shown with a failure."""
        return [line for line in self.front.log.read_text().splitlines() if '"level":"info"' not in line]

    def keep(self, evidence: pathlib.Path) -> None:
        """Take the last scrape, end the gateway, and put everything into a directory (tests/oracle/evidence.py)."""
        self.scraper.stop()
        evidence.mkdir()
        status, text = self.front.get("/metrics", self.front.keys[TENANTS[0]])
        assert status == 200
        self.scraper.watch.look(text.decode())
        (evidence / "metrics.txt").write_bytes(text)
        (evidence / "ledger.json").write_text(json.dumps(dataclasses.asdict(self._store())))
        (evidence / "clients.jsonl").write_text(
            _json_lines([dataclasses.asdict(entry) for entry in self.clients])
        )
        (evidence / "backends.jsonl").write_text(_json_lines(self._backends()))
        assert self.front.stop() == 0
        shutil.copytree(self.front.state_dir / "journal", evidence / "journal")


def _ends(entries: list[Entry]) -> int:
    return sum(entry.ended for entry in entries)


def _until(check: Callable[[], T]) -> T:
    return eventually(check, within_s=WAIT_S, every_s=0.05)


def _json_lines(entries: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(entry) + "\n" for entry in entries)


@contextlib.contextmanager
def running(directory: pathlib.Path, seed: int, mutant: str | None = None) -> Iterator[KillRun]:
    """Start everything; it is ended on leaving. mutant: a break of tests/mutants/mutations.py."""
    env = {OURS: str(directory)}
    if mutant is not None:
        env |= mutants.environment(mutant)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(simulator.running(settings)) for settings in FLEET]
        backends = [
            {"name": settings.instance_type.partition(".")[0], "url": server.url, "model": MODEL, "slots": SLOTS,
             "instance_type": settings.instance_type, "max_model_len": 2048}
            for settings, server in zip(FLEET, servers, strict=True)
        ]  # fmt: skip
        stack.callback(_end_orphans, directory)
        front = stack.enter_context(
            gateway.running(
                directory, backends, model=MODEL, tenants=TENANTS, rate_cards=RATE_CARDS, workers=2, env=env
            )
        )
        run = KillRun(front, servers, seed)
        run.scraper.start()
        stack.callback(run.scraper.stop)
        yield run


def _end_orphans(directory: pathlib.Path) -> None:
    """Workers whose supervisor was killed end by themselves, but not before their last answer: end them now."""
    mark = f"{OURS}={directory}".encode()
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if mark in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)
