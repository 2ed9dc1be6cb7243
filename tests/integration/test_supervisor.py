"""The supervisor with real processes and sockets, and workers that only speak its protocol."""

import contextlib
import fcntl
import os
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from backends.model import Backend
from gateway.configuration.config import Config, Model, Redis, Tenant, Tier, to_json
from metering.journal.journal import directories
from tests.support.gateway import ROOT, eventually
from tests.support.ports import free_port
from tests.support.processes import descendants, is_alive

pytestmark = pytest.mark.integration

WORKER = (sys.executable, "-m", "tests.support.fake_worker")
Start = Callable[..., "Supervised"]


class Supervised:
    """A supervisor as a child process. Its store does not answer, unless it is to be the embedded one."""

    def __init__(
        self, directory: pathlib.Path, behaviour: str, workers: int, listen: str, *, embedded: bool = False
    ) -> None:
        self.state_dir = directory / "state"
        self.config = directory / "config.json"
        self.config.write_bytes(
            to_json(
                Config(
                    listen=listen,
                    workers=workers,
                    state_dir=str(self.state_dir),
                    redis=Redis(url=None if embedded else f"unix://{directory}/no-store"),
                    tenants=(Tenant(name="acme"),),
                    models=(Model(name="m", tiers=(Tier(backends=("b",)),)),),
                    backends=(Backend(name="b", url="http://127.0.0.1:1", model="m"),),
                )
            )
        )
        self.log = directory / "log"
        self.out = directory / "out"
        with self.log.open("ab") as log, self.out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.supervise", self.config, *WORKER, behaviour],
                cwd=ROOT,
                stdout=out,
                stderr=log,
            )

    def ready(self) -> "Supervised":
        """Wait until the workers take calls."""
        line = eventually(lambda: self.out.read_text() or self.process.poll())
        assert isinstance(line, str), self.log.read_text()
        self.address = ("127.0.0.1", int(line.rpartition(":")[2]))
        return self

    def ask(self) -> tuple[int, int]:
        """Connect; index and pid of the worker that answers."""
        index, pid, _ = self.answer()
        return index, pid

    def answer(self) -> tuple[int, int, int]:
        """Connect; index and pid of the worker that answers, and how often it was told of a mark behind."""
        with socket.create_connection(self.address, timeout=10) as connection, connection.makefile() as file:
            index, pid, told = file.readline().split()
        return int(index), int(pid), int(told)

    def pids(self, workers: int) -> dict[int, int]:
        """Index → pid of all workers."""
        found: dict[int, int] = {}
        eventually(lambda: found.update([self.ask()]) or len(found) == workers)
        return found

    def logged(self, event: str) -> bool:
        return f'"event":"{event}"' in self.log.read_text()


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def started(behaviour: str = "serve", *, workers: int = 1, listen: str = "127.0.0.1:0") -> Supervised:
            one = Supervised(tmp_path, behaviour, workers, listen)
            stack.callback(one.process.wait, 30)
            stack.callback(one.process.kill)
            return one

        yield started


def test_every_worker_has_a_socket_of_its_own_on_one_port(start: Start) -> None:
    one = start(workers=3).ready()
    assert len(set(one.pids(3).values())) == 3


def test_a_killed_worker_is_restarted_and_its_journal_closed(start: Start) -> None:
    one = start(workers=2).ready()
    before = one.pids(2)
    os.kill(before[0], signal.SIGKILL)
    eventually(lambda: one.pids(2)[0] != before[0])
    assert one.pids(2)[1] == before[1]
    assert '"status":"killed by signal 9"' in one.log.read_text()
    journal = one.state_dir / "journal"
    eventually(lambda: [d.closed_by_salvage for d in directories(journal)].count(True) == 1)
    eventually(lambda: len(list((one.state_dir / "pages").glob("*.page"))) == 2)


def test_a_loss_that_one_worker_sees_is_told_to_the_others(start: Start) -> None:
    one = start("behind", workers=2).ready()
    speaker, _, _ = one.answer()

    def another_was_told() -> bool:
        index, _, told = one.answer()
        return index != speaker and told > 0

    eventually(another_was_told)


def test_a_loss_is_not_told_to_who_saw_it(start: Start) -> None:
    one = start("behind").ready()
    assert {one.answer() for _ in range(20)} == {(0, one.ask()[1], 0)}


