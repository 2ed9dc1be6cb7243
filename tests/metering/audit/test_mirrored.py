"""Copies of lines that went through a log collector, sorted out by writer and held against the journals."""

import pathlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.audit import verify
from metering.audit.findings import Verdict, What
from metering.audit.mirrored import Sorter
from metering.audit.verdict import Report
from metering.audit.verify import VerifyError
from metering.journal import chain
from tests.support import journals, signed
from tests.support.journals import WRITER
from tests.support.signed import signer

OTHER = "w" + "b" * 16
KEYS = verify.given_keys(signer().verifier.vkey)


def lines_of(writer: str, count: int = 4) -> list[bytes]:
    makes = [
        signed.start(writer),
        *signed.calls(writer, count),
        journals.refused(),
        journals.tick(),
        journals.stop(),
    ]
    return signed.signed_lines(makes, writer=writer)


FIRST, SECOND = lines_of(WRITER), lines_of(OTHER, 3)


def interleaved(rng: random.Random, *several: list[bytes]) -> list[bytes]:
    """Each in its order, mixed."""
    left = [list(lines) for lines in several]
    mixed = []
    while any(left):
        mixed.append(rng.choice([lines for lines in left if lines]).pop(0))
    return mixed


@given(st.randoms(use_true_random=False), st.data())
def test_lines_are_sorted_out_however_they_are_mixed(rng: random.Random, data: st.DataObject) -> None:
    mixed = interleaved(rng, FIRST, SECOND, [b"\n", b'{"level":"info"}\n', b"half a li\n"])
    twice = [line for line in mixed for _ in range(data.draw(st.integers(1, 2)))]
    sorter = Sorter()
    found: dict[str | None, list[bytes]] = {}
    for line in twice:
        found.setdefault(sorter.writer_of(line[:-1]), []).append(line)
    assert (found[WRITER], found[OTHER]) == (FIRST, SECOND)


def verified(*paths: pathlib.Path) -> Report:
    return verify.verify(verify.find(paths), KEYS, [])


def found(report: Report) -> list[What]:
    return [finding.what for journal in report.journals for finding in journal.inspected.findings]


def mirror(path: pathlib.Path, lines: list[bytes]) -> pathlib.Path:
    path.write_bytes(b"\nsome other output\n" + b"".join(lines))
    return path


def test_a_copy_alone(tmp_path: pathlib.Path) -> None:
    """All of it is there but the note that signs the stop."""
    report = verified(mirror(tmp_path / "log", interleaved(random.Random(1), FIRST, SECOND)))
    assert found(report) == [What.NO_END_NOTE, What.NO_END_NOTE]
    assert [journal.inspected.writer for journal in report.journals] == [WRITER, OTHER]
    assert report.journals[0].path == f"{tmp_path / 'log'} ({WRITER})"
    assert report.journals[0].inspected.lines == len(FIRST)


def test_a_copy_that_ends_before_its_writer(tmp_path: pathlib.Path) -> None:
    report = verified(mirror(tmp_path / "log", [*FIRST[:7], FIRST[7][:-9]]))
    assert found(report) == [What.NOT_CLOSED]
    assert "this copy ends before it" in report.journals[0].inspected.findings[0].says


@pytest.mark.parametrize("gap", [slice(3, 4), slice(2, 6), slice(4, 9)])
def test_a_gap_proves_nothing(tmp_path: pathlib.Path, gap: slice) -> None:
    lines = list(FIRST)
    del lines[gap]
    report = verified(mirror(tmp_path / "log", lines))
    assert (set(found(report)) - {What.NOT_CLOSED}, report.verdict) == (
        {What.COPY_HAS_GAPS},
        Verdict.INCOMPLETE,
    )


def test_an_altered_line_is_found(tmp_path: pathlib.Path) -> None:
    lines = list(FIRST)
    lines[5] = lines[5].replace(b"acme", b"bcme")
    report = verified(mirror(tmp_path / "log", lines))
    assert What.CHAIN_BROKEN in found(report)
    assert report.verdict is Verdict.TAMPERED


def test_a_copy_beside_its_journal_witnesses(tmp_path: pathlib.Path) -> None:
    """Up to its own end it is as good as an anchor: a rewrite with the old key differs from it."""
    signed.write(tmp_path / "journal", FIRST, note=signer())
    log = mirror(tmp_path / "log", FIRST[:9])
    report = verified(tmp_path, log)
    assert (found(report), report.verdict) == ([], Verdict.WHOLE)
    other = signed.signed_lines([signed.start(), *signed.calls(WRITER, 9, at_ns=1), journals.stop()])
    signed.write(tmp_path / "other" / "journal", other, note=signer())
    assert verified(tmp_path / "other").verdict is Verdict.WHOLE
    report = verified(tmp_path / "other", log)
    assert (found(report), report.verdict) == ([What.ROOT_DIFFERS], Verdict.TAMPERED)


def test_a_file_without_lines(tmp_path: pathlib.Path) -> None:
    with pytest.raises(VerifyError, match="nor has it lines of a journal"):
        verified(mirror(tmp_path / "log", []))


def test_after_a_gap_only_a_call_says_whose_it_is() -> None:
    sorter = Sorter()
    assert sorter.writer_of(FIRST[0][:-1]) == WRITER
    assert sorter.writer_of(chain.encode(journals.tick()(3, "0" * 64))[:-1]) is None
    strange = chain.encode(journals.call("w" + "c" * 16 + "-1")(3, "0" * 64))
    assert sorter.writer_of(strange[:-1]) is None
    assert sorter.writer_of(FIRST[2][:-1]) == WRITER
    assert sorter.writer_of(FIRST[3][:-1]) == WRITER


def test_a_forged_line_that_two_writers_have_disturbs_nothing() -> None:
    sorter = Sorter()
    for first in (FIRST[0], SECOND[0]):
        sorter.writer_of(first[:-1])
    forged = chain.encode(journals.call(f"{OTHER}-1")(2, chain.leaf(FIRST[0][:-1])))
    assert [sorter.writer_of(forged[:-1]) for _ in range(3)] == [WRITER, OTHER, None]
    assert sorter.writer_of(chain.encode(journals.call(f"{WRITER}-1")(3, "0" * 64))[:-1]) == WRITER
    assert sorter.writer_of(chain.encode(journals.call(f"{OTHER}-1")(3, "0" * 64))[:-1]) == OTHER
