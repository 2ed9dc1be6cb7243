"""`audit pack`: what an auditor takes along of a month, in one signed tar; and the check of such a tar.

    MANIFEST.json               every other file with its length and SHA-256
    MANIFEST.note               signs it: a signed note (metering/audit/checkpoint.py) with the origin
                                weighbridge/pack/<month>; its size is MANIFEST.json's length, its root the SHA-256
    verify.json, verify.txt     the verification of all journals, when the pack was made
    inventory.jsonl             every file of every journal, here and in the archive: name, length, SHA-256
    keys.json                   the keys beside the journals
    checkpoints/<writer>.note   the newest note of each journal
    events/<topic>.jsonl        the month's event lines (configuration, prices, exports, …), as in `audit export`
    ledger.csv                  the month's rows, from these journals
    closes.jsonl                what each revision of each closed hour of the month says of itself, with the digest of
                                its rows (metering/cost/close_manifest.py); months.jsonl: what was said of the month

Whoever has the pack and trusts the key needs nothing else to see that no file of it was changed since.
"""

import hashlib
import io
import pathlib
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from metering.archive.archive import Archive
from metering.audit import checkpoint
from metering.audit.checkpoint import Head, NotANote, Signer
from metering.audit.findings import Finding, Place, What
from metering.audit.line_export import placed
from metering.audit.trust import Trust, Unsigned
from metering.audit.verdict import PackSays
from metering.journal.journal import LOCK, Directory
from metering.journal.readable import Readable
from metering.record import DirectoryChange, Event, Line
from metering.units import NS_PER_HOUR

