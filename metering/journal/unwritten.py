"""What becomes of lines that no journal takes: none could be made, or it has failed (`journal.on_error`).

stop       nobody's line is written, so nobody goes on: `failed`
continue   each line is counted and shown whole in the log, and then it counts as `written`
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from metering.journal import chain
from metering.journal.turns import Entry, Note
from metering.logs import log
from metering.record import Line

logger = logging.getLogger("weighbridge.recorder")


class Shown:
    """Lines that could not be written, on their way to whoever keeps the log. count: of a line's kind."""

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count

    def show(self, line: Line) -> None:
        """Count a line and log it whole. Its seq and prev are those that it would have had, or 0 and zeros."""
        self._count(line.kind)
        log(logger, logging.ERROR, "journal line not written", kind=line.kind, line=msgspec.to_builtins(line))


class Unwritable:
    """In the place of a recorder while there is no journal. shown: what is not written; None: `stop`."""

    full = False
    slow = False
    seq = 0
    open_calls = 0

    def __init__(
        self, writer: str, error: OSError, shown: Shown | None, *, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.writer = writer
        self.dead: OSError = error
        self._shown = shown
        self._loop = loop
        self._calls = 0

    @property
    def ended(self) -> bool:
        """Can no call end well any more?"""
        return self._shown is None

    def has_room(self) -> bool:
        """May one more call be admitted?"""
        return not self.ended

    def next_call_id(self) -> str:
        """A new call's id. There is no directory of this writer."""
        self._calls += 1
        return f"{self.writer}-{self._calls}"

    def append(self, entry: Entry) -> None:
        """`written` or `failed` follows, never from within this call."""
        self._loop.call_soon(self.give_up, entry)

    def note(self, make: Callable[[int, str], Line]) -> None:
        """The same of a line that nobody waits for."""
        self.append(Note(make))

    async def tell(self, make: Callable[[int, str], Line]) -> None:
        """The same, to be waited for. Raises OSError: it never will be written."""
        if self._shown is None:
            raise self.dead
        self._shown.show(make(0, chain.ZEROS))

    def give_up(self, entry: Entry) -> None:
        """Tell an entry, whose line is not made yet, what has become of it."""
        if self._shown is None:
            entry.failed(self.dead)
            return
        self._shown.show(entry.line(0, chain.ZEROS))
        entry.written()

    def give_up_made(self, entry: Entry, line: Line) -> None:
        """The same with the line as it was made: an entry is asked once."""
        if self._shown is None:
            entry.failed(self.dead)
            return
        self._shown.show(line)
        entry.written()
