"""Trimming: what is deleted here is whole in the archive, and every reader goes on."""

import json
import os
import pathlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from metering.archive import trimming
from metering.archive.archive import Archive, Archiver
from metering.archive.objects import ArchiveError, LocalObjects
from metering.archive.trimming import Trimmer
from metering.audit import audit, endnotes, merkle
from metering.audit.checkpoint import Signer
from metering.audit.endnotes import Ends
from metering.audit.notary import SigningKey
from metering.export import export
from metering.journal import segments
from metering.journal.chain import Broken
from metering.journal.chain import Place as ChainPlace
from metering.journal.journal import SALVAGE, Directory, salvage_dead
from metering.journal.replay import Trimmed
from metering.ledger.ledger import Mark
from metering.record import CallRecord
from tests.support.archives import LATER_NS, Place, make_facts, makes, seal_all
from tests.support.journals import WRITER, admitted, call, stop, tick, write_directory

OTHER = "w" + "b" * 16
EVERYTHING = 1 << 60


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Place:
    return Place(tmp_path)


def trimmer(place: Place, *directories: Directory) -> Trimmer:
    """Of a clerk that has archived these directories."""
    archiver = place.archiver()
    for directory in directories:
        archiver.archive(directory)
    return Trimmer(place.archive, archiver, place.maker)


def test_all_but_the_last_segment_may_go_and_the_front_is_told(place: Place) -> None:
    directory = place.closed()
    lines = list(directory.chained())
    freed = trimmer(place, directory).trim([directory], EVERYTHING, {WRITER})
    assert freed > 0
    assert [first for first, _ in directory.segment_paths()] == [13]
    told = json.loads((directory.path / segments.ARCHIVED).read_bytes())
    assert (told["last_seq"], told["leaf"], told["v"]) == (12, lines[11].leaf, 1)
    assert told["marks"] == {"acme": f"11:{lines[10].leaf[:16]}"}
    assert directory.trimmed == Trimmed(12, {"acme": Mark(11, lines[10].leaf[:16])})
    tree = merkle.Tree(12, [bytes.fromhex(node) for node in told["frontier"]])
    assert tree.root() == merkle.root(bytes.fromhex(line.leaf) for line in lines[:12])
    assert (directory.starts_after, directory.begin()) == (12, ChainPlace(12, lines[11].leaf))
    assert list(directory.chained()) == lines[12:]
    assert list(directory.chained(13)) == lines[13:]
    assert directory.complete
    assert directory.tail() == lines[-1]
    assert place.maker.files(WRITER, 1) == []
    assert len(place.maker.files(WRITER, 13)) == 1
    assert place.maker.missing(directory) == []


def test_here_and_archive_together_are_whole(place: Place) -> None:
    directory = place.closed()
    lines = list(directory.chained())
    assert place.archive.whole(directory) is directory
    trimmer(place, directory).trim([directory], EVERYTHING, {WRITER})
    whole = place.archive.whole(directory)
    assert list(whole.chained()) == lines
    assert list(whole.chained(6)) == lines[6:]
    assert (whole.writer, whole.complete, whole.starts_after) == (WRITER, True, 0)


def test_a_salvaged_and_trimmed_directory_reads_to_its_end(place: Place) -> None:
    directory = place.of([*makes(6), admitted("w-9")])
    salvage_dead(place.journals)
    seal_all(directory)
    make_facts(place.maker, directory)
    lines = list(directory.chained())
    trimmer(place, directory).trim([directory], EVERYTHING, {WRITER})
    assert list(directory.chained()) == lines[12:]
    assert list(place.archive.whole(directory).chained()) == lines


def test_the_oldest_go_first_over_all_directories_and_no_more_than_needed(place: Place) -> None:
    both = [place.closed(), place.closed(writer=OTHER)]
    for age, directory in enumerate(both):
        for first_seq, path in directory.segment_paths():
            os.utime(path, (first_seq * 10 - age, first_seq * 10 - age))
    keeper = trimmer(place, *both)
    assert keeper.trim(both, 1, {WRITER, OTHER}) > 0
    assert [len(directory.segment_paths()) for directory in both] == [4, 3]
    keeper.trim(both, 1, {WRITER, OTHER})
    assert [len(directory.segment_paths()) for directory in both] == [3, 3]


def test_what_is_not_archived_stays(place: Place) -> None:
    directory = place.closed()
    keeper = Trimmer(place.archive, place.archiver(), place.maker)
    assert keeper.trim([directory], EVERYTHING, {WRITER}) == 0
    assert len(directory.segment_paths()) == 4


def test_what_is_not_counted_yet_stays_but_a_live_one_need_not_be(place: Place) -> None:
    closed, live = place.closed(), place.of(makes(6), writer=OTHER)
    keeper = trimmer(place, closed, live)
    assert keeper.trim([closed, live], EVERYTHING, set()) > 0
    assert len(closed.segment_paths()) == 4
    assert [first for first, _ in live.segment_paths()] == [9, 13]
    assert not live.complete


