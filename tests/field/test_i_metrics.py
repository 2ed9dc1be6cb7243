"""Field reports on metrics: bounded, the same on each scrape, and equal to the records."""

import asyncio
import contextlib
import csv
import http.client
import io
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.oracle import counters, exposition, journal, ledger
from tests.oracle.resp import Connection
from tests.support.gateway import ROOT, eventually
from tests.support.opened import Opened
from tests.support.processes import is_alive
from tests.support.rawbackend import Asked, sized
from tests.support.stage import (
    CHAT,
    DONE,
    FINISH,
    PAIR,
    ROLE,
    RS,
    RSU,
    SIZED,
    STANDARD,
    USAGE,
    Endless,
    R,
    Stage,
    chunk,
    content,
    d,
    delta,
    framed,
    opening,
    stream,
    total,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

MANY = 1000
SERIES_MAX = 20
ROUNDS_MAX = 4
"""The machine of a test is shared: a clock that starts at the wrong event does so in each round."""


@pytest.fixture(scope="module")
def setting() -> dict:
    return {
        "workers": 2,
        "auth": {"failures_per_minute": 1_000_000},
    }  # all unknown keys come from one address


def requests(stage: Stage, asks: list[tuple[str, str, dict, str | None]]) -> list[int]:
    """Send these on one connection: method, path, body, key. The statuses."""
    statuses = []
    connection = http.client.HTTPConnection("127.0.0.1", stage.gateway.port, timeout=10)
    with contextlib.closing(connection):
        for method, path, body, key in asks:
            headers = {"content-type": "application/json"} | (
                {"authorization": f"Bearer {key}"} if key else {}
            )
            connection.request(method, path, json.dumps(body) if method == "POST" else None, headers)
            answer = connection.getresponse()
            answer.read()
            statuses.append(answer.status)
    return statuses


def page(stage: Stage) -> str:
    status, text = stage.gateway.get("/metrics", stage.gateway.keys["acme"])
    assert status == 200
    return text.decode()


# -- BR-100


def test_br_100_no_text_of_a_client_is_a_label(stage: Stage) -> None:
    key = stage.gateway.keys["acme"]
    assert stage.post(R).status == 200
    before = len(stage.metrics())
    asks = [("POST", CHAT, R | {"model": f"xmodel{n}"}, key) for n in range(MANY)]
    assert set(requests(stage, asks)) == {404}
    assert set(requests(stage, [("GET", f"/rand/{n}", {}, key) for n in range(MANY)])) == {404}
    wrong = requests(stage, [("POST", CHAT, R, f"wb-wrong{n}") for n in range(MANY)])
    # 429: those that came quicker than `auth.failures_per_minute` allows are refused unread
    assert {401} <= set(wrong) <= {401, 429}
    assert set(requests(stage, [("POST", CHAT, R | {"user": f"xuser{n}"}, key) for n in range(MANY)])) == {
        200
    }
    looks = requests(stage, [("GET", f"/audit/v1/calls/{n}", {}, f"wb-wrong{n}") for n in range(MANY)])
    assert set(looks) <= {401, 429}
    assert len(stage.metrics()) - before <= SERIES_MAX
    text = page(stage)
    assert not any(word in text for word in ("xmodel", "/rand", "wb-wrong", "xuser", key))


# -- BR-101


def worker_pids(stage: Stage) -> list[int]:
    return [line["pid"] for line in stage.lines["start"] if is_alive(line["pid"])]


def test_br_101_each_scrape_shows_all_workers_and_a_dead_one_too(stage: Stage) -> None:
    """In flight at a dead worker is nothing; its counts stay."""
    calls = total(stage.metrics(), "weighbridge_calls_total")
    for _ in range(100):
        assert stage.post(R).status == 200
    wanted = calls + 100
    eventually(lambda: total(stage.metrics(), "weighbridge_calls_total") == wanted)
    for _ in range(20):
        assert total(stage.metrics(), "weighbridge_calls_total") == wanted
    assert ' pid="' not in page(stage)
    assert "pid=" not in page(stage)
    writers = len(stage.lines["start"])
    endless = Endless(opening(ROLE, content("he")), framed(content("x")))
    stage.b1.default = endless
    with stage.open(RS) as opened:
        opened.read_until(b"he")
        writer = opened.headers["x-weighbridge-call-id"].rpartition("-")[0]
        (pid,) = [line["pid"] for line in stage.lines["start"] if line["writer"] == writer]
        eventually(lambda: stage.in_flight("b1") == 1)
        os.kill(pid, signal.SIGKILL)
        counted = [total(stage.metrics(), "weighbridge_calls_total") for _ in range(5)]
    assert counted == sorted(counted)
    assert counted[0] >= wanted
    eventually(lambda: len(stage.lines["start"]) == writers + 1, within_s=20)
    eventually(lambda: len(worker_pids(stage)) == 2, within_s=20)
    stage.b1.default = SIZED
    eventually(lambda: stage.in_flight("b1") == 0, within_s=20)
    eventually(
        lambda: total(stage.metrics(), "weighbridge_calls_total") == wanted + 1
    )  # the one that was lost
    assert stage.count("weighbridge_calls_total", outcome="lost") == 1


def test_br_101_a_second_service_cannot_take_the_same_place(stage: Stage) -> None:
    calls = total(stage.metrics(), "weighbridge_calls_total")
    second = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "serve", "-c", str(stage.gateway.config_file), "--port", "0"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert second.returncode == 3
    assert b"is in use by another weighbridge" in second.stderr
    assert total(stage.metrics(), "weighbridge_calls_total") == calls


# -- BR-103


def timed(first: bytes):
    """Headers at once, a comment at 50 ms, the role at 100, the first token at 500, the end at 600."""

    async def answer(_asked: Asked, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(opening())
        waits = ((0.05, b": ping\n\n"), (0.05, ROLE), (0.4, first), (0.1, FINISH), (0.0, USAGE + DONE))
        for wait_s, piece in waits:
            await asyncio.sleep(wait_s)
            writer.write(framed(piece))
        writer.write(b"0\r\n\r\n")

    return answer


TOOL = delta(tool_calls=[{"index": 0, "id": "t", "function": {"name": "f", "arguments": ""}}])
FIRSTS = {
    "content": content("hello"),
    "reasoning": d(chunk(delta(reasoning_content="hm"))),
    "tool": d(chunk(TOOL)),
}


def ttft(stage: Stage) -> tuple[float, float]:
    """Samples so far and their sum, in seconds."""
    return stage.count("weighbridge_ttft_seconds_count"), stage.count("weighbridge_ttft_seconds_sum")


@pytest.mark.parametrize("first", FIRSTS)
def test_br_103_the_first_token_is_what_counts(stage: Stage, first: str) -> None:
    stage.b1.default = timed(FIRSTS[first])
    measured = []
    for _ in range(ROUNDS_MAX):
        samples, seconds = ttft(stage)
        record = stage.record(stage.post(RSU).call_id)
        assert ttft(stage)[0] == samples + 1
        assert ttft(stage)[1] - seconds == pytest.approx(record["ttft_ns"] / 1e9)
        measured.append(record["ttft_ns"] / 1e9)
        assert measured[-1] > 0.45
        if measured[-1] < 0.55:
            return
    raise AssertionError(measured)


def test_br_103_without_a_token_there_is_no_sample(stage: Stage) -> None:
    samples = ttft(stage)
    assert stage.record(stage.post(R).call_id)["ttft_ns"] is None
    stage.b1.default = sized(b"boom", "500 Internal Server Error", "text/plain")
    assert stage.post(RS).status == 502
    stage.b1.default = stream(ROLE)
    failed = stage.record(stage.post(RS).call_id)
    assert (failed["outcome"], failed["ttft_ns"]) == ("backend_failed", None)
    assert ttft(stage) == samples


# -- BR-104


def by_kind(asked: Asked, ask_id: str) -> bytes:
    """The answer of a call by its id: `<kind>-<form>-<number>`."""
    kind, form, _ = ask_id.split("-")
    if kind == "refused":
        return sized(b'{"error":{"message":"no","type":"x","param":null,"code":null}}', "400 Bad Request")
    if kind in ("failed", "retried"):
        return sized(b"boom", "500 Internal Server Error", "text/plain")
    return SIZED if form == "R" else stream(*STANDARD)


FORMS = {"R": R, "RS": RS, "RSU": RSU}


def one_call(stage: Stage, ask_id: str) -> None:
    kind, form, _ = ask_id.split("-")
    body = FORMS[form] | (PAIR if kind == "retried" else {})
    with Opened(stage.gateway.port, stage.gateway.keys["acme"], body, x_request_id=ask_id) as opened:
        if kind == "left":
            opened.read_until(b"he")
        else:
            opened.rest()


def test_br_104_metrics_records_ledger_and_export_agree(stage: Stage) -> None:
    """60 calls in the three forms: whole ones, and 10 each retried, left, refused, failed."""
    endless = Endless(opening(ROLE, content("he")), framed(content("x")))

    async def first(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ask_id = asked.headers["x-request-id"]
        if ask_id.startswith("left"):
            await endless(asked, reader, writer)
        else:
            writer.write(by_kind(asked, ask_id))

    async def second(asked: Asked, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SIZED if not json.loads(asked.body).get("stream") else stream(*STANDARD))

    stage.b1.default, stage.b2.default = first, second
    forms = list(FORMS)
    ids = [
        f"{kind}-{forms[n % 3] if kind != 'left' else 'RS'}-{n}"
        for kind, count in (("whole", 20), ("retried", 10), ("left", 10), ("refused", 10), ("failed", 10))
        for n in range(count)
    ]
    before = stage.outcomes()
    for ask_id in ids:
        one_call(stage, ask_id)
    records = [stage.record_of(ask_id) for ask_id in ids]
    told = {"completed": 30, "client_gone": 10, "refused": 10, "backend_failed": 10, "timed_out": 0}
    eventually(lambda: stage.outcomes() == {name: before[name] + count for name, count in told.items()})
    assert len(ids) == sum(told.values()) == len(records)
    for record in records:
        if record["outcome"] in ("refused", "backend_failed"):
            assert record["usage"]["completion_tokens"] in (None, 0)
    # All that there was since the gateway began, by those who share no code with it.
    writers = journal.read(stage.gateway.state_dir / "journal")
    assert counters.check(writers, exposition.parse(page(stage))) == []
    recomputed = ledger.recompute(writers)

    def behind() -> list:
        with Connection((stage.gateway.state_dir / "store" / "url").read_text().strip()) as store:
            return ledger.check(recomputed, ledger.read(store))

    eventually(lambda: behind() == [], within_s=20)
    assert exported(stage.gateway.state_dir) == {
        unit: sum(value for name, value in recomputed.balances.items() if name.endswith(f"|{unit}"))
        for unit in ("calls", "prompt_tokens", "completion_tokens")
    }


def exported(state_dir: pathlib.Path) -> dict[str, int]:
    """The sums of the export of all time."""
    ran = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "export", "--state-dir", str(state_dir),
         "--from", "2020-01-01", "--to", "2100-01-01"],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(ran.stdout)))
    return {
        unit: sum(int(row[unit]) for row in rows) for unit in ("calls", "prompt_tokens", "completion_tokens")
    }
