"""Journal lines on the gateway's stdout, and `weighbridge audit tail -f` beside it."""

import collections
import contextlib
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.support import mutants
from tests.support.gateway import ROOT, eventually
from tests.support.stage import R, staged

pytestmark = pytest.mark.integration

CALLS = 30


def journal_lines(text: str) -> list[dict]:
    """The lines of a log that are of the journal: they have a seq."""
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [line for line in found if "seq" in line]


def by_place(lines: list[dict]) -> dict[tuple[str, int], dict]:
    """By writer and seq, of lines whose writers take turns: a `start` says whose the next ones of its chain are."""
    writers: dict[str, str] = {}
    found = {}
    for line in lines:
        writer = line["writer"] if line["kind"] == "start" else writers[line["prev"]]
        found[writer, line["seq"]] = line
        raw = json.dumps(line, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        writers[leaf(raw)] = writer
    return found


def leaf(raw: bytes) -> str:
    return hashlib.sha256(b"\0" + raw).hexdigest()


def test_each_line_is_copied_and_tail_shows_the_same(tmp_path: pathlib.Path) -> None:
    with staged(tmp_path, journal={"mirror": "stdout"}, workers=2, slots=8) as stage:
        gateway = stage.gateway
        command = [sys.executable, "-m", "gateway.cli", "audit", "tail", "-f", "--last", "1000", "--json"]
        shown = tmp_path / "tail.out"
        with shown.open("wb") as out, contextlib.ExitStack() as stack:
            tail = subprocess.Popen(
                [*command, "--state-dir", str(gateway.state_dir)], cwd=ROOT, stdout=out,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
            stack.callback(tail.wait, 10)
            stack.callback(tail.kill)
            for _ in range(CALLS):
                assert stage.post(R).status == 200
            eventually(lambda: len(gateway.lines("call")) == CALLS)
            assert gateway.stop() == 0
            written = gateway.lines()
            eventually(lambda: len(shown.read_text().splitlines()) == len(written), within_s=20)
            tail.send_signal(signal.SIGINT)
            assert tail.wait(timeout=10) == 0
        copied = by_place(journal_lines(gateway.log.read_text()))  # stdout goes to the same file as the log
        assert copied == by_place(written)
        assert by_place(journal_lines(shown.read_text())) == copied
        assert sum(line["kind"] == "call" for line in copied.values()) == CALLS


@pytest.mark.parametrize("mutant", ["mirror_forgets", "mirror_ahead"])
def test_the_law_sees_a_copy_that_is_another(tmp_path: pathlib.Path, mutant: str) -> None:
    env = mutants.environment(mutant)
    with staged(tmp_path, journal={"mirror": "stdout"}, slots=8, env=env) as stage:
        for _ in range(CALLS):
            assert stage.post(R).status == 200
        assert stage.gateway.stop() == 0
        copied = collections.Counter(map(str, journal_lines(stage.gateway.log.read_text())))
        written = collections.Counter(map(str, stage.gateway.lines()))
        if mutant == "mirror_forgets":
            assert copied < written
        else:
            assert copied > written, "each line twice: when it was made, and when it was written"
