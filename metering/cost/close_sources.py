"""What hours are closed from: the journals here and in the archive, each segment once.

    here      segments with facts ─▶ their files        others (growing, or just sealed) ─▶ facts made for this close
    archive   manifests ─▶ facts of the segments that are not here (fetched, and compared with their digest)

    of each journal besides: its last line, and up to when it has told all (its last `tick`)

A copy of a directory, here or there, is the same writer and the same segments, and counts once.
"""

import concurrent.futures
import functools
import itertools
import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from metering.archive import facts
from metering.archive.archive import Archive, manifest_path
from metering.archive.facts import DAY_PREFIX, HOURS
from metering.archive.manifest import End, FactsObject, Manifest
from metering.archive.objects import ArchiveError
from metering.archive.retention import NS_PER_DAY
from metering.cost.hours import Told
from metering.journal import chain, segments
from metering.journal.chain import NotALine
from metering.journal.journal import SALVAGE, Directory, directories
from metering.journal.segments import Blocks
from metering.journal.spans import CLOCK_SLACK_NS
from metering.record import Host, Identity, Line, Registration, Tick
from metering.units import NS_PER_HOUR

LOOK_BACK_NS = 8 * 24 * NS_PER_HOUR
"""How far before an hour registrations still bear on it: cost/hours.py believes the last one for seven days."""
CALL_DAYS_MAX = 8
"""A call that began in an hour has finished so many days later (timeouts are bounded by seven)."""
_AT_ONCE = 16
_TICK = b'"kind":"tick"'
_TOLD = (b'"kind":"identity"', b'"kind":"registration"')


class Seen(NamedTuple):
    """A writer's journal as far as it can be read. Times are wall-clock ns.

    first_ns, last_ns: of its first and last line (0: the first one is not known). seq, leaf: of the last one.
    told_ns: what began before it has ended by `seq`. ended: no line will follow.
    """

    writer: str
    first_ns: int
    last_ns: int
    seq: int
    leaf: str
    told_ns: int
    ended: bool

    def touches(self, hour: int) -> bool:
        """May it have lines of this hour, now or later?"""
        starts_before_its_end = self.first_ns < (hour + 1) * NS_PER_HOUR
        return starts_before_its_end and (not self.ended or self.last_ns >= hour * NS_PER_HOUR)

    def has_told(self, hour: int) -> bool:
        """Has it told all that began in this hour?"""
        return self.ended or self.told_ns >= (hour + 1) * NS_PER_HOUR


