"""The breaks, by name."""

import asyncio
import functools
from collections.abc import Callable

from metering import gone
from metering.folder import Folder
from metering.journal import Journal

LATE_S = 0.2
"""A killed process keeps what it has written, so to be seen a write must come turns later, not one."""


def release_before_write() -> None:
    """Seal then release, the other way round: calls and ends are let go, and their lines written later."""
    write, close = Journal.write, Journal.close
    late: dict[Journal, list[Callable[[], None]]] = {}

    def write_later(journal: Journal, data: bytes, first_seq: int, hour: int) -> None:
        late.setdefault(journal, []).append(functools.partial(write, journal, data, first_seq, hour))
        asyncio.get_running_loop().call_later(LATE_S, write_first, journal)

    def write_first(journal: Journal) -> None:
        if late[journal]:
            late[journal].pop(0)()

    def close_after(journal: Journal) -> None:
        for one in late.pop(journal, []):
            one()
        late[journal] = []
        close(journal)

    Journal.write, Journal.close = write_later, close_after


def dead_not_folded() -> None:
    """The ledger never hears of a directory whose writer has died."""

    async def fold(_folder: Folder, _directories: object) -> int:
        return 0

    Folder.fold = fold


def dead_not_counted() -> None:
    """A dead worker's counters go with its page."""
    gone.counted = lambda _pages_dir, _directory: {}


MUTATIONS = {each.__name__: each for each in (release_before_write, dead_not_folded, dead_not_counted)}
