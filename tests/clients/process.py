"""A client library at work: one of the programs of programs/ as a child, which carries out orders one by one."""

import contextlib
import json
import os
import pathlib
import queue
import subprocess
import threading
from collections.abc import Iterator

from tests.clients import environment

ANSWER_S_MAX = 60.0
ORDER = {
    "extra": {},
    "leave_after": None,
    "max_tokens": 8,
    "prompt": "Name three rivers.",
    "retries": 0,
    "timeout_s": ANSWER_S_MAX,
}
"""What an order is unless the test says otherwise (words: programs/orders.py)."""

QUIET = {
    "ANTHROPIC_LOG": "",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # litellm asks a host on the internet for its prices else
    "NODE_NO_WARNINGS": "1",
    "AI_SDK_LOG_WARNINGS": "false",
}


class Program:
    """A running program. log: where its stderr goes."""

    def __init__(self, name: str, log: pathlib.Path) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                environment.default().command(name), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
                text=True, env={**_bare_environment(), **QUIET},
            )  # fmt: skip
        self._views: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, do: str, **order: object) -> dict:
        """Let it carry out an order; returns its view (both: programs/orders.py). Fails if none comes in time."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(ORDER | {"do": do} | order) + "\n")
        self._process.stdin.flush()
        try:
            line = self._views.get(timeout=ANSWER_S_MAX)
        except queue.Empty:
            line = ""
        assert line, f"{self.name} gave no view of {do}:\n{self.log.read_text()}"
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._views.put(line)
        self._views.put("")


@contextlib.contextmanager
def running(name: str, log: pathlib.Path) -> Iterator[Program]:
    """Start a program; it is ended on leaving."""
    program = Program(name, log)
    try:
        yield program
    finally:
        program.close()


def _bare_environment() -> dict[str, str]:
    """Without variables that libraries read: keys, base URLs, proxies."""
    kept = ("PATH", "HOME", "LANG", "TMPDIR")
    return {name: os.environ[name] for name in kept if name in os.environ}
