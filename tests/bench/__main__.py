"""Measures Weighbridge and its peers in one run, side by side.

    python -m tests.bench                          everything; writes tests/bench/out/latest.json and latest.md
    python -m tests.bench --only ours,nginx --scenarios json,paced --repetitions 1

Core 0 has the load generator and the mock backend, core 1 the gateways, one after another: in each
repetition every scenario goes to every gateway. The exit status is 1 if a measurement of ours does not
count (an error, a missing event, a record too few or too many); whether the promises are kept is in the
tables, not in the status. Every sample is kept in tests/bench/out/raw-<time>.jsonl.
"""

import argparse
import datetime
import os
import pathlib
import platform
import subprocess
import sys
from typing import Any

import msgspec

from gateway.configuration.config import Config
from tests.bench import figures, measure, missing, ours, proc, report, targets
from tests.bench.cache import CACHE, OUT, ROOT, build
from tests.bench.process import BenchError, prepare
from tests.bench.samples import DIRECT, OURS, Sample
from tests.bench.scenarios import MODELS, SCENARIOS
from tests.bench.targets import Target

REPETITIONS = 3
ONCE = {"open"}
"""Scenarios that are long, and steady: one repetition is enough."""


def main() -> int:
    args = _arguments()
    names = args.only.split(",") if args.only else targets.known()
    scenarios = args.scenarios.split(",") if args.scenarios else list(SCENARIOS)
    for unknown in set(names) - set(targets.known()) | set(scenarios) - set(SCENARIOS):
        print(f"unknown: {unknown}; there are {', '.join([*targets.known(), *SCENARIOS])}", file=sys.stderr)
        return 2
    try:
        prepare()
        build()
        result = run(names, scenarios, args.repetitions)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(report.markdown(result))
    whole = names == targets.known() and scenarios == list(SCENARIOS) and args.repetitions >= REPETITIONS
    if args.out or (whole and not result.faults):
        path = args.out or OUT / "latest.json"
        path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
        path.with_suffix(".md").write_text(f"# The benchmark's last whole run\n\n{report.markdown(result)}\n")
        print(f"written: {path}, and as a page beside it")
    for fault in result.faults:
        print(f"bench: it does not count: {fault}", file=sys.stderr)
    return 1 if result.faults else 0


def run(names: list[str], scenarios: list[str], repetitions: int) -> report.Result:
    """Start, measure, stop. Raises BenchError if it can't go on."""
    began = datetime.datetime.now(datetime.UTC)
    OUT.mkdir(exist_ok=True)
    on = machine()
    raw = OUT / f"raw-{began:%Y%m%dT%H%M%S}.jsonl"
    with targets.started(names, over_tcp=True) as found:
        versions = {target.name: target.version for target in found if target.name != DIRECT}
        idle = {target.name: idle_memory(target) for target in found if target.root is not None}
        samples, failed = sample_all(found, scenarios, repetitions, raw)
        seen = look(found)
    off = missing.missing(seen) if seen else {}
    table = figures.table(samples, missing.total_us(off.values()))
    mine = [sample for sample in samples if sample.target == OURS]
    return report.Result(
        date=f"{began:%Y-%m-%d %H:%M} UTC",
        machine=on,
        versions=versions,
        left_out={name: "not installed" for name in names if name not in versions} | failed,
        repetitions=repetitions,
        missing_us=missing.total_us(off.values()),
        missing=off,
        ratios=figures.ratios(table),
        ratios_measured=figures.ratios(table, measured_only=True),
        medians=table,
        idle=idle,
        promises=(
            *figures.verdicts(table),
            *idle_verdicts(idle),
            *books_verdicts(names),
            *facts_verdicts(names),
        ),
        records=sum(sample.records or 0 for sample in mine),
        requests=sum(sample.load.sent for sample in mine),
        faults=tuple(f"{s.scenario} {s.repetition + 1}: {fault}" for s in mine for fault in s.faults),
    )


def sample_all(
    found: list[Target], scenarios: list[str], repetitions: int, raw: pathlib.Path
) -> tuple[list[Sample], dict[str, str]]:
    """Every scenario to every target, in turn. Raises BenchError if ours, or the mock, can't be measured.

    returns: the samples, and what does not count of the peers', each with the reason.
    """
    samples: list[Sample] = []
    failed: dict[str, str] = {}
    for repetition in range(repetitions):
        for scenario in scenarios:
            if scenario in ONCE and repetition:
                continue
            for target in found:
                try:
                    sample = measure.measure(target, SCENARIOS[scenario], repetition)
                except BenchError as error:
                    if target.name in (OURS, DIRECT):
                        raise
                    failed[f"{target.name} {scenario} {repetition + 1}"] = str(error)
                    continue
                samples.append(sample)
                measure.append(raw, sample)
                print(progress(sample), flush=True)
                if sample.faults and target.name != OURS:
                    failed[f"{target.name} {scenario} {repetition + 1}"] = "; ".join(sample.faults)
    return samples, failed


