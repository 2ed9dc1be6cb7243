"""`audit verify`: what is at the given places, read, and held against what else is known of it.

    DIR…       a state directory, its journal/, or one writer's directory ─▶ the journals
               a file of lines (metering/audit/mirrored.py)                     ─▶ copies of journals
               a pack (metering/audit/pack.py)                                  ─▶ its signature and its files
    --key      vkeys, else keys.json of the state directories             ─▶ which signatures count
    --anchor   notes that were kept elsewhere                             ─▶ claims on the journals
    --archive  trimmed fronts, journals that are not here any more        ─▶ read as well; claims on the others

Nothing is written, and no gateway need run. Of a live writer what stood there when it was looked at is verified. The
rules are pure: metering/audit/inspection.py for one journal, metering/audit/verdict.py for all of them.
"""

import concurrent.futures
import functools
import multiprocessing
import pathlib
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from metering.archive.archive import Archive, ArchivedDirectory
from metering.archive.objects import ArchiveError, ArchiveUnavailable
from metering.audit import checkpoint, keys, sources, verdict
from metering.audit.checkpoint import NotANote
from metering.audit.findings import Finding, Place, Verdict, What, worst
from metering.audit.inspection import Inspection
from metering.audit.keyring import Key
from metering.audit.notebook import Claim
from metering.audit.pack import KEYS, NotAPack, Pack
from metering.audit.sources import Source
from metering.audit.trust import Trust, parse_keys
from metering.audit.verdict import Anchor, Journal, Keys, Named, Report
from metering.journal import chain, salvage, segments
from metering.journal.journal import WRITER_PATTERN, Directory, directories
from metering.record import Start

_JOURNAL = "journal"
_KEYS = pathlib.Path(keys.DIRECTORY) / keys.KEYS
_NOTE_SUFFIX = ".note"
_WORTH_A_PROCESS_BYTES = 64 * 1024 * 1024


class _Logged(msgspec.Struct):
    """A line of a gateway's log, as far as an anchor needs it."""

    event: str
    note: str = ""


class VerifyError(Exception):
    """There is nothing that could be verified, or what was given can't be read; the message says which and why."""


class Places(NamedTuple):
    """The journals, and the packs and copies of them, that were found.

    whole: of those, the paths that lie in a directory of journals that was given: what they name must be there.
    keys: of the state directories and packs.
    """

    directories: list[Directory]
    whole: set[pathlib.Path]
    keys: list[Key]
    packs: list[Pack]
    mirrors: list[pathlib.Path]


def find(paths: Sequence[pathlib.Path]) -> Places:
    """What is at these paths. Raises VerifyError, OSError."""
    places = Places([], set(), [], [], [])
    for path in paths:
        if path.is_file():
            if tarfile.is_tarfile(path):
                _add_pack(places, path)
            else:
                places.mirrors.append(path)
            continue
        root = path / _JOURNAL if (path / _JOURNAL).is_dir() else path
        if not root.is_dir():
            raise VerifyError(f"there is no {path}")
        if found := directories(root):
            places.directories.extend(found)
            places.whole.update(directory.path for directory in found)
            state_dir = root.resolve().parent
        elif WRITER_PATTERN.fullmatch(root.resolve().name) or segments.paths(root):
            places.directories.append(Directory(root.resolve()))
            state_dir = root.resolve().parent.parent
        else:
            raise VerifyError(f"there is no journal in {path}")
        if (keys := state_dir / _KEYS).is_file():
            places.keys.extend(read_keys(keys))
    return places


def _add_pack(places: Places, path: pathlib.Path) -> None:
    try:
        pack = Pack(path)
        places.packs.append(pack)
        places.keys.extend(parse_keys(pack.members.get(KEYS, b"")))
    except NotAPack as error:
        raise VerifyError(str(error)) from None
    except NotANote as error:
        raise VerifyError(f"{path}: {KEYS}: {error}") from None


