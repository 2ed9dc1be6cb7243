"""A gateway under a steady load whose store forgets: all of it, one tenant of it, or what it learned lately.

    an earlier run, cleanly ended ─▶ load ─▶ a worker killed with -9 ─▶ copies of the tenants' keys ─▶
    FLUSHALL, three times ─▶ the load ends ─▶ store and journals equal

All the while a watcher compares: no sum in the store is ever above what the journals say.
"""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import threading
import time
from collections.abc import Iterator

from tests.oracle import journal, ledger
from tests.oracle.faults import Fault
from tests.oracle.journal import Writer
from tests.oracle.ledger import Ledger
from tests.oracle.resp import Connection
from tests.support import gateway, mutants
from tests.support.gateway import Gateway, eventually
from tests.support.journaltail import JournalTail
from tests.support.rawbackend import Asked, Scripted, chunked, sized
from tests.support.streamload import Load, Target
from tests.support.valkey import Valkey

MODEL = "m1"
TENANTS = ("acme", "globex", "initech")
RATE_CARDS = [
    {"family": "inf2", "prompt": "0.72", "cached_prompt": "0.36", "completion": "0.88", "date": "2026-01-01",
     "source": "of this test"},
]  # fmt: skip
CLIENTS = 40
THINK_S = 0.03
"""The backend's, between a stream's first event and the rest: so that calls are under way at each moment."""
CALLS_PER_S_MIN = 200
IN_FLIGHT_MIN = 5
EARLIER_CALLS = 8
"""Of each tenant, in the run before."""
STEADY_S = 30.0
WATCH_S = 0.1
POLL_S = 0.05


@dataclasses.dataclass(frozen=True)
class Above:
    """A sum that the store had and the journals, read after it, had not."""

    name: str
    store: int
    journals: int


class Watcher:
    """Compares store and journals ten times a second, from a thread. looks: how often it did."""

    def __init__(self, journals: pathlib.Path, store_url: str) -> None:
        self.above: list[Above] = []
        self.looks = 0
        self._tail = JournalTail(journals)
        self._store_url = store_url
        self._stopping = threading.Event()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """On leaving it raises what ended the watching before its time."""
        with concurrent.futures.ThreadPoolExecutor(1, "watcher") as pool:
            watched = pool.submit(self._watch)
            try:
                yield
            finally:
                self._stopping.set()
            watched.result()

    def _watch(self) -> None:
        with Connection(self._store_url) as store:
            while not self._stopping.wait(WATCH_S):
                self._look(store)

    def _look(self, store: Connection) -> None:
        held = ledger.read(store).balances  # first: what comes after it is in the journals only
        self._tail.update()
        journalled = self._tail.ledger.balances
        self.above += [
            Above(name, value, journalled.get(name, 0))
            for name, value in held.items()
            if value > journalled.get(name, 0)
        ]
        self.looks += 1


