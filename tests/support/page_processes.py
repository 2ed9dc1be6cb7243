"""Processes for tests of the metrics pages: `python -m tests.support.page_processes ROLE STATE_DIR SEED`.

worker: writes turns until it is killed, or has written LINES_MAX; prints a line when it has begun.
scraper: scrapes until its stdin ends; exits 1 when a counter fell; prints how often it looked.
"""

import json
import pathlib
import random
import select
import sys

from metering.pages import families, metrics
from metering.pages.families import Totals
from tests.support import lines
from tests.support.writers import Worker

LINES_MAX = 4_000


def work(state_dir: pathlib.Path, seed: int) -> None:
    rng = random.Random(seed)
    worker = Worker(state_dir, rng, segment_bytes_max=1_000_000, defs_room=512, cells_room=64)
    print("began", flush=True)
    while worker.seq < LINES_MAX:
        tenant = f"t{min(rng.randrange(40), worker.seq // 10)}"  # new series for a while: the page grows
        make = [
            lambda seq, prev, tenant=tenant: lines.call(seq, prev, tenant=tenant),
            lambda seq, prev, tenant=tenant: lines.admitted(seq, prev, tenant=tenant),
        ]
        worker.turn(*rng.choices(make, weights=(19, 1), k=rng.randrange(1, 8)))
        worker.page.gauges.in_flight("b1", rng.randrange(9))
    sys.stdin.read()


def scrape(state_dir: pathlib.Path) -> int:
    shown: Totals = {}
    looks = 0
    while not select.select([sys.stdin], [], [], 0.002)[0]:
        now = families.counters(metrics.scrape(state_dir / "pages").totals)
        for one, before in shown.items():
            if one not in now or any(a > b for a, b in zip(before, now[one], strict=True)):
                print(json.dumps({"fell": one, "from": before, "to": now.get(one)}))
                return 1
        shown = now
        looks += 1
    print(json.dumps({"looks": looks}))
    return 0


if __name__ == "__main__":
    role, state_dir, seed = sys.argv[1:]
    if role == "worker":
        work(pathlib.Path(state_dir), int(seed))
    else:
        sys.exit(scrape(pathlib.Path(state_dir)))
