"""Anchors in a bucket that keeps versions: what was overwritten or hidden there is still had, and named.

    anchors/<writer>/<size>.note    version 1: the note ─┬─ another version behind it   anchor_replaced
                                                         └─ a delete marker             anchor_hidden

A gateway puts each anchor once. Every version is read; whichever is a note counts as an anchor, so that one who
overwrites an anchor has the journal held against both.
"""

import itertools
import operator
from typing import NamedTuple

from metering.archive.s3 import Bucket, Version
from metering.audit import verify
from metering.audit.anchors import ANCHORS
from metering.audit.findings import Finding, What
from metering.audit.verdict import Anchor
from metering.audit.verify import VerifyError


class Read(NamedTuple):
    """Anchors, and what was found wrong where they are."""

    anchors: list[Anchor]
    findings: list[Finding]


def read(bucket: Bucket) -> Read:
    """All anchors of a bucket, by all their versions. Raises ArchiveError."""
    found = Read([], [])
    listed = sorted(bucket.versions(ANCHORS), key=operator.attrgetter("path"))  # stable: the newest first
    for path, versions in itertools.groupby(listed, key=operator.attrgetter("path")):
        _read(bucket, path, list(versions), found)
    return found


def _read(bucket: Bucket, path: str, versions: list[Version], found: Read) -> None:
    source = f"{bucket}/{path}"
    notes: dict[bytes, str] = {}  # the oldest first; those that are the same count once
    for one in reversed(versions):
        if not one.marker:
            notes.setdefault(bucket.get_version(one), f"{source}?versionId={one.id}")
    wrong = []
    for data, place in notes.items():
        try:
            found.anchors.append(verify.anchor(data, source if len(notes) == 1 else place))
        except VerifyError as error:
            wrong.append(str(error))
    writer = path.removeprefix(ANCHORS).partition("/")[0]
    if len(notes) > 1:
        says = f"it was overwritten: {len(notes)} versions say different things; all are held against the journal"
        found.findings.append(_finding(What.ANCHOR_REPLACED, source, "; ".join([says, *wrong]), writer))
    elif wrong:
        found.findings.append(_finding(What.NOTE_UNREADABLE, source, wrong[0], writer))
    if any(one.marker and one.latest for one in versions):
        says = "it was deleted: a marker hides it, and no event says that its journal was"
        found.findings.append(_finding(What.ANCHOR_HIDDEN, source, says, writer))


def _finding(what: What, file: str, says: str, writer: str) -> Finding:
    return Finding(file=file, line=0, says=says, what=what, writer=writer)
