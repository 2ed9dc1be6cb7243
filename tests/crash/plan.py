"""Which faults a run has, in which order: drawn from its seed, and nothing else. Pure."""

import random
from typing import NamedTuple

ROUNDS_PER_BED = 20
"""After so many rounds everything is ended, judged as a whole, and begun anew with empty directories."""

FSYNCS = ("interval", "always", "os")
"""Bed by bed."""

WEIGHTS = {
    "worker_killed": 4,
    "worker_at_disk": 5,
    "supervisor_killed": 2,
    "supervisor_at_disk": 3,
    "all_killed": 2,
    "start_killed": 2,
    "store_killed": 2,
    "store_loses_seconds": 2,
    "store_flushed": 2,
    "store_fails_over": 2,
    "store_stopped": 1,
    "disk_full": 1,
    "torn_bytes": 1,
    "flipped_bytes": 2,
    "copied_and_folded": 1,
    "power_cut": 3,
}
"""Each fault, and how often it comes beside the others."""
ALSO = ("worker_killed", "store_flushed", "store_killed")
"""What may come on top of another fault, right behind it."""
ALSO_SHARE = 0.2


class Round(NamedTuple):
    """seed: of all that the fault draws; also: a second fault."""

    fault: str
    also: str | None
    seed: int


class BedPlan(NamedTuple):
    """Rounds that share their processes and directories. fsync: the journal's policy."""

    fsync: str
    rounds: tuple[Round, ...]


def beds(seed: int, rounds: int, fsyncs: tuple[str, ...], each_once: bool = False) -> list[BedPlan]:
    """A run's beds. Faults come in decks, so that none is rare; each_once: one deck of each fault, one bed."""
    rng = random.Random(seed)
    deck: list[str] = []
    drawn = []
    for _ in range(len(WEIGHTS) if each_once else rounds):
        if not deck:
            deck = (
                list(WEIGHTS)
                if each_once
                else [name for name, times in WEIGHTS.items() for _ in range(times)]
            )
            rng.shuffle(deck)
        also = rng.choice(ALSO) if not each_once and rng.random() < ALSO_SHARE else None
        drawn.append(Round(deck.pop(), also, rng.randrange(2**32)))
    size = len(drawn) if each_once else ROUNDS_PER_BED
    cut = [tuple(drawn[start : start + size]) for start in range(0, len(drawn), size)]
    return [BedPlan(fsyncs[number % len(fsyncs)], part) for number, part in enumerate(cut)]
