"""A writer's directory as lines, wherever its files are: on disk, in the archive, or in both. Pure."""

from collections.abc import Iterator
from typing import Protocol

from metering.journal import chain
from metering.journal.chain import Chained, Place, Segment
from metering.journal.replay import NOTHING, Trimmed
from metering.record import Billed, Line, Metered


class Readable(Protocol):
    """What gives the segments of one writer can be read as its journal.

    writer: the writer's name.
    """

    writer: str

    @property
    def complete(self) -> bool:
        """Will no line be added any more?"""

    def segments(self) -> list[Segment]:
        """Segments in order, without the salvage."""

    def salvaged(self) -> Segment | None:
        """The lines that were written for its end; None if there are none."""

    def begin(self) -> Place:
        """The place that its first line follows."""
        return chain.START

    @property
    def trimmed(self) -> Trimmed:
        """What of it is in the archive alone."""
        return NOTHING

    @property
    def starts_after(self) -> int:
        """The seq that its lines begin after: 0, or up to where the archive alone has them."""
        return self.begin().seq

    def records(self, after_seq: int = 0) -> Iterator[tuple[Line, int, str]]:
        """Lines above `after_seq` in order, each with its seq and leaf.

        Segments that end at or before `after_seq` are passed over by their names; from there on
        seq and chain are verified, and the lines end where the chain does. Lines of kinds that
        this version does not know are left out (the chain goes through them).
        """
        for chained in self.chained(after_seq):
            if chained.line is not None:
                yield chained.line, chained.seq, chained.leaf

    def billed(self, after_seq: int = 0) -> Iterator[tuple[Billed, int, str]]:
        """The records above `after_seq` as the ledger needs them, each with its seq and leaf; else as `records`."""
        follow = chain.follow(self.segments(), self.salvaged(), after_seq, self.begin(), chain.read_billed)
        for chained in follow:
            if isinstance(chained.line, Billed):
                yield chained.line, chained.seq, chained.leaf

    def metered(self, after_seq: int = 0) -> Iterator[tuple[Metered | None, int, str]]:
        """All lines above `after_seq` as who counts them needs them, each with its seq and leaf; None: nothing counts.

        Else as `records`.
        """
        for one in chain.follow(
            self.segments(), self.salvaged(), after_seq, self.begin(), chain.read_metered
        ):
            yield one.line, one.seq, one.leaf  # type: ignore[misc]

    def chained(self, after_seq: int = 0) -> Iterator[Chained]:
        """As `records`, with each line's bytes, and lines of unknown kinds too."""
        yield from chain.follow(self.segments(), self.salvaged(), after_seq, self.begin())
