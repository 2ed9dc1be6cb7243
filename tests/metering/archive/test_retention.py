"""Retention: old journals go as a whole, here and in the archive, and the counters stay."""

import itertools
import os
import pathlib

import pytest

from metering.archive import retention
from metering.archive.archive import Archive
from metering.archive.retention import Local
from metering.journal.journal import Directory, directories
from metering.pages import gone
from tests.support.archives import Killed, Killing, Place, makes
from tests.support.journals import AT_NS, WRITER

OTHER = "w" + "b" * 16
OLD_NS = AT_NS + 1_000


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Place:
    return Place(tmp_path)


def aged(directory: Directory) -> Directory:
    """As if it had been written when its lines say."""
    for path in directory.path.iterdir():
        os.utime(path, ns=(AT_NS, AT_NS))
    return directory


def delete_local(place: Place, older_than_ns: int, counted: set[str]) -> list[str]:
    """returns: the writers that were told of."""
    told: list[str] = []
    retention.delete_local(Local(place.journals, place.maker), older_than_ns, counted, told.extend)
    return told


def delete_archived(archive: Archive, older_than_ns: int) -> list[str]:
    told: list[str] = []
    retention.delete_archived(archive, older_than_ns, told.extend, OLD_NS)
    return told


def test_old_directories_go_with_their_facts_and_young_ones_stay(place: Place) -> None:
    aged(place.closed())
    young = place.closed(writer=OTHER)
    assert delete_local(place, OLD_NS, {WRITER, OTHER}) == [WRITER]
    assert [one.writer for one in directories(place.journals)] == [OTHER]
    assert sorted(path.name for path in place.journals.iterdir()) == [OTHER]
    assert place.maker.files(WRITER, 1) == []
    assert len(place.maker.files(OTHER, 1)) == 1
    aged(young)
    assert delete_local(place, AT_NS, {WRITER, OTHER}) == [], "its last line is not older than this"
    assert delete_local(place, OLD_NS, {WRITER, OTHER}) == [OTHER]


def test_files_that_only_look_old_stay_and_so_do_live_and_uncounted_ones(place: Place) -> None:
    aged(place.closed())
    aged(place.of(makes(3), writer=OTHER))
    assert delete_local(place, AT_NS, {WRITER, OTHER}) == []
    assert delete_local(place, OLD_NS, {OTHER}) == []
    assert len(directories(place.journals)) == 2


def test_a_crash_while_deleting_leaves_it_hidden_and_the_next_round_finishes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    aged(place.closed())

    def killed(_path: pathlib.Path) -> None:
        raise Killed

    monkeypatch.setattr(retention.shutil, "rmtree", killed)
    with pytest.raises(Killed):
        delete_local(place, OLD_NS, {WRITER})
    monkeypatch.undo()
    assert directories(place.journals) == []
    assert delete_local(place, OLD_NS, {WRITER}) == []
    assert list(place.journals.iterdir()) == []


def test_counters_of_what_was_deleted_stay(place: Place, tmp_path: pathlib.Path) -> None:
    aged(place.closed())
    pages = tmp_path / "pages"
    gone.retire(pages, place.journals)
    before = gone.load(pages)
    assert delete_local(place, OLD_NS, before.writers) == [WRITER]
    place.closed(writer=OTHER, calls=2)
    gone.retire(pages, place.journals)
    after = gone.load(pages)
    assert after.writers == {WRITER, OTHER}
    calls = "weighbridge_calls_total"
    both = [
        sum(value[0] for one, value in held.totals.items() if one.family == calls) for held in (before, after)
    ]
    assert both[1] == both[0] + 2


def archived(place: Place, *others: Directory) -> None:
    for directory in (place.closed(), *others):
        place.archiver().archive(directory)


def test_old_directories_of_the_archive_go_and_young_ones_stay(place: Place) -> None:
    other = place.of(makes(9), writer=OTHER, per_segment=5)
    archived(place, other)
    last_ns = list(other.chained())[14].at_ns  # its fourth segment is plain yet
    assert delete_archived(place.archive, AT_NS) == []
    assert delete_archived(place.archive, last_ns) == [WRITER]
    assert place.archive.writers() == [OTHER]
    assert all(OTHER in path for path in place.contents())
    assert delete_archived(place.archive, last_ns + 1) == [OTHER], "a writer of a lost host is never ended"
    assert place.contents() == {}


@pytest.mark.parametrize("after", [False, True])
def test_a_half_deleted_directory_of_the_archive_is_one_that_ends_earlier_or_is_gone(
    place: Place, after: bool
) -> None:
    archived(place)
    lines = list(place.archive.directory(WRITER).chained())
    for at in itertools.count(1):
        try:
            delete_archived(Archive(Killing(place.objects, at, after=after)), OLD_NS)
        except Killed:
            half = place.archive.directory(WRITER)
            assert list(half.chained()) == lines[: len(list(half.chained()))]
            assert not half.complete or (at == 1 and not after)
        else:
            break
        for path in place.contents():
            os.utime(place.journals.parent / "archive" / path, ns=(AT_NS, AT_NS))
        delete_archived(place.archive, OLD_NS)
        assert place.contents() == {}
        place.archiver().archive(Directory(place.journals / WRITER))
    assert at > 10


def test_an_object_that_is_being_archived_is_not_swept(place: Place) -> None:
    archived(place)
    fresh = f"journal/{OTHER}/0000000000000001.jsonl.zst"
    place.objects.put_new(fresh, b"its manifest is to follow")
    place.objects.put_new("journal/readme.txt", b"not ours")
    delete_archived(place.archive, OLD_NS)
    assert sorted(place.contents()) == ["journal/readme.txt", fresh]


def test_anchors_go_with_their_journal(place: Place) -> None:
    archived(place)
    for writer in (WRITER, OTHER):
        place.objects.put_new(f"anchors/{writer}/12.note", b"note")
    delete_archived(place.archive, OLD_NS)
    assert sorted(place.contents()) == [f"anchors/{OTHER}/12.note"], "of one that is not archived yet"


class _DiskFull(OSError):
    pass


def refuse(_writers: list[str]) -> None:
    raise _DiskFull


def test_what_cannot_be_told_is_not_deleted(place: Place) -> None:
    archived(place)
    directory = aged(Directory(place.journals / WRITER))
    contents = place.contents()
    with pytest.raises(_DiskFull):
        retention.delete_local(Local(place.journals, place.maker), OLD_NS, {WRITER}, refuse)
    with pytest.raises(_DiskFull):
        retention.delete_archived(place.archive, OLD_NS, refuse, OLD_NS)
    assert directory.complete
    assert place.contents() == contents
