"""Where the calls were when a fault came.

states: by the call machine itself, as its process left it (tests/crash/probe.py).
outside: by the logs of the clients and the backends alone:
    unseen    asked; no backend has seen it, and no answer has begun
    at_work   a backend has seen it, the client has heard nothing
    midway    the client has had an event and no end
    ended     the client has had the end
"""

import collections
import enum
import pathlib
from collections.abc import Iterable
from typing import NamedTuple

from tests.crash import probe
from tests.oracle.join import Entry


class State(enum.IntEnum):
    """The machine's, by the order of its table (gateway/calls/call.py)."""

    ADMITTING = 0
    QUEUED = 1
    CONNECTING = 2
    WAITING = 3
    HELD = 4
    SIZED = 5
    REJECTED = 6
    STREAMING = 7
    ENDING = 8
    DRAINING = 9
    SEALING = 10
    DONE = 11
    ASKING = 12


class Census(NamedTuple):
    states: collections.Counter[State]
    outside: collections.Counter[str]

    def __str__(self) -> str:
        inside = " ".join(f"{state.name.lower()}={self.states[state]}" for state in State)
        return (
            inside
            + " | "
            + " ".join(f"{name}={self.outside[name]}" for name in ("unseen", "at_work", "midway", "ended"))
        )


def states(directory: pathlib.Path, pids: Iterable[int]) -> collections.Counter[State]:
    """Calls in each state, over these processes, whether they live or not."""
    found: collections.Counter[State] = collections.Counter()
    for pid in pids:
        cells = probe.map_cells(probe.cells_of(directory, pid))
        found.update({state: cells[state] for state in State})
    return found


def outside(clients: Iterable[Entry], backends: Iterable[Entry]) -> collections.Counter[str]:
    seen = {entry["request_id"] for entry in backends}
    found: collections.Counter[str] = collections.Counter()
    for entry in clients:
        if entry.get("over"):
            found["ended"] += bool(entry.get("ended"))
        elif entry.get("events"):
            found["midway"] += 1
        else:
            found["at_work" if entry["request_id"] in seen else "unseen"] += 1
    return found
