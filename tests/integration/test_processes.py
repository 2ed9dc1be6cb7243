"""The whole gateway as processes: what a signal, a kill and a store that forgets leave behind.

The kill rounds under load are elsewhere; here each case is looked at by itself.
"""

import os
import pathlib
import re
import signal
from collections.abc import Iterator

import pytest

from backends.simulator.settings import Settings
from tests.oracle import journal, ledger
from tests.oracle.resp import Connection, RespError
from tests.support import gateway, simulator
from tests.support.gateway import Gateway, eventually
from tests.support.processes import descendants, is_alive

pytestmark = pytest.mark.integration

MODEL = "llama-3.1-8b"
ASK = {"model": "m1", "messages": [{"role": "user", "content": "How heavy is it?"}], "max_tokens": 8}
LONG = ASK | {"stream": True, "max_tokens": 60}  # some two seconds, as the server below is set


@pytest.fixture(scope="module")
def server() -> Iterator[simulator.Running]:
    with simulator.running(Settings(instance_type="inf2.48xlarge", model=MODEL)) as one:
        yield one


@pytest.fixture(params=[1, 2], ids=["1 worker", "2 workers"])
def front(
    request: pytest.FixtureRequest, server: simulator.Running, tmp_path: pathlib.Path
) -> Iterator[Gateway]:
    backend = {"name": "b1", "url": server.url, "model": MODEL, "instance_type": "inf2.48xlarge", "slots": 8}
    with gateway.running(tmp_path, [backend], tenants=("acme", "globex"), workers=request.param) as one:
        one.workers = request.param
        eventually(lambda: len(workers(one)) == request.param)
        yield one


def workers(front: Gateway) -> dict[str, int]:
    """Writer → pid of the workers that are ready, by their `start` lines."""
    return {line["writer"]: line["pid"] for line in front.lines("start") if is_alive(line["pid"])}


def writers(front: Gateway) -> set[str]:
    """Who wrote the records of calls."""
    return {line["call_id"].rpartition("-")[0] for line in front.lines("call")}


def call(front: Gateway, tenant: str = "acme") -> str:
    """A call that is answered; its id."""
    answer = front.post("/v1/chat/completions", ASK, tenant=tenant)
    assert answer.status == 200, answer.read()
    answer.read()
    return answer.headers["x-weighbridge-call-id"]


def is_level(front: Gateway) -> bool:
    """Does the store hold what the journals say?"""
    with Connection((front.state_dir / "store" / "url").read_text().strip()) as store:
        return ledger.read(store) == ledger.recompute(journal.read(front.state_dir / "journal"))


def test_sigterm_lets_an_answer_end_and_leaves_nothing_behind(front: Gateway) -> None:
    children = descendants(front.process.pid)
    assert len(children) == front.workers + 2  # and the store, and the clerk
    answer = front.post("/v1/chat/completions", LONG)
    answer.readline()  # it has begun
    front.process.send_signal(signal.SIGTERM)
    assert answer.read().endswith(b"data: [DONE]\n\n")
    assert front.process.wait(40) == 0
    assert not any(is_alive(pid) for pid in children)
    assert [line["outcome"] for line in front.lines("call")] == ["completed"]
    assert [line["reason"] for line in front.lines("stop")] == ["shutdown"] * front.workers


def test_a_killed_worker_loses_its_calls_by_name_and_another_takes_its_place(front: Gateway) -> None:
    done = [call(front, tenant) for tenant in ("acme", "globex")]
    answer = front.post("/v1/chat/completions", LONG)
    answer.readline()
    lost = answer.headers["x-weighbridge-call-id"]
    victim = lost.rpartition("-")[0]
    os.kill(workers(front)[victim], signal.SIGKILL)
    eventually(lambda: victim not in workers(front) and len(workers(front)) == front.workers)

    done.append(call(front))
    outcomes = {line["call_id"]: line["outcome"] for line in front.lines("call")}
    assert outcomes == dict.fromkeys(done, "completed") | {lost: "lost"}
    eventually(lambda: is_level(front))
    assert metric(front, 'outcome="completed"') == len(done)
    assert metric(front, 'outcome="lost"') == 1


def metric(front: Gateway, label: str) -> float:
    """Sum over weighbridge_calls_total with this label."""
    status, page = front.get("/metrics", front.keys["acme"])
    assert status == 200
    samples = re.findall(r"^weighbridge_calls_total\{(.*)\} (\S+)$", page.decode(), re.MULTILINE)
    return sum(float(value) for labels, value in samples if label in labels)


def test_a_killed_supervisor_takes_all_with_it_and_the_next_start_closes_the_books(front: Gateway) -> None:
    call(front)
    children = descendants(front.process.pid)
    front.process.kill()
    front.process.wait()
    eventually(lambda: not any(is_alive(pid) for pid in children), within_s=30)
    front.restart()
    front.wait_ready()
    call(front)
    eventually(lambda: is_level(front))
    assert metric(front, 'outcome="completed"') == 2


def test_a_killed_store_is_started_again_and_calls_go_on_meanwhile(front: Gateway) -> None:
    call(front)
    eventually(lambda: is_level(front))
    with Connection((front.state_dir / "store" / "url").read_text().strip()) as store:
        found = re.search(r"process_id:(\d+)", str(store.ask("INFO", "server")))
    assert found
    os.kill(int(found[1]), signal.SIGKILL)
    call(front)

    def back_and_level() -> bool:
        try:
            return is_level(front)
        except (OSError, RespError):
            return False  # it is not back yet, or still reading what it had

    eventually(back_and_level, within_s=20)


def test_a_store_that_forgets_gets_the_journals_of_the_dead_again_at_once(front: Gateway) -> None:
    call(front, "globex")
    dead = workers(front)
    for pid in dead.values():
        os.kill(pid, signal.SIGKILL)
    # From here on there is no live writer of globex: only the dead ones' directories know of its call.
    eventually(lambda: len(workers(front).keys() - dead.keys()) == front.workers)
    # Each worker has a mark that can fall: one that has none would see no loss.
    eventually(lambda: call(front) and writers(front) >= workers(front).keys())
    eventually(lambda: is_level(front))
    with Connection((front.state_dir / "store" / "url").read_text().strip()) as store:
        store.ask("FLUSHALL")
    call(front)  # its worker finds that its mark has fallen, and tells the supervisor
    eventually(lambda: is_level(front), within_s=10)  # not at the next round, which is 30 s away
