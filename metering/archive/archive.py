"""The archive: sealed segments and their facts in a directory or a bucket, with a manifest as the commit point.

    journal/<writer>/0000000000004711.jsonl.zst             the sealed segment
    journal/<writer>/{salvage.jsonl,end.note}               once the directory is complete, if they are there
    facts/day=2026-11-28/<writer>-0000000000004711.parquet
    manifests/<writer>/0000000000004711.json                last of all that a segment has: it is archived now
    manifests/<writer>/end.json                             last of all: the directory is (metering/archive/manifest.py)

Whatever ends in between is gone on with: what is there already and is the same counts as put, so that any number
may archive one directory. What is there and is not the same is an error that names it, and is left as it is.
"""

import hashlib
import io
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from metering.archive import facts, manifest
from metering.archive.manifest import End, FactsObject, Manifest, NotAManifest, Object, Passage
from metering.archive.objects import AlreadyThere, ArchiveError, Objects
from metering.audit.endnotes import END_NOTE
from metering.journal import chain, segments
from metering.journal.chain import Place, Segment
from metering.journal.journal import SALVAGE, WRITER_PATTERN, Directory
from metering.journal.readable import Readable
from metering.journal.segments import Blocks, is_sealed
from metering.units import NS_PER_HOUR

M = TypeVar("M", Manifest, End)

BESIDE = (SALVAGE, END_NOTE)
"""Files of a complete directory that are archived with it, where they are there."""
END = "end.json"
WAIT_NS = NS_PER_HOUR
"""How long a segment waits for facts that could not be made, and an end for its note; then it is archived without:
the lines are what counts."""

JOURNAL, FACTS, MANIFESTS = "journal/", "facts/", "manifests/"

_MANIFEST_PATTERN = re.compile(rf"{MANIFESTS}({WRITER_PATTERN.pattern})/(?:([0-9]{{16}})|end)\.json")


class Archive:
    """The archive as its readers see it. Every method raises ArchiveError."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    def writers(self) -> list[str]:
        """All writers that something is archived of, by name."""
        matches = [_MANIFEST_PATTERN.fullmatch(one.path) for one in self.objects.list(MANIFESTS)]
        return sorted({match[1] for match in matches if match})

    def put_since(self, at_ns: int) -> dict[str, list[int]]:
        """Segments of which the manifest was put since then, by writer: first seqs, in order. at_ns: wall clock.

        A writer whose directory was ended since, and nothing else, has none.
        """
        found: dict[str, list[int]] = {}
        for one in self.objects.list(MANIFESTS):
            match = _MANIFEST_PATTERN.fullmatch(one.path)
            if match and one.modified_ns >= at_ns:
                found.setdefault(match[1], []).extend([int(match[2])] if match[2] else [])
        return found

    def first_seqs(self, writer: str) -> list[int]:
        """First seqs of a writer's archived segments, in order."""
        listed = self.objects.list(f"{MANIFESTS}{writer}/")
        matches = [_MANIFEST_PATTERN.fullmatch(one.path) for one in listed]
        return [int(match[2]) for match in matches if match and match[2]]

    def manifest(self, writer: str, first_seq: int) -> Manifest | None:
        """A segment's manifest; None: it is not archived."""
        path = manifest_path(writer, first_seq)
        data = self.objects.get(path)
        return _decoded(path, manifest.decode_manifest, data) if data is not None else None

    def end(self, writer: str) -> End | None:
        """The end of a directory; None: it is not archived to its end."""
        path = end_path(writer)
        data = self.objects.get(path)
        return _decoded(path, manifest.decode_end, data) if data is not None else None

    def fetch(self, one: Object | FactsObject) -> bytes:
        """An object that a manifest names, if it is still what was put there."""
        data = self.objects.get(one.path)
        if data is None:
            raise ArchiveError(f"{one.path} is not in the archive, where its manifest says it is")
        if len(data) != one.bytes or hashlib.sha256(data).hexdigest() != one.sha256:
            raise ArchiveError(f"{one.path} is not what its manifest says: it was altered in the archive")
        return data

    def directory(self, writer: str) -> "ArchivedDirectory":
        """A writer's directory as far as it is archived."""
        return ArchivedDirectory(self, writer, self.first_seqs(writer), self.end(writer))

    def directories(self) -> Iterator["ArchivedDirectory"]:
        """All of them, by name, one at a time."""
        return map(self.directory, self.writers())

    def whole(self, local: Directory) -> Readable:
        """A local directory, with those of its lines that are here alone. Asks the archive only if there are any."""
        return Joined(self.directory(local.writer), local) if local.starts_after else local

    def all(self, local: Iterable[Directory]) -> Iterator[Readable]:
        """Every journal that is here or there: local ones whole, then those that are in the archive alone."""
        here = set()
        for directory in local:
            here.add(directory.writer)
            yield self.whole(directory)
        for writer in self.writers():
            if writer not in here:
                yield self.directory(writer)

    def fetch_directory(self, writer: str, root: pathlib.Path) -> Directory:
        """Put a writer's directory, as far as it is archived, below `root`. Raises OSError too.

        What can still grow ends in a plain segment, as its own does.
        """
        archived = self.directory(writer)
        path = root / writer
        path.mkdir(parents=True)
        for first_seq in archived.first_seqs:
            plain = path / segments.segment_name(first_seq)
            sealed = segments.sealed_path(plain)
            sealed.write_bytes(archived.fetch(first_seq))
            if archived.end is None and first_seq == archived.first_seqs[-1]:
                plain.write_bytes(segments.read(sealed))
                sealed.unlink()
        for beside in archived.beside:
            (path / beside.path.rpartition("/")[2]).write_bytes(self.fetch(beside))
        return Directory(path)


