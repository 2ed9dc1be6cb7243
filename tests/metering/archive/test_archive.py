"""The archive: whole after any crash, never doubled, never overwritten, and read as the journal it is of."""

import hashlib
import itertools
import json
import pathlib
import shutil

import pytest

from metering.archive import archive as archives
from metering.archive.archive import Archive, manifest_path
from metering.archive.objects import ArchiveError, LocalObjects
from metering.audit import merkle
from metering.journal import chain
from metering.journal.journal import SALVAGE, Directory, salvage_dead
from tests.support.archives import LATER_NS, Killed, Killing, Place, makes, seal_all
from tests.support.journals import WRITER, admitted, call, stop, write_directory

OTHER = "w" + "b" * 16


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Place:
    return Place(tmp_path)


def test_a_complete_directory_is_archived_with_manifests_that_say_what_it_is(place: Place) -> None:
    directory = place.closed(calls=6)
    place.archiver().archive(directory)
    lines = list(directory.chained())
    leaves = [bytes.fromhex(line.leaf) for line in lines]
    for first_seq in (1, 5, 9, 13):
        found = json.loads(place.objects.get(f"manifests/{WRITER}/{first_seq:016d}.json") or b"")
        of_it = [line for line in lines if first_seq <= line.seq < first_seq + 4]
        assert (found["lines"], found["last_seq"]) == (len(of_it), of_it[-1].seq)
        assert found["prev"] == (lines[first_seq - 2].leaf if first_seq > 1 else chain.ZEROS)
        assert found["leaf"] == of_it[-1].leaf
        tree = merkle.Tree(first_seq - 1, [bytes.fromhex(node) for node in found["frontier"]])
        assert tree.root() == merkle.root(leaves[: first_seq - 1])
        assert (found["first_ns"], found["last_ns"]) == (of_it[0].at_ns, of_it[-1].at_ns)
        for one in (found["segment"], *found["facts"]):
            data = place.objects.get(one["path"]) or b""
            assert (len(data), hashlib.sha256(data).hexdigest()) == (one["bytes"], one["sha256"])
        assert sum(one["rows"] for one in found["facts"]) == sum(
            b'"kind":"call"' in one.data for one in of_it
        )
    end = json.loads(place.objects.get(f"manifests/{WRITER}/end.json") or b"")
    assert (end["segments"], end["last_seq"], end["leaf"]) == (4, 14, lines[-1].leaf)


def test_the_archive_reads_as_the_directory(place: Place) -> None:
    directory = place.closed()
    place.archiver().archive(directory)
    (archived,) = place.archive.directories()
    assert (archived.writer, archived.complete, archived.starts_after) == (WRITER, True, 0)
    assert list(archived.chained()) == list(directory.chained())
    assert list(archived.records(7)) == list(directory.records(7))
    assert list(archived.billed()) == list(directory.billed())


def test_a_salvaged_directory_is_archived_with_its_end(place: Place) -> None:
    place.of([*makes(4), admitted("w-9")])
    salvage_dead(place.journals)
    directory = Directory(place.journals / WRITER)
    (directory.path / "end.note").write_text("a note")
    seal_all(directory)
    for first_seq in place.maker.missing(directory):
        place.maker.make(directory, first_seq)
    place.archiver().archive(directory)
    archived = place.archive.directory(WRITER)
    assert list(archived.chained()) == list(directory.chained())
    assert archived.end is not None
    assert [one.path.rpartition("/")[2] for one in archived.end.beside] == [SALVAGE, "end.note"]
    assert [one.rows for one in archived.end.facts] == [1]
    assert archived.end.last_seq == list(directory.chained())[-1].seq


def test_a_live_directory_is_archived_as_far_as_it_is_sealed(place: Place, tmp_path: pathlib.Path) -> None:
    directory = place.of(makes(5))
    archiver = place.archiver()
    archiver.archive(directory)
    archived = place.archive.directory(WRITER)
    assert not archived.complete
    assert [line.seq for line in archived.chained()] == list(range(1, 9))
    fetched = place.archive.fetch_directory(WRITER, tmp_path / "fetched")
    assert not fetched.complete
    before = place.contents()
    archiver.archive(directory)
    assert place.contents() == before