class FlushRun:
    """Made by `running`.

    earlier: writers of the earlier run; killed: those of the workers that were killed.
    in_flight: calls under way at each FLUSHALL; calls_per_s: whole answers by the clients' log, from the first
    FLUSHALL to the end of the load.
    """

    def __init__(self, front: Gateway, store_url: str) -> None:
        self.front = front
        self.earlier: list[str] = []
        self.killed: list[str] = []
        self.in_flight: list[int] = []
        self.calls_per_s = 0.0
        self.watcher = Watcher(front.state_dir / "journal", store_url)
        self._store_url = store_url
        self._journals = front.state_dir / "journal"
        self._tail = JournalTail(self._journals)
        self._load = Load(Target(front.port, front.keys, MODEL), CLIENTS, seed=1, name="flush")
        self._since: tuple[float, int] | None = None
        self._at_flush = Ledger({}, {})

    # The load

    @contextlib.contextmanager
    def load(self) -> Iterator[None]:
        """Clients that ask one call after another."""
        self._load.start()
        try:
            yield
            if self._since is not None:
                self.calls_per_s = self._rate(*self._since)
        finally:
            self._load.finish()

    def steady(self) -> None:
        """Wait for a second with CALLS_PER_S_MIN; it ends now."""
        deadline_s, rate = time.monotonic() + STEADY_S, 0.0
        while rate < CALLS_PER_S_MIN:
            assert time.monotonic() < deadline_s, f"{rate:.0f} calls/s"
            began = self._now()
            eventually(lambda since_s=began[0]: time.monotonic() >= since_s + 1.0, every_s=POLL_S)
            rate = self._rate(*began)

    def _now(self) -> tuple[float, int]:
        return time.monotonic(), sum(entry.ended for entry in self._load.entries)

    def _rate(self, since_s: float, ended: int) -> float:
        now_s, now_ended = self._now()
        return (now_ended - ended) / (now_s - since_s)

    # What is done to the gateway and its store

    def earlier_run(self) -> None:
        """Some calls of every tenant and a clean end; then a start in the same state directory."""
        for tenant in TENANTS * EARLIER_CALLS:
            self.call(tenant)
        assert self.front.stop() == 0
        self.earlier = [path.name for path in journal.directories(self._journals)]
        self.front.restart()
        self.front.wait_ready()

    def call(self, tenant: str) -> None:
        """One call on a connection of its own, answered whole."""
        answer = self.front.post("/v1/completions", {"model": MODEL, "prompt": "one load"}, tenant=tenant)
        body = answer.read()
        answer.close()
        assert answer.status == 200, body

    def kill_a_worker(self) -> None:
        """With -9, and wait until another has taken its place."""
        victim = next(writer for writer in self.writers() if not writer.closed)
        os.kill(victim.lines[0]["pid"], signal.SIGKILL)
        self.killed.append(victim.name)
        before = set(journal.directories(self._journals))
        eventually(lambda: set(journal.directories(self._journals)) - before)

    def flush_all(self) -> None:
        """Make the store forget everything."""
        self._since = self._since or self._now()
        self._tail.update()
        with Valkey(self._store_url) as store:
            assert store.ask("DBSIZE") > 0
            self.in_flight.append(eventually(self._many_in_flight, every_s=0.001))
            self._at_flush = self._tail.ledger
            assert store.ask("FLUSHALL") == "OK"

    def _many_in_flight(self) -> int | None:
        """How many calls are under way, if they are enough for the store to forget in the midst of them."""
        count = sum(not entry.over for entry in self._load.entries)
        return count if count >= IN_FLIGHT_MIN else None

    def refilling(self) -> None:
        """Wait until the store has something again."""
        with Valkey(self._store_url) as store:
            eventually(lambda: store.ask("DBSIZE"), every_s=0.001)

    def caught_up(self, within_s: float) -> float:
        """Wait until all that was in the journals before the last FLUSHALL is in the store again. returns: seconds."""
        began_s = time.monotonic()
        want = self._at_flush.balances
        with Connection(self._store_url) as store:
            eventually(
                lambda: (have := ledger.read(store).balances) and all(have.get(name, 0) >= want[name] for name in want),
                within_s=within_s, every_s=POLL_S,
            )  # fmt: skip
        return time.monotonic() - began_s

    def copy(self, tenant: str) -> dict[str, bytes]:
        """All keys of a tenant with their contents, of one moment."""
        with Valkey(self._store_url) as store:
            keys = store.ask("KEYS", f"wb:1:{{{tenant}}}:*")
            store.ask("MULTI")
            for key in keys:
                store.ask("DUMP", key)
            found = dict(zip(keys, store.ask("EXEC", raw=True), strict=True))
        assert None not in found.values()
        return found

    def restore(self, tenant: str, copy: dict[str, bytes]) -> None:
        """Put a tenant's keys back to what they were; with an empty copy they are deleted."""
        with Valkey(self._store_url) as store:
            now = store.ask("KEYS", f"wb:1:{{{tenant}}}:*")
            store.ask("MULTI")
            store.ask("DEL", *now)
            for key, data in copy.items():
                store.ask("RESTORE", key, "0", data)
            store.ask("EXEC")

    # The books

    def writers(self) -> list[Writer]:
        """All writers' directories, read from their beginnings, the chains checked."""
        return journal.read(self._journals)

    def differences(self) -> list[Fault]:
        """Sums and marks in the store that are not those of the journals, now."""
        self._tail.update()
        with Connection(self._store_url) as store:
            return ledger.check(self._tail.ledger, ledger.read(store))

    def settled(self, within_s: float) -> tuple[float, list[Fault]]:
        """Wait until nothing differs. returns: seconds, and what still does."""
        began_s = time.monotonic()
        while (faults := self.differences()) and time.monotonic() < began_s + within_s:
            time.sleep(POLL_S)
        return time.monotonic() - began_s, faults

    def audit(self) -> list[Fault]:
        """What is wrong with the journals, and with the store by them; with no call under way."""
        writers = self.writers()
        with Connection(self._store_url) as store:
            held = ledger.read(store)
        return [fault for writer in writers for fault in writer.faults] + ledger.check(
            ledger.recompute(writers), held
        )


