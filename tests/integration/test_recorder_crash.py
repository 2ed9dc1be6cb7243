"""kill -9 at any moment: what anybody was released for is in the journal, and each call has one record."""

import collections
import itertools
import pathlib
import random
import resource
import signal
import subprocess
import sys

import pytest

from metering.audit.endnotes import END_NOTE, Ends
from metering.audit.notary import Signed
from metering.journal.journal import directories, salvage_dead
from metering.record import Admitted, CallRecord, Outcome, Stop
from tests.support import noteoracle, signing

pytestmark = pytest.mark.integration

ROOT = pathlib.Path(__file__).parents[2]
SEEDS = range(12)
FILE_BYTES_MAX = 30_000  # below a segment's size by seed 0


def crash(root: pathlib.Path, seed: int, *, killed_at_release: int = 0, recorder: str = "real") -> list[str]:
    """Run a writer until it is killed, by itself or by us after some of its reports; returns them all."""
    arguments = [str(root), str(seed), str(killed_at_release), recorder]
    command = [sys.executable, "-m", "tests.support.crashing_writer", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as child:
        assert child.stdout is not None
        reports: list[bytes] = []
        if killed_at_release == 0:
            reports += itertools.islice(child.stdout, random.Random(seed).randrange(1, 2_000))
            child.kill()
        reports += child.stdout
    assert child.returncode == -signal.SIGKILL
    return [report.decode().strip() for report in reports]


def missing(root: pathlib.Path, reports: list[str]) -> set[str]:
    """Close the dead directory, check that its calls add up; which reported lines are not in it?"""
    [closed] = salvage_dead(root)
    whole = [line for line, _, _ in closed.directory.records()]
    admissions = [line.call_id for line in whole if isinstance(line, Admitted)]
    outcomes = {line.call_id: line.outcome for line in whole if isinstance(line, CallRecord)}
    assert collections.Counter(line.kind for line in whole)["call"] == len(outcomes), "one record each"
    assert sorted(admissions) == sorted(outcomes), "and one for each admission"
    stop = whole[-1]
    assert isinstance(stop, Stop)
    assert (stop.lost, stop.torn_bytes) == (closed.lost, closed.torn_bytes)
    assert stop.lost == list(outcomes.values()).count(Outcome.LOST)
    check_signed(root)
    ended = {f"call {call_id}" for call_id, outcome in outcomes.items() if outcome is not Outcome.LOST}
    return set(reports) - ended - {f"admitted {call_id}" for call_id in admissions}


def check_signed(root: pathlib.Path) -> None:
    """Sign the dead directory's end: all that was ever signed of it fits, and each segment but the last is signed."""
    [directory] = directories(root)
    [signed] = Ends(root).sign(signing.key, 0)
    assert isinstance(signed, Signed)
    seqs = noteoracle.check(directory.path, signing.signer().verifier.vkey)
    begun = [first_seq for first_seq, _ in directory.segment_paths()]
    assert {first_seq - 1 for first_seq in begun[1:]} <= set(seqs), "a segment's last line signs it"
    assert (directory.path / END_NOTE).exists()


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX))


def test_a_file_that_can_grow_no_more_ends_the_writer_at_a_whole_turn(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "tests.support.crashing_writer", str(tmp_path), "0", "0", "real"]
    child = subprocess.run(command, capture_output=True, cwd=ROOT, preexec_fn=limit_files, check=False)
    assert child.returncode == 1
    assert b"short write" in child.stderr
    [(_, segment)] = directories(tmp_path)[0].segment_paths()
    assert FILE_BYTES_MAX // 2 < segment.stat().st_size < FILE_BYTES_MAX, "the half turn was taken back"
    reports = child.stdout.decode().splitlines()
    assert missing(tmp_path, reports) == set()
    [directory] = directories(tmp_path)
    lines = [line for line, _, _ in directory.records() if isinstance(line, Admitted | CallRecord)]
    assert len(reports) == len([line for line in lines if getattr(line, "outcome", None) is not Outcome.LOST])


@pytest.mark.parametrize("seed", SEEDS)
def test_killed_from_outside_at_any_moment(tmp_path: pathlib.Path, seed: int) -> None:
    reports = crash(tmp_path, seed)
    assert reports
    assert missing(tmp_path, reports) == set()
    assert salvage_dead(tmp_path) == []
    assert [directory.complete for directory in directories(tmp_path)] == [True]


@pytest.mark.parametrize("killed_at_release", [1, 2, 50, 333])
def test_killed_at_the_very_moment_of_a_release(tmp_path: pathlib.Path, killed_at_release: int) -> None:
    reports = crash(tmp_path, 1, killed_at_release=killed_at_release)
    assert len(reports) == killed_at_release
    assert missing(tmp_path, reports) == set()


@pytest.mark.parametrize("killed_at_release", [1, 2, 50, 333])
def test_the_test_finds_a_recorder_that_releases_before_it_writes(
    tmp_path: pathlib.Path, killed_at_release: int
) -> None:
    reports = crash(tmp_path, 1, killed_at_release=killed_at_release, recorder="releases_first")
    assert len(reports) == killed_at_release
    assert missing(tmp_path, reports)
