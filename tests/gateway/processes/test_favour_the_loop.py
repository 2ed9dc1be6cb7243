"""A loop is held up by a busy thread beside it for as long as the interpreter lets threads go on, and no longer."""

import gc
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from gateway.processes import worker

ROUNDS = 40


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    thresholds, interval_s = gc.get_threshold(), sys.getswitchinterval()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    sys.setswitchinterval(interval_s)


@pytest.fixture
def busy() -> Iterator[None]:
    """A thread that never lets go by itself, as one that makes a scrape's text."""
    done = threading.Event()

    def compute() -> None:
        while not done.is_set():
            sum(range(100))

    thread = threading.Thread(target=compute)
    thread.start()
    yield
    done.set()
    thread.join()


def median_lag_s() -> float:
    """How much later than due a sleeper goes on: half of its rounds are no later, whatever else the machine does."""
    lags = []
    for _ in range(ROUNDS):
        due_s = time.perf_counter() + 0.001
        time.sleep(0.001)
        lags.append(time.perf_counter() - due_s)
    return sorted(lags)[ROUNDS // 2]


@pytest.mark.usefixtures("busy")
def test_a_busy_thread_holds_up_the_loop_for_less_than_it_would() -> None:
    before_s = median_lag_s()
    worker.favour_the_loop()
    assert sys.getswitchinterval() == worker.SWITCH_S
    assert median_lag_s() < before_s
    assert gc.get_threshold() == worker.GC_THRESHOLDS
