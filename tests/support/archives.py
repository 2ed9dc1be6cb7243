"""Archives for tests: state directories with something to archive, and objects that end the process on the way."""

import pathlib

from metering.archive.archive import Archive, Archiver
from metering.archive.facts import Maker
from metering.archive.objects import Listed, LocalObjects, Objects
from metering.journal import sealing
from metering.journal.journal import Directory
from tests.support.journals import AT_NS, WRITER, Make, admitted, call, start, stop, write_directory

LATER_NS = 1 << 62


def makes(calls: int) -> list[Make]:
    """A start and so many whole calls."""
    return [
        start(),
        *[make for n in range(calls) for make in (admitted(f"w-{n}"), call(f"w-{n}", at_ns=AT_NS + n))],
    ]


def seal_all(directory: Directory) -> None:
    """Seal what may be sealed."""
    for path in sealing.due(directory, LATER_NS):
        sealing.seal(path)


def make_facts(maker: Maker, directory: Directory) -> None:
    for first_seq in maker.missing(directory):
        maker.make(directory, first_seq)


class Place:
    """A state directory and an archive: <root>/journal, <root>/facts, <root>/archive."""

    def __init__(self, root: pathlib.Path, objects: Objects | None = None) -> None:
        self.journals = root / "journal"
        self.maker = Maker(root / "facts")
        self.objects = objects or LocalObjects(root / "archive")
        self.archive = Archive(self.objects)

    def closed(self, calls: int = 6, *, writer: str = WRITER, per_segment: int = 4) -> Directory:
        """A complete directory, sealed, with its facts."""
        return self.of([*makes(calls), stop()], writer=writer, per_segment=per_segment)

    def of(self, lines: list[Make], *, writer: str = WRITER, per_segment: int = 4) -> Directory:
        """A directory of these lines, sealed as far as it may be, with its facts."""
        directory = Directory(write_directory(self.journals, lines, writer=writer, per_segment=per_segment))
        seal_all(directory)
        make_facts(self.maker, directory)
        return directory

    def archiver(self, objects: Objects | None = None, *, made_ns: int = LATER_NS) -> Archiver:
        """Somebody who has just been started."""
        return Archiver(Archive(objects or self.objects), self.maker, lambda: made_ns)

    def contents(self) -> dict[str, bytes | None]:
        """All that the archive holds."""
        return {one.path: self.objects.get(one.path) for one in self.objects.list("")}


class Killed(BaseException):
    """What no code of ours can handle."""


class Killing:
    """Objects of somebody whose process ends at the `at`-th change, before it is made or right after."""

    def __init__(self, objects: Objects, at: int, *, after: bool) -> None:
        self._objects = objects
        self._left = at
        self._after = after

    def put_new(self, path: str, data: bytes) -> None:
        self._change(lambda: self._objects.put_new(path, data))

    def delete(self, path: str) -> None:
        self._change(lambda: self._objects.delete(path))

    def locked_until_ns(self, path: str, /) -> int:
        return self._objects.locked_until_ns(path)

    def clear_leftovers(self) -> None:
        self._objects.clear_leftovers()

    def get(self, path: str) -> bytes | None:
        return self._objects.get(path)

    def list(self, prefix: str) -> list[Listed]:
        return self._objects.list(prefix)

    def _change(self, change) -> None:
        self._left -= 1
        if self._left == 0 and not self._after:
            raise Killed
        change()
        if self._left == 0:
            raise Killed
