"""The archive that a configuration names, and what is looked for in it or, without one, in the state directory."""

import contextlib
import pathlib
import tempfile
from collections.abc import Iterator

import msgspec

from gateway.configuration.config import Journal
from metering.archive.archive import JOURNAL, Archive
from metering.archive.objects import (
    ArchiveError,
    BucketObjects,
    LocalObjects,
    Objects,
    bucket_of,
    open_objects,
)
from metering.archive.recall import recall
from metering.audit import audit
from metering.audit import prove as proving
from metering.audit.audit import Found, NotFound
from metering.audit.proof import Proof
from metering.audit.trust import Trust
from metering.journal.journal import WRITER_PATTERN, directories
from metering.journal.readable import Readable


def archive_of(journal: Journal) -> Archive | None:
    """None: it names none. Connects to nothing yet."""
    if journal.archive is None:
        return None
    endpoint, region = journal.archive_endpoint, journal.archive_region
    objects, lock = open_objects(journal.archive, endpoint=endpoint, region=region), journal.archive_lock
    if lock is None or not isinstance(objects, BucketObjects):
        return Archive(objects)
    from metering.archive import locked, s3

    bucket = s3.Bucket(*bucket_of(journal.archive), endpoint, region)
    return Archive(locked.LockedObjects(objects, bucket, locked.Lock(lock.mode, lock.days, lock.what)))


def objects_of(state_dir: pathlib.Path, journal: Journal) -> Objects:
    """Where imported prices and closed hours are: in the archive, else in the state directory. Connects to nothing."""
    archive = archive_of(journal)
    return LocalObjects(state_dir) if archive is None else archive.objects


def all_journals(journals: pathlib.Path, journal: Journal) -> Iterator[Readable]:
    """Every journal to be read, those on this disk with what the archive alone has of them, then those it alone has.

    Raises ArchiveError: it can't be read, or there is one that is not named.
    """
    archive = archive_of(journal)
    here = directories(journals)
    if archive is not None:
        return archive.all(here)
    if trimmed := [one for one in here if one.starts_after]:
        lacking = ", ".join(f"{one.writer} up to seq {one.starts_after}" for one in trimmed)
        raise ArchiveError(f"lines are in the archive alone ({lacking}): name journal.archive, with -c")
    return iter(here)


def find(journals: pathlib.Path, journal: Journal, call_id: str) -> Found:
    """The call of this id: of the journals on this disk, or else of the archive; its file is then below that.

    Raises NotFound, ArchiveError, OSError.
    """
    try:
        return audit.find(journals, call_id)
    except NotFound as error:
        with recalled(journal, call_id) as root:
            if root is None:
                raise
            not_here = error
            try:
                found = audit.find(root, call_id)
            except NotFound:
                raise NotFound(f"{not_here}; nor is it in the archive, {journal.archive}") from None
            return msgspec.structs.replace(found, file=pathlib.Path(JOURNAL, found.writer, found.file.name))


def prove(journals: pathlib.Path, journal: Journal, call_id: str, trust: Trust) -> Proof:
    """The proof of this call: from the journals on this disk, or else from the archive's.

    A proof needs the journal from its first line on, so all of it is fetched for as long as that takes.
    Raises NotFound, NotProven, ArchiveError, OSError.
    """
    try:
        return proving.prove(journals, call_id, trust)
    except NotFound as error:
        writer = call_id.rpartition("-")[0]
        archive = archive_of(journal)
        if archive is None or not WRITER_PATTERN.fullmatch(writer) or not archive.first_seqs(writer):
            raise
        not_here = error
    with tempfile.TemporaryDirectory(prefix="weighbridge-") as name:
        root = pathlib.Path(name)
        archive.fetch_directory(writer, root)
        try:
            return proving.prove(root, call_id, trust)
        except NotFound:
            raise NotFound(f"{not_here}; nor is it in the archive, {journal.archive}") from None


@contextlib.contextmanager
def recalled(journal: Journal, call_id: str) -> Iterator[pathlib.Path | None]:
    """A journals' root, for as long as the block runs, with what the archive has of this call's journal around it.

    None: no archive is named, or it has nothing of this writer. Raises ArchiveError, OSError.
    """
    archive = archive_of(journal)
    if archive is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="weighbridge-") as name:
        root = pathlib.Path(name)
        yield None if recall(archive, call_id, root) is None else root
