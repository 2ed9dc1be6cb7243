"""Journals in every state but attacked ones (test_attacks.py), and what is said of them."""

import fcntl
import json
import pathlib
import shutil

import pytest

from gateway import cli
from metering import record
from metering.audit import merkle, verify
from metering.audit.audit import as_json
from metering.audit.callbook import CallBook
from metering.audit.findings import FINDINGS_MAX, Findings, Place, Verdict, What, worst
from metering.audit.inspection import Front, Inspected, Inspection, State
from metering.audit.verdict import Journal, Report
from metering.audit.verify import VerifyError
from metering.audit.verify_page import page
from metering.journal import chain, segments
from metering.journal.journal import LOCK, SALVAGE, salvage_dead
from metering.journal.segments import Archived
from tests.support import journals, signed
from tests.support.journals import AT_NS, WRITER, Make
from tests.support.signed import END_NOTE, signer

OTHER = "w" + "b" * 16


def verified(*paths: pathlib.Path, **options: list[object]) -> Report:
    keys, anchors = options.get("keys", []), options.get("anchors", [])
    return verify.verify(verify.find(paths), keys, anchors)  # type: ignore[arg-type]


def only(report: Report) -> Inspected:
    (journal,) = report.journals
    return journal.inspected


def found(report: Report) -> list[What]:
    inside = [finding for journal in report.journals for finding in journal.inspected.findings]
    return [finding.what for finding in [*inside, *report.findings]]


def test_a_whole_journal(tmp_path: pathlib.Path) -> None:
    lines = signed.closed(tmp_path, count=6)
    one = only(verified(tmp_path))
    assert (one.state, one.verdict) == (State.CLOSED, Verdict.WHOLE)
    assert (one.lines, one.calls, one.records, one.refused, one.lost, one.unknown) == (
        len(lines),
        6,
        6,
        0,
        0,
        0,
    )
    assert one.checkpoints == sum(b'"checkpoint"' in line for line in lines) + 1  # and the end.note
    assert one.root == merkle.root(signed.leaves(lines))
    assert (one.size, one.signed_size, one.stolen_size) == (len(lines), len(lines), 0)
    assert (one.first_ns, one.last_ns) == (AT_NS, AT_NS)


@pytest.mark.parametrize("block_bytes", [1, 7, 1000])
def test_blocks_may_be_cut_anywhere(block_bytes: int) -> None:
    lines = signed.signed_lines([signed.start(), *signed.calls(WRITER, 3), journals.stop()])
    data = b"".join(lines)
    inspection = Inspection(WRITER, "there", None)
    inspection.read("file", 1, (data[at : at + block_bytes] for at in range(0, len(data), block_bytes)))
    one = inspection.finish(live=False, end_note=None, end_note_file="end")
    assert [finding.what for finding in one.findings] == [What.NO_END_NOTE]
    assert one.root == merkle.root(signed.leaves(lines))


def unfinished(state_dir: pathlib.Path, tail: bytes = b"") -> list[bytes]:
    """A journal without its end, as a killed process leaves it: two calls are open, and a torn tail."""
    makes = [signed.start(), *signed.calls(WRITER, 3), journals.admitted(f"{WRITER}-4"), journals.refused()]
    lines = signed.signed_lines([*makes, journals.admitted(f"{WRITER}-5")])
    path = signed.write(state_dir / "journal", lines, per_segment=6)
    with sorted(path.glob("[0-9]*.jsonl"))[-1].open("ab") as file:
        file.write(tail)
    signed.write_keys(state_dir)
    return lines


