"""A crash run: its beds and rounds, what is printed of them, and the result."""

import collections
import pathlib
import random
import shutil
import time

from metering.ledger.embedded import find_binary
from tests.crash import bed as beds
from tests.crash.bed import Bed, Options
from tests.crash.census import State
from tests.crash.faults import FAULTS
from tests.crash.plan import BedPlan, Round
from tests.oracle import journal
from tests.oracle.faults import Fault, Kind
from tests.support import redisserver

ENDS_BEFORE = 15
ENDS_AFTER = 20
DELAY_S_MAX = 0.5
"""The fault comes so long after enough answers have ended, at most."""
SETTLE_S = 45.0
"""Above the 30 s after which everybody compares anyway."""
MUTANT_SETTLE_S = 8.0
CALLS_MIN = 50
STATE_ROUNDS_MIN = 3
SHOWN_MAX = 12


class Run:
    """rounds: that were begun; faults: all that was wrong."""

    def __init__(
        self, seed: int, directory: pathlib.Path, mutant: str | None, keep: pathlib.Path | None
    ) -> None:
        self.faults: list[Fault] = []
        self._seed = seed
        self._directory = directory
        self._mutant = mutant
        self._keep = keep
        self.rounds = 0
        self._calls = 0
        self._harm = 0
        self._beds = 0
        self._difference_pusd = 0
        self._outcomes: collections.Counter[str] = collections.Counter()
        self._met: collections.Counter[State] = (
            collections.Counter()
        )  # rounds in which a call was in this state
        self._program = redisserver.binary() or find_binary()
        print(f"crash: seed={seed}" + (f" mutant={mutant}" if mutant else ""), flush=True)

    def bed(self, plan: BedPlan) -> None:
        """All rounds of a bed, and its end."""
        self._beds += 1
        directory = self._directory / str(self._beds)
        directory.mkdir()
        before = len(self.faults)
        with beds.running(directory, Options(plan.fsync, self._program, self._mutant)) as bed:
            print(
                f"bed {self._beds}: fsync={plan.fsync} small_disk={'yes' if bed.mounted else 'no'}",
                flush=True,
            )
            for each in plan.rounds:
                self._round(bed, each)
                if self._mutant and self.faults:
                    break
            else:
                self._wrong(bed.books.judge_at_the_end(directory))
            self._difference_pusd += bed.books.difference_pusd()
            self._outcomes.update(line["outcome"] for line in journal.calls(bed.books.writers()))
            if self._keep and len(self.faults) > before:
                shutil.copytree(directory, self._keep / f"{self._seed}-{self._beds}")
        shutil.rmtree(directory)

    def _round(self, bed: Bed, each: Round) -> None:
        self.rounds += 1
        rng = random.Random(each.seed)
        names = [each.fault] + ([each.also] if each.also else [])
        round_s = time.monotonic()
        bed.client.begin(f"b{self._beds}r{self.rounds}", each.seed)
        served = bed.wait_for_ends(ENDS_BEFORE)
        time.sleep(rng.uniform(0, DELAY_S_MAX))
        seen = [FAULTS[name](bed, rng) for name in names]
        served = bed.wait_for_ends(ENDS_AFTER) and served
        bed.client.finish()
        settle_s = time.monotonic()
        faults = bed.books.settle(MUTANT_SETTLE_S if self._mutant else SETTLE_S)
        if not served:
            faults.append(Fault(Kind.REPLY, "calls", "not served any more"))
        asked = len(bed.client.asked())
        self._calls += asked
        self._harm += len(names)
        self._met.update({state for one in seen for state, count in one.states.items() if count})
        now_s = time.monotonic()
        print(
            f"round {self.rounds}: {' + '.join(names)}: calls={asked} took_s={now_s - round_s:.1f} "
            f"settled_s={now_s - settle_s:.1f}"
        )
        for one in seen:
            print(f"    {one}", flush=True)
        self._wrong(faults)

    def _wrong(self, faults: list[Fault]) -> None:
        for fault in faults[:SHOWN_MAX]:
            print(f"  WRONG {fault}", flush=True)
        if len(faults) > SHOWN_MAX:
            print(f"  WRONG and {len(faults) - SHOWN_MAX} more", flush=True)
        self.faults += faults

    def finish(self, *, states_wanted: bool) -> int:
        """Print the result. returns: the exit status."""
        print("outcomes: " + " ".join(f"{name}={count}" for name, count in sorted(self._outcomes.items())))
        print("rounds that met a state: " + " ".join(f"{s.name.lower()}={self._met[s]}" for s in State))
        rare = [state.name for state in State if self._met[state] < STATE_ROUNDS_MIN]
        if states_wanted and rare:
            print(f"too rare: {' '.join(rare)}")
        if self._calls < CALLS_MIN * self.rounds:
            print(f"too few calls: {self._calls} in {self.rounds} rounds")
        kinds = collections.Counter(fault.kind for fault in self.faults)
        if kinds:
            print("wrong: " + " ".join(f"{kind}={count}" for kind, count in kinds.items()))
        print(
            f"crash: rounds={self.rounds} calls={self._calls} faults={self._harm} lost={kinds[Kind.NOT_COMPLETED]} "
            f"doubled={kinds[Kind.DOUBLED]} difference_pusd={self._difference_pusd} seed={self._seed}"
        )
        few = self._calls < CALLS_MIN * self.rounds
        return bool(self.faults or self._difference_pusd or few or (states_wanted and rare))
