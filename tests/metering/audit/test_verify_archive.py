"""Verifying with an archive: fronts that were trimmed here, journals that are only there, and what is wrong there."""

import json
import pathlib
import shutil

import pytest

from gateway import cli
from gateway.commands import anchored
from metering.archive.archive import Archive, manifest_path
from metering.archive.objects import ArchiveUnavailable, Objects
from metering.audit import merkle, verify
from metering.audit.findings import Verdict, What
from metering.audit.verdict import Report
from metering.audit.verify import VerifyError
from metering.journal.journal import Directory, salvage_dead
from metering.journal.segments import ARCHIVED
from tests.support import journals, signed
from tests.support.archives import Place, make_facts, seal_all
from tests.support.journals import WRITER
from tests.support.signed import END_NOTE, signer

OTHER = "w" + "b" * 16
KEYS = verify.given_keys(signer().verifier.vkey)


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Place:
    """Two journals that are whole; the second names the first. The first is archived."""
    lines = signed.closed(tmp_path, per_segment=6)
    signed.closed(tmp_path, writer=OTHER, ended=[signed.ended(WRITER, lines)])
    place = Place(tmp_path)
    archive(place, WRITER)
    return place


def archive(place: Place, writer: str) -> None:
    directory = Directory(place.journals / writer)
    seal_all(directory)
    make_facts(place.maker, directory)
    place.archiver().archive(directory)


def verified(place: Place, *paths: pathlib.Path) -> Report:
    return verify.verify(verify.find(paths), KEYS, [], place.archive)


def found(report: Report) -> list[What]:
    inside = [finding for journal in report.journals for finding in journal.inspected.findings]
    return [finding.what for finding in [*inside, *report.findings]]


def trim(place: Place) -> None:
    """The first segment is deleted here."""
    directory = Directory(place.journals / WRITER)
    lines = [line for line in directory.chained() if line.seq <= 6]
    tree = merkle.Tree()
    tree.extend(bytes.fromhex(line.leaf) for line in lines)
    archived = {"frontier": [n.hex() for n in tree.frontier], "last_seq": 6, "leaf": lines[-1].leaf, "v": 1}
    (directory.path / ARCHIVED).write_text(json.dumps(archived))
    directory.segment_paths()[0][1].unlink()


def test_the_archive_alone(place: Place) -> None:
    report = verified(place)
    assert (found(report), report.verdict) == ([], Verdict.WHOLE)
    (journal,) = report.journals
    assert (journal.path, journal.inspected.writer) == (f"journal/{WRITER}", WRITER)
    assert journal.inspected.signed_size == journal.inspected.size == 18


def test_what_is_here_is_held_against_the_manifests(place: Place) -> None:
    report = verified(place, place.journals)
    assert (found(report), report.verdict) == ([], Verdict.WHOLE)
    met = {claim.source for journal in report.journals for claim in journal.inspected.met}
    assert f"the manifest {manifest_path(WRITER, 7)}" in met
    assert report.anchors_met == 0  # nobody has signed a manifest


def test_a_trimmed_front_is_read_from_there(place: Place) -> None:
    trim(place)
    assert found(verify.verify(verify.find([place.journals]), KEYS, [])) == [What.FRONT_MISSING]
    report = verified(place, place.journals)
    assert (found(report), report.verdict) == ([], Verdict.WHOLE)
    assert [journal.inspected.starts_after for journal in report.journals] == [0, 0]
    only = verified(place, place.journals / WRITER)
    assert (found(only), len(only.journals)) == ([], 1)


def test_a_trimmed_directory_that_the_archive_has_not_from_its_start_stays_so(place: Place) -> None:
    trim(place)
    place.objects.delete(manifest_path(WRITER, 1))
    assert What.FRONT_MISSING in found(verified(place, place.journals))


def test_a_journal_that_only_the_archive_has_is_not_missed(place: Place) -> None:
    shutil.rmtree(place.journals / WRITER)
    report = verified(place, place.journals)
    assert (found(report), report.verdict) == ([], Verdict.WHOLE)
    assert [journal.inspected.writer for journal in report.journals] == [WRITER, OTHER]


def test_a_journal_whose_end_was_cut_off_here(place: Place) -> None:
    path = place.journals / WRITER
    (path / END_NOTE).unlink()
    shutil.rmtree(place.journals / OTHER)
    Directory(path).segment_paths()[-1][1].unlink()
    assert found(verify.verify(verify.find([place.journals]), KEYS, [])) == [What.NOT_CLOSED]
    assert What.TOO_FEW_LINES in found(verified(place, place.journals))


def test_a_part_is_not_the_whole(tmp_path: pathlib.Path) -> None:
    makes = [signed.start(), *signed.calls(WRITER, 5)]
    signed.write(tmp_path / "journal", signed.signed_lines(makes), per_segment=5)
    place = Place(tmp_path)
    archive(place, WRITER)
    report = verified(place)
    assert found(report) == [What.NOT_CLOSED]
    assert "the archive has only a part of it so far" in report.journals[0].inspected.findings[0].says


def test_a_salvaged_journal_in_the_archive(tmp_path: pathlib.Path) -> None:
    lines = signed.signed_lines([signed.start(), *signed.calls(WRITER, 3), journals.admitted(f"{WRITER}-4")])
    path = signed.write(tmp_path / "journal", lines, per_segment=5)
    salvage_dead(tmp_path / "journal")
    lines += (path / "salvage.jsonl").read_bytes().splitlines(keepends=True)
    signed.write_end_note(path, lines)
    place = Place(tmp_path)
    archive(place, WRITER)
    report = verified(place)
    assert (found(report), report.journals[0].inspected.lost) == ([], 1)