def test_a_killed_writer_s_trimmed_directory_is_closed_as_it_would_have_been_whole(
    place: Place, tmp_path: pathlib.Path
) -> None:
    lines = [*makes(6), admitted("w-9")]
    directory, untouched = place.of(lines), Place(tmp_path / "other").of(lines)
    assert trimmer(place, directory).trim([directory], EVERYTHING, set()) > 0
    assert directory.starts_after == 8
    (closed,), (as_whole,) = salvage_dead(place.journals), salvage_dead(untouched.path.parent)
    assert (closed.lost, closed.torn_bytes) == (as_whole.lost, as_whole.torn_bytes) == (1, 0)
    assert (directory.path / SALVAGE).read_bytes() == (untouched.path / SALVAGE).read_bytes()
    assert list(directory.chained()) == list(untouched.chained())[8:]
    assert list(place.archive.whole(directory).chained()) == list(untouched.chained())


def test_a_killed_writer_s_last_segment_without_a_line_takes_nothing_from_its_closing(place: Place) -> None:
    directory = place.of(makes(6))
    trimmer(place, directory).trim([directory], EVERYTHING, set())
    directory.segment_paths()[-1][1].write_bytes(b"")
    lines = list(directory.chained())
    salvage_dead(place.journals)
    lost, end = list(directory.chained())[len(lines) :]
    assert (lost.seq, end.seq) == (13, 14)
    assert end.at_ns == lines[-1].at_ns


@pytest.mark.parametrize(("ended", "begins"), [(False, 5), (True, 9)])
def test_the_admission_of_a_call_without_a_record_stays(place: Place, ended: bool, begins: int) -> None:
    """Its segment stays while the call may be open, and those behind it: whoever closes the directory needs it."""
    six = makes(6)
    lines = [*six[:5], admitted("w-slow"), *six[5:9], call("w-slow") if ended else tick(), *six[9:]]
    directory = place.of(lines)
    keeper = trimmer(place, directory)
    keeper.trim([directory], EVERYTHING, set())
    assert directory.segment_paths()[0][0] == begins
    assert keeper.trim([directory], EVERYTHING, set()) == 0
    (closed,) = salvage_dead(place.journals)
    assert closed.lost == (not ended)


@pytest.mark.parametrize("kept", ["", "x"])
def test_what_the_archive_has_lost_or_altered_stays(place: Place, tmp_path: pathlib.Path, kept: str) -> None:
    directory = place.closed()
    keeper = trimmer(place, directory)
    path = tmp_path / "archive" / "journal" / WRITER / "0000000000000001.jsonl.zst"
    path.unlink()
    if kept:
        path.write_text(kept)
    with pytest.raises(ArchiveError, match=path.name):
        keeper.trim([directory], EVERYTHING, {WRITER})
    assert len(directory.segment_paths()) == 4
    assert directory.starts_after == 0


def test_what_was_altered_here_stays_for_who_looks_into_it(place: Place) -> None:
    directory = place.closed()
    keeper = trimmer(place, directory)
    path = directory.segment_paths()[0][1]
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ArchiveError, match=r"is not what .* is"):
        keeper.trim([directory], EVERYTHING, {WRITER})
    assert path.exists()


def test_a_manifest_that_is_gone_keeps_what_is_here(place: Place, tmp_path: pathlib.Path) -> None:
    directory = place.closed()
    keeper = trimmer(place, directory)
    (tmp_path / "archive" / "manifests" / WRITER / "0000000000000001.json").unlink()
    with pytest.raises(ArchiveError, match="is gone from the archive"):
        keeper.trim([directory], EVERYTHING, {WRITER})
    assert len(directory.segment_paths()) == 4


