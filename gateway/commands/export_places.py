"""Where an export goes: a file or directory here, an S3-compatible bucket, or stdout.

What is put is whole: a file gets its name once all of it is on disk, an object once all of it is there, and is never
overwritten.
"""

import contextlib
import glob
import os
import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Protocol

from gateway.commands import outfile
from gateway.configuration.config import Journal
from metering import files
from metering.archive.objects import AlreadyThere, Objects, open_objects
from metering.export.export_manifest import MANIFEST_SUFFIX

STDOUT = "-"
_S3 = "s3://"
_COPY_BYTES = 1 << 20
_LEFTOVER_S = 3_600.0
"""An export that was not written to for so long is of a process that was killed: the largest take minutes."""


class ExportPlace(Protocol):
    """Takes what was made. text: of the place, for the journal and the manifest's reader."""

    text: str
    takes_directories: bool

    def scratch(self) -> contextlib.AbstractContextManager[pathlib.Path]:
        """A directory to make the export in, for as long as the block runs. Raises OSError."""

    def settle(self, made: pathlib.Path) -> None:
        """See to it that what was made can be put: before it is said that it is there. Raises OSError, ArchiveError."""

    def put(self, made: pathlib.Path) -> None:
        """Put what was made there. Raises OSError, ArchiveError."""

    def put_manifest(self, data: bytes) -> None:
        """Put its manifest beside it, last of all. Raises OSError, ArchiveError."""


def place_of(out: str | None, name: str, journal: Journal, *, is_directory: bool = False) -> ExportPlace:
    """out: a file; a directory (there, or made: it ends with `/`) or s3://bucket/prefix/ for a file called `name`.

    is_directory: what is put is one itself, and never goes into another that is there unasked for.
    journal: says which storage is meant by s3://. None and `-` are stdout. Raises ArchiveError.
    """
    if out is None or out == STDOUT:
        return Stdout()
    if out.startswith(_S3):
        prefix, _, last = out.rpartition("/") if "/" in out.removeprefix(_S3) else (out, "", "")
        objects = open_objects(prefix, endpoint=journal.archive_endpoint, region=journal.archive_region)
        return Bucket(objects, prefix, last or name)
    path = pathlib.Path(out)
    if out.endswith("/"):
        return Local(path / name, makes_parent=True)
    return Local(path / name if path.is_dir() and not is_directory else path)


class Local:
    """A file or a directory on this disk. A file that is there is replaced, a directory is not.

    makes_parent: the directory that it goes into is made, if it is not there.
    """

    takes_directories = True

    def __init__(self, path: pathlib.Path, *, makes_parent: bool = False) -> None:
        self._path = path
        self._makes_parent = makes_parent
        self.text = str(path.absolute())

    @contextlib.contextmanager
    def scratch(self) -> Iterator[pathlib.Path]:
        """As ExportPlace.scratch: beside the place, so that putting is renaming. What a killed one left is deleted."""
        for leftover in self._path.parent.glob(f".{glob.escape(self._path.name)}.*.part"):
            if leftover.is_dir() and time.time() - leftover.stat().st_mtime > _LEFTOVER_S:
                shutil.rmtree(leftover, ignore_errors=True)
        root = files.part_of(self._path)
        try:
            if self._makes_parent:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            root.mkdir()
        except OSError as error:
            error.filename = str(self._path)
            raise
        try:
            yield root
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def settle(self, made: pathlib.Path) -> None:
        """As ExportPlace.settle: it is durable then."""
        if made.is_dir() and self._path.exists():
            raise FileExistsError(0, "it is there already; name a directory that is not", str(self._path))
        for file in [made] if made.is_file() else sorted(made.rglob("*")):
            if file.is_file():
                _sync(file)

    def put(self, made: pathlib.Path) -> None:
        """As ExportPlace.put."""
        made.replace(self._path)
        files.sync_directory(self._path.parent)

    def put_manifest(self, data: bytes) -> None:
        """As ExportPlace.put_manifest."""
        with outfile.whole(self._path.with_name(self._path.name + MANIFEST_SUFFIX)) as file:
            file.write(data)


class Bucket:
    """Objects of a bucket."""

    takes_directories = True

    def __init__(self, objects: Objects, prefix: str, name: str) -> None:
        self._objects = objects
        self._name = name
        self.text = f"{prefix}/{name}"

    def scratch(self) -> contextlib.AbstractContextManager[pathlib.Path]:
        """As ExportPlace.scratch."""
        return _temporary()

    def settle(self, made: pathlib.Path) -> None:
        """As ExportPlace.settle: there is nothing of this name."""
        if made.is_dir() and self._objects.list(f"{self._name}/"):
            raise AlreadyThere(f"{self.text} has objects already; name one that has not")
        if self._objects.get(self._name + MANIFEST_SUFFIX) is not None:
            raise AlreadyThere(f"{self.text} is there already, with its manifest; name another")

    def put(self, made: pathlib.Path) -> None:
        """As ExportPlace.put. Of a directory each file is an object; without a manifest they are no export yet."""
        if made.is_file():
            self._objects.put_file(self._name, made)
            return
        for file in sorted(made.rglob("*")):
            if file.is_file():
                self._objects.put_file(f"{self._name}/{file.relative_to(made).as_posix()}", file)

    def put_manifest(self, data: bytes) -> None:
        """As ExportPlace.put_manifest."""
        self._objects.put_new(self._name + MANIFEST_SUFFIX, data)


class Stdout:
    """Standard output. It has no manifest beside it."""

    text = "stdout"
    takes_directories = False

    def scratch(self) -> contextlib.AbstractContextManager[pathlib.Path]:
        """As ExportPlace.scratch."""
        return _temporary()

    def settle(self, made: pathlib.Path) -> None:
        """Nothing stands in its way."""

    def put(self, made: pathlib.Path) -> None:
        """As ExportPlace.put."""
        with open(made, "rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer, _COPY_BYTES)

    def put_manifest(self, data: bytes) -> None:
        """There is no place for it."""


@contextlib.contextmanager
def _temporary() -> Iterator[pathlib.Path]:
    with tempfile.TemporaryDirectory(prefix="weighbridge-") as name:
        yield pathlib.Path(name)


def _sync(path: pathlib.Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