def given_keys(text: str) -> Sequence[Key]:
    """Keys as they are given by hand: a vkey, or the path of a file of them. Raises VerifyError, OSError."""
    path = pathlib.Path(text)
    if path.exists():
        return read_keys(path)
    try:
        return parse_keys(text.encode())
    except NotANote as error:
        raise VerifyError(f"{error}; and there is no such file") from None


def read_keys(path: pathlib.Path) -> Sequence[Key]:
    """Keys from a file: keys.json, or vkeys. Raises VerifyError, OSError."""
    try:
        return parse_keys(path.read_bytes())
    except NotANote as error:
        raise VerifyError(f"{path}: {error}") from None


def trust_beside(root: pathlib.Path) -> Trust:
    """The keys beside a directory of journals; none, if there are none. Raises VerifyError, OSError."""
    keys = root.parent / _KEYS
    return Trust(read_keys(keys) if keys.is_file() else ())


def read_anchors(path: pathlib.Path) -> list[Anchor]:
    """Notes from a file, a gateway's log, or all files `*.note` below a directory. Raises VerifyError, OSError."""
    files = sorted(path.rglob(f"*{_NOTE_SUFFIX}")) if path.is_dir() else [path]
    if not files:
        raise VerifyError(f"there is no anchor (*{_NOTE_SUFFIX}) in {path}")
    return [one for file in files for one in _anchors_of(file)]


def _anchors_of(file: pathlib.Path) -> list[Anchor]:
    """A note; or those of a log's lines, whatever else is in it."""
    data = file.read_bytes()
    found, logs = [], False
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.startswith(b"{"):
            continue
        try:
            logged = msgspec.json.decode(line, type=_Logged)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # a line of somebody else's, or one that was cut off
        logs = True
        if logged.event == checkpoint.LOGGED_AS:
            found.append(anchor(logged.note.encode(), f"{file}:{number}"))
    if logs and not found:
        raise VerifyError(f"there is no anchor in {file}: the log has no line `{checkpoint.LOGGED_AS}` yet")
    return found or [anchor(data, str(file))]


def anchor(note: bytes, source: str) -> Anchor:
    """One anchor. Raises VerifyError."""
    try:
        return Anchor(checkpoint.parse(note.decode()), source)
    except (NotANote, UnicodeDecodeError) as error:
        raise VerifyError(f"{source} is no anchor: {error}") from None


class _Journal(NamedTuple):
    """A journal to be verified. open: as it is now. whole: what it names must be there. lossy: as of its source."""

    writer: str
    whole: bool
    open: Callable[[], Source]
    lossy: bool = False


def verify(
    places: Places,
    given_keys: Sequence[Key],
    anchors: Sequence[Anchor],
    archive: Archive | None = None,
    *,
    processes: int = 1,
    anchors_amiss: Sequence[Finding] = (),
) -> Report:
    """Verify journals.

    given_keys: if there are any, no other key counts, and of these the dates that were found count as well.
    archive: has the fronts of journals that were trimmed, and journals that are not here any more; what it says of the
    others is held against them. Anchors must have been read before `places` were found, or what a live writer has
    written since is missed. processes: how many may read at once, a journal each, if it is worth it.
    anchors_amiss: what was found wrong where the anchors are (metering/audit/versions.py).
    Raises VerifyError, OSError, ArchiveUnavailable: what can't be read now is no finding.
    """
    trust, keys = _trust(given_keys, places.keys)
    claims, findings = verdict.anchor_claims(anchors, trust)
    findings += anchors_amiss
    findings += [finding for pack in places.packs for finding in pack.check(trust)]
    whole = bool(places.whole) or (archive is not None and not places.directories)
    named = [Named(one.note.head.writer, Place(one.source)) for one in anchors if whole]
    journals, amiss = _journals(places, archive, claims)
    if not (journals or amiss or places.packs or places.mirrors):
        raise VerifyError("there is no journal in the archive")
    if archive is not None or _bytes(places) < _WORTH_A_PROCESS_BYTES:
        processes = 1  # a connection is not handed on; and to start a process takes as long as some ten MB
    findings += amiss
    for journal in journals:
        source = journal.open()
        for writer, claim in _ended(source).items():
            claims.setdefault(writer, []).append(claim)
            if journal.whole:
                named.append(Named(writer, Place(source.files[0].name, 1)))
    with tempfile.TemporaryDirectory(prefix="weighbridge-") as scratch:
        copies = _copies(places.mirrors, pathlib.Path(scratch))
        inspected = _inspect_all([*journals, *copies], trust, claims, processes)
    packs = [says for pack in places.packs if (says := pack.says())]
    return verdict.conclude(
        inspected, named=named, anchors=len(anchors), findings=findings, keys=keys, packs=packs
    )


