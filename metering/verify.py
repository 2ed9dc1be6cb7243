"""`audit verify`: what is at the given places, read, and held against what else is known of it.

    DIR…       a state directory, its journal/, or one writer's directory ─▶ the journals
               a pack (metering/pack.py)                                  ─▶ its signature and its files
    --key      vkeys, else keys.json of the state directories             ─▶ which signatures count
    --anchor   notes that were kept elsewhere                             ─▶ claims on the journals

Nothing is written, and no gateway need run. Of a live writer what stood there when it was looked at is verified. The
rules are pure: metering/inspection.py for one journal, metering/verdict.py for all of them.
"""

import fcntl
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from metering import chain, checkpoint, keys, salvage, segments, verdict
from metering.checkpoint import NotANote
from metering.endnotes import END_NOTE
from metering.findings import Place, What
from metering.inspection import NO_FRONT, Front, Inspection
from metering.journal import LOCK, SALVAGE, WRITER_PATTERN, Directory, directories
from metering.keyring import Key
from metering.notebook import Claim
from metering.pack import KEYS, NotAPack, Pack
from metering.record import Start
from metering.trust import Trust, parse_keys
from metering.verdict import Anchor, Journal, Keys, Named, Report

_JOURNAL = "journal"
_KEYS = pathlib.Path(keys.DIRECTORY) / keys.KEYS
_NOTE_SUFFIX = ".note"


class VerifyError(Exception):
    """There is nothing that could be verified, or what was given can't be read; the message says which and why."""


class Places(NamedTuple):
    """The journals, and the packs of them, that were found.

    whole: of those, the paths that lie in a directory of journals that was given: what they name must be there.
    keys: of the state directories and packs.
    """

    directories: list[Directory]
    whole: set[pathlib.Path]
    keys: list[Key]
    packs: list[Pack]


def find(paths: Sequence[pathlib.Path]) -> Places:
    """What is at these paths. Raises VerifyError, OSError."""
    places = Places([], set(), [], [])
    for path in paths:
        if path.is_file():
            _add_pack(places, path)
            continue
        root = path / _JOURNAL if (path / _JOURNAL).is_dir() else path
        if not root.is_dir():
            raise VerifyError(f"there is no {path}")
        if found := directories(root):
            places.directories.extend(found)
            places.whole.update(directory.path for directory in found)
            state_dir = root.parent
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
    """Notes from a file, or from all files `*.note` below a directory. Raises VerifyError, OSError."""
    files = sorted(path.rglob(f"*{_NOTE_SUFFIX}")) if path.is_dir() else [path]
    if not files:
        raise VerifyError(f"there is no anchor (*{_NOTE_SUFFIX}) in {path}")
    return [anchor(file.read_bytes(), str(file)) for file in files]


def anchor(note: bytes, source: str) -> Anchor:
    """One anchor. Raises VerifyError."""
    try:
        return Anchor(checkpoint.parse(note.decode()), source)
    except (NotANote, UnicodeDecodeError) as error:
        raise VerifyError(f"{source} is no anchor: {error}") from None


def verify(places: Places, given_keys: Sequence[Key], anchors: Sequence[Anchor]) -> Report:
    """Verify journals.

    given_keys: if there are any, no other key counts, and of these the dates that were found count as well.
    Anchors must have been read before `places` were found, or what a live writer has written since is missed.
    Raises VerifyError, OSError.
    """
    trust, keys = _trust(given_keys, places.keys)
    claims, findings = verdict.anchor_claims(anchors, trust)
    findings += [finding for pack in places.packs for finding in pack.check(trust)]
    named = [Named(one.note.head.writer, Place(one.source)) for one in anchors if places.whole]
    for directory in places.directories:
        for writer, claim in _ended(directory).items():
            claims.setdefault(writer, []).append(claim)
            if directory.path in places.whole:
                named.append(Named(writer, Place(str(directory.file_of(1)), 1)))
    journals = _inspect_all(places.directories, trust, claims)
    return verdict.conclude(journals, named=named, anchors=len(anchors), findings=findings, keys=keys)


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


def _ended(directory: Directory) -> dict[str, Claim]:
    """What the first line of a directory claims of others."""
    file = directory.file_of(1)
    try:
        line = chain.decode(chain.first_line(segments.Blocks(file)))
    except (chain.NotALine, FileNotFoundError):
        return {}  # whoever reads the directory will say so
    return verdict.ended_claims(line, Place(str(file), 1)) if isinstance(line, Start) else {}


def _inspect_all(
    found: Sequence[Directory], trust: Trust | None, claims: Mapping[str, Sequence[Claim]]
) -> list[Journal]:
    """Inspect each. Of several copies of one journal the longest is read again and held against the others."""
    copies: dict[str, list[Journal]] = {}
    for directory in found:
        journal = inspect(directory, trust, claims.get(directory.writer, ()))
        copies.setdefault(directory.writer, []).append(journal)
    for writer, journals in copies.items():
        if len(journals) > 1:
            longest = max(journals, key=lambda journal: journal.inspected.size)
            journals.remove(longest)
            others = [verdict.copy_claim(one.inspected, one.path) for one in journals]
            directory = Directory(pathlib.Path(longest.path))
            journals.insert(0, inspect(directory, trust, [*claims.get(writer, ()), *others]))
    return [journal for journals in copies.values() for journal in journals]


def inspect(directory: Directory, trust: Trust | None, claims: Sequence[Claim]) -> Journal:
    """Read one writer's directory. Raises OSError."""
    # In this order: what a writer that ends meanwhile adds is then behind what we ask for, never before it.
    live = _is_live(directory.path)
    end_note = _read(directory.path / END_NOTE)
    salvaged = _read(directory.path / SALVAGE)
    front = front_of(directory)
    inspection = Inspection(directory.writer, str(directory.path), trust, claims, front)
    if front.size:
        says = f"seq 1 to {front.size} are in the archive alone, and it was not given"
        inspection.find(What.FRONT_MISSING, Place(str(directory.path / segments.ARCHIVED)), says)
    for first_seq, path in directory.segment_paths():
        if first_seq > front.size:
            blocks = segments.Blocks(path)
            inspection.read(str(path), first_seq, blocks)
            if blocks.damaged:
                inspection.find(
                    What.SEAL_DAMAGED, Place(str(path)), "by its checksum it is not what was sealed"
                )
    if salvaged is not None:
        file = str(directory.path / SALVAGE)
        inspection.read_salvage(file, salvaged)
        # Of a trimmed directory the admissions that were open may be in the archive.
        if not front.size and not salvage.is_end(salvaged, chain.walk(directory.segments())):
            says = "this is not what closing its directory makes"
            inspection.find(What.SALVAGE_DIFFERS, Place(file), says)
    note = None if end_note is None else end_note.decode(errors="replace")
    inspected = inspection.finish(live=live, end_note=note, end_note_file=str(directory.path / END_NOTE))
    return Journal(inspected=inspected, path=str(directory.path))


def front_of(directory: Directory) -> Front:
    """What is in the archive alone."""
    archived = segments.read_archived(directory.path)
    if archived is None or len(archived.frontier) != archived.last_seq.bit_count():
        return NO_FRONT  # one that says nothing explains no missing lines
    try:
        frontier = tuple(bytes.fromhex(node) for node in archived.frontier)
    except ValueError:
        return NO_FRONT
    return Front(archived.last_seq, archived.leaf, frontier)


def _is_live(path: pathlib.Path) -> bool:
    """Does a writer hold the lock? Asked for a moment with a shared lock, on a file opened for reading only."""
    try:
        fd = os.open(path / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return False  # a copy without it
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _read(path: pathlib.Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
