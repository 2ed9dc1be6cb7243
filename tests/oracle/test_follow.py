"""Journals followed as they grow come to the same as journals read at their end; what is above them is seen."""

import json
import pathlib
import random

import pytest

from tests.oracle import csvfile, journal, ledger
from tests.oracle.exposition import Page
from tests.oracle.faults import Kind
from tests.oracle.follow import Follower
from tests.oracle.journal import Line
from tests.oracle.ledger import Ledger
from tests.oracle.logs import Backends, Clients

WRITER = "waaaaaaaaaaaaaaaa"
USAGE = {
    "source": "reported", "prompt_tokens": 9, "cached_prompt_tokens": 3, "completion_tokens": 5,
}  # fmt: skip
CALL: Line = {
    "kind": "call", "v": 1, "tenant": "acme", "project": None, "model": "m1", "instance_family": "inf2",
    "cost_pusd": 70, "unpriced_reason": None, "outcome": "completed", "request_id": "r", "usage": USAGE,
    "finished_ns": 1_795_000_000 * 10**9, "spill_reason": None, "fallback_reason": None, "attempts": [], "at_ns": 1,
}  # fmt: skip
CALLS_TOTAL = (
    "weighbridge_calls_total",
    (("family", "inf2"), ("model", "m1"), ("outcome", "completed"), ("tenant", "acme")),
)


def chained(lines: list[Line], seq: int = 0, prev: str = journal.ZEROS) -> list[bytes]:
    raws = []
    for line in lines:
        seq += 1
        raws.append(journal.encode(line | {"seq": seq, "prev": prev}))
        prev = journal.leaf_of(raws[-1])
    return raws


def some_lines(calls: int) -> list[Line]:
    lines: list[Line] = [{"kind": "start", "v": 1, "writer": WRITER, "pid": 1, "at_ns": 1}]
    for n in range(calls):
        call = CALL | {"call_id": f"{WRITER}-{n}"}
        lines += [call | {"kind": "admitted"}, call]
    return lines


def made(root: pathlib.Path, raws: list[bytes]) -> pathlib.Path:
    directory = root / WRITER
    directory.mkdir(exist_ok=True)
    (directory / f"{1:016}.jsonl").write_bytes(b"".join(raw + b"\n" for raw in raws))
    return directory


@pytest.mark.parametrize("seed", range(5))
def test_however_a_journal_grows_the_follower_reads_each_line_once(tmp_path: pathlib.Path, seed: int) -> None:
    rng = random.Random(seed)
    raws = chained(some_lines(20))
    directory = made(tmp_path, [])
    data = b"".join(raw + b"\n" for raw in raws)
    follower = Follower(tmp_path)
    upto = 0
    while upto < len(data):
        upto = min(len(data), upto + rng.randrange(1, 2_000))
        (directory / f"{1:016}.jsonl").write_bytes(data[:upto])
        follower.update()
        whole = journal.read_one(directory)
        assert follower.ledger == ledger.recompute([whole])
    assert len(follower.writers[0].lines) == len(raws)
    assert follower.open_calls() == set()
    assert follower.ceiling.above(Page({CALLS_TOTAL: 20}, {})) == []
    assert [fault.kind for fault in follower.ceiling.above(Page({CALLS_TOTAL: 21}, {}))] == [Kind.ABOVE]


def test_a_call_without_a_record_is_open(tmp_path: pathlib.Path) -> None:
    made(tmp_path, chained(some_lines(3)[:-1]))
    follower = Follower(tmp_path)
    follower.update()
    assert follower.open_calls() == {f"{WRITER}-2"}


def test_a_line_that_had_been_read_and_is_another_one_is_seen(tmp_path: pathlib.Path) -> None:
    lines = some_lines(2)
    directory = made(tmp_path, chained(lines))
    follower = Follower(tmp_path)
    follower.update()
    lines[-1] = lines[-1] | {"cost_pusd": 71}
    raws = chained(lines)
    made(tmp_path, raws)
    stop = {
        "kind": "stop",
        "reason": "salvaged",
        "lost": 0,
        "torn_bytes": 0,
        "torn_digest": None,
        "v": 1,
        "at_ns": 1,
    }
    (salvaged,) = chained([stop], len(raws), journal.leaf_of(raws[-1]))
    (directory / journal.SALVAGE).write_bytes(salvaged + b"\n")
    follower.update()
    assert [fault.what for fault in follower.writers[0].faults] == [
        "what had been read is not there any more"
    ]


def test_a_store_above_the_journals_is_seen_and_one_behind_them_is_not() -> None:
    journalled = Ledger({"a": 5, "b": 1}, {})
    assert ledger.above(journalled, Ledger({"a": 5}, {})) == []
    assert [fault.where for fault in ledger.above(journalled, Ledger({"a": 6, "c": 1}, {}))] == ["a", "c"]


def test_an_export_is_compared_row_by_row(tmp_path: pathlib.Path) -> None:
    made(tmp_path, chained(some_lines(2)))
    follower = Follower(tmp_path)
    follower.update()
    head = "period_start,period_end,tenant,project,model,instance_family,calls,prompt_tokens,cached_prompt_tokens"
    row = "2026-11-18T11:00:00Z,2026-11-18T12:00:00Z,acme,,m1,inf2,2,18,6,10,0.000000000140,0"
    path = tmp_path / "export.csv"
    path.write_text(f"{head},completion_tokens,estimated_usd,unpriced_calls\n{row}\n")
    assert csvfile.check(path, follower.ledger) == []
    path.write_text(path.read_text().replace("0.000000000140", "0.000000000141"))
    assert [fault.where.rpartition("|")[2] for fault in csvfile.check(path, follower.ledger)] == ["cost_pusd"]


def test_logs_are_read_up_to_their_last_whole_line(tmp_path: pathlib.Path) -> None:
    clients, backends = tmp_path / "clients.log", tmp_path / "backends.log"
    clients.write_text(json.dumps(["r1", "events", 1]) + "\n" + json.dumps(["r1", "events", 2])[:-1])
    backends.write_text(json.dumps({"request_id": "r1", "outcome": "open"}) + "\n")
    read, seen = Clients(clients), Backends(backends)
    read.update()
    assert read.entries == {"r1": {"events": 1}}
    with clients.open("a") as file:
        file.write("]\n")
    read.update()
    seen.update()
    assert read.entries == {"r1": {"events": 2}}
    assert seen.entries == [{"request_id": "r1", "outcome": "open"}]