def test_a_fetched_directory_is_one_on_disk(place: Place, tmp_path: pathlib.Path) -> None:
    directory = place.closed()
    place.archiver().archive(directory)
    fetched = place.archive.fetch_directory(WRITER, tmp_path / "fetched")
    assert fetched.complete
    assert list(fetched.chained()) == list(directory.chained())


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_step_is_gone_on_with_and_nothing_is_put_twice(place: Place, after: bool) -> None:
    directory = place.closed()
    lines = list(directory.chained())
    place.archiver().archive(directory)
    want = place.contents()
    for at in itertools.count(1):
        shutil.rmtree(place.journals.parent / "archive")
        try:
            place.archiver(Killing(place.objects, at, after=after)).archive(directory)
        except Killed:
            seen = list(place.archive.directory(WRITER).chained())
            assert seen == lines[: len(seen)], "a reader meanwhile sees a whole beginning"
        else:
            break
        place.archiver().archive(directory)
        assert place.contents() == want
    assert at > 10


def test_the_manifest_first_is_found(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: a manifest that is there before its objects are names what is not there after a crash."""
    commit, late = archives.Archiver._commit, []

    def put_later(archiver, path, data):
        late.append((path, data))
        return archives.Object(bytes=len(data), path=path, sha256=hashlib.sha256(data).hexdigest())

    def manifest_first(archiver, path, made, decode):
        commit(archiver, path, made, decode)
        for one in late:
            archiver._objects.put_new(*one)
        late.clear()

    monkeypatch.setattr(archives.Archiver, "_put", put_later)
    monkeypatch.setattr(archives.Archiver, "_commit", manifest_first)
    with pytest.raises(ArchiveError, match="is not in the archive, where its manifest says"):
        test_a_crash_at_any_step_is_gone_on_with_and_nothing_is_put_twice(place, after=True)


def test_two_archivers_of_one_directory_put_it_once(place: Place) -> None:
    directory = place.closed()
    place.archiver(made_ns=LATER_NS).archive(directory)
    before = place.contents()
    place.archiver(made_ns=LATER_NS + 5).archive(directory)
    shutil.rmtree(place.journals.parent / "archive" / "manifests")
    place.archiver(made_ns=LATER_NS).archive(directory)
    assert place.contents() == before
    racing = place.archiver(made_ns=LATER_NS + 5)
    racing._there[WRITER] = set()  # it looked before the other had put anything
    racing.archive(directory)
    assert place.contents() == before


def test_an_object_with_other_bytes_is_named_and_left(place: Place) -> None:
    directory = place.closed()
    path = f"journal/{WRITER}/0000000000000005.jsonl.zst"
    place.objects.put_new(path, b"somebody else's")
    with pytest.raises(ArchiveError, match=f"{path} is in the archive with other bytes"):
        place.archiver().archive(directory)
    assert place.objects.get(path) == b"somebody else's"
    assert place.archive.first_seqs(WRITER) == [1]


def test_a_manifest_that_says_something_else_is_named_and_left(place: Place) -> None:
    directory = place.closed()
    place.closed(writer=OTHER, calls=9)
    place.archiver().archive(Directory(place.journals / OTHER))
    other = place.objects.get(manifest_path(OTHER, 5)) or b""
    place.objects.put_new(manifest_path(WRITER, 5), other)
    racing = place.archiver()
    racing._there[WRITER] = set()
    with pytest.raises(ArchiveError, match="says something else"):
        racing.archive(directory)
    assert place.objects.get(manifest_path(WRITER, 5)) == other


def test_an_altered_object_is_not_read(place: Place, tmp_path: pathlib.Path) -> None:
    place.archiver().archive(place.closed())
    file = tmp_path / "archive" / "journal" / WRITER / "0000000000000005.jsonl.zst"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    archived = place.archive.directory(WRITER)
    with pytest.raises(ArchiveError, match="altered in the archive"):
        list(archived.chained())
    file.unlink()
    with pytest.raises(ArchiveError, match="is not in the archive"):
        list(archived.chained())


def test_a_manifest_that_is_none_is_named(place: Place) -> None:
    path = manifest_path(WRITER, 1)
    for data in (b"{}", b"not json"):
        place.objects.put_new(path, data)
        with pytest.raises(ArchiveError, match=f"{path} is no manifest"):
            place.archive.manifest(WRITER, 1)
        place.objects.delete(path)


def test_torn_segments_are_archived_and_their_lines_do_not_count(place: Place) -> None:
    directory = place.of(makes(6))
    path = directory.path / "0000000000000013.jsonl"
    path.write_bytes(path.read_bytes()[:-20])  # the last line's end
    (directory.path / "0000000000000014.jsonl").write_bytes(b"of a disk that lost its order\n")
    salvage_dead(place.journals)
    seal_all(directory)
    for first_seq in place.maker.missing(directory):
        place.maker.make(directory, first_seq)
    place.archiver().archive(directory)
    archived = place.archive.directory(WRITER)
    assert [one.lines for one in archived.manifests] == [4, 4, 4, 0, 0]
    assert list(archived.chained()) == list(directory.chained())


def test_a_segment_waits_an_hour_for_its_facts_and_then_goes_without(place: Place) -> None:
    directory = place.closed()
    touched_ns = (directory.path / "0000000000000001.jsonl.zst").stat().st_mtime_ns
    place.maker.remove_all(WRITER)
    place.archiver(made_ns=touched_ns).archive(directory)
    assert place.contents() == {}
    place.archiver(made_ns=touched_ns + 2 * archives.WAIT_NS).archive(directory)
    archived = place.archive.directory(WRITER)
    assert archived.complete
    assert all(one.facts == () for one in archived.manifests)


def test_an_end_waits_an_hour_for_its_note_and_then_goes_without(place: Place) -> None:
    directory = place.closed()
    touched_ns = (directory.path / "0000000000000013.jsonl.zst").stat().st_mtime_ns
    archiver = place.archiver(made_ns=touched_ns)
    archiver.archive(directory)
    assert not place.archive.directory(WRITER).complete
    (directory.path / "end.note").write_text("a note")
    archiver.archive(directory)
    assert place.archive.directory(WRITER).complete
    place.objects.delete(archives.end_path(WRITER))
    (directory.path / "end.note").unlink()
    place.archiver(made_ns=touched_ns + archives.WAIT_NS).archive(directory)
    assert place.archive.end(WRITER) is not None


def test_what_is_plain_waits(place: Place) -> None:
    directory = Directory(write_directory(place.journals, [*makes(2), stop()]))
    place.archiver().archive(directory)
    assert place.contents() == {}


def test_others_names_in_the_archive_are_left_alone(place: Place, tmp_path: pathlib.Path) -> None:
    place.archiver().archive(place.closed())
    for name in (
        "manifests/readme.txt",
        f"manifests/{WRITER}/notes.json",
        "manifests/x/0000000000000001.json",
    ):
        place.objects.put_new(name, b"{}")
    assert place.archive.writers() == [WRITER]
    assert place.archive.first_seqs(WRITER) == [1, 5, 9, 13]
    assert place.archive.end(OTHER) is None
    assert Archive(LocalObjects(tmp_path / "nothing")).writers() == []


def test_a_directory_that_was_deleted_is_asked_for_again(place: Place) -> None:
    directory = place.closed()
    archiver = place.archiver()
    archiver.archive(directory)
    before = place.contents()
    shutil.rmtree(place.journals.parent / "archive")
    archiver.archive(directory)
    assert place.contents() == {}, "what it has put it knows of"
    archiver.forget(WRITER)
    archiver.archive(directory)
    assert place.contents() == before


def test_calls_are_whole_in_the_archive(place: Place) -> None:
    place.archiver().archive(place.of([*makes(3), call("w-7", cost_pusd=7), stop()]))
    (archived,) = place.archive.directories()
    assert [record.cost_pusd for record, _, _ in archived.billed()][-1] == 7
