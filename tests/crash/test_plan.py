"""A run's plan is its seed's, and no fault is left out."""

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.events import State as MachineState
from tests.crash import census, plan
from tests.crash.faults import FAULTS


@given(st.integers(0, 2**32), st.integers(1, 300))
def test_a_plan_is_a_function_of_its_seed(seed: int, rounds: int) -> None:
    made = plan.beds(seed, rounds, plan.FSYNCS)
    assert made == plan.beds(seed, rounds, plan.FSYNCS)
    assert sum(len(bed.rounds) for bed in made) == rounds
    assert all(len(bed.rounds) <= plan.ROUNDS_PER_BED for bed in made)


@given(st.integers(0, 2**32))
def test_a_whole_run_has_each_fault_about_as_often_as_it_should(seed: int) -> None:
    found = collections.Counter(
        each.fault for bed in plan.beds(seed, 200, plan.FSYNCS) for each in bed.rounds
    )
    decks = 200 // sum(plan.WEIGHTS.values())
    for name, times in plan.WEIGHTS.items():
        assert decks * times <= found[name] <= (decks + 1) * times


def test_a_short_run_has_each_fault_once_in_one_bed() -> None:
    (bed,) = plan.beds(5, 200, plan.FSYNCS, each_once=True)
    assert sorted(each.fault for each in bed.rounds) == sorted(plan.WEIGHTS)
    assert {each.also for each in bed.rounds} == {None}


def test_each_fault_of_the_plan_is_one_that_can_be_done() -> None:
    assert FAULTS.keys() == plan.WEIGHTS.keys()
    assert set(plan.ALSO) <= FAULTS.keys()


def test_the_census_counts_the_states_of_the_machine() -> None:
    assert [(state.name, state.value) for state in census.State] == [(s.name, s.value) for s in MachineState]


def test_the_census_tells_by_the_logs_where_calls_are() -> None:
    clients = [
        {"request_id": "unseen"},
        {"request_id": "at work"},
        {"request_id": "midway", "events": 3},
        {"request_id": "read", "over": True, "ended": True},
        {"request_id": "broken", "over": True, "ended": False},
    ]
    found = census.outside(clients, [{"request_id": "at work"}, {"request_id": "midway"}])
    assert +found == {"unseen": 1, "at_work": 1, "midway": 1, "ended": 1}


@pytest.mark.parametrize("seed", range(3))
def test_fsync_policies_take_turns(seed: int) -> None:
    made = plan.beds(seed, 3 * plan.ROUNDS_PER_BED, ("a", "b"))
    assert [bed.fsync for bed in made] == ["a", "b", "a"]
