"""Closing a month of ten million calls: how long it takes, and how much memory.

    python -m tests.bench.close                        ten million calls, 40 backends, 30 days
    python -m tests.bench.close --calls 1000000 --keep DIR

Facts and registrations are synthetic: made here, sealed and priced as a fleet of 40 instances would leave them.
Printed are the seconds of wall and of CPU time of closing all hours, the peak of memory, and how many rows came of it.
The exit status is 1 if a sum does not come out: all calls in rows, every instance-hour split to the last micro-hour.
"""

import argparse
import pathlib
import resource
import sys
import tempfile
import time

import duckdb

from metering.archive.objects import LocalObjects
from metering.cost.allocation import Method, Sharing
from metering.cost.close_hour import Price, Terms
from metering.cost.close_sources import Seen, Sources
from metering.cost.closes import Closes
from metering.cost.closing import Closing, Rules
from metering.cost.hours import Told
from metering.cost.work_units import WorkUnitTable
from metering.record import Registration
from metering.units import NS_PER_HOUR

HOUR = 490_896  # 2026-01-01T00
DAYS = 30
BACKENDS = 40
TENANTS = 30
SLOTS = 32
MICRO_HOURS = 1_000_000
WRITER = "w" + "a" * 16


class Synthetic(Sources):
    """Sources whose journals are not there: one writer that has told all, and its facts."""

    def __init__(self, root: pathlib.Path, hours: range) -> None:
        (root / "work").mkdir(exist_ok=True)
        super().__init__(root, None, root / "work", hours)
        self._root, self._period = root, hours

    @property
    def seen(self) -> list[Seen]:  # type: ignore[override]
        start_ns, end_ns = self._period.start * NS_PER_HOUR, self._period.stop * NS_PER_HOUR
        return [Seen(WRITER, start_ns, end_ns, 1, "0" * 64, end_ns, ended=True)]

    def told(self) -> list[Told]:
        return [
            Told(WRITER, registration(backend, hour, seq))
            for seq, (hour, backend) in enumerate(
                ((hour, backend) for hour in self._period for backend in range(BACKENDS)), start=1
            )
        ]

    def files(self, hours: range) -> list[pathlib.Path]:
        return sorted((self._root / "made").glob("*.parquet"))


def registration(backend: int, hour: int, seq: int) -> Registration:
    return Registration(
        at_ns=hour * NS_PER_HOUR,
        backend=f"b-{backend}",
        instance_id=f"i-{backend}",
        instance_type="inf2.48xlarge",
        model=f"model-{backend % 4}",
        prev="",
        seq=seq,
        slots=SLOTS,
        source="config",
        state="ready",
        units=24,
        units_total=24,
    )


def make(root: pathlib.Path, calls: int) -> None:
    """A file of facts for each day; calls last 0.2 to 20 s and are spread evenly."""
    (root / "made").mkdir(parents=True)
    per_day = calls // DAYS
    connection = duckdb.connect(
        config={"threads": 2, "memory_limit": "2GB", "temp_directory": str(root / "spill")}
    )
    for day in range(DAYS):
        start_ns = (HOUR + 24 * day) * NS_PER_HOUR
        connection.execute(f"""
            COPY (
                SELECT 'tenant-' || tenant AS tenant, 'p' || tenant % 3 AS project,
                    'model-' || backend % 4 AS model, 'chat' AS operation,
                    MAP {{'cost-centre': 'cc-' || tenant, 'team': 't'}} AS tags, 'b-' || backend AS backend,
                    'inf2' AS instance_family, false AS simulated, s + l AS finished_ns, true AS is_serving,
                    p AS prompt_tokens, p // 10 AS cached_prompt_tokens, c AS completion_tokens,
                    1000 * p AS cost_pusd, 'b-' || backend AS attempt_backend, s AS attempt_started_ns,
                    s + l AS attempt_ended_ns, l AS attempt_slot_ns, p AS attempt_prompt_tokens,
                    p // 10 AS attempt_cached_prompt_tokens, c AS attempt_completion_tokens
                FROM (
                    SELECT {start_ns} + i * ({24 * NS_PER_HOUR} // {per_day}) AS s,
                        (200000000 + hash(i + 9) % 19800000000)::BIGINT AS l, (hash(i + 3) % 2000)::BIGINT AS p,
                        (hash(i + 4) % 500)::BIGINT AS c, (hash(i) % {TENANTS})::BIGINT AS tenant,
                        (hash(i + 2) % {BACKENDS})::BIGINT AS backend
                    FROM range({per_day}) t(i)
                )
            ) TO '{root / "made"}/{day:02d}.parquet' (FORMAT parquet, COMPRESSION zstd)
        """)
    connection.close()


def close(root: pathlib.Path) -> tuple[int, int, int]:
    """Close all hours. returns: how many; their rows; calls in them."""
    hours = range(HOUR, HOUR + 24 * DAYS)
    table = WorkUnitTable()
    terms = Terms(
        Method.SLOT_TIME,
        Sharing.NONE,
        price=lambda _paid: Price(12_981_270, "list", "2026-07-20"),
        family=lambda name: name.partition(".")[0],
        weights=lambda model, instance_type, at_ns: table.at(model, instance_type, "inf2", at_ns),
    )
    closing = Closing(
        Synthetic(root, hours),
        Closes(LocalObjects(root)),
        Rules(terms=terms, prices="", late_ns=0),
        hours,
        now_ns=hours.stop * NS_PER_HOUR,
        made_by="bench",
    )
    found = [
        (one.rows.count, one.totals.calls, sum(one.totals.micro_hours.values()))
        for one in closing.close(closing.due(), lambda _told: None, root / "work")
    ]
    if any(micro_hours != BACKENDS * MICRO_HOURS for _, _, micro_hours in found):
        raise SystemExit("an instance-hour was not split to the last micro-hour")
    return len(found), sum(rows for rows, _, _ in found), sum(calls for _, calls, _ in found)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=10_000_000)
    parser.add_argument("--keep", type=pathlib.Path, help="where the facts are, or are made to be used again")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weighbridge-") as name:
        root = args.keep or pathlib.Path(name)
        if not (root / "made").is_dir():
            make(root, args.calls)
        before = resource.getrusage(resource.RUSAGE_SELF)
        start_s = time.monotonic()
        hours, rows, calls = close(root)
        wall_s = time.monotonic() - start_s
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"close: calls={calls} hours={hours} rows={rows} seconds={wall_s:.1f} cpu_seconds={cpu_s:.1f} "
        f"rss_mib={after.ru_maxrss // 1024}"
    )
    # A call that began in the last hour may finish behind it.
    return 0 if args.calls * 0.999 < calls <= args.calls else 1


if __name__ == "__main__":
    sys.exit(main())
