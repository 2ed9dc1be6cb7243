"""A store that forgets while calls run: nothing is billed twice, and nothing stays forgotten.

FLUSHALL three times at 200 calls/s and more, with the directories of an earlier run and of a killed worker;
then one tenant's keys deleted, or put back to an older copy, with and without a call that would show it.
"""

import pathlib
from collections.abc import Iterator

import pytest

from tests.support import flushrun, redisserver
from tests.support.flushrun import CALLS_PER_S_MIN, IN_FLIGHT_MIN, TENANTS, FlushRun

pytestmark = pytest.mark.integration

EQUAL_S = 10.0
QUIET_S = 35.0
"""A probe each 30 s, and the time to fold."""
MUTANT_S = 4.0
"""Many times what an unbroken one takes, which is run here too."""
LOOKS_MIN = 30


class Made:
    """A run that has been through its three losses. copies: of each tenant's keys, from before the first one."""

    def __init__(self, run: FlushRun) -> None:
        self.run = run
        self.copies: dict[str, dict[str, bytes]] = {}
        self.caught_up_s: list[float] = []
        with run.load():
            run.steady()
            run.kill_a_worker()
            self.copies = {tenant: run.copy(tenant) for tenant in TENANTS}
            run.steady()
            run.flush_all()
            self.caught_up_s.append(run.caught_up(EQUAL_S))
            run.steady()
            run.flush_all()
            run.refilling()
            run.flush_all()  # what is being folded again is lost again
            self.caught_up_s.append(run.caught_up(EQUAL_S))
            run.steady()
        self.equal_s, self.differences = run.settled(EQUAL_S)


@pytest.fixture(scope="module", params=["embedded", pytest.param("external", marks=pytest.mark.debian)])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    directory: pathlib.Path = tmp_path_factory.mktemp("flush")
    if request.param == "embedded":
        with flushrun.running(directory) as run:
            yield Made(run)
        return
    program = redisserver.binary()
    if program is None:
        pytest.skip("no redis-server 7")
    with redisserver.running(program, directory) as url, flushrun.running(directory, redis_url=url) as run:
        yield Made(run)


def test_the_run_is_the_one_that_was_asked_for(made: Made) -> None:
    run = made.run
    print(f"calls_per_s={run.calls_per_s:.0f} in_flight={run.in_flight}")
    assert run.calls_per_s >= CALLS_PER_S_MIN
    assert len(run.in_flight) == 3
    assert min(run.in_flight) >= IN_FLIGHT_MIN
    ends = {writer.name: writer for writer in run.writers() if writer.closed}
    assert [ends[name].lines[-1]["reason"] for name in run.earlier] == ["shutdown", "shutdown"]
    assert [ends[name].lines[-1]["reason"] for name in run.killed] == ["salvaged"]
    for names in (run.earlier, run.killed):
        assert {call["tenant"] for name in names for call in ends[name].of("call")} == set(TENANTS)


def test_a_store_that_forgets_everything_is_filled_again_and_never_overfilled(made: Made) -> None:
    print("caught_up_s=" + " ".join(f"{seconds:.2f}" for seconds in made.caught_up_s))
    print(f"equal_s={made.equal_s:.2f}")
    assert made.differences == []
    assert made.run.audit() == []
    assert made.run.watcher.looks >= LOOKS_MIN
    assert made.run.watcher.above == []


@pytest.mark.parametrize("older", [False, True], ids=["deleted", "older copy"])
def test_a_tenant_that_was_lost_is_back_after_its_next_call(made: Made, older: bool) -> None:
    run = made.run
    run.restore("acme", made.copies["acme"] if older else {})
    assert run.differences()
    run.call("acme")
    equal_s, differences = run.settled(EQUAL_S)
    print(f"equal_s={equal_s:.2f}")
    assert differences == []
    assert run.watcher.above == []


@pytest.mark.parametrize("made", ["embedded"], indirect=True)
def test_tenants_that_were_lost_are_back_without_a_call(made: Made) -> None:
    run = made.run
    run.restore("globex", {})
    run.restore("initech", made.copies["initech"])
    assert run.differences()
    equal_s, differences = run.settled(QUIET_S)
    print(f"equal_s={equal_s:.2f}")
    assert differences == []
    assert run.audit() == []
    assert run.watcher.above == []


@pytest.mark.parametrize(
    ("mutant", "too_much"),
    [
        (None, False),  # nothing is broken: the judge is just
        ("dead_folded_once", False),
        ("predecessor_not_asked_for", False),
        ("gap_counted", True),
    ],
)
def test_a_broken_ledger_is_caught(tmp_path: pathlib.Path, mutant: str | None, too_much: bool) -> None:
    """too_much: the break shows as a sum above the journals' and not only as one that stays below."""
    with flushrun.running(tmp_path, mutant=mutant) as run:
        with run.load():
            run.steady()
            run.flush_all()
            run.refilling()
        _, differences = run.settled(MUTANT_S)
        assert bool(differences) == (mutant is not None)
        assert bool(run.watcher.above) == too_much