def test_who_connects_while_a_worker_is_restarted_is_served_by_the_next(start: Start) -> None:
    one = start().ready()
    _, pid = one.ask()
    os.kill(pid, signal.SIGKILL)
    assert one.ask()[1] != pid  # it waited in the backlog of the socket that the supervisor kept


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_all_workers(start: Start, number: signal.Signals) -> None:
    one = start(workers=2).ready()
    pids = one.pids(2).values()
    one.process.send_signal(number)
    assert one.process.wait(20) == 0
    assert not any(is_alive(pid) for pid in pids)
    found = directories(one.state_dir / "journal")
    assert len(found) == 2
    assert all(directory.complete and not directory.closed_by_salvage for directory in found)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_start_that_waits_for_the_store(
    tmp_path: pathlib.Path, number: signal.Signals
) -> None:
    store = tmp_path / "state" / "store"
    store.mkdir(parents=True)
    with contextlib.ExitStack() as stack, (store / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as a store of an earlier start would hold it
        one = Supervised(tmp_path, "serve", 1, "127.0.0.1:0", embedded=True)
        stack.callback(one.process.kill)
        eventually(lambda: has_open(one.process.pid, store / "lock"))
        one.process.send_signal(number)
        assert one.process.wait(5) == 0
    assert one.log.read_text() == ""


def has_open(pid: int, path: pathlib.Path) -> bool:
    for file in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(file) == str(path):
                return True
    return False


def test_a_second_signal_kills_workers_that_do_not_end(start: Start) -> None:
    one = start("stubborn").ready()
    _, pid = one.ask()
    one.process.send_signal(signal.SIGTERM)
    eventually(lambda: one.logged("stopping"))
    assert is_alive(pid)
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(20) == 0
    assert not is_alive(pid)


def test_workers_end_when_the_supervisor_is_killed(start: Start) -> None:
    one = start(workers=2).ready()
    pids = one.pids(2).values()
    one.process.kill()
    eventually(lambda: not any(is_alive(pid) for pid in pids))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells it")
def test_a_worker_that_is_only_starting_ends_with_its_supervisor_and_holds_no_port(start: Start) -> None:
    port = free_port()
    one = start("starting", workers=2, listen=f"127.0.0.1:{port}")
    pids = eventually(lambda: found if len(found := descendants(one.process.pid)) >= 2 else None)
    eventually(lambda: _listens(port))
    one.process.kill()
    eventually(lambda: not any(is_alive(pid) for pid in pids))
    start(listen=f"127.0.0.1:{port}").ready()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


def test_a_worker_that_keeps_dying_has_its_socket_closed_and_is_tried_again(start: Start) -> None:
    one = start().ready()
    for _ in range(3):
        os.kill(eventually(one.ask)[1], signal.SIGKILL)
    eventually(lambda: one.logged("worker keeps dying, its socket is closed"))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(one.address, timeout=5)

    def answers() -> bool:
        with contextlib.suppress(OSError):
            return bool(one.ask())
        return False

    eventually(answers, within_s=20)


def test_workers_that_never_come_up_end_the_command(start: Start) -> None:
    one = start("broken", workers=2)
    assert one.process.wait(20) == 1
    assert one.logged("workers do not start")
    assert one.out.read_text() == ""


def test_a_worker_that_makes_no_sense_is_killed(start: Start) -> None:
    one = start("babble")
    assert one.process.wait(20) == 1
    assert one.logged("worker makes no sense")


def test_a_taken_port_is_one_line_and_status_3(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        one = start(listen=f"127.0.0.1:{port}")
        assert one.process.wait(20) == 3
    assert one.log.read_text() == (
        f"weighbridge: cannot listen on 127.0.0.1:{port} (listen): another process has it; "
        "end that, or choose another with --port\n"
    )


def test_a_gateway_of_the_same_user_does_not_share_its_port(start: Start, tmp_path: pathlib.Path) -> None:
    one = start().ready()
    (tmp_path / "second").mkdir()
    second = Supervised(tmp_path / "second", "serve", 1, f"127.0.0.1:{one.address[1]}")
    assert second.process.wait(20) == 3
    assert "another process has it" in second.log.read_text()


def test_a_locked_state_directory_is_one_line_and_status_3(start: Start) -> None:
    first = start().ready()
    second = start()
    assert second.process.wait(20) == 3
    # The first one's log lines are in the same file, and are JSON.
    said = [line for line in second.log.read_text().splitlines() if not line.startswith("{")]
    assert said == [
        f"weighbridge: the state directory {first.state_dir} is in use by another weighbridge; "
        "end that, or choose another with --state-dir"
    ]


def test_a_state_directory_that_cannot_be_made_is_one_line_and_status_3(
    start: Start, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "state").write_text("a file")
    one = start()
    assert one.process.wait(20) == 3
    assert one.log.read_text() == (
        f"weighbridge: the state directory {one.state_dir} cannot be written to: File exists\n"
    )