def test_a_live_writer_is_verified_up_to_its_last_line(tmp_path: pathlib.Path) -> None:
    lines = unfinished(tmp_path, b'{"at_ns":17')
    with (tmp_path / "journal" / WRITER / LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        report = verified(tmp_path)
    assert found(report) == [What.LIVE]
    assert report.verdict is Verdict.INCOMPLETE
    one = only(report)
    assert (one.state, one.lines, one.refused, one.torn_bytes) == (State.OPEN, len(lines), 1, 11)
    assert one.signed_size == 9
    assert "2 calls are open" in one.findings[0].says
    # Others hold a shared lock as we do: they look as well, and that is no life.
    with (tmp_path / "journal" / WRITER / LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        assert found(verified(tmp_path)) == [What.NOT_CLOSED]


def test_a_dead_writer_that_nobody_has_closed(tmp_path: pathlib.Path) -> None:
    unfinished(tmp_path)
    report = verified(tmp_path)
    assert found(report) == [What.NOT_CLOSED]
    assert (only(report).state, report.verdict) == (State.DEAD, Verdict.INCOMPLETE)
    (tmp_path / "journal" / WRITER / LOCK).unlink()  # a copy without it
    assert found(verified(tmp_path)) == [What.NOT_CLOSED]


@pytest.mark.parametrize("tail", [b'{"at_ns":17', b'{"at_ns":17\n', b"\0" * 100 + b"x"])
def test_a_torn_tail_is_no_tampering(tmp_path: pathlib.Path, tail: bytes) -> None:
    unfinished(tmp_path, tail)
    report = verified(tmp_path)
    assert found(report) == [What.NOT_CLOSED]
    assert f"torn tail of {len(tail)} bytes" in only(report).findings[0].says


def test_nuls_behind_the_last_line_say_nothing(tmp_path: pathlib.Path) -> None:
    unfinished(tmp_path, b"\0" * 100)
    assert only(verified(tmp_path)).torn_bytes == 0


def test_whole_lines_behind_a_break_are_no_torn_tail(tmp_path: pathlib.Path) -> None:
    unfinished(tmp_path, b"x\n" + chain.encode(journals.tick()(99, chain.ZEROS)))
    report = verified(tmp_path)
    assert found(report) == [What.NOT_A_LINE]
    assert "; from here on 1 line counts for nothing" in only(report).findings[0].says


def salvaged(state_dir: pathlib.Path, tail: bytes = b'{"at_ns":17') -> pathlib.Path:
    """The same, closed and signed."""
    lines = unfinished(state_dir, tail)
    path = state_dir / "journal" / WRITER
    salvage_dead(state_dir / "journal")
    lines += (path / SALVAGE).read_bytes().splitlines(keepends=True)
    signed.write_end_note(path, lines)
    return path


@pytest.mark.parametrize("tail", [b"", b'{"at_ns":17', b"\0" * 50, b"x\n" + b"y" * 9])
def test_a_salvaged_journal_is_whole(tmp_path: pathlib.Path, tail: bytes) -> None:
    salvaged(tmp_path, tail)
    report = verified(tmp_path)
    assert found(report) == []
    one = only(report)
    assert (one.state, one.lost, one.calls, one.records) == (State.SALVAGED, 2, 5, 5)
    assert one.signed_size == one.size


def test_an_older_versions_salvage_is_the_same(tmp_path: pathlib.Path) -> None:
    """Its lines lack the fields that came later."""
    path = salvaged(tmp_path)
    lines = [chain.decode(line) for line in (path / SALVAGE).read_bytes().splitlines()]
    prev = "x"
    older = []
    for line in lines:
        fields = json.loads(chain.encode(line)) | {"prev": prev}  # type: ignore[arg-type]
        fields.pop("warm_state", None)
        older.append(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n")
        prev = chain.leaf(older[-1][:-1])
    from metering.journal import salvage
    from metering.journal.journal import Directory

    pieces = list(chain.walk(Directory(path).segments()))
    assert salvage.is_end(b"".join(older), pieces)
    assert not salvage.is_end(b"".join(older[:-1]), pieces)
    assert not salvage.is_end(b"x\n", pieces)


def test_an_altered_salvage_is_found(tmp_path: pathlib.Path) -> None:
    path = salvaged(tmp_path) / SALVAGE
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"cost_pusd":0', b'"cost_pusd":9', 1))
    assert {What.CHAIN_BROKEN, What.SALVAGE_DIFFERS, What.TOO_FEW_LINES} == set(found(verified(tmp_path)))
    path.write_bytes(b"x" + data)
    assert What.NOT_A_LINE in found(verified(tmp_path))
    path.write_bytes(b"")
    assert {What.SALVAGE_DIFFERS, What.TOO_FEW_LINES} <= set(found(verified(tmp_path)))


def test_a_forged_salvage_is_found_though_it_is_chained_and_signed(tmp_path: pathlib.Path) -> None:
    lines = unfinished(tmp_path)
    path = tmp_path / "journal" / WRITER
    forged = []
    for make in (
        journals.call(f"{WRITER}-4", outcome=record.Outcome.LOST),
        journals.call(f"{WRITER}-5", outcome=record.Outcome.LOST),
        lambda seq, prev: record.Stop(at_ns=AT_NS, lost=2, prev=prev, reason="salvaged", seq=seq),
    ):
        forged.append(chain.encode(make(len(lines) + 1, chain.leaf(lines[-1][:-1]))))
        lines.append(forged[-1])
    (path / SALVAGE).write_bytes(b"".join(forged))
    signed.write_end_note(path, lines)
    assert found(verified(tmp_path)) == [What.SALVAGE_DIFFERS]


def test_lines_that_were_cut_off_before_the_salvage_are_proven_by_a_note_among_them(
    tmp_path: pathlib.Path,
) -> None:
    """Altered while the writer was dead, then closed in good faith: the old checkpoints are in the torn tail."""
    lines = unfinished(tmp_path)
    path = tmp_path / "journal" / WRITER / "0000000000000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b"acme", b"bcme", 1))
    salvage_dead(tmp_path / "journal")
    kept = b"".join(lines[:1]).splitlines(keepends=True)
    kept += (path.parent / SALVAGE).read_bytes().splitlines(keepends=True)
    report = verified(tmp_path)
    assert set(found(report)) == {What.TOO_FEW_LINES, What.TORN_LINES, What.NO_END_NOTE}
    assert "a signed note behind that proves 4" in str(report.journals[0].inspected.findings)


@pytest.mark.parametrize(
    ("count", "lines"), [(1, "1 whole line is in the torn tail"), (3, "3 whole lines are in the torn tail")]
)
def test_whole_lines_that_the_salvage_left_out_are_named(
    tmp_path: pathlib.Path, count: int, lines: str
) -> None:
    """By the file and the line where they begin: what was altered while the writer was dead is not just a torn tail."""
    tail = chain.encode(journals.tick()(99, chain.ZEROS)) * count
    path = salvaged(tmp_path, b"\0" * 40 + b"\n" + tail + b'{"at_ns":17')
    report = verified(tmp_path)
    (finding,) = only(report).findings
    assert (finding.what, report.verdict) == (What.TORN_LINES, Verdict.INCOMPLETE)
    segment = sorted(path.glob("[0-9]*.jsonl"))[-1]
    before = len(segment.read_bytes().partition(b"\0")[0].splitlines())
    assert (finding.file, finding.line) == (str(segment), before + 1)
    assert lines in finding.says


def test_half_a_line_that_the_salvage_left_out_is_what_a_crash_leaves(tmp_path: pathlib.Path) -> None:
    salvaged(tmp_path)
    assert found(verified(tmp_path)) == []


def test_a_break_before_the_salvage_is_found(tmp_path: pathlib.Path) -> None:
    path = salvaged(tmp_path)
    segment = sorted(path.glob("[0-9]*.jsonl"))[1]
    segment.write_bytes(segment.read_bytes().replace(b"acme", b"bcme", 1))
    report = verified(tmp_path)
    assert What.CHAIN_BROKEN in found(report)
    assert any(f"{segment}:" in str(finding) for finding in only(report).findings)


def trimmed(state_dir: pathlib.Path, **changes: object) -> pathlib.Path:
    lines = signed.closed(state_dir, per_segment=6)
    path = state_dir / "journal" / WRITER
    (path / "0000000000000001.jsonl").unlink()
    tree = merkle.Tree()
    tree.extend(signed.leaves(lines[:6]))
    plain = {
        "frontier": [node.hex() for node in tree.frontier],
        "last_seq": 6,
        "leaf": chain.leaf(lines[5][:-1]),
        "v": 1,
    }
    (path / segments.ARCHIVED).write_text(json.dumps(plain | changes))
    return path


def test_a_trimmed_front_is_missing_and_the_rest_is_proven(tmp_path: pathlib.Path) -> None:
    trimmed(tmp_path)
    report = verified(tmp_path)
    assert found(report) == [What.FRONT_MISSING]
    one = only(report)
    assert (one.starts_after, one.size, one.signed_size, report.verdict) == (6, 18, 18, Verdict.INCOMPLETE)
    assert "from seq 7 on" in page(report)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"frontier": []}, What.LINES_MISSING),
        ({"frontier": ["zz", "zz"]}, What.LINES_MISSING),
        ({"frontier": ["00" * 32, "00" * 32]}, What.ROOT_DIFFERS),
        ({"leaf": "0" * 64}, What.CHAIN_BROKEN),
    ],
)
def test_a_false_archived_json_explains_nothing(
    tmp_path: pathlib.Path, changes: dict[str, object], expected: What
) -> None:
    trimmed(tmp_path, **changes)
    report = verified(tmp_path)
    assert expected in found(report)
    assert report.verdict is Verdict.TAMPERED