def test_a_crash_between_the_telling_and_the_deleting_is_gone_on_with(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = place.closed()
    lines = list(directory.chained())
    keeper = trimmer(place, directory)

    class Killed(BaseException):
        pass

    def killed(_keeper: Trimmer, directory: Directory) -> None:
        if directory.starts_after:
            raise Killed

    monkeypatch.setattr(Trimmer, "_finish", killed)
    with pytest.raises(Killed):
        keeper.trim([directory], 1, {WRITER})
    monkeypatch.undo()
    assert list(directory.chained()) == lines[4:]
    assert len(directory.segment_paths()) == 4
    assert keeper.trim([directory], 0, {WRITER}) == 0
    assert [first for first, _ in directory.segment_paths()] == [5, 9, 13]
    assert list(directory.chained()) == lines[4:]


def test_the_deleting_before_the_telling_is_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: after a crash between the two the chain would begin at a line that follows nothing."""
    directory = place.closed()
    lines = list(directory.chained())
    keeper = trimmer(place, directory)

    class Killed(BaseException):
        pass

    def delete_and_die(*_args: object, **_options: object) -> None:
        directory.segment_paths()[0][1].unlink()
        raise Killed

    monkeypatch.setattr(trimming.files, "put", delete_and_die)
    with pytest.raises(Killed):
        keeper.trim([directory], 1, {WRITER})
    assert list(directory.chained()) != lines[4:]


def test_a_segment_without_a_line_that_counts_is_not_trimmed_and_ends_it(place: Place) -> None:
    directory = place.of(makes(6))
    path = directory.path / "0000000000000013.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    (directory.path / "0000000000000014.jsonl").write_bytes(b"of a disk that lost its order\n")
    (directory.path / "0000000000000015.jsonl").write_bytes(b"likewise\n")
    salvage_dead(place.journals)
    seal_all(directory)
    make_facts(place.maker, directory)
    lines = list(directory.chained())
    trimmer(place, directory).trim([directory], EVERYTHING, {WRITER})
    assert [first for first, _ in directory.segment_paths()] == [13, 14, 15]
    assert list(directory.chained()) == lines[12:]


def test_archiving_goes_on_behind_a_trimmed_front(place: Place) -> None:
    live = place.of(makes(6))
    lines = list(live.chained())
    trimmer(place, live).trim([live], EVERYTHING, set())
    (live.path / "0000000000000013.jsonl").unlink()
    more = place.journals.parent / "more"
    grown = Directory(
        write_directory(more, [*makes(6), call("w-7"), call("w-8"), call("w-9"), stop()], per_segment=4)
    )
    for first_seq, path in grown.segment_paths():
        if first_seq > 12:
            path.rename(live.path / path.name)
    seal_all(live)
    make_facts(place.maker, live)
    place.archiver().archive(live)
    archived = place.archive.directory(WRITER)
    assert archived.complete
    assert [one.lines for one in archived.manifests] == [4, 4, 4, 4, 1]
    assert list(archived.chained())[:12] == lines[:12]
    assert [line.seq for line in archived.chained()] == list(range(1, 18))


def test_an_archive_that_lost_the_front_is_told_so(place: Place, tmp_path: pathlib.Path) -> None:
    live = place.of(makes(6))
    trimmer(place, live).trim([live], EVERYTHING, set())
    wiped = Archiver(Archive(LocalObjects(tmp_path / "wiped")), place.maker, lambda: LATER_NS)
    (live.path / "0000000000000014.jsonl").touch()  # a new segment has begun
    seal_all(live)
    with pytest.raises(ArchiveError, match="up to 8 are gone from the archive"):
        wiped.archive(live)


def test_readers_of_what_is_left_go_on(place: Place) -> None:
    directory = place.closed(calls=9)
    trimmer(place, directory).trim([directory], 1, {WRITER})
    assert directory.starts_after == 4
    found = audit.last(place.journals, 3)
    assert [one.line.call_id for one in found] == ["w-8", "w-7", "w-6"]
    assert all(isinstance(one.line, CallRecord) for one in found)
    hours = range(0, 1 << 40)
    assert sum(row.amounts[0] for row in export.rows_from_journal([directory], hours)) == 8
    whole = place.archive.whole(directory)
    assert sum(row.amounts[0] for row in export.rows_from_journal([whole], hours)) == 9


def test_a_trimmed_directory_is_signed_as_the_whole_that_it_is(place: Place) -> None:
    """Its note is that of all its lines, those that are in the archive alone among them."""
    directory = place.closed()
    leaves = [bytes.fromhex(line.leaf) for line in directory.chained()]
    trimmer(place, directory).trim([directory], EVERYTHING, {WRITER})
    (signed,) = Ends(place.journals).sign(
        lambda: SigningKey(Signer("test", Ed25519PrivateKey.generate()), 0), LATER_NS
    )
    note = endnotes.read(directory.path)
    assert note is not None, signed
    assert (note.head.size, note.head.root) == (14, merkle.root(leaves))
    (directory.path / "end.note").unlink()
    (directory.path / segments.ARCHIVED).write_text('{"frontier":["aa"],"last_seq":3,"leaf":"bb","v":1}')
    (broken,) = Ends(place.journals).sign(
        lambda: SigningKey(Signer("test", Ed25519PrivateKey.generate()), 0), LATER_NS
    )
    assert isinstance(broken, Broken)


def test_the_marks_of_tenants_that_are_quiet_stay_known(place: Place) -> None:
    quiet = [admitted("w-0", tenant="quiet"), call("w-0", tenant="quiet")]
    directory = place.of([*quiet, *makes(6), stop()])
    whole = {record.tenant: f"{seq}:{leaf[:16]}" for record, seq, leaf in directory.billed() if seq <= 8}
    keeper = trimmer(place, directory)
    for _ in range(2):
        keeper.trim([directory], 1, {WRITER})
    assert directory.starts_after == 8
    assert {tenant: str(mark) for tenant, mark in (directory.trimmed.marks or {}).items()} == whole
    assert whole.keys() == {"acme", "quiet"}


@pytest.mark.parametrize("marks", [None, {"acme": "no mark"}])
def test_marks_that_are_none_are_not_known(place: Place, marks: object) -> None:
    directory = place.closed()
    keeper = trimmer(place, directory)
    for last_seq in (4, 8):
        assert keeper.trim([directory], 1, {WRITER}) > 0
        path = directory.path / segments.ARCHIVED
        path.write_text(json.dumps(json.loads(path.read_bytes()) | {"marks": marks}))
        assert directory.trimmed == Trimmed(last_seq, None)
