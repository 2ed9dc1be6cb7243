"""The control on a running gateway: 0 while calls go on and after, and not 0 for each difference that is planted."""

import asyncio
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator

import msgspec
import pytest

from backends.simulator.settings import Settings
from gateway.configuration import config_load
from gateway.configuration.config import Config, Redis
from gateway.duties.control_duty import ControlDuty
from metering.ledger.bypass import LOOKS
from metering.ledger.control import Difference
from metering.ledger.controller import Controller
from metering.ledger.ledger import hour_text
from metering.ledger.metered_elsewhere import address_of
from metering.ledger.store import Store
from metering.units import NS_PER_HOUR
from tests.support import simulator
from tests.support.gateway import ROOT, Gateway, eventually, running
from tests.support.valkey import Valkey

pytestmark = pytest.mark.integration

TENANTS = ("acme", "globex")
CARD = {"family": "inf2", "prompt": "0.30", "completion": "1.20", "date": "2026-11-01", "source": "test"}
Served = tuple[Gateway, simulator.Running]


@pytest.fixture
def served(tmp_path: pathlib.Path) -> Iterator[Served]:
    with simulator.running(Settings(instance_type="inf2.8xlarge", model="m1", slots=8)) as backend:
        place = {
            "name": "inf2-a",
            "url": backend.url,
            "model": "m1",
            "instance_type": "inf2.8xlarge",
            "slots": 8,
        }
        with running(tmp_path, [place], tenants=TENANTS, rate_cards=[CARD], workers=2) as gateway:
            yield gateway, backend


def store_url(gateway: Gateway) -> str:
    return (gateway.state_dir / "store" / "url").read_text().strip()


def ask(gateway: Gateway, number: int) -> None:
    body = {
        "model": "nobody" if number % 5 == 4 else "m1",
        "messages": [{"role": "user", "content": "hi " * (1 + number % 3)}],
        "max_tokens": 4,
        "stream": number % 2 == 0,
    }
    gateway.post("/v1/chat/completions", body, tenant=TENANTS[number % 2]).read()


def look(gateway: Gateway) -> list[Difference]:
    async def once() -> list[Difference]:
        async with Store(store_url(gateway)) as store:
            return await Controller(gateway.state_dir, keep=False).look(store)

    return asyncio.run(once())