@contextlib.contextmanager
def running(
    directory: pathlib.Path, *, redis_url: str | None = None, mutant: str | None = None
) -> Iterator[FlushRun]:
    """Two workers that have an earlier run's directories beside their own, watched. Ended on leaving.

    redis_url: a unix socket; None: the embedded store. mutant: a break of tests/mutants/mutations.py.
    """
    more: dict[str, object] = {"redis": {"url": redis_url}} if redis_url else {}
    env = mutants.environment(mutant) if mutant else {}
    with contextlib.ExitStack() as stack:
        server = Scripted(_answer)
        stack.callback(server.stop)
        backend = {
            "name": "inf2", "url": f"http://127.0.0.1:{server.port}", "model": MODEL, "slots": 128,
            "instance_type": "inf2.48xlarge", "max_model_len": 4096,
        }  # fmt: skip
        front = stack.enter_context(
            gateway.running(
                directory,
                [backend],
                model=MODEL,
                tenants=TENANTS,
                rate_cards=RATE_CARDS,
                workers=2,
                env=env,
                **more,
            )
        )
        url = redis_url or (front.state_dir / "store" / "url").read_text().strip()
        run = FlushRun(front, url)
        run.earlier_run()
        stack.enter_context(run.watcher.watching())
        yield run


async def _answer(asked: Asked, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """What was asked for, with counts that depend on it; a stream stops to think."""
    ask = json.loads(asked.body)
    chat = asked.path == "/v1/chat/completions"
    prompt, completion = len(asked.body) // 4, ask.get("max_tokens", 16)
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": prompt // 3},
    }
    kind = "chat.completion" if chat else "text_completion"
    common = {"id": "c1", "object": kind, "model": MODEL}
    if not ask.get("stream"):
        told = {"message": {"role": "assistant", "content": "hello"}} if chat else {"text": "hello"}
        choice = {"index": 0, "finish_reason": "stop", **told}
        writer.write(sized(json.dumps({**common, "choices": [choice], "usage": usage}).encode()))
        return
    first = {"delta": {"role": "assistant", "content": ""}} if chat else {"text": "hel"}
    last = {"delta": {"content": "hello"}} if chat else {"text": "lo"}
    events = [
        {**common, "choices": [{"index": 0, "finish_reason": None, **first}]},
        {**common, "choices": [{"index": 0, "finish_reason": "stop", **last}]},
        {**common, "choices": [], "usage": usage},
    ]
    pieces = [b"data: %b\n\n" % json.dumps(event).encode() for event in events]
    answer = chunked(*pieces, b"data: [DONE]\n\n")
    think_at = answer.index(pieces[0]) + len(pieces[0]) + len(b"\r\n")
    writer.write(answer[:think_at])
    await asyncio.sleep(THINK_S)
    writer.write(answer[think_at:])
