"""The archive that a configuration names, and what is looked for in it."""

import contextlib
import pathlib
import tempfile
from collections.abc import Iterator

import msgspec

from gateway.config import Journal
from metering import audit
from metering.archive import JOURNAL, Archive
from metering.audit import Found, NotFound
from metering.objects import open_objects
from metering.recall import recall


def archive_of(journal: Journal) -> Archive | None:
    """None: it names none. Connects to nothing yet."""
    if journal.archive is None:
        return None
    endpoint, region = journal.archive_endpoint, journal.archive_region
    return Archive(open_objects(journal.archive, endpoint=endpoint, region=region))


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