class ArchivedDirectory(Readable):
    """A writer's directory in the archive. Reading it raises ArchiveError where an object is not what it was.

    first_seqs: of its segments; end: None, if it is not archived to its end. What a manifest names is fetched when its
    bytes are asked for.
    """

    def __init__(self, archive: Archive, writer: str, first_seqs: list[int], end: End | None) -> None:
        self.writer = writer
        self.first_seqs = first_seqs
        self.end = end
        self._archive = archive
        self._manifests: dict[int, Manifest] = {}

    @property
    def complete(self) -> bool:
        """As Readable.complete."""
        return self.end is not None

    @property
    def manifests(self) -> list[Manifest]:
        """Of all segments, in order."""
        return list(map(self.manifest, self.first_seqs))

    def manifest(self, first_seq: int) -> Manifest:
        """Of one of the segments."""
        if first_seq not in self._manifests:
            found = self._archive.manifest(self.writer, first_seq)
            if found is None:
                raise ArchiveError(f"{manifest_path(self.writer, first_seq)} is gone from the archive")
            self._manifests[first_seq] = found
        return self._manifests[first_seq]

    def fetch(self, first_seq: int) -> bytes:
        """A segment as it was sealed."""
        return self._archive.fetch(self.manifest(first_seq).segment)

    @property
    def beside(self) -> tuple[Object, ...]:
        """The files that stand beside its segments, once it is complete."""
        return self.end.beside if self.end else ()

    def fetch_beside(self, one: Object) -> bytes:
        """One of those."""
        return self._archive.fetch(one)

    def segments(self) -> list[Segment]:
        """As Readable.segments."""
        return [Segment(first_seq, _Fetched(self, first_seq)) for first_seq in self.first_seqs]

    def salvaged(self) -> Segment | None:
        """As Readable.salvaged."""
        for one in self.beside:
            if one.path.endswith(f"/{SALVAGE}"):
                data = self._archive.fetch(one)
                return Segment(chain.link(chain.first_line([data])).seq, [data])
        return None


class Joined(Readable):
    """A directory whose first lines are in the archive and whose last ones are here."""

    def __init__(self, archived: ArchivedDirectory, local: Directory) -> None:
        self.writer = local.writer
        self._archived = archived
        self._local = local

    @property
    def complete(self) -> bool:
        """As Readable.complete."""
        return self._local.complete

    def segments(self) -> list[Segment]:
        """As Readable.segments: the local one of those that are in both places."""
        local = self._local.segments()
        first_seq = local[0].first_seq if local else self._local.starts_after + 1
        return [one for one in self._archived.segments() if one.first_seq < first_seq] + local

    def salvaged(self) -> Segment | None:
        """As Readable.salvaged."""
        return self._local.salvaged()


