"""kill -9 of workers and of the supervisor under load, judged from outside (tests/oracle).

What must hold: each request that a backend saw has one `admitted`; each `admitted` one record; each end that a client
read a `completed` record with the same counts; the ledger computed again from the records is the store's; no
counter ever fell, and in the end each is the count of the journal's lines. With the product broken on purpose
(tests/mutants) the same judge must object.
"""

import json
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.oracle import evidence, journal, ledger
from tests.oracle.faults import Kind
from tests.oracle.journal import Line
from tests.support import killrun
from tests.support.killrun import MIDWAY_MIN, UNCOMMITTED_MIN, KillRun, Victim

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

SEED = 20_261_128
VICTIMS: tuple[Victim, ...] = ("worker", "supervisor") * 5 + ("all",)
MUTANT_ROUNDS_MAX = 3
MUTANT_SETTLE_S = 3.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillRun]:
    """All rounds, and their evidence in `<directory>/evidence`."""
    directory = tmp_path_factory.mktemp("kill")
    with killrun.running(directory, SEED) as run:
        for victim in VICTIMS:
            run.round(victim)
        run.keep(directory / "evidence")
        yield run


@pytest.fixture(scope="module")
def kept(run: KillRun) -> pathlib.Path:
    return run.front.directory / "evidence"


def test_nothing_is_lost_or_doubled_when_processes_are_killed(
    run: KillRun, kept: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"\n{_figures(run, kept)}")
    faults = [each.faults for each in run.rounds]
    assert faults == [[]] * len(VICTIMS), "\n".join(run.warnings())
    assert evidence.judge(kept) == []


def test_the_kills_met_streams_in_both_states(run: KillRun) -> None:
    for each in run.rounds:
        assert each.midway >= MIDWAY_MIN
        assert each.uncommitted >= UNCOMMITTED_MIN


def test_a_worker_takes_its_open_calls_with_it_and_the_supervisor_takes_none(run: KillRun) -> None:
    for each in run.rounds:
        if each.victim == "supervisor":
            assert each.lost == 0
        else:
            assert each.lost >= UNCOMMITTED_MIN


def test_no_counter_ever_fell(run: KillRun) -> None:
    assert run.scraper.watch.faults == []
    assert run.scraper.refused == []
    assert run.scraper.watch.looks > 20 * len(run.rounds)


def test_calls_that_wait_for_a_new_worker_are_served(run: KillRun) -> None:
    assert [entry for entry in run.clients if entry.error == "no_backend"] == []


@pytest.mark.parametrize(
    ("mutant", "kinds"),
    [
        ("release_before_write", {Kind.UNADMITTED, Kind.NOT_COMPLETED}),
        ("dead_not_folded", {Kind.LEDGER}),
        ("dead_not_counted", {Kind.COUNTER_FELL}),
    ],
)
def test_the_oracle_objects_to_a_broken_gateway(
    tmp_path: pathlib.Path, mutant: str, kinds: set[Kind]
) -> None:
    found: set[Kind] = set()
    with killrun.running(tmp_path, SEED, mutant) as run:
        for _ in range(MUTANT_ROUNDS_MAX):
            faults = run.round("worker", settle_s=MUTANT_SETTLE_S).faults + run.scraper.watch.faults
            found = {fault.kind for fault in faults}
            if found & kinds:
                return
    pytest.fail(f"{MUTANT_ROUNDS_MAX} rounds, and only {found}")


# The oracle, on copies of the real run's files that were tampered with


@pytest.fixture
def copy(kept: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(kept, tmp_path / "copy"))


def rewrite(copy: pathlib.Path, change: Callable[[list[Line]], None]) -> None:
    """Change the lines of the first writer that has a completed call, and chain them anew, as a forger would."""
    for path in journal.directories(copy / "journal"):
        lines = journal.read_one(path).lines
        if not any(line.get("outcome") == "completed" for line in lines):
            continue
        change(lines)
        prev, data = journal.ZEROS, b""
        for seq, line in enumerate(lines, 1):
            raw = journal.encode(line | {"seq": seq, "prev": prev})
            prev, data = journal.leaf_of(raw), data + raw + b"\n"
        for segment in path.glob("*.jsonl"):
            segment.unlink()
        (path / f"{1:016}.jsonl").write_bytes(data)
        return
    raise AssertionError("no completed call")


def completed(lines: list[Line]) -> int:
    """Index of a completed call."""
    return next(index for index, line in enumerate(lines) if line.get("outcome") == "completed")


def double_record(lines: list[Line]) -> None:
    lines.insert(completed(lines), lines[completed(lines)])


def drop_record(lines: list[Line]) -> None:
    del lines[completed(lines)]


def drop_admission(lines: list[Line]) -> None:
    call_id = lines[completed(lines)]["call_id"]
    lines[:] = [line for line in lines if (line["kind"], line.get("call_id")) != ("admitted", call_id)]


