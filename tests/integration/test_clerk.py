"""The clerk as a process: it works, is started again, and never outlives its supervisor."""

import os
import pathlib
import random
import signal
import sys
import time
from collections.abc import Iterator

import duckdb
import pytest

from backends.model import Backend
from gateway.configuration.config import Config, Journal, Model, Redis, Tenant, Tier, to_json
from gateway.processes.desk import CLERK, Desk
from metering.archive.archive import Archive
from metering.archive.objects import LocalObjects
from metering.journal.journal import Directory, directories
from metering.journal.segments import is_sealed
from tests.support import journals
from tests.support.gateway import eventually
from tests.support.processes import descendants, is_alive

pytestmark = pytest.mark.integration

LONG_AGO_S = 1_000_000_000


def config(state_dir: pathlib.Path, **journal: str) -> bytes:
    return to_json(
        Config(
            state_dir=str(state_dir),
            journal=Journal(**journal),  # type: ignore[arg-type]
            redis=Redis(url=f"unix://{state_dir}/no-store"),
            retention_days=36_500,
            tenants=(Tenant(name="acme"),),
            models=(Model(name="m", tiers=(Tier(backends=("b",)),)),),
            backends=(Backend(name="b", url="http://127.0.0.1:1", model="m"),),
        )
    )


@pytest.fixture
def directory(tmp_path: pathlib.Path) -> Directory:
    """A complete directory that nobody has written to for long."""
    makes = [journals.start(), *[journals.call(f"w-{n}") for n in range(8)], journals.stop()]
    path = journals.write_directory(tmp_path / "journal", makes, per_segment=4)
    for segment in path.glob("*.jsonl"):
        os.utime(segment, (LONG_AGO_S, LONG_AGO_S))
    return Directory(path)


@pytest.fixture
def desk(tmp_path: pathlib.Path) -> Iterator[Desk]:
    one = Desk(config(tmp_path))
    yield one
    one.close()


def clerk() -> int | None:
    """The pid of the clerk, if there is one."""
    for pid in descendants(os.getpid()):
        if CLERK[-1].encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return None


def test_it_seals_what_is_due(desk: Desk, directory: Directory) -> None:
    lines = list(directory.chained())
    desk.keep_up()
    eventually(lambda: all(is_sealed(path) for _, path in directory.segment_paths()), within_s=20)
    assert list(directory.chained()) == lines


def test_kills_at_any_time_leave_an_archive_that_is_whole(tmp_path: pathlib.Path) -> None:
    """Twenty clerks, each killed a little later; then one is let go on."""
    rng = random.Random(5)
    wanted = {}
    for letter in "abcdef":
        makes = [journals.start(), *[journals.call(f"w-{n}") for n in range(40)], journals.stop()]
        path = journals.write_directory(tmp_path / "journal", makes, writer="w" + letter * 16, per_segment=7)
        for segment in path.glob("*.jsonl"):
            os.utime(segment, (LONG_AGO_S, LONG_AGO_S))
        wanted[path.name] = list(Directory(path).chained())
    archive = Archive(LocalObjects(tmp_path / "archive"))
    made = config(tmp_path, archive=str(tmp_path / "archive"))
    for _ in range(20):
        desk = Desk(made)
        desk.keep_up()
        pid = eventually(clerk)
        deadline_s = time.monotonic() + 0.3 + rng.random()
        eventually(lambda deadline_s=deadline_s: time.monotonic() > deadline_s)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda pid=pid: not is_alive(pid))
        desk.close()
        for writer in archive.writers():
            seen = list(archive.directory(writer).chained())
            assert seen == wanted[writer][: len(seen)]
        for directory in directories(tmp_path / "journal"):
            assert list(directory.chained()) == wanted[directory.writer]
    desk = Desk(made)
    try:
        desk.keep_up()
        eventually(lambda: [archive.directory(one).complete for one in wanted] == [True] * 6, within_s=60)
    finally:
        desk.close()
    assert {one.writer: list(one.chained()) for one in archive.directories()} == wanted
    with duckdb.connect() as connection:
        files = f"'{tmp_path}/facts/day=*/*.parquet'"
        query = f"SELECT count(*), count(DISTINCT seq || writer), sum(cost_pusd) FROM {files}"
        assert connection.execute(query).fetchall() == [(240, 240, 240 * 22_500_000)]


def test_one_that_dies_is_started_again_and_close_leaves_none(desk: Desk) -> None:
    desk.keep_up()
    first = eventually(clerk)
    os.kill(first, signal.SIGKILL)

    def another() -> bool:
        desk.keep_up()
        return clerk() not in (None, first)

    eventually(another)
    second = clerk()
    assert second is not None
    desk.close()
    assert not is_alive(second)
    desk.keep_up()
    assert clerk() is None, "one that was dismissed is not started again"


def test_one_that_cannot_be_started_is_tried_again(tmp_path: pathlib.Path) -> None:
    desk = Desk(config(tmp_path), argv=[str(tmp_path / "missing")])
    desk.keep_up()
    assert desk.start_ns is not None
    assert desk.start_ns > time.monotonic_ns()
    desk.close()


STARTS_ONE = """
import os, pathlib, sys, time
from gateway.processes.desk import Desk
desk = Desk(pathlib.Path(sys.argv[1]).read_bytes())
desk.keep_up()
print(desk._process.pid, flush=True)
time.sleep(60)
"""


def test_it_ends_with_a_supervisor_that_is_killed(tmp_path: pathlib.Path) -> None:
    import subprocess

    (tmp_path / "config").write_bytes(config(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_ONE, tmp_path / "config"], stdout=subprocess.PIPE
    ) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        assert is_alive(pid)
        supervisor.kill()
    eventually(lambda: not is_alive(pid))
