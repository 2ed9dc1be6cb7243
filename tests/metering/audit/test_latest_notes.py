"""The newest signed note of each journal."""

import pathlib
import shutil

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from metering import record
from metering.archive.trimming import Trimmer
from metering.audit import latest_notes
from metering.audit.checkpoint import Head, Signer
from metering.audit.endnotes import END_NOTE
from metering.audit.latest_notes import Latest, latest
from metering.journal.journal import Directory
from tests.support import archives, journals
from tests.support.journals import AT_NS, WRITER, Make

SIGNER = Signer("weighbridge-journal", Ed25519PrivateKey.from_private_bytes(bytes(32)))
OTHER = "w" + "b" * 16


def note(size: int, writer: str = WRITER) -> str:
    return SIGNER.sign(Head(writer, size, bytes([size]) * 32, AT_NS + size))


def checkpoint(text: str) -> Make:
    return lambda seq, prev: record.Checkpoint(at_ns=AT_NS, note=text, prev=prev, seq=seq)


def test_the_last_one_in_the_journal(tmp_path: pathlib.Path) -> None:
    makes = [
        journals.start(),
        checkpoint(note(1)),
        journals.tick(),
        checkpoint(note(3)),
        journals.tick(),
        journals.tick(),
    ]
    journals.write_directory(tmp_path, makes, per_segment=2)
    journals.write_directory(tmp_path, [journals.start(writer=OTHER)], writer=OTHER)
    found, none = latest(tmp_path)
    assert (found.writer, found.size, found.at_ns, found.note, found.ended) == (
        WRITER,
        3,
        AT_NS + 3,
        note(3),
        False,
    )
    assert none == Latest(ended=False, writer=OTHER)
    assert latest(tmp_path, OTHER) == [none]
    assert latest(tmp_path, "w" + "c" * 16) == []


def test_the_ends_note_goes_before(tmp_path: pathlib.Path) -> None:
    path = journals.write_directory(tmp_path, [journals.start(), checkpoint(note(1)), journals.stop()])
    (path / END_NOTE).write_text(note(3))
    (found,) = latest(tmp_path)
    assert (found.size, found.ended) == (3, True)


def test_what_cannot_be_read_is_passed_over(tmp_path: pathlib.Path) -> None:
    path = journals.write_directory(
        tmp_path, [journals.start(), checkpoint(note(1)), checkpoint("nothing")], per_segment=2
    )
    (path / END_NOTE).write_bytes(b"\xff")
    assert [one.size for one in latest(tmp_path)] == [1]
    (segment, _) = sorted(path.glob("0*.jsonl"))
    segment.write_bytes(segment.read_bytes().replace(b'"note":"', b'"nota":"'))
    assert [one.note for one in latest(tmp_path)] == [None]


def test_of_one_writer_and_of_none_but_a_writer(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "journal"
    for writer in (WRITER, OTHER):
        journals.write_directory(
            root, [journals.start(writer=writer), checkpoint(note(1, writer))], writer=writer
        )
    elsewhere = journals.write_directory(tmp_path, [journals.start(), checkpoint(note(1))])
    assert [one.writer for one in latest(root, OTHER)] == [OTHER]
    for name in ("w" + "c" * 16, f"../{WRITER}", str(elsewhere), ".", ""):
        assert latest(root, name) == []


def archived(tmp_path: pathlib.Path) -> archives.Place:
    """A journal whose only checkpoint is in the first of its segments, and that an archive has."""
    place = archives.Place(tmp_path)
    makes = [journals.start(), checkpoint(note(1)), *[journals.tick()] * 4, journals.stop()]
    place.archiver().archive(place.of(makes, per_segment=2))
    return place


def test_where_the_archive_alone_has_one_it_is_looked_for_there(tmp_path: pathlib.Path) -> None:
    place = archived(tmp_path)
    directory = Directory(place.journals / WRITER)
    archiver = place.archiver()
    archiver.archive(directory)
    Trimmer(place.archive, archiver, place.maker).trim([directory], 1 << 60, {WRITER})
    assert latest(place.journals) == [Latest(ended=False, writer=WRITER)]
    (found,) = latest(place.journals, None, place.archive)
    assert (found.size, found.note) == (1, note(1))


def test_no_more_than_the_last_segments_are_looked_at(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest_notes, "ARCHIVED_MAX", 2)
    place = archived(tmp_path)
    shutil.rmtree(place.journals)
    assert latest(place.journals, WRITER, place.archive) == [Latest(ended=False, writer=WRITER)]


def test_one_that_the_archive_alone_has(tmp_path: pathlib.Path) -> None:
    place = archives.Place(tmp_path)
    directory = place.of([journals.start(), journals.stop()])
    (directory.path / END_NOTE).write_text(note(2))
    place.archiver().archive(directory)
    shutil.rmtree(place.journals)
    (found,) = latest(place.journals, WRITER, place.archive)
    assert (found.size, found.note, found.ended) == (2, note(2), True)
    assert latest(place.journals, OTHER, place.archive) == []
    assert latest(place.journals, "../../etc", place.archive) == []
    assert latest(place.journals, WRITER) == []