def one_token_more(lines: list[Line]) -> None:
    lines[completed(lines)]["usage"]["completion_tokens"] += 1


def call_it_lost(lines: list[Line]) -> None:
    lines[completed(lines)]["outcome"] = "lost"


def drop_stop(lines: list[Line]) -> None:
    del lines[-1]


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (double_record, {Kind.DOUBLED, Kind.NOT_COMPLETED, Kind.LEDGER, Kind.COUNTER_WRONG}),
        (drop_record, {Kind.NO_RECORD, Kind.NOT_COMPLETED, Kind.LEDGER, Kind.COUNTER_WRONG}),
        (drop_admission, {Kind.UNADMITTED, Kind.LEDGER}),
        (one_token_more, {Kind.TOKENS, Kind.LEDGER, Kind.COUNTER_WRONG}),
        (call_it_lost, {Kind.NOT_COMPLETED, Kind.LEDGER, Kind.COUNTER_WRONG}),
        (drop_stop, {Kind.CHAIN}),
    ],
)
def test_the_oracle_sees_a_forged_journal(
    copy: pathlib.Path, change: Callable[[list[Line]], None], kinds: set[Kind]
) -> None:
    rewrite(copy, change)
    assert {fault.kind for fault in evidence.judge(copy)} == kinds


def test_the_oracle_sees_a_byte_altered_in_place(copy: pathlib.Path) -> None:
    segment = max(copy.glob("journal/*/[0-9]*.jsonl"), key=lambda path: path.stat().st_size)
    segment.write_bytes(segment.read_bytes().replace(b'"outcome":"completed"', b'"outcome":"Completed"', 1))
    assert Kind.CHAIN in {fault.kind for fault in evidence.judge(copy)}


def test_the_oracle_sees_a_salvage_that_is_missing(copy: pathlib.Path) -> None:
    next(copy.glob("journal/*/salvage.jsonl")).unlink()
    assert {Kind.CHAIN, Kind.NO_RECORD} <= {fault.kind for fault in evidence.judge(copy)}


@pytest.mark.parametrize("part", ["balances", "marks"])
def test_the_oracle_sees_a_ledger_that_is_off_by_one(copy: pathlib.Path, part: str) -> None:
    held: dict[str, dict[str, Any]] = json.loads((copy / "ledger.json").read_text())
    name = sorted(held[part])[0]
    held[part][name] = held[part][name] + 1 if part == "balances" else "1:0123456789abcdef"
    (copy / "ledger.json").write_text(json.dumps(held))
    assert [(fault.kind, fault.where) for fault in evidence.judge(copy)] == [(Kind.LEDGER, name)]


def test_the_oracle_sees_a_counter_that_is_off_by_one(copy: pathlib.Path) -> None:
    lines = (copy / "metrics.txt").read_text().splitlines()
    index = next(index for index, line in enumerate(lines) if line.startswith("weighbridge_calls_total{"))
    sample, _, value = lines[index].rpartition(" ")
    lines[index] = f"{sample} {float(value) + 1}"
    (copy / "metrics.txt").write_text("\n".join(lines))
    assert [fault.kind for fault in evidence.judge(copy)] == [Kind.COUNTER_WRONG]


def test_the_oracle_sees_a_client_that_read_other_counts(copy: pathlib.Path) -> None:
    entries = evidence.entries(copy / "clients.jsonl")
    told = next(entry for entry in entries if entry["ended"] and entry["usage"])
    told["usage"]["prompt_tokens"] += 1
    (copy / "clients.jsonl").write_text("\n".join(json.dumps(entry) for entry in entries))
    assert [(fault.kind, fault.where) for fault in evidence.judge(copy)] == [
        (Kind.TOKENS, told["request_id"])
    ]


def _figures(run: KillRun, kept: pathlib.Path) -> str:
    """The run in one line."""
    faults = [fault.kind for fault in evidence.judge(kept)]
    writers = journal.read(kept / "journal")
    calls = list(journal.calls(writers))
    held = ledger.Ledger(**json.loads((kept / "ledger.json").read_text()))
    figures = {
        "rounds": len(run.rounds),
        "calls": len(calls),
        "midway_min": min(each.midway for each in run.rounds),
        "uncommitted_min": min(each.uncommitted for each in run.rounds),
        "ends_read": sum(entry.ended for entry in run.clients),
        "lost": sum(call["outcome"] == "lost" for call in calls),
        "doubled": faults.count(Kind.DOUBLED),
        "faults": len(faults),
        "difference_pusd": ledger.difference_pusd(ledger.recompute(writers), held),
        "settled_s_max": f"{max(each.settled_s for each in run.rounds):.2f}",
        "scrapes": run.scraper.watch.looks,
        "fell": len(run.scraper.watch.faults),
        "seed": run.seed,
    }
    return "kill: " + " ".join(f"{name}={value}" for name, value in figures.items())
