"""Verifying what the archive alone has of trimmed journals: a part a time, and all of it in the end."""

import hashlib
import json
import pathlib

import pytest
import zstandard

from metering.archive.archive import Archive, manifest_path
from metering.archive.objects import ArchiveUnavailable, LocalObjects
from metering.archive.trimming import Trimmer
from metering.audit import verify
from metering.audit.findings import What
from metering.audit.trust import Trust
from metering.journal import fronts
from metering.journal.fronts import Fronts, Look
from metering.journal.journal import Directory
from metering.journal.segments import ARCHIVED, sealed_name
from tests.support import signed
from tests.support.archives import Place, make_facts, seal_all
from tests.support.journals import WRITER

OTHER = "w" + "b" * 16
EVERYTHING = 1 << 60
TRUST = Trust(verify.given_keys(signed.signer().verifier.vkey))


class Counting(LocalObjects):
    """An archive that counts what is fetched of segments, and can be away."""

    def __init__(self, root: pathlib.Path) -> None:
        super().__init__(root)
        self.fetched: list[str] = []
        self.away = False

    def get(self, path: str) -> bytes | None:
        if path.startswith("journal/"):
            if self.away:
                raise ArchiveUnavailable(f"{path}: no connection")
            self.fetched.append(path)
        return super().get(path)


class Bed:
    """A state directory whose journals are trimmed to their last segment."""

    def __init__(self, root: pathlib.Path, *writers: str) -> None:
        self.root = root
        self.objects = Counting(root / "archive")
        self.place = Place(root, self.objects)
        self.directories = [self._trimmed(writer) for writer in writers or (WRITER,)]
        self.objects.fetched.clear()

    def _trimmed(self, writer: str) -> Directory:
        signed.closed(self.root, writer=writer, per_segment=4)
        directory = Directory(self.place.journals / writer)
        seal_all(directory)
        make_facts(self.place.maker, directory)
        archiver = self.place.archiver()
        archiver.archive(directory)
        Trimmer(self.place.archive, archiver, self.place.maker).trim([directory], EVERYTHING, {writer})
        assert directory.starts_after > 8
        return directory

    def look(self, bytes_max: int = EVERYTHING, now_ns: int = 1, trust: Trust | None = TRUST) -> Look:
        """By a process that has just been started."""
        keeper = Fronts(self.root / "verify-archive.json", Archive(self.objects), trust)
        return keeper.look(self.directories, now_ns, bytes_max=bytes_max)

    def path(self, first_seq: int, writer: str = WRITER) -> pathlib.Path:
        return self.root / "archive" / "journal" / writer / sealed_name(first_seq)

    def alter(self, first_seq: int, **new: object) -> None:
        """Of the manifest of this segment."""
        path = self.root / "archive" / manifest_path(WRITER, first_seq)
        path.write_text(json.dumps(json.loads(path.read_bytes()) | new))


@pytest.fixture
def bed(tmp_path: pathlib.Path) -> Bed:
    return Bed(tmp_path)


def whats(look: Look) -> list[What]:
    return [finding.what for finding in look.findings]


def test_a_front_that_is_whole(bed: Bed) -> None:
    (directory,) = bed.directories
    found = bed.look(now_ns=7)
    assert (found.findings, found.unread, found.fronts) == ((), "", 1)
    assert (found.segments, found.lines, found.oldest_ns) == (
        directory.starts_after // 4,
        directory.starts_after,
        7,
    )
    assert found.bytes == sum(bed.path(first).stat().st_size for first in range(1, directory.starts_after, 4))


def test_nothing_is_trimmed(tmp_path: pathlib.Path) -> None:
    found = Bed(tmp_path).place.archive
    keeper = Fronts(tmp_path / "kept", found, TRUST)
    assert keeper.look([], 1, bytes_max=1).fronts == 0
    assert keeper.look([], 1, bytes_max=1).oldest_ns is None


