"""Child processes of the benchmark: pinned to a core, with a log, ended with everything below them."""

import contextlib
import functools
import http.client
import os
import pathlib
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

LOAD_CORE = 0
"""Of the load generator, the mock backend and this program."""
GATEWAY_CORE = 1
STOP_S = 15.0
POLL_S = 0.05


T = TypeVar("T")


class BenchError(Exception):
    """The run can't go on, or what it measured does not count; the message says why."""


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def prepare() -> None:
    """Move this process, and with it its children, to the load's core, and let them have many descriptors.

    Raises BenchError if there are not two cores to be had.
    """
    cores = os.sched_getaffinity(0)
    if not {LOAD_CORE, GATEWAY_CORE} <= cores:
        raise BenchError(f"it needs the cores {LOAD_CORE} and {GATEWAY_CORE}, and may use {sorted(cores)}")
    os.sched_setaffinity(0, {LOAD_CORE})
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def running(
    command: Sequence[str | pathlib.Path], log: pathlib.Path, *, core: int, env: Mapping[str, str] | None = None,
    cwd: pathlib.Path | None = None, stdout: int | None = None,
) -> Iterator[subprocess.Popen[str]]:  # fmt: skip
    """A child on one core, its output in `log`; at the end it and its whole session are gone."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=stdout or output, stderr=output,
            env={**os.environ, **(env or {})}, cwd=cwd, start_new_session=True, text=True,
            preexec_fn=functools.partial(os.sched_setaffinity, 0, {core}),
        )  # fmt: skip
    try:
        yield child
    finally:
        if (status := child.poll()) is not None:
            print(f"{pathlib.Path(command[0]).name} has ended by itself, status {status}: {log}", flush=True)
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def eventually(check: Callable[[], T], *, within_s: float, what: str) -> T:
    """Ask until the answer is true, and return it. Raises BenchError when the time is over."""
    deadline = time.monotonic() + within_s
    while not (found := check()):
        if time.monotonic() > deadline:
            raise BenchError(f"after {within_s:g} s still not: {what}")
        time.sleep(POLL_S)
    return found


def ask(port: int, method: str, path: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0) -> tuple[int, bytes]:  # fmt: skip
    """One request on a connection of its own. returns: status and body; status 0 if there was no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request(method, path, body=body, headers={"connection": "close", **(headers or {})})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()
