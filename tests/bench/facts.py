"""What making facts of records costs: a sealed segment to Parquet, in records per CPU second.

    python -m tests.bench.facts                 ten seconds; prints one line of JSON

One segment of calls, each with its two lines, chained and sealed as a worker's is; then what the caretaker makes of it.
All CPU of the process counts: reading and checking the chain, duckdb, and the kernel's part of the writes. duckdb's
import, once in a caretaker's life, does not. The worst of the repetitions must hold what is promised.
"""

import importlib.metadata
import json
import os
import pathlib
import tempfile
import time

from metering.archive.facts import Maker
from metering.journal import sealing
from metering.journal.journal import Directory
from metering.record import Plan, PriceBasis
from tests.bench.cache import CACHE
from tests.support import journals, lines

CALLS = 40_000
REPETITIONS = 3
MUST_PER_S = 25_000
"""Records per CPU second."""

SERVED = {
    "attempts": (lines.attempt("inf2-a", usage=lines.usage(100, 0, 50)),), "backend": "inf2-a", "slots": 96, "tier": 0,
    "plan": Plan(able=("inf2-a", "inf2-b")), "price_basis": PriceBasis(kind="card", date="2026-07-20", source="card"),
    "rate_card": "llama-3.1-8b/inf2@2026-07-20", "identity_digest": "sha256:" + "0" * 64, "slot_ns": 1_000_000,
}  # fmt: skip
"""What the record of a usual call has besides."""


def main() -> int:
    if os.stat(CACHE.parent).st_dev == os.stat("/dev/shm").st_dev:
        raise SystemExit("the facts must be on a real disk")
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as root:
        directory = _sealed(pathlib.Path(root))
        Maker(pathlib.Path(root) / "warm").make(directory, 1)
        took_s = [_made_in_s(pathlib.Path(root) / str(number), directory) for number in range(REPETITIONS)]
    print(json.dumps({
        "facts_per_cpu_s": round(CALLS / max(took_s)), "facts_us": round(max(took_s) / CALLS * 1e6, 2),
        "must_per_cpu_s": MUST_PER_S, "calls": CALLS, "repetitions": REPETITIONS,
        "version": importlib.metadata.version("weighbridge"),
    }))  # fmt: skip
    return 0


def _sealed(root: pathlib.Path) -> Directory:
    """A writer's directory with one segment, which is sealed."""
    makes = [journals.start()]
    for number in range(1, CALLS + 1):
        call_id = f"{journals.WRITER}-{number}"
        makes += (journals.admitted(call_id), journals.call(call_id, **SERVED))
    makes.append(journals.stop())
    directory = Directory(journals.write_directory(root, makes))
    for path in sealing.due(directory, 1 << 62):
        sealing.seal(path)
    return directory


def _made_in_s(root: pathlib.Path, directory: Directory) -> float:
    maker = Maker(root)
    began_s = time.process_time()
    count = maker.make(directory, 1)
    took_s = time.process_time() - began_s
    assert count == CALLS, count
    return took_s


if __name__ == "__main__":
    raise SystemExit(main())
