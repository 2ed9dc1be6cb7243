"""Two releases on one store: a gateway of the first one and one of this one take calls at the same time.

The first release's code is taken from the repository's history; a checkout without it is skipped, and its journals
are read all the same (tests/metering/journal/test_first_release.py).
"""

import contextlib
import pathlib
import shutil
import subprocess
import threading

import pytest

from tests.oracle import journal, ledger
from tests.oracle.resp import Connection
from tests.support.gateway import ROOT, eventually
from tests.support.stage import R, Stage, staged

pytestmark = pytest.mark.integration

FIRST_RELEASE = "17362ea"
CALLS = 60


@pytest.fixture
def first_release(tmp_path: pathlib.Path) -> pathlib.Path:
    """A directory with its code."""
    packed = subprocess.run(
        ["git", "archive", FIRST_RELEASE, "gateway", "backends", "metering"],
        cwd=ROOT, capture_output=True, check=False,
    )  # fmt: skip
    if packed.returncode:
        pytest.skip(f"this checkout has no {FIRST_RELEASE}: {packed.stderr.decode().strip()}")
    path = tmp_path / "first"
    path.mkdir()
    subprocess.run(["tar", "-x", "-C", str(path)], input=packed.stdout, check=True)
    return path


def ask(stage: Stage) -> None:
    for _ in range(CALLS):
        assert stage.post(R).status == 200


def at_once(*stages: Stage) -> None:
    """Calls to all of them at the same time."""
    threads = [threading.Thread(target=ask, args=(stage,)) for stage in stages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_sums_are_right_before_during_and_after_the_upgrade(
    tmp_path: pathlib.Path, first_release: pathlib.Path
) -> None:
    with contextlib.ExitStack() as stack:
        (tmp_path / "new").mkdir()
        new = stack.enter_context(staged(tmp_path / "new"))
        url = (new.gateway.state_dir / "store" / "url").read_text().strip()
        (tmp_path / "old").mkdir()
        old = stack.enter_context(staged(tmp_path / "old", code=first_release, redis={"url": url}))
        lines = old.gateway.lines("start")
        assert len(lines) == 1

        def settled() -> bool:
            writers = [
                writer for stage in (old, new) for writer in journal.read(stage.gateway.state_dir / "journal")
            ]
            assert [fault for writer in writers for fault in writer.faults] == []
            with Connection(url) as store:
                return ledger.check(ledger.recompute(writers), ledger.read(store)) == []

        at_once(old, new)
        eventually(settled, within_s=20)
        assert "ended" not in old.gateway.lines("start")[0], "it is the first release's code that runs"
        # Rolled: its state directory is taken over by this release, while the other one goes on.
        assert old.gateway.stop() == 0
        shutil.rmtree(first_release)
        old.gateway.code = ROOT
        old.gateway.restart()
        old.gateway.wait_ready()
        at_once(old, new)
        eventually(settled, within_s=20)
        calls = [call for stage in (old, new) for call in stage.gateway.lines("call")]
        assert len(calls) == 4 * CALLS
        assert old.count("weighbridge_calls_total", outcome="completed") == 2 * CALLS
