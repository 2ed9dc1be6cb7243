"""The note at the end of a directory: whose is signed, when, and what a start says of those that have one."""

import base64
import os
import pathlib

import pytest

from metering.audit import endnotes
from metering.audit.checkpoint import NotANote
from metering.audit.endnotes import END_NOTE, Ends
from metering.audit.notary import Signed, SigningKey
from metering.journal import chain, journal
from metering.journal.chain import Broken
from metering.journal.journal import LOCK, Directory, Journal, new_writer_id
from metering.record import Checkpoint
from tests.support import journals, noteoracle, signing
from tests.support.journals import AT_NS, Make

VKEY = signing.signer().verifier.vkey
WRITERS = [new_writer_id(bytes([number]) * 10) for number in range(6)]


def checkpointed(makes: list[Make], writer: str) -> list[Make]:
    """These lines with a checkpoint behind them."""
    notary = signing.notary(writer)
    notary.add([chain.leaf(line[:-1]) for line in journals.encoded(makes)])
    note = notary.checkpoint(AT_NS).note
    return [*makes, lambda seq, prev: Checkpoint(at_ns=AT_NS, note=note, prev=prev, seq=seq)]


def ended(root: pathlib.Path, writer: str, calls: int = 1) -> pathlib.Path:
    makes = [journals.start(writer=writer)]
    for n in range(calls):
        makes += [journals.admitted(f"{writer}-{n}"), journals.call(f"{writer}-{n}")]
    return journals.write_directory(root, [*checkpointed(makes, writer), journals.stop()], writer=writer)


def sign(ends: Ends, now_ns: int = AT_NS) -> list[Signed | Broken]:
    return list(ends.sign(signing.key, now_ns))


def test_what_has_ended_is_signed_once(tmp_path: pathlib.Path) -> None:
    path = ended(tmp_path, WRITERS[0])
    ends = Ends(tmp_path)
    (signed,) = sign(ends, 77)
    assert isinstance(signed, Signed)
    note = noteoracle.read((path / END_NOTE).read_text(), VKEY)
    assert (note.writer, note.size, note.at_ns) == (WRITERS[0], 5, 77)
    noteoracle.check(path, VKEY)
    assert endnotes.read(path) is not None
    assert sign(ends) == []
    assert sign(Ends(tmp_path)) == []


def test_a_dead_writers_directory_is_signed_with_its_salvage(tmp_path: pathlib.Path) -> None:
    makes = [journals.start(), journals.admitted("a")]
    path = journals.write_directory(tmp_path, makes, writer=WRITERS[0])
    assert sign(Ends(tmp_path)) == [], "it has not ended"
    journal.salvage_dead(tmp_path)
    before = (path / journal.SALVAGE).read_bytes()
    assert len(sign(Ends(tmp_path))) == 1
    noteoracle.check(path, VKEY)
    assert (path / journal.SALVAGE).read_bytes() == before


def test_a_directory_that_somebody_holds_is_his(tmp_path: pathlib.Path) -> None:
    lines = journals.encoded([journals.start(writer=WRITERS[0]), journals.stop()])
    live = Journal.create(tmp_path, writer=WRITERS[0], segment_bytes_max=1 << 20)
    live.write(b"".join(lines), 1, 0)
    assert sign(Ends(tmp_path)) == []
    live.close()
    assert len(sign(Ends(tmp_path))) == 1