def test_part_by_part_each_segment_is_read_once_a_round(tmp_path: pathlib.Path) -> None:
    bed = Bed(tmp_path, WRITER, OTHER)
    segments = sum(one.starts_after // 4 for one in bed.directories)
    looks = [bed.look(bytes_max=1, now_ns=now_ns) for now_ns in range(1, segments + 1)]
    assert [one.segments for one in looks] == [1] * segments
    assert len(bed.objects.fetched) == len(set(bed.objects.fetched)) == segments
    assert [one.oldest_ns for one in looks[:-1]] == [None] * (segments - 1)
    assert looks[-1].oldest_ns == segments // 2
    bed.look(bytes_max=1, now_ns=99)
    assert bed.objects.fetched[-1] == bed.objects.fetched[0]  # the next round


def test_a_look_with_room_for_all_reads_each_once(tmp_path: pathlib.Path) -> None:
    bed = Bed(tmp_path, WRITER, OTHER)
    bed.look()
    assert len(bed.objects.fetched) == len(set(bed.objects.fetched))


@pytest.mark.parametrize("damage", ["altered", "missing", "cut"])
def test_an_object_that_is_not_what_was_put_there(bed: Bed, damage: str) -> None:
    path = bed.path(5)
    if damage == "missing":
        path.unlink()
    else:
        data = path.read_bytes()
        path.write_bytes(data[:-3] if damage == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    found = bed.look()
    assert whats(found) == [What.ARCHIVE_DIFFERS]
    assert found.findings[0].file == f"journal/{WRITER}/{sealed_name(5)}"


def test_what_was_found_stays_until_that_segment_is_read_again_and_is_sound(bed: Bed) -> None:
    sound = bed.path(5).read_bytes()
    bed.path(5).write_bytes(b"")
    assert whats(bed.look()) == [What.ARCHIVE_DIFFERS]
    bed.path(5).write_bytes(sound)
    assert whats(bed.look(bytes_max=1)) == [What.ARCHIVE_DIFFERS]  # the first one alone was read
    assert whats(bed.look(bytes_max=1)) == []


def forge(bed: Bed, first_seq: int) -> None:
    """Alter the last line of a segment, and have its manifest name the new bytes."""
    lines = zstandard.ZstdDecompressor().stream_reader(bed.path(first_seq).read_bytes()).read()
    head, _, tail = lines.rpartition(b'"at_ns":1')
    data = zstandard.ZstdCompressor().compress(head + b'"at_ns":2' + tail)
    bed.path(first_seq).write_bytes(data)
    path = f"journal/{WRITER}/{sealed_name(first_seq)}"
    bed.alter(
        first_seq, segment={"bytes": len(data), "path": path, "sha256": hashlib.sha256(data).hexdigest()}
    )


def test_lines_that_were_altered_and_a_manifest_to_match(bed: Bed) -> None:
    """By somebody who can write to the archive and has no key."""
    forge(bed, 5)
    assert whats(bed.look()) == [What.ROOT_DIFFERS]


def test_the_last_line_that_is_not_here_is_held_by_what_is(bed: Bed) -> None:
    (directory,) = bed.directories
    forge(bed, directory.starts_after - 3)
    (found,) = bed.look().findings
    assert found.what is What.ROOT_DIFFERS
    assert f"archived.json of {WRITER}" in found.says


def test_the_law_sees_a_look_that_asks_nothing_of_the_next_one(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: each segment is held against its own manifest alone."""
    monkeypatch.setattr(fronts, "_claims", lambda *_: [])
    forge(bed, bed.directories[0].starts_after - 3)
    assert whats(bed.look()) == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"leaf": "0" * 64}, []),  # nobody asks it
        ({"prev": "0" * 64}, [What.TOO_FEW_LINES, What.CHAIN_BROKEN]),
        ({"frontier": ["00" * 32]}, [What.ROOT_DIFFERS, What.ROOT_DIFFERS, What.ROOT_DIFFERS]),
        ({"frontier": ["none"]}, [What.ARCHIVE_DIFFERS]),
        ({"v": "one"}, [What.ARCHIVE_DIFFERS]),
    ],
)
def test_a_manifest_that_says_something_else(bed: Bed, change: dict, what: list[What]) -> None:
    bed.alter(5, **change)
    assert whats(bed.look()) == what


def test_a_segment_that_the_archive_has_not(bed: Bed) -> None:
    (bed.root / "archive" / manifest_path(WRITER, 5)).unlink()
    found = bed.look()
    assert [str(one) for one in found.findings] == [
        f"{manifest_path(WRITER, 5)}: seq 5 to 8 are neither here nor in the archive"
    ]
    assert found.findings[0].what is What.FRONT_MISSING


def test_an_archive_that_has_nothing_of_it(bed: Bed) -> None:
    for one in bed.objects.list("manifests/"):
        bed.objects.delete(one.path)
    (directory,) = bed.directories
    found = bed.look()
    assert [one.says for one in found.findings] == [
        f"seq 1 to {directory.starts_after} are neither here nor in the archive"
    ]
    assert found.oldest_ns == 1


def test_an_archive_that_is_away_is_no_finding(bed: Bed) -> None:
    bed.objects.away = True
    found = bed.look()
    assert (found.findings, found.segments, found.oldest_ns) == ((), 0, None)
    assert "no connection" in found.unread


def test_a_key_that_does_not_count(bed: Bed) -> None:
    stranger = Trust(verify.given_keys(signed.signer(2).verifier.vkey))
    assert set(whats(bed.look(trust=stranger))) == {What.NOT_SIGNED}
    assert whats(bed.look(trust=None)) == []


def test_a_directory_that_is_no_longer_here_is_forgotten(bed: Bed) -> None:
    bed.path(5).write_bytes(b"")
    bed.look()
    bed.directories = []
    assert bed.look().findings == ()
    assert json.loads((bed.root / "verify-archive.json").read_bytes()) == {}


def test_what_was_kept_and_cannot_be_read_is_read_anew(bed: Bed) -> None:
    bed.look(bytes_max=1)
    (bed.root / "verify-archive.json").write_text("{")
    assert bed.look().segments == bed.directories[0].starts_after // 4


def test_an_archived_json_that_says_nothing_is_no_front(bed: Bed) -> None:
    (bed.directories[0].path / ARCHIVED).write_text("{}")
    assert bed.look().fronts == 0


def test_so_many_findings_are_kept(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fronts, "FINDINGS_MAX", 1)
    bed.path(1).write_bytes(b"")
    bed.path(5).write_bytes(b"")
    assert len(bed.look().findings) == 1
