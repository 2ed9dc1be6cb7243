"""Several runs of pytest at once: all are run, told in order, and summed up."""

import pathlib
import sys

import pytest

from tests import lanes
from tests.lanes import Lane, summed


def test_a_run_is_what_a_shell_would_read() -> None:
    lane = Lane.of("A=1 B='x y' tests/a -k 'not b'", '-q -m "not e2e"', pathlib.Path("out"))
    assert lane.env == {"A": "1", "B": "x y"}
    assert lane.argv[1:] == ["-m", "pytest", "-q", "-m", "not e2e", "tests/a", "-k", "not b"]


@pytest.mark.parametrize(
    ("lines", "total"),
    [
        (["2 passed in 0.10s", "3 passed, 1 skipped in 61.20s (0:01:01)"], "5 passed, 1 skipped in 7.00s"),
        (["==== 1 failed, 2 passed, 1 error in 3.00s ====", "no tests ran in 0.01s"],
         "1 failed, 2 passed, 1 errors in 7.00s"),
        (["ImportError: no"], "no tests ran in 7.00s"),
    ],
)  # fmt: skip
def test_the_last_line_sums_up(lines: list[str], total: str) -> None:
    assert summed(lines, 7) == total


def scripted(directory: pathlib.Path, *programs: str) -> list[Lane]:
    return [
        Lane([sys.executable, "-c", program], {"PLACE": str(directory)}, directory / str(number))
        for number, program in enumerate(programs)
    ]


MEET = """
import os, pathlib, time
mine, other = os.environ['PLACE'] + '/{0}.here', os.environ['PLACE'] + '/{1}.here'
pathlib.Path(mine).touch()
deadline = time.monotonic() + 30
while not os.path.exists(other):
    assert time.monotonic() < deadline
print('{0}')
"""


def test_two_run_at_once_and_are_told_in_order(
    tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert lanes.run(scripted(tmp_path, MEET.format("a", "b"), MEET.format("b", "a"), "print('c')")) == 0
    assert capfd.readouterr().out.split() == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("codes", "code"), [((0, 5), 0), ((1, 0), 1), ((0, 2, 1), 2)], ids=["none", "first", "greatest"]
)
def test_one_failure_is_a_failure_of_all(tmp_path: pathlib.Path, codes: tuple[int, ...], code: int) -> None:
    assert lanes.run(scripted(tmp_path, *(f"raise SystemExit({one})" for one in codes))) == code


def test_one_that_is_killed_has_failed(tmp_path: pathlib.Path) -> None:
    assert lanes.run(scripted(tmp_path, "import os; os.kill(os.getpid(), 9)", "print()")) == 1
