"""The clock of an engine: one timer, set for when something is due."""

import asyncio
import time
from collections.abc import Iterable

from backends.simulator.engine import Engine, Generated

_NS_PER_S = 1_000_000_000


class Driver:
    """Runs one engine on the loop it was made on."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns: int | None = None

    def submit(self, sequences: Iterable[Generated]) -> None:
        self._engine.submit(sequences, time.monotonic_ns())
        self._arm()

    def abort(self, sequences: Iterable[Generated]) -> None:
        now_ns = time.monotonic_ns()
        for sequence in sequences:
            self._engine.abort(sequence, now_ns)
        self._arm()

    def hold(self, sequences: Iterable[Generated]) -> None:
        for sequence in sequences:
            self._engine.hold(sequence)
        self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._timer_ns = None

    def _tick(self) -> None:
        self._timer = self._timer_ns = None
        self._engine.advance(time.monotonic_ns())
        self._arm()

    def _arm(self) -> None:
        due_ns = self._engine.due_ns
        if due_ns == self._timer_ns:
            return
        self.stop()
        if due_ns is not None:
            wait_s = max(0, due_ns - time.monotonic_ns()) / _NS_PER_S
            self._timer, self._timer_ns = self._loop.call_later(wait_s, self._tick), due_ns