def _bytes(places: Places) -> int:
    return sum(segments.size(path) for one in places.directories for _, path in one.segment_paths())


def _journals(
    places: Places, archive: Archive | None, claims: dict[str, list[Claim]]
) -> tuple[list[_Journal], list[Finding]]:
    """The journals to be looked at, those that only the archive has behind the others. Adds what the archive claims."""
    found: list[_Journal] = []
    amiss: list[Finding] = []
    here = {directory.writer for directory in places.directories}
    archived: dict[str, ArchivedDirectory] = {}
    for writer in archive.writers() if archive else ():
        if not places.whole and places.directories and writer not in here:
            continue  # one writer's directory was asked for, and no other
        try:
            assert archive is not None
            one = archive.directory(writer)
            claims.setdefault(writer, []).extend(sources.archive_claims(one))
            source = functools.partial(sources.of_archive, one)
            source()
        except ArchiveUnavailable:
            raise
        except ArchiveError as error:
            says, place = str(error), Place(f"archive:{writer}")
            amiss.append(
                Finding(file=place.file, line=0, says=says, what=What.ARCHIVE_DIFFERS, writer=writer)
            )
            continue
        archived[writer] = one
        if writer not in here:
            found.append(_Journal(writer, True, source))
    for directory in places.directories:
        claims.setdefault(directory.writer, []).extend(sources.front_claim(directory))
        source = functools.partial(sources.of_directory, directory, archived.get(directory.writer))
        found.append(_Journal(directory.writer, directory.path in places.whole, source))
    return found, amiss


def _copies(mirrors: Sequence[pathlib.Path], scratch: pathlib.Path) -> list[_Journal]:
    """The journals that files of lines are copies of. scratch: for these lines, sorted out by writer.

    Raises VerifyError for a file that has none, OSError.
    """
    copies: list[_Journal] = []
    for number, mirror in enumerate(mirrors):
        into = scratch / str(number)
        into.mkdir()
        found = sources.split(mirror, into)
        if not found:
            raise VerifyError(f"{mirror} is neither a directory nor a pack, nor has it lines of a journal")
        for writer, lines in sorted(found.items()):
            open_it = functools.partial(sources.of_mirror, mirror, writer, lines)
            copies.append(_Journal(writer, False, open_it, lossy=True))
    return copies


def _trust(given: Sequence[Key], found: Sequence[Key]) -> tuple[Trust | None, Keys]:
    if not given:
        trust = Trust(found)
        return (
            (trust, Keys(source="found", vkeys=trust.vkeys))
            if found
            else (None, Keys(source="none", vkeys=()))
        )
    vkeys = {key.vkey for key in given}
    trust = Trust([*given, *(key for key in found if key.vkey in vkeys)])
    return trust, Keys(source="given", vkeys=trust.vkeys)


def _ended(source: Source) -> dict[str, Claim]:
    """What the first line of a journal claims of others."""
    if not source.files or source.files[0].first_seq != 1:
        return {}
    name, _, blocks = source.files[0]
    try:
        line = chain.decode(chain.first_line(blocks))
    except (chain.NotALine, FileNotFoundError, ArchiveError):
        return {}  # whoever reads the journal will say so
    return verdict.ended_claims(line, Place(name, 1)) if isinstance(line, Start) else {}


