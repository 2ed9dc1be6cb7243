"""A run's evidence in one directory, and the whole judgement of it.

clients.jsonl     what each client sent and read (tests/support/streamload.py)
backends.jsonl    what each backend saw (`GET /_sim/log` of all of them)
journal/          the writers' directories
ledger.json       what the store held: {"balances": {…}, "marks": {…}}
metrics.txt       the last scrape
"""

import json
import pathlib

from tests.oracle import counters, exposition, join, journal, ledger
from tests.oracle.faults import Fault, Kind
from tests.oracle.join import Entry
from tests.oracle.ledger import Ledger


def judge(evidence: pathlib.Path) -> list[Fault]:
    """Everything that is wrong with a run whose gateway has ended."""
    writers = journal.read(evidence / "journal")
    held = Ledger(**json.loads((evidence / "ledger.json").read_text()))
    faults = [fault for writer in writers for fault in writer.faults]
    faults += [
        Fault(Kind.CHAIN, writer.name, "not closed: its last line is no `stop`")
        for writer in writers
        if not writer.closed
    ]
    faults += join.check(entries(evidence / "clients.jsonl"), entries(evidence / "backends.jsonl"), writers)
    faults += ledger.check(ledger.recompute(writers), held)
    faults += counters.check(writers, exposition.parse((evidence / "metrics.txt").read_text()))
    return faults


def entries(path: pathlib.Path) -> list[Entry]:
    """A log of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]
