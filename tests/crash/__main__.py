"""`make crash`: the promise of the journal and the ledger, tested to destruction.

    python -m tests.crash [--rounds 200] [--seed N] [--mutant NAME] [--each-once] [--keep DIRECTORY]

A round: load on a gateway ─▶ a fault at a random moment ─▶ calls are served again ─▶ the load ends ─▶ the books are
settled and judged from outside (tests/oracle): by what the clients had read and the backends had seen. The seed draws
the faults and all that they do; how they meet the calls is the machine's. The last line is the result:

    crash: rounds=N calls=N faults=N lost=0 doubled=0 difference_pusd=0 seed=S

`faults` were done to it. `lost`: answers whose end a client had read and that have no record. Exit status 1: one of the
three is not zero, anything else was wrong, or a state of the call machine was met in less than three rounds.
With a mutant it is the other way round: 0: it was found, and a line more says in which round.
"""

import argparse
import pathlib
import secrets
import signal
import sys
import tempfile

from tests.crash import plan
from tests.crash.run import Run

ROUNDS = 200
MUTANT_ROUNDS = 50


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, help=f"default: {ROUNDS}, with a mutant {MUTANT_ROUNDS}")
    parser.add_argument("--seed", type=int, default=None, help="default: drawn, and printed")
    parser.add_argument(
        "--mutant", help="break the product in this way (tests/mutants/mutations.py): it must fail"
    )
    parser.add_argument("--each-once", action="store_true", help="one round of each fault")
    parser.add_argument("--keep", type=pathlib.Path, help="where the evidence of beds with faults is left")
    args = parser.parse_args()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # what was started is ended all the same
    seed = secrets.randbelow(10**9) if args.seed is None else args.seed
    rounds = args.rounds or (MUTANT_ROUNDS if args.mutant else ROUNDS)
    beds = plan.beds(seed, rounds, plan.FSYNCS, args.each_once)
    with tempfile.TemporaryDirectory(prefix="weighbridge-crash-") as directory:
        run = Run(seed, pathlib.Path(directory), args.mutant, args.keep)
        for bed in beds:
            run.bed(bed)
            if args.mutant and run.faults:
                break
        failed = run.finish(states_wanted=not args.each_once and not args.mutant)
    if not args.mutant:
        return failed
    print(f"mutant {args.mutant}: {f'found in round {run.rounds}' if run.faults else 'NOT FOUND'}")
    return not run.faults


if __name__ == "__main__":
    sys.exit(main())
