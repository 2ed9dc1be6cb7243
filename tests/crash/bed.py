"""One gateway with its store, its servers and its clients, all in processes of their own, that faults befall.

clients ──▶ gateway (supervisor, workers) ──▶ mock servers
   │             │        │                       │
   ▼             ▼        ▼                       ▼
clients.log   journal   store                backends.log       what the judge reads (tests/oracle)
"""

import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from tests.crash import census, store
from tests.crash.books import Books
from tests.crash.census import Census
from tests.crash.client import STRANGER
from tests.crash.probe import COUNTDOWN, MODE, MODES, PROBE, Cells, cells_of, map_cells
from tests.crash.store import Store
from tests.oracle.faults import Fault, Kind
from tests.support import gateway, mutants
from tests.support.gateway import ROOT, Gateway, eventually
from tests.support.powercut import PowerCut
from tests.support.processes import descendants, is_alive

MODEL = "m1"
TENANTS = ("acme", "globex", "initech")
LIMITED = {"globex": {"limits": {"requests_per_minute": 10**9, "concurrency": 100_000}}}
"""One of them asks the store before each call, and is never refused."""
RATE_CARDS = [
    {"family": "inf2", "prompt": "0.72", "cached_prompt": "0.36", "completion": "0.88", "date": "2026-01-01",
     "source": "of this test"},
    {"family": "trn1", "prompt": "0.51", "completion": "1.03", "date": "2026-01-01", "source": "of this test"},
]  # fmt: skip
SERVERS = (("inf2", "inf2.48xlarge", 10), ("trn1", "trn1.32xlarge", 10), ("inf2-b", "inf2.48xlarge", 6))
WORKERS = 2
CLIENTS = 36
CONFIG = {
    "workers": WORKERS,
    "timeouts": {
        "connect_s": 0.6, "first_event_s": 2.0, "sized_answer_s": 2.0, "between_events_s": 1.5, "total_s": 20.0,
    },
    "bounds": {"queue_wait_s": 1.0},
    "drain_s": 3,
}  # fmt: skip
SEGMENT_BYTES_MAX = 1 << 20
FSYNC_INTERVAL_MS = 50
UNSYNCED_S_MAX = {"interval": FSYNC_INTERVAL_MS / 1_000, "always": 0.0, "os": 1.0}
"""How long a written line may be without a sync, by policy; with `always` nobody has been told of it."""
TMPFS_BYTES = 64 << 20
SERVED_S = 60.0
"""For calls to be served again after a fault."""
DEATH_S = 3.0
"""For a process to come to the disk operation at which it dies."""


@dataclasses.dataclass(frozen=True)
class Options:
    """fsync: the journal's policy. mutant: a break of tests/mutants/mutations.py. program: of the store."""

    fsync: str
    program: str
    mutant: str | None = None


