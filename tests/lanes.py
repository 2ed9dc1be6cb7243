"""Several runs of pytest, two at a time, each told in whole and in order: `python -m tests.lanes [--all ARGS] RUN …`

    python -m tests.lanes --all '-q -m "not e2e"' 'WEIGHBRIDGE_DRIVER=plain tests/field' tests/integration

A RUN is what a shell would read behind `pytest`, with variables before it; --all stands in each. Most tests of this
project wait for processes, so one run leaves half of a machine idle. The last line sums up all of them, in pytest's
own words; the exit code is the greatest.
"""

import argparse
import collections
import contextlib
import dataclasses
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

AT_ONCE = 2
LOOK_S = 0.2
NOTHING_COLLECTED = 5
"""Pytest's exit code, which is no failure of a lane."""
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
_CLOSING = re.compile(r"^(?:=+ )?((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s\b")
_ORDER = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warnings", "errors")
_ONE = {"warning": "warnings", "error": "errors"}


@dataclasses.dataclass
class Lane:
    """One run. output: where it writes; process: None until it is started."""

    argv: list[str]
    env: dict[str, str]
    output: pathlib.Path
    process: subprocess.Popen[bytes] | None = None

    @classmethod
    def of(cls, run: str, each: str, output: pathlib.Path) -> "Lane":
        """As it is written on the command line."""
        words = shlex.split(run)
        env = {}
        while words and _VARIABLE.match(words[0]):
            name, _, env[name] = words.pop(0).partition("=")
        return cls([sys.executable, "-m", "pytest", *shlex.split(each), *words], env, output)

    def start(self) -> None:
        """Start it; it inherits all but its output."""
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                self.argv, env={**os.environ, **self.env}, stdout=file, stderr=subprocess.STDOUT
            )

    @property
    def running(self) -> bool:
        """Has it begun, and not ended?"""
        return self.process is not None and self.process.poll() is None

    def code(self) -> int:
        """Its exit code, once it has ended; a signal counts as a failure."""
        assert self.process is not None
        code = self.process.wait()
        return 1 if code < 0 else 0 if code == NOTHING_COLLECTED else code


def run(lanes: Sequence[Lane], at_once: int = AT_ONCE) -> int:
    """Run them; to stdout goes the output of one after the other, as it comes. returns: the greatest exit code."""
    for lane in lanes[:at_once]:
        lane.start()
    for lane in lanes:
        lane_was_running = True
        told = 0
        while lane_was_running:
            lane_was_running = lane.running  # what it wrote before it ended is read below
            for waiting in lanes:
                if waiting.process is None and sum(one.running for one in lanes) < at_once:
                    waiting.start()
            with lane.output.open("rb") as file:
                file.seek(told)
                new = file.read()
            told += len(new)
            sys.stdout.buffer.write(new)
            sys.stdout.buffer.flush()
            if lane_was_running:
                assert lane.process is not None
                with contextlib.suppress(subprocess.TimeoutExpired):
                    lane.process.wait(LOOK_S)
    return max(lane.code() for lane in lanes)


def summed(closing_lines: Sequence[str], seconds: float) -> str:
    """The closing line of all, of those of each; a line that is none has counted nothing."""
    counts: collections.Counter[str] = collections.Counter()
    for line in closing_lines:
        if found := _CLOSING.match(line):
            for part in found[1].split(", "):
                number, _, name = part.partition(" ")
                counts[_ONE.get(name, name)] += int(number)
    said = [f"{counts[name]} {name}" for name in _ORDER if counts[name]]
    return f"{', '.join(said) or 'no tests ran'} in {seconds:.2f}s"


def main(words: Sequence[str] | None = None) -> int:
    """Entry of `python -m tests.lanes`."""
    parser = argparse.ArgumentParser(prog="python -m tests.lanes", description=__doc__.partition(":")[0])
    parser.add_argument("--all", default="", metavar="ARGS", dest="each")
    parser.add_argument("runs", nargs="+", metavar="RUN")
    args = parser.parse_args(words)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lanes-") as directory:
        places = [pathlib.Path(directory) / str(number) for number in range(len(args.runs))]
        lanes = [Lane.of(each, args.each, place) for each, place in zip(args.runs, places, strict=True)]
        try:
            code = run(lanes)
        except KeyboardInterrupt:  # which they had too
            code = max(lane.code() for lane in lanes if lane.process is not None)
        outputs = [place.read_text(errors="replace") for place in places if place.exists()]
    closing = [output.splitlines()[-1] for output in outputs if output]
    if code:
        print("\n".join(line for output in outputs for line in output.splitlines() if _is_told_again(line)))
    print(summed(closing, time.monotonic() - began_s))
    return code


def _is_told_again(line: str) -> bool:
    return line.startswith(("FAILED ", "ERROR "))


if __name__ == "__main__":
    sys.exit(main())
