"""A worker is killed with calls under way: of who is billed for lost calls each has its expected price, in all books.

What they must cost is computed from the prices in the configuration and from the records of the calls before them.
"""

import csv
import io
import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from backends.simulator.settings import Settings
from tests.oracle import journal, ledger
from tests.oracle.resp import Connection
from tests.support import mutants, simulator
from tests.support.gateway import ROOT, Gateway, eventually, running
from tests.support.processes import is_alive

pytestmark = pytest.mark.integration

CARD = {"family": "inf2", "prompt": "0.30", "completion": "1.20", "date": "2026-11-01", "source": "test"}
PROMPT_PUSD, COMPLETION_PUSD = 300_000, 1_200_000
FREE, BILLED, LIMITED = "free", "billed", "limited"
BUDGET = {"limits": {"budgets": [{"usd": "1000", "per": "month"}]}}
OF_TENANTS = {BILLED: {"lost": "estimated"}, LIMITED: {"lost": "estimated", "hold": "worst", **BUDGET}}
ASK = {"model": "m1", "messages": [{"role": "user", "content": "How heavy is it?"}]}
LONG = ASK | {"stream": True, "max_tokens": 200}


@pytest.fixture(scope="module")
def server() -> Iterator[simulator.Running]:
    with simulator.running(Settings(instance_type="inf2.48xlarge", model="m1", slots=8)) as one:
        yield one


@pytest.fixture(params=["", "lost_for_nothing"], ids=["as it is", "mutant"])
def front(
    request: pytest.FixtureRequest, server: simulator.Running, tmp_path: pathlib.Path
) -> Iterator[Gateway]:
    backend = {"name": "b1", "url": server.url, "model": "m1", "instance_type": "inf2.48xlarge", "slots": 8}
    env = mutants.environment(request.param) if request.param else {}
    with running(
        tmp_path, [backend], tenants=(FREE, BILLED, LIMITED), rate_cards=[CARD], workers=1, of_tenants=OF_TENANTS,
        env=env,
    ) as one:  # fmt: skip
        one.wait_checked()
        one.is_mutant = bool(request.param)
        yield one


def worker(front: Gateway) -> int | None:
    """The pid of the one that is alive; None: there is none."""
    return next((line["pid"] for line in front.lines("start") if is_alive(line["pid"])), None)


def price(prompt: int, completion: int) -> int:
    return prompt * PROMPT_PUSD + completion * COMPLETION_PUSD


def expected(front: Gateway, lost: dict) -> int:
    """What a call takes whose tenant's one call before it has ended: its prompt by the bytes, its answer by a mean."""
    (before,) = (
        one
        for one in front.lines("call")
        if one["tenant"] == lost["tenant"] and one["outcome"] == "completed"
    )
    prompt = lost["body_bytes"] * before["usage"]["prompt_tokens"] // before["body_bytes"]
    return price(prompt, before["usage"]["completion_tokens"])


def books_agree(front: Gateway) -> bool:
    """Do the balances and what was spent of budgets say what the journals say?"""
    writers = journal.read(front.state_dir / "journal")
    with Connection((front.state_dir / "store" / "url").read_text().strip()) as store:
        if ledger.read(store) != ledger.recompute(writers):
            return False
        for tenant in front.keys:
            costs = [one["cost_pusd"] for one in journal.calls(writers) if one["tenant"] == tenant]
            (key,) = (key for key in store.keys(f"wb:1:{{{tenant}}}:b:*") if re.fullmatch(r".*:\d{6}", key))
            if int(store.hash(key)["t"]) != sum(costs):
                return False
    return True


def exported(front: Gateway) -> dict[str, int]:
    """Picodollars of each tenant, as the CSV of all calls says."""
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "export", "--from", "2026-01-01", "--to", "2036-01-01",
         "-c", str(front.config_file)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True,
    )  # fmt: skip
    sums = dict.fromkeys(front.keys, 0)
    for row in csv.DictReader(io.StringIO(done.stdout)):
        sums[row["tenant"]] += int(row["estimated_usd"].replace(".", ""))
    return sums


def counted(front: Gateway) -> dict[str, float]:
    """USD of each tenant, as the metrics say."""
    _, page = front.get("/metrics", front.keys[FREE])
    sums = dict.fromkeys(front.keys, 0.0)
    for tenant, usd in re.findall(
        r'^weighbridge_estimated_cost_usd_total\{.*tenant="(\w+)".*\} (\S+)$', page.decode(), re.MULTILINE
    ):
        sums[tenant] += float(usd)
    return sums


def differences(front: Gateway) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "control", "-c", str(front.config_file)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return done.stdout


def test_lost_calls_cost_what_was_expected_in_all_books(front: Gateway) -> None:
    for tenant in front.keys:
        assert front.post("/v1/chat/completions", ASK | {"max_tokens": 9}, tenant=tenant).read()
    answers = [front.post("/v1/chat/completions", LONG, tenant=tenant) for tenant in front.keys]
    for answer in answers:
        answer.readline()  # it has begun
    victim = worker(front)
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: worker(front) not in (None, victim) and front.alive("/readyz"), within_s=30)

    lost = {one["tenant"]: one for one in front.lines("call") if one["outcome"] == "lost"}
    assert set(lost) == {FREE, BILLED, LIMITED}
    assert (lost[FREE]["cost_pusd"], lost[FREE]["usage"]["source"], lost[FREE]["v"]) == (0, "unknown", 1)
    costs = {tenant: lost[tenant]["cost_pusd"] for tenant in (BILLED, LIMITED)}
    as_expected = {tenant: expected(front, lost[tenant]) for tenant in costs}
    assert min(as_expected.values()) > 0
    if front.is_mutant:
        assert costs != as_expected
        return
    assert costs == as_expected
    assert {lost[tenant]["usage"]["source"] for tenant in costs} == {"estimated"}
    assert {lost[tenant]["rate_card"] for tenant in costs} == {"m1/inf2@2026-11-01"}
    admissions = {one["call_id"]: one for one in front.lines("admitted")}
    for one in lost.values():
        assert ("expected" in admissions[one["call_id"]]) == (one["tenant"] != FREE)

    eventually(lambda: books_agree(front), within_s=30)
    sums = dict.fromkeys(front.keys, 0)
    for one in front.lines("call"):
        sums[one["tenant"]] += one["cost_pusd"]
    assert exported(front) == sums
    assert counted(front) == pytest.approx({tenant: pusd / 10**12 for tenant, pusd in sums.items()})
    assert differences(front) == "nothing differs\n"
