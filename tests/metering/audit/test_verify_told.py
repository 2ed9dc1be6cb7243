"""What a verification tells a person: found by people who tried it."""

import json
import pathlib

import pytest

from gateway import cli
from metering import record
from metering.audit import checkpoint, pack, verify
from metering.audit.findings import What
from metering.audit.inspection import State
from metering.audit.verdict import Report
from metering.audit.verify import VerifyError
from metering.audit.verify_page import page
from metering.journal import chain
from metering.journal.journal import SALVAGE, salvage_dead, segment_name
from tests.support import journals, signed
from tests.support.journals import AT_NS, WRITER
from tests.support.signed import signer


def verified(*paths: pathlib.Path, keys: list[str] | None = None) -> Report:
    given = [key for vkey in keys or [] for key in verify.given_keys(vkey)]
    return verify.verify(verify.find(paths), given, [])


def found(report: Report) -> list[What]:
    inside = [finding for journal in report.journals for finding in journal.inspected.findings]
    return [finding.what for finding in [*inside, *report.findings]]


@pytest.mark.parametrize("torn", [b"", b'{"at_ns":17'])
def test_a_writer_that_had_no_room_for_its_first_line_is_no_tampering(
    tmp_path: pathlib.Path, torn: bytes
) -> None:
    path = tmp_path / "journal" / WRITER
    path.mkdir(parents=True)
    (path / segment_name(1)).write_bytes(torn)
    salvage_dead(tmp_path / "journal")
    signed.write_end_note(path, (path / SALVAGE).read_bytes().splitlines(keepends=True))
    signed.write_keys(tmp_path)
    report = verified(tmp_path)
    (journal,) = report.journals
    assert (found(report), journal.inspected.state) == ([], State.SALVAGED)
    assert "1 line, 0 calls, 0 records, 1 signed note, no line" in page(report)  # and no time of 1970


def test_a_stop_alone_that_is_no_salvage_is_out_of_place(tmp_path: pathlib.Path) -> None:
    stop = record.Stop(at_ns=AT_NS, prev=chain.ZEROS, reason="salvaged", seq=1)
    signed.write(tmp_path / "journal", [chain.encode(stop)], note=signer())
    signed.write_keys(tmp_path)
    assert found(verified(tmp_path)) == [What.OUT_OF_PLACE]


def test_keys_are_found_from_within(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signed.closed(tmp_path)
    monkeypatch.chdir(tmp_path / "journal")
    assert verified(pathlib.Path()).keys.source == "found"
    monkeypatch.chdir(WRITER)
    assert verified(pathlib.Path()).keys.source == "found"


def rotated(state_dir: pathlib.Path, said_by: int) -> Report:
    """Verified with the first key alone, after lines that the second signs. said_by: who signs what names it."""
    first, second = signer(), signer(2)
    named = signed.event("key", what="new", vkey=second.verifier.vkey)
    makes = [signed.start(), named, journals.tick(), *signed.calls(WRITER, 3), journals.stop()]
    size_of_first = 4
    lines = signed.signed_lines(makes, sign=lambda size: signer(said_by) if size <= size_of_first else second)
    signed.write(state_dir / "journal", lines, note=second)
    return verified(state_dir, keys=[first.verifier.vkey])


def test_the_key_after_a_rotation_is_named(tmp_path: pathlib.Path) -> None:
    report = rotated(tmp_path, said_by=1)
    second = signer(2).verifier.vkey
    assert report.keys.followed_by == (second,)
    assert set(found(report)) == {What.NOT_SIGNED}
    assert f"give them too:\n            {second}\n" in page(report)
    assert "give them too" not in page(verified(tmp_path, keys=[signer().verifier.vkey, second]))


def test_a_key_that_only_itself_names_is_not(tmp_path: pathlib.Path) -> None:
    assert rotated(tmp_path, said_by=2).keys.followed_by == ()


def test_anchors_are_read_from_a_log(tmp_path: pathlib.Path) -> None:
    lines = signed.closed(tmp_path / "state")
    early = signer().sign(signed.head(WRITER, lines[:7]))
    logged = json.dumps({"event": checkpoint.LOGGED_AS, "note": early, "writer": WRITER})
    log = tmp_path / "log"
    log.write_text(f'Starting.\n{{"event":"ready"}}\n{{"event":\n{logged}\n', encoding="utf-8")
    (anchor,) = verify.read_anchors(log)
    assert anchor == (checkpoint.parse(early), f"{log}:4")
    log.write_text('{"event":"ready"}\n', encoding="utf-8")
    with pytest.raises(VerifyError, match="the log has no line `journal checkpoint` yet"):
        verify.read_anchors(log)
    log.write_text("Starting.\n", encoding="utf-8")
    with pytest.raises(VerifyError, match="is no anchor"):
        verify.read_anchors(log)


def test_bytes_behind_an_alteration_are_no_torn_tail(tmp_path: pathlib.Path) -> None:
    signed.closed(tmp_path, per_segment=100)
    path = tmp_path / "journal" / WRITER / segment_name(1)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3] + lines[4:]))
    told = page(verified(tmp_path))
    assert "seq 4 is missing before it" in told
    assert "bytes behind them" in told
    assert "torn tail" not in told


def test_nothing_is_not_signed_whole(tmp_path: pathlib.Path) -> None:
    signed.closed(tmp_path, per_segment=100)
    (tmp_path / "journal" / WRITER / segment_name(1)).unlink()
    assert "signed whole" not in page(verified(tmp_path))


def test_a_pack_says_what_it_is(tmp_path: pathlib.Path) -> None:
    made = pack.made({"ledger.csv": b"x"}, month="2026-11", verdict="incomplete", signer=signer(), at_ns=1)
    path = tmp_path / "november.tar"
    path.write_bytes(made)
    told = page(verified(path, keys=[signer().verifier.vkey]))
    assert f"{path}: the pack of 2026-11, 1 file; the journals were incomplete when it was made\n" in told


@pytest.mark.parametrize("flag", ["--key", "--anchor"])
def test_what_cannot_be_read_is_not_called_tampered(
    flag: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signed.closed(tmp_path)
    given = tmp_path / "given"
    given.mkdir()
    missing = given if flag == "--key" else given / "none"
    assert cli.main(["audit", "verify", str(tmp_path), flag, str(missing)]) == 2
    assert str(missing) in capsys.readouterr().err


def test_an_archive_without_journals_is_not_whole(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["audit", "verify", "--archive", str(tmp_path)]) == 2
    assert "there is no journal in the archive" in capsys.readouterr().err
    assert cli.main(["audit", "verify", "--archive", "https://bucket"]) == 2
    assert "https://bucket is no archive: that is a path, file:///path or s3://" in capsys.readouterr().err