def test_a_record_whose_admission_is_in_the_front_is_taken_for_good_once() -> None:
    findings = Findings(WRITER)
    book = CallBook(WRITER, findings, front=True)
    book.record(f"{WRITER}-1", "file", 1)
    assert findings.named == []
    book.record(f"{WRITER}-1", "file", 2)
    assert [finding.what for finding in findings.named] == [What.RECORD_DOUBLED]
    book.record("elsewhere", "file", 3)
    assert findings.named[-1].what is What.WRONG_WRITER


def test_a_damaged_seal_is_found(tmp_path: pathlib.Path) -> None:
    import zstandard

    signed.closed(tmp_path, per_segment=6)
    path = tmp_path / "journal" / WRITER / "0000000000000001.jsonl"
    sealed = zstandard.ZstdCompressor(write_checksum=True).compress(path.read_bytes())
    path.unlink()
    path = segments.sealed_path(path)
    path.write_bytes(sealed)
    assert found(verified(tmp_path)) == []
    path.write_bytes(sealed[:-1] + bytes([sealed[-1] ^ 1]))
    assert What.SEAL_DAMAGED in found(verified(tmp_path))


def test_two_copies_of_a_journal(tmp_path: pathlib.Path) -> None:
    signed.closed(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    report = verified(tmp_path / "a", tmp_path / "b")
    assert found(report) == []
    assert "all         1 writer, 36 lines" in page(report)


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_two_copies_that_differ(tmp_path: pathlib.Path, order: tuple[str, str]) -> None:
    """Both are whole by themselves: one was written anew."""
    signed.closed(tmp_path / "a", count=6)
    signed.closed(tmp_path / "b", count=7)
    report = verified(*(tmp_path / name for name in order))
    assert set(found(report)) <= {What.ROOT_DIFFERS, What.TOO_FEW_LINES}
    assert report.verdict is Verdict.TAMPERED


def copy_of_the_front(tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy made while the writer lived: it has the first lines only."""
    signed.closed(tmp_path / "a", per_segment=6)
    shutil.copytree(tmp_path / "a" / "journal" / WRITER, tmp_path / "b" / WRITER)
    for file in sorted((tmp_path / "b" / WRITER).glob("[0-9]*"))[1:]:
        file.unlink()
    (tmp_path / "b" / WRITER / END_NOTE).unlink()
    return tmp_path / "b"


@pytest.mark.parametrize("copy_first", [True, False])
def test_a_copy_of_the_front_of_a_journal_contradicts_nothing(
    tmp_path: pathlib.Path, copy_first: bool
) -> None:
    copy = copy_of_the_front(tmp_path)
    paths = [copy, tmp_path / "a"] if copy_first else [tmp_path / "a", copy]
    report = verified(*paths)
    assert found(report) == [What.NOT_CLOSED]
    assert report.verdict is Verdict.INCOMPLETE


@pytest.mark.parametrize("copy_first", [True, False])
def test_a_copy_of_another_front_is_found(tmp_path: pathlib.Path, copy_first: bool) -> None:
    copy = copy_of_the_front(tmp_path)
    makes = [signed.start(), *signed.calls(WRITER, 4, at_ns=AT_NS + 1), journals.stop()]
    shutil.rmtree(tmp_path / "a" / "journal")
    signed.write(tmp_path / "a" / "journal", signed.signed_lines(makes), note=signer())
    paths = [copy, tmp_path / "a"] if copy_first else [tmp_path / "a", copy]
    assert What.ROOT_DIFFERS in found(verified(*paths))


def two(state_dir: pathlib.Path) -> None:
    first = signed.closed(state_dir)
    signed.closed(state_dir, writer=OTHER, ended=[signed.ended(WRITER, first)])


def test_what_one_writers_directory_names_need_not_be_given(tmp_path: pathlib.Path) -> None:
    two(tmp_path)
    assert found(verified(tmp_path / "journal" / OTHER)) == []
    assert found(verified(tmp_path / "journal")) == []


def test_a_journal_that_was_deleted_by_its_age_is_not_missed(tmp_path: pathlib.Path) -> None:
    first = signed.closed(tmp_path)
    shutil.rmtree(tmp_path / "journal" / WRITER)
    retention = signed.event("retention", where="local", writers=f"wx, {WRITER}", older_than_ns="1")
    other = signed.event("export", what="csv")
    makes = [signed.start(OTHER, [signed.ended(WRITER, first)]), other, retention, journals.stop()]
    lines = signed.signed_lines(makes, writer=OTHER)
    signed.write(tmp_path / "journal", lines, writer=OTHER, note=signer())
    report = verified(tmp_path)
    assert found(report) == []
    assert only(report).retired == ("wx", WRITER)


def test_a_start_line_that_names_nonsense_is_named(tmp_path: pathlib.Path) -> None:
    signed.closed(tmp_path)
    signed.closed(tmp_path, writer=OTHER, ended=[record.Ended(root="!", size=18, writer=WRITER)])
    assert found(verified(tmp_path)) == [What.ROOT_DIFFERS]


def test_anchors(tmp_path: pathlib.Path) -> None:
    two(tmp_path / "state")
    kept = tmp_path / "kept"
    for writer in (WRITER, OTHER):
        target = kept / writer / "18.note"
        target.parent.mkdir(parents=True)
        shutil.copy(tmp_path / "state" / "journal" / writer / END_NOTE, target)
    anchors = verify.read_anchors(kept)
    report = verified(tmp_path / "state", anchors=anchors)
    assert (report.anchors, report.anchors_met, report.verdict) == (2, 2, Verdict.WHOLE)
    assert "anchors     2 of 2 agree with what is here" in page(report)
    one = verified(tmp_path / "state" / "journal" / WRITER, anchors=anchors)
    assert (one.anchors, one.anchors_met, one.verdict) == (2, 1, Verdict.WHOLE)  # the other was not asked for
    assert verify.read_anchors(kept / WRITER / "18.note")[0].note.head.writer == WRITER


def test_an_anchor_that_nobody_has_signed_is_named(tmp_path: pathlib.Path) -> None:
    lines = signed.closed(tmp_path)
    note = signer(2).sign(signed.head(WRITER, lines)).encode()
    report = verified(tmp_path, anchors=[verify.anchor(note, "kept")])
    assert found(report) == [What.NOT_SIGNED]
    assert report.findings[0].file == "kept"


def test_without_a_key_roots_are_compared_all_the_same(tmp_path: pathlib.Path) -> None:
    lines = signed.closed(tmp_path)
    shutil.rmtree(tmp_path / "keys")
    note = signer(2).sign(signed.head(WRITER, lines)).encode()
    report = verified(tmp_path, anchors=[verify.anchor(note, "kept")])
    assert found(report) == [What.NO_KEYS]
    assert (report.anchors_met, report.keys.source) == (1, "none")
    assert "no key was given or found" in page(report)


def test_only_given_keys_count(tmp_path: pathlib.Path) -> None:
    signed.closed(tmp_path)
    own = verify.given_keys(signer().verifier.vkey)
    report = verified(tmp_path, keys=list(own))
    assert (report.verdict, report.keys.source) == (Verdict.WHOLE, "given")
    assert "those that were given, and no others" in page(report)
    other = verify.given_keys(signer(2).verifier.vkey)
    assert set(found(verified(tmp_path, keys=list(other)))) == {What.NOT_SIGNED}
    file = tmp_path / "vkeys"
    file.write_text(f"# ours\n{signer().verifier.vkey}\n\n")
    assert verify.given_keys(str(file)) == own


def test_a_given_key_counts_when_the_list_beside_the_journal_says(tmp_path: pathlib.Path) -> None:
    """Dates can only narrow it: whoever writes the list can make us suspicious, and not credulous."""
    signed.closed(tmp_path)
    signed.write_keys(tmp_path, {"until_ns": AT_NS, "ended_because": "rotated"})
    own = verify.given_keys(signer().verifier.vkey)
    assert set(found(verified(tmp_path, keys=list(own)))) == {What.NOT_SIGNED}
    signed.write_keys(tmp_path, {"from_ns": AT_NS + 1})
    assert set(found(verified(tmp_path, keys=list(own)))) == {What.NOT_SIGNED}


STOLEN = {"until_ns": AT_NS + 1, "ended_because": "stolen"}


def test_lines_for_which_only_a_stolen_key_speaks_are_doubted(tmp_path: pathlib.Path) -> None:
    signed.closed(tmp_path)
    signed.write_keys(tmp_path, STOLEN)
    report = verified(tmp_path)
    assert found(report) == [What.STOLEN_KEY]
    assert "seq 1 to 18" in report.findings[0].says
    assert report.verdict is Verdict.INCOMPLETE


def test_an_anchor_speaks_for_them(tmp_path: pathlib.Path) -> None:
    lines = signed.closed(tmp_path)
    signed.write_keys(tmp_path, STOLEN)
    whole = verify.anchor((tmp_path / "journal" / WRITER / END_NOTE).read_bytes(), "kept")
    assert found(verified(tmp_path, anchors=[whole])) == []
    early = verify.anchor(signer().sign(signed.head(WRITER, lines[:7])).encode(), "kept early")
    report = verified(tmp_path, anchors=[early])
    assert "seq 8 to 18" in report.findings[0].says


def test_a_later_journal_signed_by_another_key_speaks_for_them(tmp_path: pathlib.Path) -> None:
    first = signed.closed(tmp_path)
    third = "w" + "c" * 16
    second = signed.closed(tmp_path, writer=OTHER, ended=[signed.ended(WRITER, first)])
    signed.write_keys(tmp_path, STOLEN, {"vkey": signer(2).verifier.vkey})
    assert found(verified(tmp_path)) == [What.STOLEN_KEY, What.STOLEN_KEY]
    signed.closed(tmp_path, writer=third, ended=[signed.ended(OTHER, second)], sign=signer(2))
    assert found(verified(tmp_path)) == []


@pytest.mark.parametrize("keys", [b"[{]", b"[{}]", b"nonsense", b'[{"vkey":"x"}]'])
def test_a_list_of_keys_that_is_none(tmp_path: pathlib.Path, keys: bytes) -> None:
    signed.closed(tmp_path)
    (tmp_path / "keys" / "keys.json").write_bytes(keys)
    with pytest.raises(VerifyError, match=r"keys\.json: "):
        verified(tmp_path)


def test_what_is_nowhere(tmp_path: pathlib.Path) -> None:
    with pytest.raises(VerifyError, match=r"there is no .*none"):
        verified(tmp_path / "none")
    with pytest.raises(VerifyError, match="there is no journal in"):
        verified(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(VerifyError, match="file is neither a directory nor a pack"):
        verified(tmp_path / "file")
    with pytest.raises(VerifyError, match="file is no anchor"):
        verify.read_anchors(tmp_path / "file")
    with pytest.raises(VerifyError, match="there is no anchor"):
        verify.read_anchors(tmp_path)
    with pytest.raises(VerifyError, match=r"no vkey: .*; and there is no such file"):
        verify.given_keys("nothing")


def test_an_empty_directory_of_a_writer(tmp_path: pathlib.Path) -> None:
    (tmp_path / "journal" / WRITER).mkdir(parents=True)
    report = verified(tmp_path)
    assert found(report) == [What.NOT_CLOSED]
    assert "no line" in page(report)


def test_a_line_of_a_later_version_is_carried_and_counted(tmp_path: pathlib.Path) -> None:
    newer: Make = lambda seq, prev: journals.tick()(seq, prev).__class__(  # noqa: E731
        at_ns=AT_NS, oldest_admitted_ns=None, open_calls=0, prev=prev, seq=seq, v=record.VERSION + 1
    )
    lines = signed.signed_lines([signed.start(), newer, journals.stop()])
    signed.write(tmp_path / "journal", lines, note=signer())
    signed.write_keys(tmp_path)
    report = verified(tmp_path)
    assert (found(report), only(report).unknown) == ([], 1)
    assert "1 line of kinds that this version does not know" in page(report)


def test_a_checkpoint_that_is_no_note_or_of_another_size(tmp_path: pathlib.Path) -> None:
    def checkpoint(note: str) -> Make:
        return lambda seq, prev: record.Checkpoint(at_ns=AT_NS, note=note, prev=prev, seq=seq)

    head = signed.head(WRITER, [])
    wrong = signer().sign(head._replace(size=1))
    larger = signer().sign(head._replace(size=99))
    makes = [signed.start(), checkpoint("x"), checkpoint(wrong), checkpoint(larger), journals.stop()]
    lines = signed.signed_lines(makes, every=99)
    signed.write(tmp_path / "journal", lines, note=signer())
    signed.write_keys(tmp_path)
    report = verified(tmp_path)
    assert found(report) == [What.NOTE_UNREADABLE, What.SIZE_DIFFERS, What.TOO_FEW_LINES]
    assert [finding.line for finding in only(report).findings] == [2, 3, 4]


def test_notes_behind_a_break_prove_only_what_a_trusted_key_has_signed() -> None:
    inspection = Inspection(WRITER, "there", None)
    lines = signed.signed_lines([signed.start(), *signed.calls(WRITER, 3)], every=3)
    nonsense = chain.encode(record.Checkpoint(at_ns=1, note="x", prev="", seq=9))
    inspection.read("file", 1, [lines[0], b"x\n", *lines[2:], nonsense])
    one = inspection.finish(live=False, end_note=None, end_note_file="end")
    assert [finding.what for finding in one.findings] == [What.NOT_A_LINE]


def test_a_break_is_explained_by_the_line_behind_it() -> None:
    lines = journals.encoded(
        [journals.start(), journals.tick(), journals.tick(at_ns=AT_NS + 1), journals.stop()]
    )

    def says(data: list[bytes]) -> str:
        inspection = Inspection(WRITER, "there", None)
        inspection.read("file", 1, [b"".join(data)])
        return inspection.finish(live=False, end_note=None, end_note_file="end").findings[0].says

    altered = [lines[0], lines[1].replace(b'"open_calls":0', b'"open_calls":5'), *lines[2:]]
    assert says(altered).startswith(
        "seq 3 does not continue the line before, whose leaf its prev is not: seq 2"
    )
    ambiguous = says(altered[:3])
    assert "one of seq 2 and 3 was altered" in ambiguous
    assert "one of seq 2 and 3 was altered" in says([*altered[:3], b"x\n"])


def test_many_findings_are_counted_and_a_worse_one_is_still_named() -> None:
    findings = Findings(WRITER)
    for n in range(FINDINGS_MAX + 5):
        findings.add(What.LIVE, Place("file", n), "")
    assert (len(findings.named), findings.left_out, findings.verdict) == (FINDINGS_MAX, 5, Verdict.INCOMPLETE)
    findings.add(What.NOT_SIGNED, Place("file"), "")
    assert (findings.named[-1].what, findings.verdict) == (What.NOT_SIGNED, Verdict.TAMPERED)


def test_findings_left_out_are_told(tmp_path: pathlib.Path) -> None:
    makes = [signed.start(), *(journals.call(f"{WRITER}-{n}") for n in range(1, 120)), journals.stop()]
    signed.write(tmp_path / "journal", signed.signed_lines(makes), note=signer())
    signed.write_keys(tmp_path)
    assert "and 19 more\n" in page(verified(tmp_path))


def test_the_worst_of_nothing_is_whole() -> None:
    assert worst([]) is Verdict.WHOLE
    assert str(Place("file")) == "file"


def test_a_front_needs_its_frontier() -> None:
    with pytest.raises(ValueError, match="no frontier"):
        Inspection(WRITER, "there", None, front=Front(3, chain.ZEROS, ()))


def test_claims_below_the_front_cannot_be_looked_at(tmp_path: pathlib.Path) -> None:
    path = trimmed(tmp_path)
    lines = signed.closed(tmp_path / "other")
    early = verify.anchor(signer().sign(signed.head(WRITER, lines[:5])).encode(), "early")
    at_front = verify.anchor(signer().sign(signed.head(WRITER, lines[:6])).encode(), "at the front")
    report = verified(path, anchors=[early, at_front])
    assert (report.anchors, report.anchors_met) == (2, 1)


def run(*args: str) -> int:
    return cli.main(["audit", "verify", *args])


def test_the_command(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    two(tmp_path / "state")
    state = str(tmp_path / "state")
    assert run(state) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1] == "verdict     whole"
    assert shown[1].split(", ")[1:] == ["18 lines", "6 calls", "6 records", "5 signed notes", "signed whole"]
    assert "keys found beside the journal: this proves no more than that whoever holds them wrote it" in str(
        shown
    )
    assert "anchors     none were given: a rewrite by whoever holds the key would not be seen" in shown

    assert run(state, "--json", "--key", signer().verifier.vkey) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["keys"]["source"]) == ("whole", "given")
    assert told["journals"][0]["inspected"]["first_ns"] == str(AT_NS)

    (tmp_path / "state" / "journal" / WRITER / END_NOTE).unlink()
    assert run(state) == 4
    segment = tmp_path / "state" / "journal" / WRITER / "0000000000000001.jsonl"
    segment.write_bytes(segment.read_bytes().replace(b"acme", b"bcme", 1))
    assert run(state) == 1
    assert f"{segment}:3: seq 3 does not continue" in capsys.readouterr().out

    assert run(str(tmp_path / "nowhere")) == 2
    assert run(state, "--key", "x") == 2
    assert run(state, "--anchor", str(tmp_path / "state" / "keys")) == 2
    assert capsys.readouterr().err.splitlines()[0] == f"weighbridge: there is no {tmp_path / 'nowhere'}"


def test_a_report_is_json(tmp_path: pathlib.Path) -> None:
    two(tmp_path)
    report = verified(tmp_path)
    told = json.loads(as_json(report))
    assert told["journals"][0]["inspected"]["met"][0]["source"].startswith("the start line ")
    assert isinstance(report.journals[0], Journal)
    assert Archived(frontier=(), last_seq=0, leaf="").v == 1


def test_several_processes_come_to_the_same(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two(tmp_path)
    (tmp_path / "journal" / WRITER / END_NOTE).unlink()
    places = verify.find([tmp_path])
    alone = verify.verify(places, [], [])
    monkeypatch.setattr(verify, "_WORTH_A_PROCESS_BYTES", 0)
    assert as_json(verify.verify(places, [], [], processes=2)) == as_json(alone)
