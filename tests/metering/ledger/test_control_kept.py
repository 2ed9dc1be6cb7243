"""What the control keeps of complete journals: each for itself, and the past ones as a sum."""

import pathlib

from metering.ledger.control import Counted, Ledgered
from metering.ledger.control_kept import ControlKept, Past
from metering.ledger.ledger import Account
from tests.support.journals import WRITER

OTHER = "w" + "b" * 16
COUNTED = Counted(seq=7, sums={"acme": [1, 2, 3, 4, 5, 6]}, lasts={"acme": 6}, backends={"b1": 10})
LEDGERED = Ledgered({"acme": 6}, {"acme": {Account(5, "", "m", "inf2"): [1, 2, 3, 4, 5, 6]}})


def test_a_journal_is_kept_as_it_was(tmp_path: pathlib.Path) -> None:
    kept = ControlKept(tmp_path)
    assert (kept.writers(), kept.load(WRITER), kept.past()) == (set(), None, Past())
    kept.put(WRITER, COUNTED, LEDGERED)
    found = kept.load(WRITER)
    assert found is not None
    assert (found[0], found[1].upto, found[1].sums) == (COUNTED, LEDGERED.upto, LEDGERED.sums)
    assert kept.writers() == {WRITER}


def test_what_cannot_be_read_is_nothing(tmp_path: pathlib.Path) -> None:
    kept = ControlKept(tmp_path)
    kept.put(WRITER, COUNTED, LEDGERED)
    (tmp_path / "control" / f"{WRITER}.json").write_text("{")
    assert kept.load(WRITER) is None


def test_the_past_is_a_sum_with_each_journal_once(tmp_path: pathlib.Path) -> None:
    kept = ControlKept(tmp_path)
    for writer in (WRITER, OTHER):
        kept.put(writer, COUNTED, LEDGERED)
    kept.add_to_past([(WRITER, COUNTED)])
    assert kept.writers() == {OTHER}
    assert kept.past() == Past(backends={"b1": 10}, sums={"acme": [1, 2, 3, 4, 5, 6]}, writers=(WRITER,))
    more = Counted(sums={"acme": [1] * 6, "globex": [2] * 6}, backends={"b1": 1, "b2": 2})
    kept.add_to_past([(WRITER, COUNTED), (OTHER, more)])
    past = kept.past()
    assert past.sums == {"acme": [2, 3, 4, 5, 6, 7], "globex": [2] * 6}
    assert past.backends == past.counted.backends == {"b1": 11, "b2": 2}
    assert past.writers == (WRITER, OTHER)
    assert [path.name for path in (tmp_path / "control").iterdir()] == ["past.json"]
