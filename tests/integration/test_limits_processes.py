"""One budget, and one limit of calls at once, among four processes and 64 clients, on a real store."""

import contextlib
import datetime
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence

import msgspec
import pytest

from tests.support import stores
from tests.support.gateway import ROOT
from tests.support.limit_clients import Plan, Told
from tests.support.stores import Running

pytestmark = pytest.mark.integration

PROCESSES, CLIENTS = 4, 16
USD = 10**12


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with stores.single(stores.valkey_binary(), tmp_path_factory.mktemp("store")) as running, running:
        yield running


@pytest.fixture
def store(server: Running) -> Running:
    server.everywhere("FLUSHALL")
    server.ask("HSET", "wb:1:{acme}:meta", "epoch", "e1", "ready", "e1")
    return server


def run(plans: Sequence[Plan]) -> list[list[Told]]:
    """Each plan in a process of its own, begun at one moment. returns: what each one's calls were told."""
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(process(plan)) for plan in plans]
        for worker in workers:
            assert worker.stdout is not None
            assert json.loads(worker.stdout.readline()) == {"up": True}
        for worker in workers:
            say(worker)
        told = [list(lines(worker)) for worker in workers]
        for worker in workers:
            say(worker)
            assert worker.wait(timeout=20) == 0
        return told


@contextlib.contextmanager
def process(plan: Plan) -> Iterator["subprocess.Popen[bytes]"]:
    worker = subprocess.Popen(
        [sys.executable, "-m", "tests.support.limit_clients"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert worker.stdin is not None
        worker.stdin.write(msgspec.json.encode(plan) + b"\n")
        worker.stdin.flush()
        yield worker
    finally:
        worker.kill()
        worker.communicate(timeout=20)


def say(worker: "subprocess.Popen[bytes]") -> None:
    assert worker.stdin is not None
    worker.stdin.write(b"\n")
    worker.stdin.flush()


def lines(worker: "subprocess.Popen[bytes]") -> Iterator[Told]:
    assert worker.stdout is not None
    for line in worker.stdout:
        if b'"done"' in line:
            return
        yield msgspec.json.decode(line, type=Told)
    raise AssertionError("it ended before it was done")


def plan(store: Running, number: int, **changes: object) -> Plan:
    return Plan(url=store.url, writer=f"w{number:016}", clients=CLIENTS, seed=number, **changes)  # type: ignore[arg-type]


def spent(told: Sequence[Sequence[Told]]) -> int:
    return sum(one.cost_pusd for each in told for one in each if one.granted)


def month() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y%m")


def of_a_budget(store: Running, mutant: str = "", *, worst: bool) -> list[list[Told]]:
    """Four workers on one budget. worst: no call costs more than it held; else twice as much at most.

    They ask on long after there is no room, so that the last ends have been told by then.
    """
    hold = USD // 100
    return run([
        plan(
            store, number, calls=30, budget_pusd=2 * USD, hold_pusd=hold, cost_pusd_min=hold // 2,
            cost_pusd_max=hold if worst else 2 * hold, mutant=mutant,
        )
        for number in range(PROCESSES)
    ])  # fmt: skip


def test_a_budget_that_holds_the_worst_is_never_passed(store: Running) -> None:
    told = of_a_budget(store, worst=True)
    assert spent(told) <= 2 * USD
    assert 2 * USD - spent(told) < 2 * USD // 100  # and no room was left for one more
    refused = {one.limit for each in told for one in each if not one.granted}
    assert refused == {f"budget of the tenant: 2 USD in {month()}"}


def test_a_budget_that_holds_what_is_expected_is_passed_by_no_more_than_the_excess(store: Running) -> None:
    """Of the calls under way at once: each may cost as much again as it held."""
    told = of_a_budget(store, worst=False)
    assert spent(told) <= 2 * USD + PROCESSES * CLIENTS * USD // 100


@pytest.mark.parametrize("mutant", ["held is left out", "ended calls hold nothing"])
def test_a_budget_that_is_kept_wrongly_is_passed(store: Running, mutant: str) -> None:
    assert any(spent(of_a_budget(store, mutant, worst=True)) > 2 * USD for _ in range(3))


def test_exactly_twenty_of_twenty_when_it_is_quiet(store: Running) -> None:
    """Twenty may run at once, and 64 clients ask: twenty are admitted, whoever comes first; nobody ends."""
    told = run([plan(store, number, calls=1, concurrency=20, quiet=True) for number in range(PROCESSES)])
    assert sum(one.granted for each in told for one in each) == 20
    assert {one.limit for each in told for one in each if not one.granted} == {
        "concurrency of the tenant: 20"
    }


def test_twenty_of_twenty_again_once_all_have_ended(store: Running) -> None:
    """Twenty clients, twenty places: an end is told in time for whoever comes next, in whichever worker."""
    told = run([
        msgspec.structs.replace(plan(store, number, calls=40, concurrency=20), clients=5) for number in range(PROCESSES)
    ])  # fmt: skip
    assert [one for each in told for one in each if not one.granted] == []
