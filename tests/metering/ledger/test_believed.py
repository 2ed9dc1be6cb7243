"""The time by which things are deleted: it goes on with what passes, and takes no jump on trust."""

import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.ledger import believed
from metering.ledger.believed import HOLD_NS, STEP_NS, BelievedClock, ClockDoubted, Memory, advanced
from metering.units import NS_PER_HOUR, NS_PER_S

T_NS = 1_790_000_000 * NS_PER_S
YEAR_NS = 365 * 24 * NS_PER_HOUR


class Machine:
    """Two clocks, and processes that end and begin."""

    def __init__(self, file: pathlib.Path) -> None:
        self.file = file
        self.true_ns = T_NS
        self.off_ns = 0
        self.up_ns = 0
        self.start()

    def start(self) -> None:
        self.up_ns = 1_000
        self.clock = BelievedClock(self.file, lambda: self.true_ns + self.off_ns, lambda: self.up_ns)

    def run(self, ns: int, every_ns: int = NS_PER_HOUR) -> int:
        """Let so much time pass, with looks. returns: what is believed at the end."""
        for _ in range(ns // every_ns):
            self.true_ns += every_ns
            self.up_ns += every_ns
            found = self.clock.look()
        return found

    def is_doubted(self) -> bool:
        try:
            self.clock.check()
        except ClockDoubted:
            return True
        return False


@pytest.fixture
def machine(tmp_path: pathlib.Path) -> Machine:
    made = Machine(tmp_path / "clock.json")
    made.clock.look()
    return made


def test_a_clock_that_goes_on_is_believed(machine: Machine) -> None:
    assert machine.run(10 * YEAR_NS, 24 * NS_PER_HOUR) == machine.true_ns
    machine.off_ns = 3 * NS_PER_HOUR
    assert machine.run(NS_PER_HOUR) == machine.true_ns + machine.off_ns
    assert not machine.is_doubted()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_jump_ahead_is_not_believed_and_time_goes_on(machine: Machine, restarted: bool) -> None:
    machine.off_ns = YEAR_NS
    if restarted:
        machine.start()
    with pytest.raises(ClockDoubted, match=r"8760 h ahead of what has passed .* stood for 7 days"):
        machine.clock.check()
    assert machine.run(HOLD_NS - NS_PER_HOUR) == machine.true_ns
    assert machine.is_doubted()
    machine.off_ns = 0
    assert machine.run(NS_PER_HOUR) == machine.true_ns
    assert not machine.is_doubted()


def test_one_that_has_stood_is_believed_over_any_number_of_starts(machine: Machine) -> None:
    """A machine that was off for a month."""
    machine.true_ns += YEAR_NS
    for _ in range(14):
        machine.start()
        assert machine.is_doubted()
        machine.run(HOLD_NS // 14)
    assert not machine.is_doubted()
    assert machine.clock.look() == machine.true_ns


def test_a_clock_that_jumps_about_has_not_stood(machine: Machine) -> None:
    for number in range(20):
        machine.off_ns = YEAR_NS * (1 + number % 2)
        machine.run(HOLD_NS // 2)
    assert machine.is_doubted()
    assert machine.clock.look() == machine.true_ns


def test_one_that_is_set_back_is_never_run_ahead_of(machine: Machine) -> None:
    machine.off_ns = -YEAR_NS
    assert machine.run(NS_PER_HOUR) == machine.true_ns - YEAR_NS
    with pytest.raises(ClockDoubted, match="8760 h behind"):
        machine.clock.check()
    machine.off_ns = 0
    assert machine.run(NS_PER_HOUR) == machine.true_ns
    assert not machine.is_doubted()


@pytest.mark.parametrize("data", [b"", b"{}", b'{"believed_ns":"x"}'])
def test_a_memory_that_cannot_be_read_is_none(machine: Machine, data: bytes) -> None:
    machine.file.write_bytes(data)
    machine.off_ns = YEAR_NS
    machine.start()
    assert machine.clock.look() == machine.true_ns + YEAR_NS


def test_what_cannot_be_kept_is_kept_later(tmp_path: pathlib.Path) -> None:
    machine = Machine(tmp_path / "none" / "clock.json")
    assert machine.clock.look() == T_NS
    machine.file.parent.mkdir()
    machine.run(NS_PER_HOUR)
    assert machine.file.exists()


def test_it_is_written_now_and_then(machine: Machine) -> None:
    before = machine.file.stat().st_mtime_ns
    machine.run(believed._KEEP_NS - NS_PER_S, NS_PER_S)
    assert machine.file.stat().st_mtime_ns == before
    machine.run(NS_PER_S, NS_PER_S)
    assert machine.file.stat().st_mtime_ns > before


STEPS = st.lists(
    st.tuples(st.integers(-3 * YEAR_NS, 3 * YEAR_NS), st.integers(0, HOLD_NS // 4)), min_size=1, max_size=30
)


@given(STEPS)
def test_it_is_never_ahead_of_what_has_passed_but_by_small_steps_or_long_standing(
    steps: list[tuple[int, int]],
) -> None:
    """Judged without what it keeps: by the largest gap that a look may close at once, or the run of looks before it."""
    memory = Memory(believed_ns=T_NS)
    true_ns, off_ns = T_NS, 0
    stood_ns = 0
    for jump_ns, passed_ns in steps:
        true_ns += passed_ns
        stood_ns = stood_ns + passed_ns if abs(jump_ns) <= STEP_NS else 0
        off_ns += jump_ns
        before = memory
        memory = advanced(memory, true_ns + off_ns, passed_ns)
        if memory.believed_ns - before.believed_ns - passed_ns > STEP_NS:
            assert stood_ns > 0
        assert min(memory.believed_ns, true_ns + off_ns) <= true_ns + off_ns


def test_the_law_sees_a_clock_that_is_taken_on_trust(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: the wall clock is the time."""
    monkeypatch.setattr(
        believed, "advanced", lambda _memory, wall_ns, _passed_ns: Memory(believed_ns=wall_ns)
    )
    machine.off_ns = YEAR_NS
    assert machine.run(NS_PER_HOUR) != machine.true_ns
