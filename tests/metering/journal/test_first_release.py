"""Readers of a version read the one before: journals of the first release (tests/data/journal-v1), and a newer one's.

What must come of them is computed by the oracle, from the bytes.
"""

import asyncio
import collections
import pathlib
import shutil
from typing import Any

import pytest

from metering.audit import audit, verify
from metering.audit.findings import Verdict
from metering.export.export import rows_from_journal
from metering.journal import chain, journal
from metering.journal.journal import Directory, directories, salvage_dead
from metering.ledger.folder import Folder
from metering.pages import gone, pages
from metering.record import Admitted, CallRecord, Refused
from metering.units import NS_PER_HOUR
from tests.oracle import journal as oracle
from tests.oracle import ledger as oracle_ledger
from tests.support import journals
from tests.support.ledgers import BalancesStore

DATA = pathlib.Path(__file__).parent.parents[1] / "data" / "journal-v1"
STOPPED, KILLED = "wgxzbi6nu2bhkblwd", "wrucpdolhwnw662ry"


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    copy = pathlib.Path(shutil.copytree(DATA / "journal", tmp_path / "state" / "journal"))
    for path in copy.iterdir():
        (path / "lock").touch()
    return copy


def test_all_its_kinds_are_read(root: pathlib.Path) -> None:
    lines = [line for directory in directories(root) for line in directory.chained()]
    assert len(lines) == 27
    assert all(one.line is not None and one.line.v == 1 for one in lines)
    assert [one.line.count for one in lines if isinstance(one.line, Refused)] == [1]


def test_admissions_of_a_call_that_is_lost_for_nothing_are_written_as_they_were(root: pathlib.Path) -> None:
    """To the byte: what came since is in the lines of those alone whom it concerns."""
    read = [one for directory in directories(root) for one in directory.chained()]
    admissions = [one for one in read if isinstance(one.line, Admitted)]
    assert len(admissions) == 6
    for one in admissions:
        assert one.line is not None
        assert chain.encode_bare(one.line) == one.data


def test_it_is_closed_to_the_bytes_that_it_closed_it_to_itself(root: pathlib.Path) -> None:
    assert [(closed.directory.writer, closed.lost) for closed in salvage_dead(root)] == [(KILLED, 1)]
    assert (root / KILLED / "salvage.jsonl").read_bytes() == (
        DATA / "closed" / f"{KILLED}.salvage.jsonl"
    ).read_bytes()
    assert [fault for writer in oracle.read(root) for fault in writer.faults] == []


def test_it_is_folded_counted_exported_shown_and_verified(root: pathlib.Path) -> None:
    salvage_dead(root)
    store = BalancesStore()
    assert asyncio.run(Folder(store).fold(directories(root))) == 0
    writers = oracle.read(root)
    want = oracle_ledger.recompute(writers)
    cost = sum(value for name, value in want.balances.items() if name.endswith("|cost_pusd"))
    assert sum(value for (*_, field), value in store.sums().items() if field.endswith("|cost_pusd")) == cost
    assert cost == 80_000_000

    gone.retire(root.parent / "pages", root)
    totals = gone.load(root.parent / "pages").totals
    calls: collections.Counter[str] = collections.Counter()
    for one, value in totals.items():
        if one.family == "weighbridge_calls_total":
            calls[one.labels[-1]] += value[0]
    assert calls == {"completed": 4, "backend_failed": 1, "refused": 1, "lost": 1}

    hours = range(0, 1 << 40)
    rows = rows_from_journal(directories(root), hours, pytest.fail)
    assert sum(row.amounts[0] for row in rows) == len(list(oracle.calls(writers))) == 6

    for call in oracle.calls(writers):
        found = audit.find(root, call["call_id"]).line
        assert isinstance(found, CallRecord)
        assert (found.outcome.value, found.finished_ns // NS_PER_HOUR) == (
            call["outcome"],
            call["finished_ns"] // (3600 * 10**9),
        )

    report = verify.verify(verify.find([root]), [], [])
    assert report.verdict is Verdict.INCOMPLETE, "whole, but nobody has signed it"
    assert pages.files(root.parent / "pages") == []


def test_an_altered_one_is_found(root: pathlib.Path) -> None:
    path = root / STOPPED / journal.segment_name(1)
    path.write_bytes(path.read_bytes().replace(b'"cost_pusd":20000000', b'"cost_pusd":10000000', 1))
    assert verify.verify(verify.find([root]), [], []).verdict is Verdict.TAMPERED


def newer(make: Any) -> Any:
    """A line as a later release may write it: of a version that is not known here."""

    def made(seq: int, prev: str) -> Any:
        line = make(seq, prev)
        return type(line)(**{name: getattr(line, name) for name in line.__struct_fields__} | {"v": 99})

    return made


def test_lines_of_a_newer_version_are_carried_skipped_and_told(tmp_path: pathlib.Path) -> None:
    makes = [
        journals.start(), journals.admitted("w-1"), newer(journals.call("w-1")), newer(journals.refused()),
        newer(journals.tick()), journals.admitted("w-2"), journals.call("w-2"), journals.stop(),
    ]  # fmt: skip
    path = journals.write_directory(tmp_path, makes)
    directory = Directory(path)
    assert [one.seq for one in directory.chained()] == list(range(1, 9))
    known = [line for line, _, _ in directory.records()]
    assert [line.call_id for line in known if isinstance(line, CallRecord)] == ["w-2"]
    assert [line.call_id for line in known if isinstance(line, Admitted)] == ["w-1", "w-2"]
    (report,) = verify.verify(verify.find([path]), [], []).journals
    assert report.inspected.unknown == 3
