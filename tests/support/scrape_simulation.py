"""A seeded simulation of writers, kills, salvages, retirements and scrapes, and its laws.

Laws, checked at each scrape: no counter is below what an earlier scrape showed; none is above the
fold of the journals; and in the end, all writers being dead and retired, each equals that fold.
Retirements may fall between any two steps of a scrape.
"""

import pathlib
import random
from collections.abc import Callable
from typing import TypeVar

from metering.journal import journal
from metering.pages import families, gone, metrics, pages
from metering.pages.families import Families, Totals
from metering.record import Outcome
from tests.support import lines, writers
from tests.support.writers import MakeLine, Worker

T = TypeVar("T")


class Simulation:
    """One state directory and its past."""

    def __init__(self, state_dir: pathlib.Path, rng: random.Random) -> None:
        self._state_dir = state_dir
        self._pages_dir = state_dir / "pages"
        self._rng = rng
        self._live: list[Worker] = []
        self._shown: Totals = {}
        self._retire()

    def run(self, steps: int) -> None:
        """Take random steps, then end. Raises AssertionError when a law is broken."""
        acts = [self._start, self._turn, self._turn, self._turn, self._unshown, self._stop, self._kill]
        acts += [self._retire, self._retire_and_die, self._lose_the_gone_page]
        acts += [self._scrape, self._scrape_during_retirements]
        for _ in range(steps):
            self._rng.choice(acts)()
        while self._live:
            self._kill()
        self._scrape()
        self._retire()
        assert self._scrape() == self._fold()
        assert pages.files(self._pages_dir) == []

    def _start(self) -> None:
        if len(self._live) < 3:
            self._live.append(Worker(self._state_dir, self._rng, defs_room=256, cells_room=32))

    def _turn(self) -> None:
        if self._live:
            self._rng.choice(self._live).turn(*self._lines())

    def _unshown(self) -> None:
        """Lines in the journal that the page never showed: their writer dies in that turn."""
        if self._live:
            worker = self._live.pop(self._rng.randrange(len(self._live)))
            worker.write(*self._lines())
            worker.kill()

    def _stop(self) -> None:
        if self._live:
            self._live.pop(self._rng.randrange(len(self._live))).stop()

    def _kill(self) -> None:
        """Sometimes in the middle of showing a turn."""
        if self._live:
            worker = self._live.pop(self._rng.randrange(len(self._live)))
            if self._rng.random() < 0.5:
                worker.write(*self._lines())
                writers.tear_older_half(worker.path, self._rng.random())
            worker.kill()

    def _lines(self) -> list[MakeLine]:
        return [self._line() for _ in range(self._rng.randrange(1, 4))]

    def _line(self) -> MakeLine:
        tenant, model = self._rng.choice("abcdef"), self._rng.choice("xy")
        outcome = self._rng.choice([Outcome.COMPLETED, Outcome.CLIENT_GONE])
        return self._rng.choice(
            [
                lambda seq, prev: lines.call(seq, prev, tenant=tenant, model=model, outcome=outcome),
                lambda seq, prev: lines.admitted(seq, prev, tenant=tenant, model=model),
                lambda seq, prev: lines.refused(seq, prev, tenant=tenant, model=model),
            ]
        )

    def _retire(self) -> None:
        journal.salvage_dead(self._state_dir / "journal")
        gone.retire(self._pages_dir, self._state_dir / "journal")

    def _retire_and_die(self) -> None:
        """The supervisor dies after it has renamed the gone page and before it removes any other."""
        before = {path: path.read_bytes() for path in pages.files(self._pages_dir)}
        self._retire()
        for path, page in before.items():
            if not path.exists():
                path.write_bytes(page)

    def _lose_the_gone_page(self) -> None:
        (self._pages_dir / gone.NAME).unlink()
        self._retire()

    def _scrape(self) -> Totals:
        shown = families.counters(metrics.scrape(self._pages_dir).totals)
        for one, before in self._shown.items():
            now = shown.get(one)
            assert now is not None, f"{one} is gone"
            assert all(a <= b for a, b in zip(before, now, strict=True)), f"{one} fell"
        journalled = self._fold()
        for one, value in shown.items():
            upper = journalled.get(one)
            assert upper is not None, f"{one} is not in the journals"
            assert all(a <= b for a, b in zip(value, upper, strict=True)), f"{one} is above the journals"
        self._shown = shown
        return shown

    def _scrape_during_retirements(self) -> None:
        """Before and after each read of a scrape a writer may die and be retired."""
        listing, loading, reading = pages.files, gone.load, pages.read
        retiring = False

        def maybe_retire() -> None:
            nonlocal retiring
            if not retiring and self._rng.random() < 0.4:
                retiring = True
                self._rng.choice([self._kill, self._unshown])()
                self._rng.choice([self._retire, self._retire_and_die])()
                retiring = False

        def around(step: Callable[[pathlib.Path], T]) -> Callable[[pathlib.Path], T]:
            def wrapped(path: pathlib.Path) -> T:
                maybe_retire()
                found = step(path)
                maybe_retire()
                return found

            return wrapped

        try:
            pages.files, gone.load, pages.read = around(listing), around(loading), around(reading)
            self._scrape()
        finally:
            pages.files, gone.load, pages.read = listing, loading, reading

    def _fold(self) -> Totals:
        whole = Families()
        for line in writers.journalled(self._state_dir):
            whole.observe(line)
        return whole.cells.totals()