class Sources:
    """Of one state directory and the archive. For one close, in one thread; what is read once is kept."""

    def __init__(
        self, state_dir: pathlib.Path, archive: Archive | None, work: pathlib.Path, hours: range
    ) -> None:
        """work: an empty directory, for what is made and fetched; hours: those that are asked for. Raises OSError."""
        self._facts = state_dir / "facts"
        self._archive = archive
        self._work = work
        self._hours = hours
        self._here = {one.writer: one for one in directories(state_dir / "journal")}
        self._maker = facts.Maker(work / "facts")

    @functools.cached_property
    def seen(self) -> list[Seen]:
        """Journals that may bear on these hours, by writer. Ask before `files`, which then has no less.

        Raises OSError, ArchiveError.
        """
        here = map(self._seen_here, self._here.values())
        there = map(self._seen_there, self._archived.keys() - self._here.keys())
        return sorted(one for one in (*here, *there) if one is not None)

    def told(self) -> list[Told]:
        """The registrations that may bear on these hours. Raises OSError, ArchiveError, FactsError."""
        made = (*self._recent(self._facts / HOURS), *self._recent(self._made_of_archive / HOURS))
        found = [
            Told(path.stem.partition("-")[0], line)
            for path in (*made, *self._fetch_all(f"/{HOURS}/"))
            for line in _lines(path)
            if isinstance(line, Registration)
        ]
        return found + [Told(one, line) for one, line in self._told_now if isinstance(line, Registration)]

    def hosts(self) -> list[Host]:
        """What servers were found to be, as far back as journals are here, and in the archive those that bear on these
        hours. Raises OSError, ArchiveError, FactsError.
        """
        made = (
            path
            for root in (self._facts, self._made_of_archive)
            for path in sorted((root / HOURS).glob("*.jsonl"))
        )
        lines = [line for path in (*made, *self._fetch_all(f"/{HOURS}/")) for line in _lines(path)]
        lines += [line for _, line in self._told_now]
        return [line.host for line in lines if isinstance(line, Identity)]

    def files(self, hours: range) -> list[pathlib.Path]:
        """Parquet files with all calls of some of the hours, each segment once.

        Raises OSError, ArchiveError, FactsError.
        """
        first_ns = hours.start * NS_PER_HOUR
        days = [first_ns + n * NS_PER_DAY for n in range(len(hours) // 24 + 2 + CALL_DAYS_MAX)]
        names = [facts.day_directory(at_ns) for at_ns in days]
        made_now = self._made_now
        here = [
            path
            for root, made in ((self._facts, self._names_here), (made_now, None))
            for name in names
            for path in sorted((root / name).glob("*.parquet"))
            if made is None or path.stem in made  # what the clerk has made meanwhile was made here as well
        ]
        return here + [path for name in names for path in self._fetch_all(f"/{name}/")]

    @functools.cached_property
    def _names_here(self) -> set[str]:
        """Segments with facts in the state directory (facts.name), all of them."""
        unfinished = facts.unfinished(self._facts)
        found = {path.stem for path in self._facts.glob(f"{DAY_PREFIX}*/*.parquet")}
        return found - unfinished - facts.unfinished(self._facts)

    @functools.cached_property
    def _unmade(self) -> list[tuple[Directory, int, pathlib.Path]]:
        """Segments here that have no facts yet and may matter: of whom, the first seq, the file."""
        found = []
        for directory in self._here.values():
            paths = directory.segment_paths()
            salvaged = directory.salvaged()
            if salvaged is not None:
                paths.append((salvaged.first_seq, directory.path / SALVAGE))
            for first_seq, path in paths:
                here_and_due = first_seq > directory.starts_after and self._may_matter(path)
                if here_and_due and not self._is_made(directory.writer, first_seq):
                    found.append((directory, first_seq, path))
        return found

    def _is_made(self, writer: str, first_seq: int) -> bool:
        """Has a segment its facts in the state directory?"""
        return facts.name(writer, first_seq) in self._names_here

    @functools.cached_property
    def _told_now(self) -> list[tuple[str, Line]]:
        """Identities and registrations of the segments that have no facts yet, with their writers.

        They are few, and most runs close nothing: for these alone no facts of calls are made.
        """
        return [
            (directory.writer, line)
            for directory, first_seq, path in self._unmade
            for line in _told_in(directory, first_seq, path)
        ]

    @functools.cached_property
    def _made_of_archive(self) -> pathlib.Path:
        """Where the facts are that were made for this close of segments that were archived without."""
        for manifest in itertools.chain.from_iterable(self._archived.values()):
            if manifest.lines and not manifest.facts:  # they could not be made where it was archived
                self._make_archived(manifest)
        return self._maker.root

    @functools.cached_property
    def _made_now(self) -> pathlib.Path:
        """Where the facts are that were made for this close: of what has none yet."""
        for directory, first_seq, _ in self._unmade:
            self._maker.make(directory, first_seq)
        return self._made_of_archive

    def _make_archived(self, manifest: Manifest) -> None:
        assert self._archive is not None
        path = self._work / "segments" / manifest.writer
        path.mkdir(parents=True, exist_ok=True)
        sealed = path / segments.sealed_name(manifest.first_seq)
        sealed.write_bytes(self._archive.fetch(manifest.segment))
        self._maker.make(Directory(path), manifest.first_seq)

    @functools.cached_property
    def _archived(self) -> dict[str, list[Manifest]]:
        """By writer: segments that are in the archive alone and may matter, in order."""
        if self._archive is None:
            return {}
        put = self._archive.put_since(self._hours.start * NS_PER_HOUR - LOOK_BACK_NS)
        wanted = [
            (writer, first_seq)
            for writer, first_seqs in put.items()
            for first_seq in first_seqs
            if writer not in self._here or first_seq <= self._here[writer].starts_after
        ]
        found: dict[str, list[Manifest]] = {writer: [] for writer in put if writer not in self._here}
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            for manifest in pool.map(self._manifest, wanted):
                found.setdefault(manifest.writer, []).append(manifest)
        return found

    @functools.cached_property
    def _ends(self) -> dict[str, End]:
        """Of the directories in the archive alone that are archived to their end."""
        assert self._archive is not None
        found = {writer: self._archive.end(writer) for writer in self._archived if writer not in self._here}
        return {writer: end for writer, end in found.items() if end is not None}

    def _manifest(self, segment: tuple[str, int]) -> Manifest:
        assert self._archive is not None
        manifest = self._archive.manifest(*segment)
        if manifest is None:
            raise ArchiveError(f"{manifest_path(*segment)} is gone from the archive")
        return manifest

    def _fetch_all(self, part: str) -> list[pathlib.Path]:
        """Objects of facts of the archive whose path has this part, as files of the same name."""
        if self._archive is None:
            return []
        named: list[Manifest | End] = [
            *itertools.chain.from_iterable(self._archived.values()),
            *self._ends.values(),
        ]
        wanted = [one for manifest in named for one in manifest.facts if part in f"/{one.path}"]
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(self._fetch, wanted))

    def _fetch(self, one: FactsObject) -> pathlib.Path:
        assert self._archive is not None
        path = self._work / "archived" / one.path
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._archive.fetch(one))
        return path

    def _seen_here(self, directory: Directory) -> Seen | None:
        """None: it is over long before, or has no line yet."""
        paths = directory.segment_paths()
        ended = directory.complete
        if ended and paths and not self._may_matter(paths[-1][1]):
            return None
        told_ns = _last_tick_here(paths)  # asked before the end is: what is told by then is read
        tail = directory.tail()
        if tail is None:
            return None
        first_ns = 0 if directory.starts_after else _first_ns(directory)
        return Seen(
            writer=directory.writer,
            first_ns=first_ns,
            last_ns=tail.at_ns,
            seq=tail.seq,
            leaf=tail.leaf,
            told_ns=max(told_ns, first_ns),
            ended=ended,
        )

    def _seen_there(self, writer: str) -> Seen | None:
        """None: nothing of it is archived but its end, long after all else."""
        manifests, end = self._archived[writer], self._ends.get(writer)
        if not manifests:
            return None
        last, first = manifests[-1], manifests[0]
        told_ns = 0
        for manifest in reversed(manifests):
            lines = [one for one in manifest.facts if f"/{HOURS}/" in one.path]
            if ticks := [_told_by(line) for one in lines for line in _lines(self._fetch(one))]:
                told_ns = max(ticks)
                break
        first_ns = (first.first_ns or 0) if first.first_seq == 1 else 0
        return Seen(
            writer=writer,
            first_ns=first_ns,
            last_ns=(end.last_ns if end else last.last_ns) or 0,
            seq=end.last_seq if end else last.last_seq,
            leaf=end.leaf if end else last.leaf,
            told_ns=max(told_ns, first_ns),
            ended=end is not None,
        )

    def _recent(self, directory: pathlib.Path) -> Iterator[pathlib.Path]:
        """Files whose lines may bear on these hours; a file is no older than its lines."""
        for path in sorted(directory.glob("*.jsonl")):
            if path.stat().st_mtime_ns >= self._hours.start * NS_PER_HOUR - LOOK_BACK_NS:
                yield path

    def _may_matter(self, path: pathlib.Path) -> bool:
        """May a segment have lines of these hours? By when it was last written to."""
        modified_ns = path.stat().st_mtime_ns if path.name == SALVAGE else segments.modified_ns(path)
        return modified_ns >= self._hours.start * NS_PER_HOUR - CLOCK_SLACK_NS