def test_a_note_left_meanwhile_stays(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ended(tmp_path, WRITERS[0])

    class Slow(Directory):
        @property
        def complete(self) -> bool:
            endnotes.write(path, "theirs")
            return True

    monkeypatch.setattr(endnotes, "directories", lambda root: [Slow(root / WRITERS[0])])
    assert sign(Ends(tmp_path)) == []
    assert (path / END_NOTE).read_text() == "theirs"


def alter(path: pathlib.Path, old: bytes, new: bytes) -> None:
    (segment,) = path.glob("0*.jsonl")
    data = segment.read_bytes()
    assert data.count(old) == 1
    segment.write_bytes(data.replace(old, new))


def rewritten(path: pathlib.Path) -> None:
    """Another call's record, with the chain made to fit: only the checkpoint tells."""
    note = [chain.decode(line) for line in noteoracle.lines(path)][3]
    assert isinstance(note, Checkpoint)
    makes = [
        journals.start(writer=path.name), journals.admitted("x"), journals.call("x"),
        lambda seq, prev: Checkpoint(at_ns=AT_NS, note=note.note, prev=prev, seq=seq), journals.stop(),
    ]  # fmt: skip
    (segment,) = path.glob("0*.jsonl")
    segment.write_bytes(b"".join(journals.encoded(makes)))


def test_what_is_not_whole_is_not_signed_and_named_once(tmp_path: pathlib.Path) -> None:
    altered, other, whole = (ended(tmp_path, writer) for writer in WRITERS[:3])
    alter(altered, b'"cost_pusd":22500000', b'"cost_pusd":22500001')
    rewritten(other)
    (tmp_path / WRITERS[3]).mkdir()
    (tmp_path / WRITERS[3] / LOCK).touch()
    (tmp_path / WRITERS[3] / journal.segment_name(1)).write_bytes(journals.encoded([journals.stop()], 5)[0])
    ends = Ends(tmp_path)
    found = sign(ends)
    assert {one for one in found if isinstance(one, Broken)} == {
        Broken(WRITERS[0], 3),  # the record; the next line is not chained to it
        Broken(WRITERS[1], 4),  # the checkpoint
        Broken(WRITERS[3], 0),
    }
    assert [path.name for path in tmp_path.iterdir() if (path / END_NOTE).exists()] == [whole.name]
    assert sign(ends) == []
    assert len(sign(Ends(tmp_path))) == 3, "a restart says it again"


def test_a_crash_before_the_rename_leaves_nothing_that_stays(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = ended(tmp_path, WRITERS[0])
    (path / f".{END_NOTE}.0123.part").write_text("half")
    monkeypatch.setattr(pathlib.Path, "replace", lambda *_: fail())

    def fail() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        sign(Ends(tmp_path))
    assert not (path / END_NOTE).exists()
    monkeypatch.undo()
    assert len(sign(Ends(tmp_path))) == 1
    assert list(path.glob(".*")) == []


def test_no_key_is_asked_for_where_nothing_is_to_be_signed(tmp_path: pathlib.Path) -> None:
    def key() -> SigningKey:
        raise AssertionError

    assert list(Ends(tmp_path / "none").sign(key, AT_NS)) == []


def test_a_start_names_the_newest_that_have_ended(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endnotes, "ENDED_MAX", 3)
    paths = [ended(tmp_path, writer, calls=number) for number, writer in enumerate(WRITERS[:5])]
    sign(Ends(tmp_path))
    journals.write_directory(tmp_path, [journals.start()], writer=WRITERS[5])
    for age, path in enumerate(reversed(paths)):
        os.utime(path / END_NOTE, ns=(AT_NS - age, AT_NS - age))
    (paths[4] / END_NOTE).write_bytes(b"\xff")
    told = endnotes.ended(tmp_path)
    assert [one.writer for one in told] == sorted(WRITERS[2:4]), "the newest three, less the one that is none"
    for one in told:
        note = noteoracle.read((tmp_path / one.writer / END_NOTE).read_text(), VKEY)
        assert (one.size, base64.b64decode(one.root)) == (note.size, note.root)
    assert endnotes.ended(tmp_path / "none") == ()


@pytest.mark.parametrize("data", [b"", b"\xff", b"a note\n\nof another kind\n"])
def test_what_is_no_note_is_told(tmp_path: pathlib.Path, data: bytes) -> None:
    (tmp_path / END_NOTE).write_bytes(data)
    with pytest.raises(NotANote):
        endnotes.read(tmp_path)
    assert endnotes.read(tmp_path / "none") is None
