"""What many inspected journals, and what was said of them elsewhere, come to. Pure.

    start.ended of later journals ─┐
    anchors, kept elsewhere ───────┼─▶ claims on a writer ─▶ held against its journal (metering/audit/notebook.py)
    copies of the same journal ────┘                     └─▶ no such journal here: missing

A journal that is dropped whole leaves no broken chain. It is missed because something names it.
"""

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from metering.audit.checkpoint import Note
from metering.audit.findings import Finding, Place, Verdict, What, worst
from metering.audit.inspection import Inspected
from metering.audit.notebook import Claim
from metering.audit.trust import Trust, Unsigned
from metering.record import Start


class Anchor(NamedTuple):
    """A note that was kept elsewhere. source: where."""

    note: Note
    source: str


class Named(NamedTuple):
    """A writer that something names, and where that stands."""

    writer: str
    place: Place


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """An inspected journal. path: its directory."""

    inspected: Inspected
    path: str


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """Whose signatures counted. source: given by whoever verifies; found beside the journals; none.

    followed_by: keys that did not count, and that lines signed by those that did name as their successors.
    """

    source: Literal["given", "found", "none"]
    vkeys: tuple[str, ...]
    followed_by: tuple[str, ...] = ()


class PackSays(msgspec.Struct, frozen=True, kw_only=True):
    """What a month's pack says of itself. files: of its manifest; verdict: on the journals when it was made."""

    files: int
    month: str
    path: str
    verdict: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a verification. findings: those that belong to no journal that is here.

    anchors, anchors_met: how many there were, and how many a journal was found to agree with.
    """

    anchors: int
    anchors_met: int
    findings: tuple[Finding, ...]
    journals: tuple[Journal, ...]
    keys: Keys
    packs: tuple[PackSays, ...]
    verdict: Verdict


def anchor_claims(
    anchors: Iterable[Anchor], trust: Trust | None
) -> tuple[dict[str, list[Claim]], list[Finding]]:
    """What anchors claim, by writer; those that no trusted key has signed are findings instead.

    trust: None: there are no keys, and what the anchors say is taken as it is.
    """
    claims: dict[str, list[Claim]] = {}
    findings: list[Finding] = []
    for note, source in anchors:
        judged = trust.judge(note) if trust else None
        if isinstance(judged, Unsigned):
            says = f"the anchor of {note.head.writer} does not count: {judged.reason}"
            findings.append(_finding(What.NOT_SIGNED, Place(source), says, note.head.writer))
        else:
            claim = Claim(note.head.size, note.head.root, f"the anchor {source}")
            claims.setdefault(note.head.writer, []).append(claim)
    return claims, findings


def ended_claims(start: Start, place: Place) -> dict[str, Claim]:
    """What a start line says of journals that had ended before, by writer. place: of this line."""
    claims = {}
    for ended in start.ended:
        try:
            root = base64.b64decode(ended.root, validate=True)
        except binascii.Error:
            root = b""  # no root of anything: it differs from all of them
        claims[ended.writer] = Claim(ended.size, root, f"the start line {place}", start.writer)
    return claims


def copy_claim(inspected: Inspected, path: str) -> Claim:
    """What one copy of a journal says of another."""
    return Claim(inspected.size, inspected.root, f"the copy {path}", inspected.writer)


def conclude(
    journals: Sequence[Journal],
    *,
    named: Iterable[Named],
    anchors: int,
    findings: Iterable[Finding],
    keys: Keys,
    packs: Iterable[PackSays] = (),
) -> Report:
    """The verdict on all of them.

    named: writers whose journals should be here. anchors: how many there were. findings: from before.
    """
    here = {journal.inspected.writer for journal in journals}
    retired = {writer for journal in journals for writer in journal.inspected.retired}
    # A journal that was deleted by its age may have had its anchors hidden with it.
    kept = [one for one in findings if one.what is not What.ANCHOR_HIDDEN or one.writer not in retired]
    found = [*kept, *_missing(named, here | retired), *_stolen(journals)]
    if keys.source == "none" and any(journal.inspected.checkpoints for journal in journals):
        says = (
            "there are signed notes and no key to verify them with (--key, or keys.json beside the journals)"
        )
        found.append(_finding(What.NO_KEYS, Place(journals[0].path), says, None))
    verdicts = [journal.inspected.verdict for journal in journals] + [one.what.verdict for one in found]
    met = {claim.source for journal in journals for claim in journal.inspected.met if claim.by is None}
    return Report(
        anchors=anchors,
        anchors_met=len(met),
        findings=tuple(found),
        journals=tuple(journals),
        keys=msgspec.structs.replace(keys, followed_by=_followed_by(journals, keys)),
        packs=tuple(packs),
        verdict=worst(verdicts),
    )


def _followed_by(journals: Iterable[Journal], keys: Keys) -> tuple[str, ...]:
    named = dict.fromkeys(vkey for journal in journals for vkey in journal.inspected.named_keys)
    return tuple(vkey for vkey in named if vkey not in keys.vkeys)


def _missing(named: Iterable[Named], known: set[str]) -> list[Finding]:
    missing: dict[str, Place] = {}
    for writer, place in named:
        if writer not in known:
            missing.setdefault(writer, place)
    return [
        _finding(
            What.DIRECTORY_MISSING, place, f"it names the journal of {writer}, which is not here", writer
        )
        for writer, place in sorted(missing.items())
    ]


def _stolen(journals: Sequence[Journal]) -> list[Finding]:
    """Lines for which only a key that was stolen later speaks: the thief may have signed them with an old time.

    What counts for them is another key's signature, an anchor, or the start line of a journal for which one of
    these counts.
    """
    safe = {one.inspected.writer: _safe_size(one.inspected) for one in journals}
    grown = True
    while grown:
        grown = False
        for journal in journals:
            writer = journal.inspected.writer
            for claim in journal.inspected.met:
                if (
                    claim.by is not None
                    and claim.by != writer
                    and safe.get(claim.by)
                    and claim.size > safe[writer]
                ):
                    safe[writer], grown = claim.size, True
    return [
        _finding(
            What.STOLEN_KEY,
            Place(journal.path),
            f"seq {safe[journal.inspected.writer] + 1} to {journal.inspected.stolen_size} are signed by a key that "
            "was stolen later, and nothing else: no anchor shows that this was before",
            journal.inspected.writer,
        )
        for journal in journals
        if journal.inspected.stolen_size > safe[journal.inspected.writer]
    ]


def _safe_size(inspected: Inspected) -> int:
    anchored = (claim.size for claim in inspected.met if claim.by is None)
    return max(inspected.signed_size, *anchored, 0)


def _finding(what: What, place: Place, says: str, writer: str | None) -> Finding:
    return Finding(file=place.file, line=place.line, says=says, what=what, writer=writer)
