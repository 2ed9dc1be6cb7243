"""The newest signed note of each journal."""

import pathlib

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from metering import record
from metering.checkpoint import Head, Signer
from metering.endnotes import END_NOTE
from metering.latest_notes import Latest, latest
from tests.support import journals
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