def replace(place: Place, path: str, data: bytes) -> None:
    place.objects.delete(path)
    place.objects.put_new(path, data)


def test_an_object_that_was_altered_there(place: Place) -> None:
    path = f"journal/{WRITER}/{7:016d}.jsonl.zst"
    data = place.objects.get(path) or b""
    replace(place, path, data[:-1] + bytes([data[-1] ^ 1]))
    assert {What.ARCHIVE_DIFFERS, What.LINES_MISSING} <= set(found(verified(place)))
    place.objects.delete(path)
    report = verified(place)
    assert report.verdict is Verdict.TAMPERED
    assert What.ARCHIVE_DIFFERS in found(report)
    assert found(verified(place, place.journals)) == []  # what is here is read here


@pytest.mark.parametrize("frontier", [["00" * 32, "00" * 32], []])
def test_a_manifest_that_was_altered(place: Place, frontier: list[str]) -> None:
    path = manifest_path(WRITER, 7)
    told = json.loads(place.objects.get(path) or b"")
    replace(place, path, json.dumps(told | {"frontier": frontier}).encode())
    assert What.ROOT_DIFFERS in found(verified(place, place.journals))


@pytest.mark.parametrize("path", [manifest_path(WRITER, 7), f"manifests/{WRITER}/end.json"])
def test_a_manifest_that_is_none(place: Place, path: str) -> None:
    replace(place, path, b"{}")
    report = verified(place)
    assert (found(report), report.journals) == ([What.ARCHIVE_DIFFERS], ())
    assert report.verdict is Verdict.TAMPERED


def test_an_archived_end_note_that_is_none(tmp_path: pathlib.Path) -> None:
    signed.closed(tmp_path, per_segment=6)
    (tmp_path / "journal" / WRITER / END_NOTE).write_bytes(b"\xff")
    place = Place(tmp_path)
    archive(place, WRITER)
    assert found(verified(place)) == [What.ARCHIVE_DIFFERS]


def test_a_first_line_that_is_none(place: Place) -> None:
    path = place.journals / OTHER / "0000000000000001.jsonl"
    path.write_bytes(b"x\n" + path.read_bytes())
    assert What.NOT_A_LINE in found(verified(place, place.journals))


def test_the_commands(place: Place, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = signer().verifier.vkey
    archived = str(tmp_path / "archive")
    assert cli.main(["audit", "verify", "--archive", archived, "--key", key]) == 0
    assert capsys.readouterr().out.startswith(f"whole       journal/{WRITER}\n")
    shutil.rmtree(place.journals / WRITER)
    assert cli.main(["audit", "verify", str(tmp_path)]) == 4
    assert cli.main(["audit", "verify", str(tmp_path), "--archive", f"file://{archived}"]) == 0
    assert cli.main(["audit", "verify"]) == 2
    assert "name a DIR, or an --archive" in capsys.readouterr().err


def test_anchors_in_an_archive(place: Place, tmp_path: pathlib.Path) -> None:
    archived = f"file://{tmp_path / 'archive'}"
    with pytest.raises(VerifyError, match="there is no anchor in file:"):
        anchored.read(archived)
    note = (place.journals / WRITER / END_NOTE).read_bytes()
    place.objects.put_new(f"anchors/{WRITER}/18.note", note)
    (one,) = anchored.read(archived).anchors
    assert (one.note.head.size, one.source) == (18, f"anchors/{WRITER}/18.note")
    assert anchored.read(str(place.journals / WRITER / END_NOTE)).anchors[0].note == one.note


def test_a_store_that_cannot_be_asked() -> None:
    with pytest.raises(VerifyError, match="can't be asked"):
        anchored.read("redis://127.0.0.1:1")
    with pytest.raises(VerifyError):
        anchored.read("s3://")


def test_a_call_of_the_archive_is_proven(
    place: Place, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its journal is not here any more, or its front is not."""
    config = tmp_path / "weighbridge.yaml"
    config.write_text(
        json.dumps({"state_dir": str(tmp_path), "journal": {"archive": str(tmp_path / "archive")}})
    )
    here = prove(config, f"{WRITER}-1", capsys)
    trim(place)
    assert prove(config, f"{WRITER}-1", capsys) == here
    shutil.rmtree(place.journals / WRITER)
    assert prove(config, f"{WRITER}-1", capsys) == here
    for call in (f"{WRITER}-99", "w" + "c" * 16 + "-1", "x"):
        assert cli.main(["audit", "prove", "--call", call, "-c", str(config)]) == 1
    assert "nor is it in the archive" in capsys.readouterr().err


def prove(config: pathlib.Path, call: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert cli.main(["audit", "prove", "--call", call, "-c", str(config)]) == 0
    proof: dict[str, object] = json.loads(capsys.readouterr().out)
    return proof


@pytest.mark.parametrize("reached", [0, 1, 3])
def test_an_archive_that_goes_away_is_no_finding(place: Place, reached: int) -> None:
    """What cannot be read now was not altered by anybody."""
    trim(place)
    objects = LeavingObjects(place.objects, reached)
    with pytest.raises(ArchiveUnavailable):
        verify.verify(verify.find([place.journals]), KEYS, [], Archive(objects))


class LeavingObjects:
    """Objects that can't be reached any more after so many were fetched."""

    def __init__(self, objects: Objects, left: int) -> None:
        self._objects = objects
        self._left = left

    def list(self, prefix: str) -> list:
        return self._objects.list(prefix)

    def get(self, path: str) -> bytes | None:
        self._left -= 1
        if self._left < 0:
            raise ArchiveUnavailable(f"{path}: no connection")
        return self._objects.get(path)
