"""Field reports on what blocks the loop, or grows: others must not feel it, and nothing is lost in silence."""

import asyncio
import collections
import contextlib
import csv
import http.client
import io
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support import journals, mutants, processes, writers
from tests.support.bystander import EVERY_S, Bystander, Seen, percentile
from tests.support.gateway import ROOT, eventually
from tests.support.opened import Opened
from tests.support.rawbackend import Asked, sized
from tests.support.rawclient import RawClient
from tests.support.stage import (
    ANSWER,
    CHAT,
    LATE_S,
    PROMPT_PUSD,
    ROLE,
    RS,
    SIZED,
    R,
    Stage,
    backend,
    content,
    cut,
    model,
    opening,
    staged,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

GAP_S_MAX = 0.25
GAP_S_P99_MAX = 0.1
HEALTHZ_S_MAX = 0.1
ROUNDS_MAX = 4
"""The machine of a test is shared: what blocks the loop does so in each round, a neighbour does not."""
BESIDE_S = 3.0
"""How long the bystander watches at least, so that it has seen enough for a percentile."""


@pytest.fixture(scope="module")
def bystander() -> Iterator[Bystander]:
    made = Bystander()
    yield made
    made.close()


@pytest.fixture(scope="module")
def setting(bystander: Bystander) -> dict:
    return {
        "more_models": (model("m-other", "other"),),
        "more_backends": (backend("other", bystander.port, instance_type="inf2.48xlarge"),),
        "slots": 64,
        "tenants": ("acme", "globex"),
    }


def check_undisturbed(stage: Stage, bystander: Bystander, work: Callable[[], None]) -> None:
    """Do this beside a bystander of another tenant; in one of a few rounds it must not have noticed."""
    seen: list[Seen] = []
    for _ in range(ROUNDS_MAX):
        key = stage.gateway.keys["globex"]
        with bystander.watching(stage.gateway.port, key, "m-other", seen):
            until_s = time.monotonic() + BESIDE_S
            work()
            while time.monotonic() < until_s:
                stage.post(R)
        gaps_s, probes_s, late_s = seen[-1].gaps_s, seen[-1].probes_s, seen[-1].late_s
        if (
            max(gaps_s) < GAP_S_MAX + max(late_s)
            and percentile(gaps_s, 99) < GAP_S_P99_MAX + percentile(late_s, 99)
            and percentile(probes_s, 99) < HEALTHZ_S_MAX + percentile(late_s, 99)
        ):
            return
    longest = [(max(one.gaps_s), max(one.probes_s), max(one.late_s)) for one in seen]
    pytest.fail(f"longest gap, probe and lateness of the bystander in s, round by round: {longest}")


# -- BR-106

TEXT_BYTES = 5 * 1024 * 1024
LENGTH = 4096
"""What the scripted backends say they can hold, in tokens."""


@pytest.mark.parametrize("event_bytes", [64, 4096, 1024 * 1024])
def test_br_106_counting_a_long_stream_holds_up_nobody(
    stage: Stage, bystander: Bystander, event_bytes: int
) -> None:
    events = TEXT_BYTES // max(event_bytes, 256)
    parts = [b"".join([content("x" * event_bytes)] * (events // 20 or 1))] * min(20, events)
    count = sum(part.count(b"data: ") for part in parts)

    def work() -> None:
        stage.b1.default = cut(opening(ROLE, *parts))
        reply = stage.post(RS)
        record = stage.record(reply.call_id)
        usage = record["usage"]
        assert (record["outcome"], usage["source"]) == ("backend_failed", "counted")
        assert usage["completion_tokens"] == count

    check_undisturbed(stage, bystander, work)


@pytest.mark.parametrize("escaped", [False, True])
def test_br_106_nor_does_a_long_prompt(stage: Stage, bystander: Bystander, escaped: bool) -> None:
    words = "wörd " * (TEXT_BYTES // 6)
    ask = R | {"messages": [{"role": "user", "content": words}]}
    body = json.dumps(ask, ensure_ascii=escaped).encode()
    without_usage = {name: value for name, value in ANSWER.items() if name != "usage"}

    def work() -> None:
        stage.b1.default = sized(json.dumps(without_usage).encode())
        reply = stage.post(body)
        assert reply.status == 200
        record = stage.record(reply.call_id)
        assert record["usage"]["source"] == "estimated"
        assert record["usage"]["prompt_tokens"] == LENGTH  # it cannot have been more
        assert record["cost_pusd"] > LENGTH * PROMPT_PUSD

    check_undisturbed(stage, bystander, work)


def test_br_106_nor_does_a_long_answer(stage: Stage, bystander: Bystander) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "wörd " * (TEXT_BYTES // 12)}}
    body = json.dumps({"id": "c1", "choices": [choice]}).encode()

    def work() -> None:
        stage.b1.default = sized(body)
        reply = stage.post(R)
        assert (reply.status, len(reply.body)) == (200, len(body))
        assert stage.record(reply.call_id)["usage"]["source"] == "estimated"

    check_undisturbed(stage, bystander, work)


# -- BR-107

CALLS = 4_000
"""`make soak` makes more of them."""
CLIENTS = 16
PROMPT = "w" * 50_000
GROWTH_BYTES_MAX = 10 * 1024 * 1024


async def ask_many(stage: Stage, count: int) -> collections.Counter[int]:
    """Calls of four kinds in turn: answered, failed by the backend, left by the client, refused by the backend."""
    seen: collections.Counter[int] = collections.Counter()
    numbers = iter(range(count))  # shared: each client takes the next
    body = R | {"messages": [{"role": "user", "content": PROMPT}]}
    key, port = stage.gateway.keys["acme"], stage.gateway.port

    async def client() -> None:
        connection = RawClient(port, key)
        for number in numbers:
            kind = ("ok", "fails", "hangs", "busy")[number % 4]
            if kind == "hangs":
                with Opened(port, key, body, x_request_id=kind):
                    await asyncio.sleep(0.01)
                seen[0] += 1
            else:
                seen[(await connection.post(CHAT, body, x_request_id=kind)).status] += 1
        await connection.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(client())
    return seen


def sockets(stage: Stage) -> int:
    """How many sockets the gateway's processes hold."""
    found = 0
    for pid in processes.descendants(stage.gateway.process.pid):
        with contextlib.suppress(OSError):
            for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found += os.readlink(link).startswith("socket:")
    return found


def test_br_107_memory_does_not_grow_with_calls(stage: Stage) -> None:
    async def answer(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match asked.headers["x-request-id"]:
            case "ok":
                writer.write(SIZED)
            case "fails":
                writer.write(sized(b"boom", "500 Internal Server Error", "text/plain"))
            case "hangs":
                await reader.read()
            case "busy":
                raw = sized(b"{}", "429 Too Many Requests")
                writer.write(raw.replace(b"\r\n\r\n", b"\r\nretry-after: 0\r\n\r\n", 1))

    stage.b1.default = answer
    at_rest = sockets(stage)
    asyncio.run(ask_many(stage, CALLS // 4))
    before = stage.rss_bytes()
    seen = asyncio.run(ask_many(stage, CALLS * 3 // 4))
    assert stage.rss_bytes() - before < GROWTH_BYTES_MAX
    each = CALLS * 3 // 16
    assert seen == {200: each, 502: each, 0: each, 429: each}
    stage.b1.asked.clear()
    eventually(lambda: stage.in_flight("b1") == 0)
    eventually(lambda: sockets(stage) <= at_rest + 2, within_s=10)  # idle connections to backends: 4 s


# -- BR-109

HOURS = 20_000
HOUR_NS = 3_600_000_000_000
ROW_PUSD = 22_500_000
EXPORT_BYTES_MAX = 100 * 1024 * 1024
"""Of the command's process: it holds the rows, not the lines that they are made of."""


@pytest.fixture(scope="module")
def old_data(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A state directory with a call in each of many hours, and no store."""
    state_dir = tmp_path_factory.mktemp("old")
    worker = writers.Worker(state_dir, random.Random(1), segment_bytes_max=1 << 30)
    for number in range(HOURS):
        call_id, at_ns = f"{worker.writer}-{number + 1}", number * HOUR_NS
        worker.write(journals.admitted(call_id, at_ns=at_ns), journals.call(call_id, at_ns=at_ns))
    worker.stop()
    return state_dir


def exporting(state_dir: pathlib.Path) -> subprocess.Popen[bytes]:
    """`weighbridge export` of all there is."""
    return subprocess.Popen(
        [sys.executable, "-m", "gateway.cli", "export", "--state-dir", str(state_dir),
         "--from", "1970-01-01", "--to", "2200-01-01"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_br_109_an_export_holds_up_nobody(stage: Stage, bystander: Bystander, old_data: pathlib.Path) -> None:
    # By the finance API it is asked for with *Cost*; today it is a command, and a process of its own.
    files = []

    def work() -> None:
        with exporting(old_data) as process:
            out, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
            files.append(out)

    before = stage.rss_bytes()
    check_undisturbed(stage, bystander, work)
    assert stage.rss_bytes() - before < 10 * 1024 * 1024
    rows = list(csv.DictReader(io.StringIO(files[0].decode())))
    assert len(rows) == HOURS
    assert sum(int(row["calls"]) for row in rows) == HOURS
    assert sum(int(row["estimated_usd"].replace(".", "")) for row in rows) == HOURS * ROW_PUSD


def test_br_109_a_reader_that_leaves_ends_it(old_data: pathlib.Path) -> None:
    with exporting(old_data) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert len(process.stdout.read(1024 * 1024)) == 1024 * 1024
        peak = re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{process.pid}/status").read_text())
        assert peak is not None
        assert int(peak[1]) * 1024 < EXPORT_BYTES_MAX
        process.stdout.close()
        left_s = time.monotonic()
        err = process.stderr.read()
        process.wait(timeout=10)
        assert time.monotonic() - left_s < 1.0 + LATE_S
        assert b"Traceback" not in err


# -- BR-110


@contextlib.contextmanager
def staged_with(directory: pathlib.Path, name: str, **env: str) -> Iterator[Stage]:
    with staged(directory, env=mutants.environment(name) | env, slots=64) as stage:
        yield stage


async def ask_at_once(stage: Stage, count: int) -> list:
    """So many calls, each on a connection of its own."""

    async def one() -> object:
        connection = RawClient(stage.gateway.port, stage.gateway.keys["acme"])
        try:
            return await connection.post(CHAT, R)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            return error  # the worker has ended meanwhile
        finally:
            await connection.close()

    return await asyncio.gather(*(one() for _ in range(count)))


@pytest.mark.parametrize("name", ["slow_sync", "slow_write"])
def test_br_110_a_slow_disk_does_not_block_the_loop(tmp_path: pathlib.Path, name: str) -> None:
    slow = tmp_path / "slow"
    with staged_with(tmp_path, name, KILL_TEST_SLOW=str(slow)) as stage:
        slow.touch()
        stage.post(R)  # the first slow one is felt: it is by this that the disk is known
        probes_s: list[float] = []
        late_s: list[float] = []  # of this thread, which the machine may let wait too
        over = threading.Event()

        def probe() -> None:
            asked_s = time.monotonic()
            while not over.wait(EVERY_S):
                began_s = time.monotonic()
                late_s.append(began_s - asked_s - EVERY_S)
                assert stage.gateway.alive()
                asked_s = time.monotonic()
                probes_s.append(asked_s - began_s)

        thread = threading.Thread(target=probe)
        thread.start()
        got = asyncio.run(ask_at_once(stage, 50))
        over.set()
        thread.join()
        assert {reply.status for reply in got} == {200}
        assert percentile(probes_s, 95) < HEALTHZ_S_MAX + percentile(late_s, 95)
        assert max(probes_s) < 0.9  # none waited for a write, which takes a second
        slow.unlink()
        assert stage.post(R).status == 200
        stage.check()


def test_br_110_a_broken_disk_is_said_before_a_backend_is_asked(tmp_path: pathlib.Path) -> None:
    # `journal.on_error: continue` comes with *Metering*; until then it is `stop`.
    full = tmp_path / "full"
    with staged_with(tmp_path, "disk_broken", KILL_TEST_BROKEN=str(full)) as stage:
        full.touch()
        stage.b1.asked.clear()
        for got in asyncio.run(ask_at_once(stage, 50)):
            if not isinstance(got, Exception):
                assert (got.status, json.loads(got.body)["error"]["code"]) == (503, "journal_full")
        assert stage.b1.asked == []
        assert "journal cannot be written" in stage.gateway.log.read_text()
        full.unlink()

        def served() -> bool:
            with contextlib.suppress(OSError, http.client.HTTPException, IndexError):
                return stage.post(R).status == 200
            return False

        eventually(served, within_s=30)
        records = [line for line in stage.gateway.lines("call") if line["outcome"] == "completed"]
        assert len(records) == len(stage.b1.asked) == 1


def test_br_110_a_journal_that_cannot_be_made_is_no_start(tmp_path: pathlib.Path) -> None:
    with staged(tmp_path) as stage:
        assert stage.gateway.stop() == 0
        gateway = stage.gateway
        shutil.rmtree(gateway.state_dir / "journal")
        (gateway.state_dir / "journal").write_text("a file, where a directory is to be")
        gateway.restart()
        assert gateway.process.wait(timeout=30) == 3  # a directory is taken, or in the way
        said = gateway.log.read_text()
        assert "journal" in said
        assert "Traceback" not in said