def first_ns(state_dir: pathlib.Path, archive: Archive | None) -> int | None:
    """When the first line of all journals was made; None: there is none. Raises OSError, ArchiveError."""
    found = [at_ns for one in directories(state_dir / "journal") if (at_ns := _first_ns(one))]
    if archive is not None:
        firsts = [(writer, seqs[0]) for writer, seqs in archive.put_since(0).items() if seqs]
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            manifests = list(pool.map(lambda first: archive.manifest(*first), firsts))
        found += [one.first_ns for one in manifests if one is not None and one.first_ns]
    return min(found, default=None)


def _lines(path: pathlib.Path) -> Iterator[Line]:
    """Lines of a file of `facts/hours`, as far as this version knows their kinds. Raises OSError."""
    for data in path.read_bytes().splitlines():
        if (line := chain.decode(data)) is not None:
            yield line


def _told_in(directory: Directory, first_seq: int, path: pathlib.Path) -> Iterator[Line]:
    """The identities and registrations of a segment. Raises OSError."""
    data = segments.read(path)
    left = sum(data.count(kind) for kind in _TOLD)  # in a text the quotes would be escaped
    if not left:
        return
    for one in facts.lines_of(directory, first_seq):
        if one.link.kind in ("identity", "registration"):
            if (line := chain.decode(one.data)) is not None:
                yield line
            left -= 1
            if not left:
                return


def _told_by(line: Line | None) -> int:
    """What began before this has ended where this tick stands; 0: it is no tick."""
    if not isinstance(line, Tick):
        return 0
    return line.at_ns if line.oldest_admitted_ns is None else min(line.at_ns, line.oldest_admitted_ns)


def _last_tick_here(paths: Sequence[tuple[int, pathlib.Path]]) -> int:
    """What the newest tick among these segments tells; 0: there is none."""
    for _, path in reversed(paths):
        data = segments.read(path)
        end = data.rfind(b"\n")
        while (at := data.rfind(_TICK, 0, max(0, end))) >= 0:
            start = data.rfind(b"\n", 0, at) + 1
            try:
                if told_ns := _told_by(chain.decode(data[start : data.find(b"\n", at)])):
                    return told_ns
            except NotALine:
                pass
            end = start
    return 0


def _first_ns(directory: Directory) -> int:
    """When the first line was made; 0: it can't be said."""
    try:
        return chain.link(chain.first_line(Blocks(directory.segment_paths()[0][1]))).at_ns
    except (IndexError, NotALine):
        return 0