class _Fetched:
    """The lines' bytes of an archived segment, fetched each time they are iterated."""

    def __init__(self, directory: ArchivedDirectory, first_seq: int) -> None:
        self._directory = directory
        self._first_seq = first_seq

    def __iter__(self) -> Iterator[bytes]:
        yield from segments.unpacked(io.BytesIO(self._directory.fetch(self._first_seq)))


class Archiver:
    """Brings directories of one state directory into the archive. One caller at a time.

    It asks once what is there of a writer, and knows from then on what it has put itself.
    """

    def __init__(self, archive: Archive, maker: facts.Maker, clock: Callable[[], int]) -> None:
        """maker: who has the facts; clock: wall clock in nanoseconds since 1970 (UTC)."""
        self._archive = archive
        self._objects = archive.objects
        self._maker = maker
        self._clock = clock
        self._there: dict[str, set[int]] = {}  # writer → first seqs of what is archived
        self._passages: dict[str, Passage] = {}  # writer → behind the last archived segment
        self._ended: set[str] = set()

    def archive(self, directory: Directory) -> None:
        """Archive what is sealed of a directory and not archived yet; and its end, if it is complete.

        Raises ArchiveError, OSError; a repeat goes on from there.
        """
        writer = directory.writer
        if writer in self._ended:
            return
        complete = directory.complete  # asked first: it may get its last lines meanwhile
        there = self._known(writer)
        paths = directory.segment_paths()
        for first_seq, path in paths:
            if first_seq in there or first_seq <= directory.starts_after:
                continue
            if not is_sealed(path) or not self._has_facts(writer, first_seq, path):
                return
            self._put_segment(directory, first_seq, path)
            there.add(first_seq)
        if complete and ((directory.path / END_NOTE).exists() or self._waited(paths[-1][1])):
            self._put_end(directory)
            self._ended.add(writer)

    def has(self, writer: str, first_seq: int) -> bool:
        """Is this segment archived, as far as is known here?"""
        return first_seq in self._there.get(writer, ())

    def forget(self, writer: str) -> None:
        """Ask again what is there of this writer: it was deleted."""
        self._there.pop(writer, None)
        self._passages.pop(writer, None)
        self._ended.discard(writer)

    def _known(self, writer: str) -> set[int]:
        if writer not in self._there:
            self._there[writer] = set(self._archive.first_seqs(writer))
            if self._archive.end(writer) is not None:
                self._ended.add(writer)
        return self._there[writer]

    def _has_facts(self, writer: str, first_seq: int, path: pathlib.Path) -> bool:
        return bool(self._maker.files(writer, first_seq)) or self._waited(path)

    def _waited(self, path: pathlib.Path) -> bool:
        return self._clock() - segments.modified_ns(path) >= WAIT_NS

    def _put_segment(self, directory: Directory, first_seq: int, path: pathlib.Path) -> None:
        writer = directory.writer
        passage = self._passages.pop(writer, None) or self._resumed(directory)
        before, frontier = passage.place, passage.frontier
        _pass(passage, Segment(first_seq, Blocks(path)))
        made = Manifest(
            facts=self._put_facts(writer, first_seq),
            first_ns=passage.first_ns,
            first_seq=first_seq,
            frontier=frontier,
            last_ns=passage.last_ns,
            last_seq=passage.place.seq,
            leaf=passage.place.leaf,
            lines=passage.lines,
            made_ns=self._clock(),
            prev=before.leaf,
            segment=self._put(f"{JOURNAL}{writer}/{path.name}", path.read_bytes()),
            writer=writer,
        )
        self._commit(manifest_path(writer, first_seq), made, manifest.decode_manifest)
        self._passages[writer] = passage

    def _put_end(self, directory: Directory) -> None:
        writer = directory.writer
        passage = self._passages.get(writer) or self._resumed(directory)
        self._passages[writer] = passage
        last_ns = passage.last_ns
        found: tuple[FactsObject, ...] = ()
        salvaged = directory.salvaged()
        place = passage.place
        if salvaged is not None:
            for line in chain.linked(salvaged.blocks, chain.before(salvaged)):
                place, last_ns = Place(line.link.seq, line.leaf), line.link.at_ns
            found = self._put_facts(writer, salvaged.first_seq)
        made = End(
            beside=tuple(
                self._put(f"{JOURNAL}{writer}/{name}", (directory.path / name).read_bytes())
                for name in BESIDE
                if (directory.path / name).exists()
            ),
            facts=found,
            last_ns=last_ns,
            last_seq=place.seq,
            leaf=place.leaf,
            made_ns=self._clock(),
            segments=len(self._there[writer]),
            writer=writer,
        )
        self._commit(end_path(writer), made, manifest.decode_end)

    def _put_facts(self, writer: str, first_seq: int) -> tuple[FactsObject, ...]:
        put = []
        for path in self._maker.files(writer, first_seq):
            one = self._put(f"{FACTS}{path.parent.name}/{path.name}", path.read_bytes())
            rows = self._maker.rows(path)
            put.append(FactsObject(bytes=one.bytes, path=one.path, rows=rows, sha256=one.sha256))
        return tuple(put)

    def _put(self, path: str, data: bytes) -> Object:
        """Put an object, unless it is there with these bytes."""
        try:
            self._objects.put_new(path, data)
        except AlreadyThere as error:
            if self._objects.get(path) != data:
                raise ArchiveError(
                    f"{path} is in the archive with other bytes; they were left as they are"
                ) from error
        return Object(bytes=len(data), path=path, sha256=hashlib.sha256(data).hexdigest())

    def _commit(self, path: str, made: M, decode: Callable[[bytes], M]) -> None:
        """Put a manifest, unless somebody else has put one that says the same."""
        try:
            self._objects.put_new(path, manifest.encode(made))
        except AlreadyThere as error:
            data = self._objects.get(path)
            if data is None or not manifest.say_the_same(_decoded(path, decode, data), made):
                raise ArchiveError(
                    f"{path} is in the archive and says something else; it was left as it is"
                ) from error

    def _resumed(self, directory: Directory) -> Passage:
        """Behind the last archived segment of a directory, by its manifest and its lines."""
        writer = directory.writer
        there = self._known(writer)
        if not there and directory.starts_after:
            raise ArchiveError(f"lines of {writer} up to {directory.starts_after} are gone from the archive")
        if not there:
            return Passage(chain.START, ())
        archived = ArchivedDirectory(self._archive, writer, sorted(there), None)
        last = archived.manifest(max(there))
        return passed(last, Segment(last.first_seq, _Fetched(archived, last.first_seq)))


def manifest_path(writer: str, first_seq: int) -> str:
    """Where a segment's manifest is."""
    return f"{MANIFESTS}{writer}/{first_seq:016d}.json"


def end_path(writer: str) -> str:
    """Where a directory's end is told."""
    return f"{MANIFESTS}{writer}/{END}"


def _pass(passage: Passage, segment: Segment) -> None:
    """Go along a segment's lines as far as they continue the chain; a gap before it is its end."""
    passage.enter()
    if segment.first_seq == passage.place.seq + 1:
        for line in chain.linked(segment.blocks, passage.place):
            passage.add(line)


def passed(one: Manifest, segment: Segment) -> Passage:
    """Behind this segment, by its manifest and its lines. Raises ArchiveError: they do not agree."""
    passage = Passage(Place(one.last_seq - one.lines, one.prev), one.frontier)
    _pass(passage, segment)
    if passage.place != Place(one.last_seq, one.leaf):
        raise ArchiveError(f"{one.segment.path} does not end where its manifest says")
    return passage


def _decoded(path: str, decode: Callable[[bytes], M], data: bytes) -> M:
    try:
        return decode(data)
    except NotAManifest as error:
        raise ArchiveError(f"{path} is no manifest: {error}") from error