def _inspect_all(
    found: Sequence[_Journal],
    trust: Trust | None,
    claims: Mapping[str, Sequence[Claim]],
    processes: int,
) -> list[Journal]:
    """Inspect each. Of several copies of one journal the longest is read again and held against the others."""
    copies: dict[str, list[tuple[_Journal, Journal]]] = {}
    here = {one.writer for one in found if not one.lossy}
    tasks = [
        functools.partial(_open_and_inspect, one.open, trust, claims.get(one.writer, ())) for one in found
    ]
    for one, inspected in zip(found, _done(tasks, processes), strict=True):
        copies.setdefault(one.writer, []).append((one, inspected))
    for writer, several in copies.items():
        if len(several) > 1:
            longest = max(several, key=lambda pair: pair[1].inspected.size)
            several.remove(longest)
            others = [verdict.copy_claim(one.inspected, one.path) for _, one in several]
            again = inspect(longest[0].open(), trust, [*claims.get(writer, ()), *others])
            several.insert(0, (longest[0], again))
    return [
        _witness(inspected) if one.lossy and writer in here else inspected
        for writer, several in copies.items()
        for one, inspected in several
    ]


def _done(tasks: Sequence[Callable[[], Journal]], processes: int) -> list[Journal]:
    """What these give, in their order."""
    if min(processes, len(tasks)) < 2:
        return [task() for task in tasks]
    # Begun anew, not forked: whoever calls may have threads.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(min(processes, len(tasks)), mp_context=context) as pool:
        return [future.result() for future in [pool.submit(task) for task in tasks]]


def _open_and_inspect(opened: Callable[[], Source], trust: Trust | None, claims: Sequence[Claim]) -> Journal:
    return inspect(opened(), trust, claims)


def _witness(copy: Journal) -> Journal:
    """A copy beside its journal is there to contradict it: what it lacks itself makes nothing incomplete."""
    findings = tuple(one for one in copy.inspected.findings if one.what.verdict is Verdict.TAMPERED)
    verdict = worst(one.what.verdict for one in findings)
    inspected = msgspec.structs.replace(copy.inspected, findings=findings, verdict=verdict)
    return msgspec.structs.replace(copy, inspected=inspected)


def inspect(source: Source, trust: Trust | None, claims: Sequence[Claim]) -> Journal:
    """Read one journal. Raises OSError, ArchiveUnavailable."""
    inspection = Inspection(source.writer, source.path, trust, claims, source.front, lossy=source.lossy)
    if source.front.size:
        says = f"seq 1 to {source.front.size} are in the archive alone, and it was not given, or has not all of them"
        inspection.find(What.FRONT_MISSING, Place(source.path), says)
    for file in source.files:
        try:
            inspection.read(file.name, file.first_seq, file.blocks)
        except ArchiveUnavailable:
            raise
        except ArchiveError as error:
            inspection.find(What.ARCHIVE_DIFFERS, Place(file.name), str(error))
        if file.damaged:
            inspection.find(What.SEAL_DAMAGED, Place(file.name), "by its checksum it is not what was sealed")
    if source.salvage.data is not None:
        _read_salvage(inspection, source, source.salvage.data)
    note = source.end_note.data
    inspected = inspection.finish(
        live=source.live,
        end_note=None if note is None else note.decode(errors="replace"),
        end_note_file=source.end_note.name,
        unclosed=source.unclosed,
    )
    return Journal(inspected=inspected, path=source.path)


def _read_salvage(inspection: Inspection, source: Source, data: bytes) -> None:
    inspection.read_salvage(source.salvage.name, data)
    if source.front.size:
        return  # the admissions that were open may be among the lines that are not here
    try:
        if salvage.is_end(data, chain.walk(source.segments())):
            return
    except ArchiveUnavailable:
        raise
    except ArchiveError:
        return  # that was found before
    says = "this is not what closing its directory makes"
    inspection.find(What.SALVAGE_DIFFERS, Place(source.salvage.name), says)
