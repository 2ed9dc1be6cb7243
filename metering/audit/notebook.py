"""What others say of a journal, held against what it is: signed notes, and claims kept elsewhere. Pure."""

import base64
from collections.abc import Iterable

import msgspec

from metering.audit import checkpoint
from metering.audit.checkpoint import NotANote, Note
from metering.audit.findings import Findings, Place, What
from metering.audit.trust import Trust, Unsigned


class Claim(msgspec.Struct, frozen=True):
    """Somebody says: the first `size` lines have this root.

    source: where that stands, for a person. by: the writer in whose `start` it stands; None: it is an anchor, which
    is kept elsewhere.
    """

    size: int
    root: bytes
    source: str
    by: str | None = None


class NoteBook:
    """The notes and claims of one journal. trust: None: there is no key, and signatures can't be looked at.

    front_size: lines that are not here; what claims say of no more than these can't be looked at.
    signed_size: so many lines are signed by a key that counts; stolen_size: by one that was stolen later.
    met: claims that were found to be true.
    """

    def __init__(
        self,
        writer: str,
        trust: Trust | None,
        claims: Iterable[Claim],
        findings: Findings,
        *,
        front_size: int,
    ) -> None:
        self.checkpoints = 0
        self.met: list[Claim] = []
        self.signed_size = 0
        self.stolen_size = 0
        self._writer = writer
        self._trust = trust
        self._findings = findings
        # The next one is the last. At the front's own size the frontier gives the root.
        self._claims = sorted(
            (claim for claim in claims if claim.size >= front_size), key=_size, reverse=True
        )

    @property
    def next_size(self) -> int:
        """The size at which the next claim is due; -1: there are no more."""
        return self._claims[-1].size if self._claims else -1

    def compare(self, size: int, root: bytes, place: Place) -> None:
        """The journal has this root at the size of the next claim. place: of its last line there."""
        while self.next_size == size:
            claim = self._claims.pop()
            if claim.root == root:
                self.met.append(claim)
            else:
                roots = f"their root is {_text(root)}, not {_text(claim.root)}"
                says = f"the first {size} lines are not those that {claim.source} proves: {roots}"
                self._findings.add(What.ROOT_DIFFERS, place, says)

    def end(self, size: int, place: Place) -> None:
        """The journal has no more lines than these."""
        for claim in reversed(self._claims):
            says = f"there are {size} lines, and {claim.source} proves {claim.size}"
            self._findings.add(What.TOO_FEW_LINES, place, says)
        self._claims.clear()

    def check(self, text: str, size: int, root: bytes, place: Place) -> None:
        """A note that stands at this place, and must sign so many lines with this root."""
        self.checkpoints += 1
        try:
            note = checkpoint.parse(text)
        except NotANote as error:
            self._findings.add(What.NOTE_UNREADABLE, place, f"the note can't be read: {error}")
            return
        if self._is_true(note, size, root, place):
            self._check_signature(note, place)

    def check_behind(self, text: str, size: int, place: Place) -> None:
        """A note behind the place where the chain ends, after so many lines: what it signs was there once."""
        try:
            note = checkpoint.parse(text)
        except NotANote:
            return
        trusted = self._trust is not None and not isinstance(self._trust.judge(note), Unsigned)
        if trusted and note.head.writer == self._writer and note.head.size > size:
            says = f"the chain ends after {size} lines, and a signed note behind that proves {note.head.size}"
            self._findings.add(What.TOO_FEW_LINES, place, says)

    def _is_true(self, note: Note, size: int, root: bytes, place: Place) -> bool:
        head = note.head
        if head.writer != self._writer:
            what, says = What.WRONG_WRITER, f"the note is of another writer, {head.writer}"
        elif head.size > size:
            what, says = What.TOO_FEW_LINES, f"the note signs {head.size} lines, and there are {size}"
        elif head.size < size:
            what, says = What.SIZE_DIFFERS, f"the note signs {head.size} lines, and {size} stand before it"
        elif head.root != root:
            what, says = (
                What.ROOT_DIFFERS,
                f"the note signs the root {_text(head.root)}; that of the lines is {_text(root)}",
            )
        else:
            return True
        self._findings.add(what, place, says)
        return False

    def _check_signature(self, note: Note, place: Place) -> None:
        if self._trust is None:
            return
        judged = self._trust.judge(note)
        if isinstance(judged, Unsigned):
            self._findings.add(What.NOT_SIGNED, place, f"the note does not count: {judged.reason}")
        elif judged.stolen:
            self.stolen_size = max(self.stolen_size, note.head.size)
        else:
            self.signed_size = max(self.signed_size, note.head.size)


def _size(claim: Claim) -> int:
    return claim.size


def _text(root: bytes) -> str:
    return base64.b64encode(root).decode()
