"""What keeping the books costs a call: record, journal, chain, checkpoint and fold, in CPU µs.

    python -m tests.bench.books                 a minute; prints one line of JSON

A worker's books as its composition root builds them (journal on a real disk, page, shipper with a store that
takes everything at once), and calls that do nothing else: `admitted`, then the record, each released by the journal.
All CPU of the process counts, the threads that sync and the kernel's part of every write as well; what an empty
loop of the same turns costs is taken off. The budget is 14 µs a call, the goal 12.
"""

import asyncio
import gc
import importlib.metadata
import json
import os
import pathlib
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence

import uvloop
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.processes.worker import GC_THRESHOLDS
from metering.audit.checkpoint import Signer
from metering.audit.notary import Notary, SigningKey
from metering.journal import journal as journals
from metering.journal.journal import Journal
from metering.journal.recorder import Recorder
from metering.ledger.epochs import Meta, Writer
from metering.ledger.ledger import Batch, Mark, Posted, Reply
from metering.ledger.shipper import Shipper
from metering.pages.pages import Page
from metering.record import LeftOut, Line, Params, Plan, PriceBasis
from tests.bench.cache import CACHE
from tests.support import lines

CALLS = 20_000
REPETITIONS = 5
AT_ONCE = (1, 16)
"""Calls whose lines are in one turn of the loop: of a quiet worker, and of a busy one."""
MUST_US, GOAL_US = 14.0, 12.0


PLAN = Plan(able=("inf2-a", "inf2-b"), left_out=(LeftOut(backend="gpu-a", reason="tier"),))
BASIS = PriceBasis(kind="card", prompt_pusd_per_mtok=294_100_000_000, date="2026-07-20", source="card")


class _Store:
    """Takes what it is sent. The real one is another process, whose time the benchmark shows apart."""

    connections = 1

    async def ping(self) -> None: ...

    async def eviction(self) -> str:
        return "noeviction"

    async def epoch(self) -> str:
        return "bench"

    async def metas(self, tenants: Iterable[str]) -> dict[str, Meta]:
        return {tenant: Meta(epoch="bench", floor="", ready="") for tenant in tenants}

    async def put_writers(self, writers: Mapping[str, Writer]) -> None: ...

    async def marks(self, asked: dict[str, Sequence[str]]) -> dict[tuple[str, str], Mark]:
        return {}

    async def post(self, batches: Sequence[Batch]) -> list[Reply]:
        return [Posted()] * len(batches)


def _admitted(call_id: str) -> dict[str, object]:
    return {
        "call_id": call_id, "request_id": f"req-{call_id}", "key_id": "063577946914", "project": "search",
        "tags": {"cost-center": "cc-1001", "owner": "search"}, "params": Params(max_tokens=256), "body_bytes": 568,
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    }  # fmt: skip


class _Call:
    """One call as the journal sees it: two entries, the second once the first is written."""

    def __init__(self, recorder: Recorder, done: "asyncio.Semaphore") -> None:
        self._recorder = recorder
        self._done = done
        self._id = recorder.next_call_id()
        self._admitted = False

    def line(self, seq: int, prev: str) -> Line:
        now_ns = time.time_ns()
        fields = _admitted(self._id) | {"at_ns": now_ns, "received_ns": now_ns, "admitted_ns": now_ns}
        if not self._admitted:
            return lines.admitted(seq, prev, **fields)
        return lines.call(
            seq, prev, finished_ns=now_ns, dispatched_ns=now_ns, backend_ended_ns=now_ns, plan=PLAN,
            price_basis=BASIS, rate_card="llama-3.1-8b/inf2@2026-07-20", identity_digest="sha256:" + "0" * 64,
            status=200, slots=96, slot_ns=1_000_000, response_bytes=700, tier=0, warm_state="warm",
            finish_reasons=("stop",), **fields,
        )  # fmt: skip

    def written(self) -> None:
        if self._admitted:
            self._done.release()
            return
        self._admitted = True
        self._recorder.append(self)

    def failed(self, error: OSError) -> None:
        raise error


def main() -> int:
    if os.stat(CACHE.parent).st_dev == os.stat("/dev/shm").st_dev:
        raise SystemExit("the journal must be on a real disk")
    CACHE.mkdir(exist_ok=True)
    gc.collect()  # as a worker's entry sets the collector
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    found = {}
    for at_once in AT_ONCE:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            figures = [runner.run(_measure(at_once)) for _ in range(REPETITIONS)]
        found[f"{at_once} in a turn"] = round(statistics.median(figures), 2)
    print(json.dumps({
        "books_us": found, "must_us": MUST_US, "goal_us": GOAL_US, "calls": CALLS, "repetitions": REPETITIONS,
        "version": importlib.metadata.version("weighbridge"),
    }))  # fmt: skip
    return 0


async def _measure(at_once: int) -> float:
    with tempfile.TemporaryDirectory(dir=CACHE) as directory:
        root = pathlib.Path(directory)
        loop = asyncio.get_running_loop()
        journal = Journal.create(
            root / "journal",
            writer=journals.new_writer_id(secrets.token_bytes(10)),
            segment_bytes_max=64 * 2**20,
        )
        page = Page(root / "pages", journal.writer, on_stuck=_fail)
        shipper = Shipper(_Store(), journals.Directory(journal.path), host="bench", on_behind=lambda: None)
        recorder = Recorder(
            journal,
            (page, shipper),
            Notary(journal.writer, SigningKey(Signer("bench", Ed25519PrivateKey.generate()), 0)),
            loop=loop, clock=time.time_ns, bytes_max=2**40, fsync="interval", fsync_interval_ms=50,
            on_dead=_fail, unwritten=print,
        )  # fmt: skip
        await recorder.start(
            config_digest="sha256:0", ended=(), pid=os.getpid(), version="bench", worker=0, behind=[]
        )
        recorder.on_synced(shipper.synced)
        async with shipper:
            done = asyncio.Semaphore(0)
            await _turns(recorder, done, at_once, CALLS // 10)  # warm
            began_ns = time.process_time_ns()
            await _turns(recorder, done, at_once, CALLS)
            took_ns = time.process_time_ns() - began_ns
        await recorder.stop()
        page.close()
        began_ns = time.process_time_ns()
        await _empty(at_once, CALLS)
        return (took_ns - (time.process_time_ns() - began_ns)) / CALLS / 1_000


async def _turns(recorder: Recorder, done: asyncio.Semaphore, at_once: int, calls: int) -> None:
    for _ in range(calls // at_once):
        for _ in range(at_once):
            recorder.append(_Call(recorder, done))
        for _ in range(at_once):
            await done.acquire()


async def _empty(at_once: int, calls: int) -> None:
    """The same turns of the loop, and the same lines made, with nobody who writes them."""
    loop, done = asyncio.get_running_loop(), asyncio.Semaphore(0)

    class Nobody:
        def next_call_id(self) -> str:
            return "wdh6k5o6ff6krzzbp-1"

        def append(self, call: _Call) -> None:
            call.line(1, "0" * 64)
            loop.call_soon(call.written)

    await _turns(Nobody(), done, at_once, calls)  # type: ignore[arg-type]


def _fail(error: OSError) -> None:
    raise error


if __name__ == "__main__":
    raise SystemExit(main())