class Bed:
    """Made by `running`. mounted: the state directory is a small file system of its own. always_synced: each line is
    synced before anybody is told of it."""

    def __init__(
        self, front: Gateway, kept: Store, power: PowerCut, books: Books, client: "Client", probes: pathlib.Path,
        mounted: bool, options: Options,
    ) -> None:  # fmt: skip
        self.front = front
        self.store = kept
        self.power = power
        self.books = books
        self.client = client
        self.mounted = mounted
        self.always_synced = options.fsync == "always"
        self._probes = probes

    @property
    def journals(self) -> pathlib.Path:
        return self.front.state_dir / "journal"

    @property
    def pages(self) -> pathlib.Path:
        return self.front.state_dir / "pages"

    # Processes

    @property
    def supervisor(self) -> int:
        return self.front.process.pid

    def workers(self) -> list[int]:
        """Those that have begun to serve, and live."""
        return [pid for pid in self.books.pids() if is_alive(pid)]

    def wait_for_workers(self) -> list[int]:
        """Until all of them are there."""
        return eventually(
            lambda: found if len(found := self.workers()) >= WORKERS else None, within_s=SERVED_S
        )

    def everybody(self) -> list[int]:
        """The supervisor and all that it has started, and workers that a killed one has left."""
        return sorted({self.supervisor, *descendants(self.supervisor), *self.workers()})

    def cells(self, pid: int) -> Cells:
        return map_cells(cells_of(self._probes, pid))

    def arm(self, pid: int, rng: random.Random, operations: int) -> None:
        """Have a process kill itself at one of its next disk operations."""
        cells = self.cells(pid)
        cells[MODE] = rng.choice(MODES)
        cells[COUNTDOWN] = rng.randrange(1, operations + 1)

    def kill(self, pids: list[int]) -> None:
        """All at one moment: first they are stopped, then they die."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        for pid in pids:
            self.wait_for_end(pid)

    def wait_for_end(self, pid: int, within_s: float = 10.0) -> bool:
        """Until a process has ended. False: it has not."""
        if pid == self.supervisor:
            try:
                self.front.process.wait(timeout=within_s)
            except subprocess.TimeoutExpired:
                return False
            return True
        deadline_s = time.monotonic() + within_s
        while is_alive(pid) and time.monotonic() < deadline_s:
            time.sleep(0.005)
        return not is_alive(pid)

    def die_armed(self, pid: int) -> None:
        """Until it has killed itself; after a while it is helped."""
        if not self.wait_for_end(pid, DEATH_S):
            self.kill([pid])

    def hold_supervisor(self) -> None:
        """It sees nothing and does nothing until it is killed."""
        os.kill(self.supervisor, signal.SIGSTOP)

    def restart(self) -> None:
        self.front.restart()

    def census(self, pids: list[int]) -> Census:
        """Where the calls are, by what these processes say, whether they live or not, and by the logs."""
        return Census(census.states(self._probes, pids), self._outside())

    def census_of_killed(self, pids: list[int], counted: list[int]) -> Census:
        """Kill these processes, and say where the calls were. counted: of whose calls."""
        seen = self._outside()  # before their clients are cut off
        self.kill(pids)
        return Census(census.states(self._probes, counted), seen)

    def _outside(self) -> "collections.Counter[str]":
        self.books.update()
        return census.outside(self.client.asked(), self.books.backends.entries)

    def fold_elsewhere(self, journals: pathlib.Path) -> str:
        """Close and fold these journals by hand, as on another host. returns: what was wrong with that, in words."""
        words = ["ledger", "fold", str(journals), "--redis", self.store.url]
        for writer in self.books.writers():
            if not writer.closed:
                words += ["--writer-is-dead", writer.name]
        done = subprocess.run(
            [sys.executable, "-m", "gateway.cli", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        return "" if done.returncode == 0 else f"{done.returncode}: {done.stdout}{done.stderr}"

    # The load

    def wait_for_ends(self, count: int) -> bool:
        """Until so many more answers were read to their ends. False: they were not."""
        want = self.client.ended() + count
        deadline_s = time.monotonic() + SERVED_S
        while self.client.ended() < want and time.monotonic() < deadline_s:
            time.sleep(0.03)
            self._see_to_it()
        return self.client.ended() >= want

    def _see_to_it(self) -> None:
        """A gateway that has ended by itself is started again, as an init system would, and told of."""
        code = self.front.process.poll()
        if code is not None:
            self.books.found.append(Fault(Kind.REPLY, "serve", f"ended by itself with {code}"))
            self.restart()


class Client:
    """The load's process."""

    def __init__(self, process: "subprocess.Popen[str]", books: Books) -> None:
        self._process = process
        self._books = books
        self._name = ""

    def begin(self, name: str, seed: int) -> None:
        """name: begins the ids of this round's requests."""
        self._name = f"{name}-"
        self._ask(f"begin {name} {seed}")

    def finish(self) -> None:
        """Ask nothing more, and wait until all is over."""
        self._ask("finish")

    def _ask(self, command: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n", "the clients are stuck"

    def asked(self) -> list[dict[str, object]]:
        """This round's requests."""
        self._books.clients.update()
        return [entry for name, entry in self._books.clients.entries.items() if name.startswith(self._name)]

    def ended(self) -> int:
        return sum(bool(entry.get("ended")) for entry in self.asked())


@contextlib.contextmanager
def running(directory: pathlib.Path, options: Options) -> Iterator[Bed]:
    """Start everything; it is ended on leaving."""
    probes, state_dir = directory / "probes", directory / "state"
    probes.mkdir()
    with contextlib.ExitStack() as stack:
        mounted = stack.enter_context(_small_disk(state_dir))
        power = PowerCut(state_dir, directory / "synced.log")
        environment = mutants.environment(options.mutant or "") | power.environment | {PROBE: str(probes)}
        # A unix socket's path must be short.
        sockets = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crash-")))
        kept = stack.enter_context(store.running(options.program, sockets))
        backends_log, clients_log = directory / "backends.log", directory / "clients.log"
        ports = json.loads(stack.enter_context(_process("backend", backends_log, len(SERVERS)))[1])
        backends = [
            {"name": name, "url": f"http://127.0.0.1:{port}", "model": MODEL, "slots": slots, "instance_type": kind,
             "max_model_len": 4096}
            for port, (name, kind, slots) in zip(ports, SERVERS, strict=True)
        ]  # fmt: skip
        journal = {
            "fsync": options.fsync,
            "fsync_interval_ms": FSYNC_INTERVAL_MS,
            "segment_bytes_max": SEGMENT_BYTES_MAX,
        }
        front = stack.enter_context(
            gateway.running(
                directory, backends, model=MODEL, tenants=TENANTS, of_tenants=LIMITED, rate_cards=RATE_CARDS,
                env=environment,
                journal=journal, redis={"url": kept.url}, **CONFIG,
            )
        )  # fmt: skip
        target = {"port": front.port, "model": MODEL, "keys": front.keys | {STRANGER: gateway.new_key()[0]}}
        books = Books(front, kept.url, clients_log, backends_log, UNSYNCED_S_MAX[options.fsync])
        process, _ = stack.enter_context(_process("client", json.dumps(target), clients_log, CLIENTS))
        bed = Bed(front, kept, power, books, Client(process, books), probes, mounted, options)
        stack.callback(_end_orphans, bed)
        with books.watching():
            yield bed


@contextlib.contextmanager
def _process(module: str, *words: object) -> Iterator["tuple[subprocess.Popen[str], str]"]:
    """A part of this package as a process, and the first line it says, if it says one by itself."""
    for word in words:
        if isinstance(word, pathlib.Path):
            word.touch()
    command = [sys.executable, "-m", f"tests.crash.{module}", *map(str, words)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline() if module == "backend" else ""
        finally:
            process.kill()


@contextlib.contextmanager
def _small_disk(path: pathlib.Path) -> Iterator[bool]:
    """A small file system at `path`, where this user may mount one; False: it is a directory as any other."""
    path.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES},mode=0755", "tmpfs", str(path)]
    try:
        mounted = subprocess.run(words, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=True)


def _end_orphans(bed: Bed) -> None:
    """Workers that a killed supervisor has left end by themselves, and this does not wait for it."""
    for pid in bed.workers():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
