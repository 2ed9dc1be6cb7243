"""Content that leaves this disk: for the archive once its file is final, and for good when it is old or to be erased.

    a file, final ─▶ put into the archive ─▶ read back, the same ─▶ deleted here
    older than its tenant's days, or its tenant is to be forgotten ─▶ told by an `event` ─▶ deleted, here and there

What is deleted is told first: content that is gone, and nobody said so, looks as if somebody had taken it away.
"""

import contextlib
from collections.abc import Callable, Iterable

from metering.archive.objects import AlreadyThere, ArchiveError, Objects
from metering.capture.shelf import DIRECTORY, FINAL_NS, Shelf, Shelved, shelved
from metering.files import sync_directory


def archive(shelf: Shelf, objects: Objects, one: Shelved) -> None:
    """Put a final file into the archive, and delete it here. Raises ArchiveError, OSError; again is harmless."""
    path = f"{DIRECTORY}/{one.below}"
    data = shelf.path(one).read_bytes()
    with contextlib.suppress(AlreadyThere):
        objects.put_new(path, data)
    if objects.get(path) != data:
        raise ArchiveError(f"{path} is in the archive with other bytes; they were left as they are")
    shelf.path(one).unlink()
    sync_directory(shelf.path(one).parent)


def archived(objects: Objects, tenant: str | None = None) -> list[Shelved]:
    """Files of the archive, by tenant and hour; of one tenant, or of all. Raises ArchiveError."""
    prefix = f"{DIRECTORY}/" if tenant is None else f"{DIRECTORY}/{tenant}/"
    found = []
    for listed in objects.list(prefix):
        _, _, rest = listed.path.partition("/")
        owner, _, name = rest.partition("/")
        if (one := shelved(owner, name)) is not None:
            found.append(one)
    return found


def old(files: Iterable[Shelved], older_than_ns: Callable[[str], int]) -> dict[str, list[Shelved]]:
    """Of these files those whose every record is older than `older_than_ns` of its tenant, by tenant."""
    found: dict[str, list[Shelved]] = {}
    for one in files:
        if one.until_ns + FINAL_NS < older_than_ns(one.tenant):
            found.setdefault(one.tenant, []).append(one)
    return found


def delete_local(shelf: Shelf, files: Iterable[Shelved]) -> None:
    """Delete these here, durably. Raises OSError."""
    directories = set()
    for one in files:
        path = shelf.path(one)
        path.unlink(missing_ok=True)
        directories.add(path.parent)
    for directory in directories:
        sync_directory(directory)


def delete_archived(objects: Objects, files: Iterable[Shelved]) -> None:
    """Delete these in the archive. Raises ArchiveError."""
    for one in files:
        objects.delete(f"{DIRECTORY}/{one.below}")
