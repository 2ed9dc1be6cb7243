"""Field reports on what a call costs: which tokens count once, which price holds, and what is paid for nothing."""

import asyncio
import contextlib
import csv
import datetime
import io
import json
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.support.gateway import ROOT, Gateway, eventually, running
from tests.support.rawbackend import Asked, Scripted, sized
from tests.support.stage import (
    ANSWER,
    CARD,
    DONE,
    FINISH,
    ROLE,
    RS,
    SIZED,
    TIMEOUTS,
    USAGE,
    R,
    Stage,
    backend,
    content,
    framed,
    model,
    opening,
    u,
)

pytestmark = pytest.mark.integration

NANO_PUSD = 1_000
GPU = {"family": "g6e"}
DEAR = {"prompt": "2.00", "completion": "4.00"}
DEARER = {"prompt": "3.00", "completion": "6.00"}
SERVER_PATH = {"model": "/models/llama-3"}
FAILED = sized(b'{"error":{"message":"boom","code":500}}', "500 Internal Server Error")
AT_FAULT = sized(
    b'{"error":{"message":"bad","type":"BadRequestError","param":"n","code":400}}', "400 Bad Request"
)
TOO_MANY_BYTES = 1 << 20


def configured(b1: int, b2: int) -> dict:
    """m1 (also called cheap) and plain on the chip alone; pair and dear on a GPU behind it, at twice and thrice."""
    of_chip = model("m1", "b1")
    plain = model("plain", "b1")
    plain["rate_cards"] = [{key: value for key, value in CARD.items() if key != "cached_prompt"}]
    pair, dear = model("pair", "b1", "b2"), model("dear", "b1", "b2")
    pair["rate_cards"] = [CARD, CARD | GPU | DEAR]
    dear["rate_cards"] = [CARD, CARD | GPU | DEARER]
    derived = model("derived", "b2")
    derived["rate_cards"] = []
    return {
        "backends": [
            backend("b1", b1, instance_type="inf2.48xlarge"),
            backend("b2", b2, instance_type="g6e.xlarge", region="us-east-1"),
        ],
        "models": [of_chip | {"aliases": ["cheap"]}, plain, pair, dear, derived],
        "attempts_max": 2,
        "timeouts": TIMEOUTS,
        "bounds": {"body_bytes_max": TOO_MANY_BYTES},
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    b1, b2 = Scripted(SIZED), Scripted(SIZED)
    try:
        options = configured(b1.port, b2.port)
        with running(tmp_path_factory.mktemp("prices"), **options) as gateway:
            yield Stage(gateway, b1, b2)
    finally:
        b1.stop()
        b2.stop()


def answering(usage: dict, **more: object) -> bytes:
    return sized(json.dumps(ANSWER | {"usage": usage} | more).encode())


def nano(record: dict) -> int:
    """Its cost in nano-USD, as the reports have it."""
    whole, rest = divmod(record["cost_pusd"], NANO_PUSD)
    assert rest == 0
    return whole


def weighbridge(front: Gateway, *words: str) -> bytes:
    command = [sys.executable, "-m", "gateway.cli", *words, "-c", str(front.config_file)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, timeout=60).stdout


def exported(front: Gateway, start: str = "2026-01-01", end: str = "2199-01-01") -> list[dict[str, str]]:
    data = weighbridge(front, "export", "--from", start, "--to", end).decode()
    return list(csv.DictReader(io.StringIO(data, newline="")))


# -- BR-123


@pytest.mark.parametrize(
    ("details", "cost", "cached", "mended"),
    [
        ({"cached_tokens": 800}, 290_000, 800, []),
        ({"cached_tokens": 1000}, 110_000, 1000, []),
        ({"cached_tokens": 1200}, 110_000, 1000, ["usage_clamped"]),
        ({"cached_tokens": -5}, 1_010_000, None, ["usage_invalid"]),
        ({"cached_tokens": None}, 1_010_000, None, []),
        ({}, 1_010_000, None, []),
        (None, 1_010_000, None, []),
    ],
)
def test_br_123_cached_tokens_are_a_part_of_the_prompt(
    stage: Stage, details: dict | None, cost: int, cached: int | None, mended: list[str]
) -> None:
    usage = u(1000, 5) if details is None else u(1000, 5, prompt_tokens_details=details)
    stage.b1.default = answering(usage)
    record = stage.record(stage.post(R).call_id)
    assert nano(record) == cost
    assert (record["usage"]["prompt_tokens"], record["usage"]["cached_prompt_tokens"]) == (1000, cached)
    assert record["mended"] == mended


def test_br_123_without_a_cached_price_they_cost_what_others_do(stage: Stage) -> None:
    stage.b1.default = answering(u(1000, 5, prompt_tokens_details={"cached_tokens": 800}))
    assert nano(stage.record(stage.post(R | {"model": "plain"}).call_id)) == 1_010_000


# -- BR-124


@pytest.mark.parametrize(("reasoning", "kept", "mended"), [(80, 80, []), (150, 100, ["usage_clamped"])])
def test_br_124_reasoning_tokens_are_a_part_of_the_completion(
    stage: Stage, reasoning: int, kept: int, mended: list[str]
) -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": reasoning}}
    stage.b1.default = answering(u(10, 100, **details))
    record = stage.record(stage.post(R).call_id)
    assert nano(record) == 210_000
    assert (record["usage"]["completion_tokens"], record["usage"]["reasoning_tokens"]) == (100, kept)
    assert record["mended"] == mended


# -- BR-126


def test_br_126_an_alias_or_the_servers_own_name_is_no_price(stage: Stage) -> None:
    stage.b1.default = answering(u(10, 5), **SERVER_PATH)
    reply = stage.post(R | {"model": "cheap"})
    record = stage.record(reply.call_id)
    assert (record["model"], record["model_requested"], nano(record)) == ("m1", "cheap", 20_000)
    assert record["rate_card"] == "m1/inf2@2026-11-01"
    assert json.loads(reply.body)["model"] == SERVER_PATH["model"]  # answers pass as they came


def test_br_126_after_a_fallback_the_price_is_that_of_what_ran(stage: Stage) -> None:
    stage.b1.script.append(FAILED)
    stage.b2.default = answering(u(10, 5), **SERVER_PATH)
    record = stage.record(stage.post(R | {"model": "pair"}).call_id)
    assert (record["backend"], nano(record), record["rate_card"]) == ("b2", 40_000, "pair/g6e@2026-11-01")
    assert nano(stage.record(stage.post(R | {"model": "pair"}).call_id)) == 20_000


# -- BR-127


def test_br_127_a_new_price_changes_no_call_that_was_made(tmp_path: pathlib.Path) -> None:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    with contextlib.closing(contextlib.ExitStack()) as stack:
        server = Scripted(SIZED)
        stack.callback(server.stop)
        front = stack.enter_context(running(tmp_path, **configured(server.port, server.port)))
        for _ in range(10):
            front.post("/v1/chat/completions", R).read()
        first = exported(front)
        assert front.stop() == 0
        options = json.loads(front.config_file.read_text())
        options["models"][0]["rate_cards"].append(CARD | DEAR | {"date": today})
        front.config_file.write_text(json.dumps(options))
        front.restart()
        front.wait_ready()
        for _ in range(10):
            front.post("/v1/chat/completions", R).read()
        records = front.lines("call")
        assert [nano(record) for record in records] == [20_000] * 10 + [40_000] * 10
        assert [record["rate_card"] for record in records] == ["m1/inf2@2026-11-01"] * 10 + [
            f"m1/inf2@{today}"
        ] * 10
        assert _nano_sum(first) == 200_000
        eventually(lambda: _nano_sum(exported(front)) == 600_000)
        assert weighbridge(front, "export", "--from", "2026-01-01", "--to", "2199-01-01") == weighbridge(
            front, "export", "--from", "2026-01-01", "--to", "2199-01-01"
        )


def _nano_sum(rows: list[dict[str, str]]) -> int:
    return sum(round(float(row["estimated_usd"]) * 10**9) for row in rows)


def test_br_127_a_call_that_runs_over_the_change_has_the_price_of_its_admission(
    stage: Stage, tmp_path: pathlib.Path
) -> None:
    front, go_on = stage.gateway, threading.Event()
    _import(front, tmp_path, "1.5", "first")

    async def slow(_asked: Asked, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(opening(ROLE, content("he")))
        while not go_on.is_set():
            writer.write(framed(b": still here\n\n"))
            await asyncio.sleep(0.05)
        writer.write(framed(FINISH) + framed(USAGE) + framed(DONE) + b"0\r\n\r\n")

    stage.b2.script.append(slow)
    with stage.open(RS | {"model": "derived"}) as opened:
        opened.read_until(b"he")
        _import(front, tmp_path, "3", "second")
        go_on.set()
        opened.rest()
        straddling = stage.record(opened.headers["x-weighbridge-call-id"])
    later = stage.record(stage.post(R | {"model": "derived"}).call_id)
    for record, uusd, source in ((straddling, 1_500_000, "first"), (later, 3_000_000, "second")):
        basis = record["price_basis"]
        assert (basis["instance_price_uusd_per_hour"], basis["source"]) == (uusd, source)
        assert abs(record["cost_pusd"] - uusd * record["slot_ns"] / (3_600_000 * record["slots"])) <= 1


def _import(front: Gateway, tmp_path: pathlib.Path, usd: str, source: str) -> None:
    """Import a price, and wait until the gateway prices by it."""
    taken_up = front.log.read_text().count("imported prices taken up")
    file = tmp_path / f"{source}.csv"
    file.write_text(f"instance_type,region,usd_per_hour,source\ng6e.xlarge,us-east-1,{usd},{source}\n")
    weighbridge(front, "prices", "import", str(file))
    eventually(lambda: front.log.read_text().count("imported prices taken up") > taken_up)


# -- BR-134


def test_br_134_what_was_refused_or_failed_costs_nothing_anywhere(stage: Stage) -> None:
    stage.post(R)
    front = stage.gateway
    before, outcomes = eventually(lambda: exported(front)), stage.outcomes()
    calls: dict[str, str] = {}
    stage.b1.script.append(AT_FAULT)
    calls["refused"] = stage.post(R).call_id
    stage.b1.script.append(FAILED)
    calls["backend_failed"] = stage.post(R).call_id
    stage.b1.script.append(_silent)
    calls["timed_out"] = stage.post(R).call_id
    for status, body, headers in (
        (401, R, {"authorization": "Bearer wb-nobody"}),
        (404, R | {"model": "nothing"}, {}),
        (413, b"x" * (TOO_MANY_BYTES + 1), {}),
        (400, b"{", {}),
    ):
        assert stage.post(body, **headers).status == status
    for outcome, call_id in calls.items():
        record = stage.record(call_id)
        assert (record["outcome"], record["cost_pusd"]) == (outcome, 0)
        assert (
            record["usage"]["completion_tokens"] is None
        )  # nothing was served: nobody knows, and nobody pays
    assert stage.outcomes() == {name: count + (name in calls) for name, count in outcomes.items()} | {
        "refused": outcomes["refused"] + 1 + 4
    }
    after = eventually(lambda: _if_more(exported(front), before, len(calls)))
    for column in ("prompt_tokens", "completion_tokens", "estimated_usd", "unpriced_calls"):
        assert _sum(after, column) == _sum(before, column)


async def _silent(_asked: Asked, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read()


def _sum(rows: list[dict[str, str]], column: str) -> float:
    return round(sum(float(row[column]) for row in rows), 12)


def _if_more(
    rows: list[dict[str, str]], before: list[dict[str, str]], calls: int
) -> list[dict[str, str]] | None:
    return rows if _sum(rows, "calls") == _sum(before, "calls") + calls else None


# -- BR-143


def test_br_143_the_price_follows_the_hardware(stage: Stage) -> None:
    ask = R | {"model": "dear"}
    on_chip = stage.record(stage.post(ask).call_id)
    stage.b1.script.append(FAILED)
    on_gpu = stage.record(stage.post(ask).call_id)
    found = [(one["backend"], one["instance_family"], nano(one)) for one in (on_chip, on_gpu)]
    assert found == [("b1", "inf2", 20_000), ("b2", "g6e", 60_000)]
    rows = eventually(lambda: _of_both(exported(stage.gateway)))
    assert {row["instance_family"]: row["estimated_usd"] for row in rows} == {
        "inf2": "0.000020000000",
        "g6e": "0.000060000000",
    }


def _of_both(rows: list[dict[str, str]]) -> list[dict[str, str]] | None:
    """The rows of this model; None: the ledger has not heard of both calls yet."""
    found = [row for row in rows if row["model"] == "dear"]
    return found if len(found) == 2 else None
