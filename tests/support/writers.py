"""A worker as its state directory sees it: a journal, and a page that is a fold of it.

Uses the product's journal, salvage and pages; there is no event loop and nothing is durable.
"""

import os
import pathlib
import random
from collections.abc import Callable

from metering.journal import chain
from metering.journal.journal import Directory, Journal, directories, new_writer_id
from metering.pages.pages import Page
from metering.record import CallRecord, Event, Line, Refused
from tests.support import lines

MakeLine = Callable[[int, str], Line]


class Worker:
    """A live writer under `<state_dir>/journal` and `<state_dir>/pages`."""

    def __init__(
        self, state_dir: pathlib.Path, rng: random.Random, *, segment_bytes_max: int = 4_000, **room: int
    ) -> None:
        """room: of the page, where it is to outgrow it soon."""
        self.writer = new_writer_id(rng.randbytes(10))
        self.journal = Journal.create(
            state_dir / "journal", writer=self.writer, segment_bytes_max=segment_bytes_max
        )
        self.page = Page(state_dir / "pages", self.writer, on_stuck=_never, **room)
        self.path = state_dir / "pages" / f"{self.writer}.page"
        self.seq = 0
        self._leaf = chain.ZEROS
        self.write(lambda seq, prev: lines.start(self.writer, seq, prev))
        self.page.turn(self.seq, self._leaf)

    def write(self, *make: MakeLine) -> None:
        """Write lines and fold them: a turn that is not shown yet."""
        for one in make:
            line = one(self.seq + 1, self._leaf)
            data = chain.encode(line)
            self.seq += 1
            self._leaf = chain.leaf(data.removesuffix(b"\n"))
            self.journal.write(data, self.seq, hour=0)
            if isinstance(line, CallRecord | Refused) or (isinstance(line, Event) and line.topic == "budget"):
                self.page.fold(line, self.seq, self._leaf)

    def turn(self, *make: MakeLine) -> None:
        """A whole turn."""
        self.write(*make)
        self.page.turn(self.seq, self._leaf)

    def stop(self) -> None:
        """Leave in order."""
        self.turn(lambda seq, prev: lines.stop(seq, prev))
        self.kill()

    def kill(self) -> None:
        """Die: locks fall, files stay as they are."""
        self.page.close()
        self.journal.close()

    def directory(self) -> Directory:
        return Directory(self.journal.path)


def journalled(state_dir: pathlib.Path) -> list[Line]:
    """All lines of all journals, live ones too."""
    return [line for one in directories(state_dir / "journal") for line, _, _ in one.records()]


def tear_older_half(path: pathlib.Path, at: float) -> None:
    """What a kill in the middle of the next turn leaves: the half that was not newest, part written.

    at: from 0 to 1, how far into the file the damage lies.
    """
    size = path.stat().st_size
    heads = (64, 136)
    with open(path, "r+b") as file:
        turns = [int.from_bytes(os.pread(file.fileno(), 8, head + 8), "little") for head in heads]
        older = heads[turns.index(min(turns))]
        file.seek(older + int(at * 70))
        file.write(b"\xee\xee")
    assert path.stat().st_size == size


def _never(error: OSError) -> None:
    raise AssertionError(error)