def look(found: list[Target]) -> missing.Seen | None:
    """What ours had switched on; None if it was not measured. Raises BenchError if something can be and was not."""
    for target in found:
        if target.books is None:
            continue
        counted = ours.wait_folded(target.port, target.books)
        used = ours.config(target.port, 1, pathlib.Path("state"), MODELS)
        seen = missing.Seen(
            keys_known=frozenset(known_keys()),
            keys_used=frozenset(missing.paths(used)),
            record=target.books.last_record,
            records=target.books.records + target.books.refused,
            counted=counted,
            lag=0,
        )
        if forgotten := missing.left_off(seen):
            raise BenchError(f"the product has {', '.join(forgotten)}; tests/bench/ours.py must switch it on")
        return seen
    return None


def known_keys() -> set[str]:
    """Paths of all configuration keys that the product knows."""
    found: set[str] = set()

    def walk(type_: msgspec.inspect.Type, path: str) -> None:
        match type_:
            case msgspec.inspect.StructType(fields=fields):
                for field in fields:
                    walk(field.type, f"{path}.{field.encode_name}" if path else field.encode_name)
            case msgspec.inspect.VarTupleType(item_type=item):
                walk(item, f"{path}[]")
            case msgspec.inspect.UnionType(types=types):
                for one in types:
                    walk(one, path)
            case _:
                found.add(path)

    walk(msgspec.inspect.type_info(Config), "")
    return found


def idle_memory(target: Target) -> dict[str, report.Idle]:
    """By what a process is, before any load."""
    found: dict[str, report.Idle] = {}
    for pid, role in target.processes().items():
        before = found.get(role, report.Idle(0, 0))
        found[role] = report.Idle(before.rss_kib + proc.rss_kib(pid), before.pss_kib + proc.pss_kib(pid))
    return found


def idle_verdicts(idle: dict[str, dict[str, report.Idle]]) -> list[figures.Verdict]:
    if OURS not in idle:
        return []
    worker = idle[OURS]["worker"].rss_kib / 1024
    return [figures.Verdict("idle RSS of a worker, MiB", figures.IDLE_MIB, worker)]


def books_verdicts(names: list[str]) -> list[figures.Verdict]:
    """What record, journal, chain, checkpoint and fold cost a call. Raises BenchError."""
    if OURS not in names:
        return []
    found = alone("books")
    return [
        figures.Verdict(f"the books of a call, {calls} of the loop, CPU µs", found["must_us"], figure)
        for calls, figure in found["books_us"].items()
    ]


def facts_verdicts(names: list[str]) -> list[figures.Verdict]:
    """What making facts of a record costs. Raises BenchError."""
    if OURS not in names:
        return []
    found = alone("facts")
    must_us = 1e6 / found["must_per_cpu_s"]
    return [figures.Verdict("facts of a record, CPU µs", must_us, found["facts_us"])]


def alone(part: str) -> dict[str, Any]:
    """What a part of ours says that is measured in a process of its own. Raises BenchError."""
    environment = {**os.environ, **ours.ENV}
    done = subprocess.run(
        [ours.PYTHON, "-m", f"tests.bench.{part}"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise BenchError(f"the {part} could not be measured: {done.stderr.strip()}")
    found: dict[str, Any] = msgspec.json.decode(done.stdout)
    return found


def machine() -> dict[str, str]:
    """What it ran on. journal: the file system that the journal was on."""
    models = [
        line.partition(": ")[2]
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": f"{os.cpu_count()} cores",
        "system": f"Linux {platform.release()}",
        "python": python_version(),
        "journal": f"journal on {ours.check_disk(CACHE)}",
    }


def python_version() -> str:
    """Of the interpreter that ours runs on."""
    show = "import platform, sys; print(platform.python_version(), 'of', sys.base_prefix)"
    found = subprocess.run([ours.PYTHON, "-c", show], capture_output=True, text=True, check=True).stdout
    return f"CPython {found.strip()}"


def progress(sample: Sample) -> str:
    scenario = SCENARIOS[sample.scenario]
    cost = sum(sample.cpu_us.values()) / figures.units(scenario, sample.load.requests)
    faults = "".join(f"  {fault}" for fault in sample.faults)
    return f"{sample.repetition + 1} {sample.scenario:8} {sample.target:14} {cost:9.2f} µs/{scenario.unit}{faults}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="NAME,…", help=f"of {', '.join(targets.known())}")
    parser.add_argument("--scenarios", metavar="NAME,…", help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--repetitions", "--reps", type=int, default=REPETITIONS, metavar="N")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        metavar="FILE",
        help="write the result there too, however little was measured",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