def command(gateway: Gateway, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway.cli", "control", "-c", str(gateway.config_file), *flags],
        cwd=ROOT, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def pairs(flat: list[str]) -> list[tuple[str, str]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def in_ledger(gateway: Gateway, unit: str = "calls") -> int:
    with Valkey(store_url(gateway)) as valkey:
        hours = [pairs(valkey.ask("HGETALL", key)) for key in valkey.ask("KEYS", "wb:1:*:h:*")]
    return sum(int(value) for hour in hours for field, value in hour if field.endswith(f"|{unit}"))


def with_calls(gateway: Gateway, count: int = 10) -> None:
    """Make calls, and wait until the ledger has them."""
    for number in range(count):
        ask(gateway, number)
    eventually(lambda: in_ledger(gateway) == len(gateway.lines("call")), within_s=20)


def test_nothing_differs_while_calls_go_on_and_a_worker_is_killed(served: Served) -> None:
    gateway, _ = served
    stop = threading.Event()

    def load() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                ask(gateway, number)
            except OSError:  # of the worker that is killed below
                continue

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        killed = False

        def looked_at_enough() -> bool:
            nonlocal killed
            assert look(gateway) == []
            calls = len(gateway.lines("call"))
            if calls > 10 and not killed:
                killed = True
                os.kill(gateway.lines("start")[0]["pid"], signal.SIGKILL)
            return calls > 30

        eventually(looked_at_enough, within_s=90)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    eventually(lambda: len(gateway.lines("start")) == 3 and len(gateway.lines("stop")) == 1)
    assert look(gateway) == []
    done = command(gateway)
    assert (done.returncode, done.stdout) == (0, "nothing differs\n"), done.stderr


def test_what_is_planted_in_the_ledger_is_named(served: Served) -> None:
    gateway, _ = served
    with_calls(gateway)
    with Valkey(store_url(gateway)) as valkey:
        key = valkey.ask("KEYS", "wb:1:{acme}:h:*")[0]
        valkey.ask("HINCRBY", key, "main|m1|inf2|prompt_tokens", "7")
        valkey.ask("HINCRBY", key, "main|m1|inf2|cost_pusd", "-1")
    done = command(gateway, "--json")
    assert done.returncode == 1
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [
        (one["tenant"], one["hour"], one["project"], one["unit"], one["difference"]) for one in found
    ] == [
        ("acme", key[-10:], "main", "prompt_tokens", 7),
        ("acme", key[-10:], "main", "cost_pusd", -1),
    ]
    header, first, _ = command(gateway).stdout.splitlines()
    assert header.split()[:4] == ["pair", "unit", "tenant", "hour"]
    assert first.split()[-1] == "+7"


def test_a_ledger_that_lost_sums_but_not_marks_is_seen(served: Served) -> None:
    gateway, _ = served
    with_calls(gateway)
    with Valkey(store_url(gateway)) as valkey:
        for key in valkey.ask("KEYS", "wb:1:{globex}:h:*"):
            valkey.ask("DEL", key)
    assert {(one.pair, one.tenant) for one in look(gateway)} == {("journal-ledger", "globex")}


def test_a_journal_that_is_gone_is_named(served: Served) -> None:
    gateway, _ = served
    with_calls(gateway)
    with Valkey(store_url(gateway)) as valkey:
        valkey.ask("HSET", "wb:1:{acme}:m", "w" + "x" * 16, "5:" + "0" * 16)
    assert [(one.unit, one.where) for one in look(gateway)] == [("writers", (0, "w" + "x" * 16))]
    assert "w" + "x" * 16 in command(gateway).stdout


def test_a_record_that_was_never_counted_is_seen(served: Served) -> None:
    """The mutant: a page that loses a line. It is put in by folding a journal that nobody has a page of."""
    gateway, _ = served
    with_calls(gateway)
    gateway.stop()
    page = gateway.state_dir / "pages" / "gone"
    digest, body = page.read_bytes().split(b"\n", 1)
    held = json.loads(body)
    assert digest
    (series,) = [one for one in held["series"] if one[0] == "weighbridge_calls_total" and "completed" in one[1]
                 and "acme" in one[1]]  # fmt: skip
    series[2][0] -= 1

    body = json.dumps(held, separators=(",", ":")).encode()
    page.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    gateway.restart()
    gateway.wait_ready()
    (one,) = look(gateway)
    assert (one.pair, one.unit, one.tenant, one.right - one.left) == ("journal-metrics", "calls", "acme", -1)


def test_the_clerk_shows_it_and_what_passed_by(served: Served) -> None:
    gateway, backend = served
    with_calls(gateway)
    config = config_load.load(gateway.config_file, {})
    duty = ControlDuty(_resolved(config, gateway))
    duty.look()
    seen = metrics(gateway)
    assert seen['weighbridge_control_difference{pair="journal-ledger",unit="calls"}'] == 0
    assert seen['weighbridge_control_difference{pair="journal-metrics",unit="cost_pusd"}'] == 0
    assert seen['weighbridge_control_difference{pair="ledger-export",unit="calls"}'] == 0
    assert seen['weighbridge_backend_unmetered_tokens{backend="inf2-a"}'] == 0
    assert seen["weighbridge_control_timestamp_seconds"] > 1_700_000_000
    # Somebody asks the backend past the gateway; others go on asking through it.
    before = backend.value("vllm:prompt_tokens_total") + backend.value("vllm:generation_tokens_total")
    body = json.dumps({"model": "m1", "messages": [{"role": "user", "content": "past you"}], "max_tokens": 5})
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(backend.url + "/v1/chat/completions", body.encode(), headers)
    urllib.request.urlopen(request, timeout=10).read()
    passed = (
        backend.value("vllm:prompt_tokens_total") + backend.value("vllm:generation_tokens_total") - before
    )
    with_calls(gateway)
    with Valkey(store_url(gateway)) as valkey:
        valkey.ask("HINCRBY", valkey.ask("KEYS", "wb:1:{acme}:h:*")[0], "main|m1|inf2|calls", "3")
    for _ in range(LOOKS):
        duty.look()
    seen = metrics(gateway)
    assert seen['weighbridge_backend_unmetered_tokens{backend="inf2-a"}'] == passed > 0
    assert seen['weighbridge_control_difference{pair="journal-ledger",unit="calls"}'] == 3


def test_what_another_gateway_has_metered_is_no_bypass(served: Served) -> None:
    gateway, backend = served
    with_calls(gateway)
    duty = ControlDuty(_resolved(config_load.load(gateway.config_file, {}), gateway))
    duty.look()
    before = backend.value("vllm:prompt_tokens_total") + backend.value("vllm:generation_tokens_total")
    body = json.dumps(
        {"model": "m1", "messages": [{"role": "user", "content": "by another"}], "max_tokens": 5}
    )
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(backend.url + "/v1/chat/completions", body.encode(), headers)
    urllib.request.urlopen(request, timeout=10).read()
    after = backend.value("vllm:prompt_tokens_total") + backend.value("vllm:generation_tokens_total")
    with Valkey(store_url(gateway)) as valkey:
        (ours,) = [
            field for field in valkey.ask("HKEYS", "wb:1:backends") if field.endswith(address_of(backend.url))
        ]
        assert ours.split("|")[1] == "inf2-a"
        for beat in range(LOOKS):
            stated = f"{beat}:{round(after - before)}"
            valkey.ask("HSET", "wb:1:backends", f"g2|of-the-other|{address_of(backend.url)}", stated)
            duty.look()
    assert after > before
    assert metrics(gateway)['weighbridge_backend_unmetered_tokens{backend="inf2-a"}'] == 0


def test_a_difference_of_an_old_hour_stays_shown_while_only_the_newest_are_compared(served: Served) -> None:
    gateway, _ = served
    with_calls(gateway)
    duty = ControlDuty(_resolved(config_load.load(gateway.config_file, {}), gateway))
    shown = 'weighbridge_control_difference{pair="journal-ledger",unit="calls"}'
    month_ago = hour_text(time.time_ns() // NS_PER_HOUR - 30 * 24)
    with Valkey(store_url(gateway)) as valkey:
        valkey.ask("HINCRBY", f"wb:1:{{acme}}:h:{month_ago}", "web|m1|inf2|calls", "3")
        for _ in range(3):
            duty.look()
            assert metrics(gateway)[shown] == 3
        (now,) = {key[-10:] for key in valkey.ask("KEYS", "wb:1:{acme}:h:*")} - {month_ago}
        valkey.ask("HINCRBY", f"wb:1:{{acme}}:h:{now}", "web|m1|inf2|calls", "4")
    duty.look()
    assert metrics(gateway)[shown] == 7


def test_what_dead_writers_said_is_kept(served: Served) -> None:
    gateway, _ = served
    with_calls(gateway)
    gateway.stop()
    gateway.restart()
    gateway.wait_ready()
    config = _resolved(config_load.load(gateway.config_file, {}), gateway)
    ControlDuty(config).look()
    kept = sorted(path.stem for path in (gateway.state_dir / "control").glob("*.json"))
    complete = [path.name for path in (gateway.state_dir / "journal").iterdir() if path.stem in kept]
    assert len(complete) >= 2
    for writer in kept:  # as the archive takes a directory away
        (gateway.state_dir / "journal" / writer).rename(gateway.state_dir / writer)
    assert look(gateway) == []


def _resolved(config: Config, gateway: Gateway) -> Config:

    return msgspec.structs.replace(config, redis=Redis(url=store_url(gateway)))


def metrics(gateway: Gateway) -> dict[str, float]:
    status, text = gateway.get("/metrics", gateway.keys["acme"])
    assert status == 200
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