MANIFEST, NOTE, KEYS = "MANIFEST.json", "MANIFEST.note", "keys.json"
_BLOCK_BYTES = 1 << 20
_TOPIC_PATTERN = re.compile(r"[a-z_]+")  # it becomes a file's name
_UNKEPT = {LOCK, "ballast"}


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A file: its length, and the SHA-256 of its bytes in hex."""

    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """MANIFEST.json. month: as in 2026-11; verdict: of verify.json."""

    files: Mapping[str, Entry]
    month: str
    v: int = 1
    verdict: str


def made(members: Mapping[str, bytes], *, month: str, verdict: str, signer: Signer, at_ns: int) -> bytes:
    """The tar of these members, with its manifest, signed. The same members give the same bytes but for the time."""
    entries = {name: _entry(data) for name, data in sorted(members.items())}
    manifest = (
        msgspec.json.encode(Manifest(files=entries, month=month, verdict=verdict), order="sorted") + b"\n"
    )
    note = signer.sign(Head(_origin(month), len(manifest), hashlib.sha256(manifest).digest(), at_ns))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in ((MANIFEST, manifest), (NOTE, note.encode()), *sorted(members.items())):
            about = tarfile.TarInfo(name)
            about.size = len(data)
            tar.addfile(about, io.BytesIO(data))
    return out.getvalue()


def inventory(directories: Iterable[Directory]) -> Iterator[bytes]:
    """A line for each file of these journals, in the order of names. Raises OSError."""
    for directory in sorted(directories, key=lambda one: one.writer):
        for path in sorted(directory.path.iterdir()):
            if path.name in _UNKEPT or path.name.startswith(".") or not path.is_file():
                continue
            digest, length = hashlib.sha256(), 0
            with path.open("rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    digest.update(block)
                    length += len(block)
            told = {"bytes": length, "name": f"{directory.writer}/{path.name}", "sha256": digest.hexdigest()}
            yield msgspec.json.encode(told) + b"\n"


def archived_inventory(archive: Archive | None) -> Iterator[bytes]:
    """The same of what the archive has, by its manifests; names begin with `archive/`. Raises ArchiveError."""
    for directory in archive.directories() if archive else ():
        for one in (*(manifest.segment for manifest in directory.manifests), *directory.beside):
            told = {"bytes": one.bytes, "name": f"archive/{one.path}", "sha256": one.sha256}
            yield msgspec.json.encode(told) + b"\n"


def events(directories: Iterable[Readable], hours: range) -> dict[str, bytes]:
    """The event lines of these hours by topic, and the changes of the directory as one, in the order of writers and
    seq. Raises OSError."""
    found: dict[str, list[bytes]] = {}
    for directory in sorted(directories, key=lambda one: one.writer):
        for chained in directory.chained():
            if chained.at_ns // NS_PER_HOUR in hours and (topic := _topic(chained.line)) is not None:
                found.setdefault(topic, []).append(placed(directory.writer, chained))
    return {topic: b"".join(lines) for topic, lines in sorted(found.items())}


def _topic(line: Line | None) -> str | None:
    """The file of a pack that a line goes into; None: into none."""
    match line:
        case DirectoryChange():
            return line.kind
        case Event():
            return line.topic if _TOPIC_PATTERN.fullmatch(line.topic) else "other"
    return None


class Pack:
    """A pack as it was read. Raises NotAPack."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self.members: dict[str, bytes] = {}
        try:
            with tarfile.open(path, "r:") as tar:
                for about in tar:
                    file = tar.extractfile(about)
                    if file is None or about.name in self.members:
                        raise NotAPack(f"{path} is no pack: {about.name} is no file, or is there twice")
                    self.members[about.name] = file.read()
        except tarfile.TarError:
            raise NotAPack(f"{path} is neither a directory nor a pack") from None
        if not {MANIFEST, NOTE} <= self.members.keys():
            raise NotAPack(f"{path} is no pack: it has no {MANIFEST} or no {NOTE}")

    def check(self, trust: Trust | None) -> list[Finding]:
        """What is wrong with it: its note, its manifest, its files. trust: None: there are no keys."""
        findings = self._check_note(trust)
        try:
            manifest = self._manifest()
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return [*findings, self._finding(What.PACK_DIFFERS, MANIFEST, f"it can't be read: {error}")]
        there = {name: _entry(data) for name, data in self.members.items() if name not in (MANIFEST, NOTE)}
        for name in sorted(there.keys() | manifest.files.keys()):
            if there.get(name) != manifest.files.get(name):
                says = "it is not the file that the manifest names" if name in there else "it is not here"
                findings.append(self._finding(What.PACK_DIFFERS, name, says))
        return findings

    def says(self) -> PackSays | None:
        """What it says of itself; None: its manifest can't be read."""
        try:
            found = self._manifest()
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return PackSays(
            files=len(found.files), month=found.month, path=str(self._path), verdict=found.verdict
        )

    def _manifest(self) -> Manifest:
        return msgspec.json.decode(self.members[MANIFEST], type=Manifest)

    def _check_note(self, trust: Trust | None) -> list[Finding]:
        manifest = self.members[MANIFEST]
        try:
            note = checkpoint.parse(self.members[NOTE].decode())
        except (NotANote, UnicodeDecodeError) as error:
            return [self._finding(What.NOTE_UNREADABLE, NOTE, f"the note can't be read: {error}")]
        findings = []
        if (note.head.size, note.head.root) != (len(manifest), hashlib.sha256(manifest).digest()):
            findings.append(
                self._finding(What.PACK_DIFFERS, MANIFEST, "it is not the one that the note signs")
            )
        if not note.head.writer.startswith(_origin("")):
            findings.append(
                self._finding(What.WRONG_WRITER, NOTE, f"the note is of {note.head.writer}, of no pack")
            )
        judged = trust.judge(note) if trust else None
        if isinstance(judged, Unsigned):
            findings.append(self._finding(What.NOT_SIGNED, NOTE, f"the note does not count: {judged.reason}"))
        if trust is None:
            findings.append(self._finding(What.NO_KEYS, NOTE, "there is no key to verify it with (--key)"))
        return findings

    def _finding(self, what: What, name: str, says: str) -> Finding:
        place = Place(f"{self._path}/{name}")
        return Finding(file=place.file, line=place.line, says=says, what=what)


class NotAPack(ValueError):
    """This is no pack; the message says why."""


def _origin(month: str) -> str:
    return f"pack/{month}"


def _entry(data: bytes) -> Entry:
    return Entry(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
