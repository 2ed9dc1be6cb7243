"""A simulated server as a process of its own, for tests; started with `python -m tests.support.simulator SETTINGS`."""

import collections.abc
import contextlib
import dataclasses
import json
import pathlib
import re
import subprocess
import sys
import typing
import urllib.request

import msgspec

from backends.simulator.server import run
from backends.simulator.settings import Settings

ROOT = pathlib.Path(__file__).parent.parent.parent
ADDRESS = re.compile(r"at http://127\.0\.0\.1:(\d+);")
ANSWER_S_MAX = 30


@dataclasses.dataclass(frozen=True)
class Running:
    """A simulator that answers. first_line: what it said of itself."""

    process: subprocess.Popen[str]
    port: int
    first_line: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=ANSWER_S_MAX) as response:
            return response.read().decode()

    def log(self, since: int = 1, *, raw: bool = False) -> list[dict[str, typing.Any]]:
        """Its log from entry number `since` on."""
        lines = self.get(f"/_sim/log?since={since}" + ("&raw=1" if raw else "")).splitlines()
        return [json.loads(line) for line in lines]

    def arm(self, kind: str, **fields: int) -> None:
        """Let a fault befall the next call or calls."""
        body = json.dumps({"kind": kind, **fields}).encode()
        urllib.request.urlopen(self.url + "/_sim/fault", body, timeout=ANSWER_S_MAX).close()

    def disarm(self) -> None:
        """Take back the faults that no call had yet."""
        request = urllib.request.Request(self.url + "/_sim/fault", method="DELETE")
        urllib.request.urlopen(request, timeout=ANSWER_S_MAX).close()

    def value(self, sample: str) -> float:
        """Sum over a metric's samples, by name without labels."""
        lines = self.get("/metrics").splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(sample + "{"))


@contextlib.contextmanager
def running(settings: Settings) -> collections.abc.Iterator[Running]:
    """Start one on a free port; it is ended on leaving."""
    command = [sys.executable, "-m", "tests.support.simulator", msgspec.json.encode(settings).decode()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            first_line = process.stdout.readline()
            match = ADDRESS.search(first_line)
            assert match is not None, f"no address in {first_line!r}"
            yield Running(process, int(match[1]), first_line)
        finally:
            process.terminate()
            try:
                process.wait(ANSWER_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()


if __name__ == "__main__":
    sys.exit(run(msgspec.json.decode(sys.argv[1], type=Settings), port=0))
