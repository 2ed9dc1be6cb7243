"""The note that ends a writer's directory: its whole journal signed, the `stop` line included.

    <root>/<writer>/end.note       a signed note (metering/audit/checkpoint.py), put there whole, by a rename

The writer leaves it after its `stop`; where it could not, or was killed, whoever closes the directory does, with a
time of its own. So a directory whose end was cut off differs from its note, and one without a note is not finished.
"""

import base64
import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator

from metering import files
from metering.audit import checkpoint
from metering.audit.checkpoint import NotANote, Note
from metering.audit.notary import Notary, Signed, SigningKey
from metering.journal.chain import Broken, Chained
from metering.journal.journal import LOCK, Directory, directories, lock_if_free
from metering.record import Checkpoint, Ended, Stop

END_NOTE = "end.note"
ENDED_MAX = 256
"""So many ended journals a new one names."""


def write(directory: pathlib.Path, note: str) -> None:
    """Put a directory's note there, durably; one that is there is replaced. Raises OSError."""
    for leftover in directory.glob(f".{END_NOTE}.*"):  # of a crash; whoever writes holds the directory's lock
        leftover.unlink()
    files.put(directory / END_NOTE, note.encode(), mode=0o644)


def read(directory: pathlib.Path) -> Note | None:
    """A directory's note; its signature is not checked. None: there is none.

    Raises NotANote if what is there is none, OSError.
    """
    found = text(directory)
    return None if found is None else checkpoint.parse(found)


def text(directory: pathlib.Path) -> str | None:
    """The same as it stands there. Raises NotANote if it is no text, OSError."""
    try:
        return (directory / END_NOTE).read_text("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise NotANote("not UTF-8") from None


def ended(root: pathlib.Path) -> tuple[Ended, ...]:
    """The journals under `root` that have a note, the newest ones, by name. Reads notes only. Raises OSError."""
    found: list[tuple[int, str]] = []
    for directory in directories(root):
        with contextlib.suppress(FileNotFoundError):
            found.append((os.stat(directory.path / END_NOTE).st_mtime_ns, directory.writer))
    newest = sorted(found, reverse=True)[:ENDED_MAX]
    told = []
    for _, writer in newest:
        with contextlib.suppress(NotANote):  # whoever verifies the directory will say so
            if (note := read(root / writer)) is not None:
                root_text = base64.b64encode(note.head.root).decode()
                told.append(Ended(root=root_text, size=note.head.size, writer=writer))
    return tuple(sorted(told, key=lambda one: one.writer))


class Ends:
    """Signs what has ended under `root` and has no note yet. One caller at a time, again and again."""

    def __init__(self, root: pathlib.Path) -> None:
        self._root = root
        self._broken: set[str] = set()  # not to be read again each time

    def sign(self, key: Callable[[], SigningKey], now_ns: int) -> Iterator[Signed | Broken]:
        """Sign each directory that has ended and that nobody holds; say once which ones can't be signed.

        A journal whose chain does not reach its `stop`, or that is not what its own checkpoints say, is not signed.
        Raises OSError; what came before is done.
        """
        for directory in directories(self._root):
            if directory.writer in self._broken or (directory.path / END_NOTE).exists():
                continue
            with lock_if_free(directory.path / LOCK) as locked:
                if not locked or not directory.complete or (directory.path / END_NOTE).exists():
                    continue
                signed = _sign(directory, key(), now_ns)
                if isinstance(signed, Signed):
                    write(directory.path, signed.note)
                else:
                    self._broken.add(directory.writer)
            yield signed


def _sign(directory: Directory, key: SigningKey, now_ns: int) -> Signed | Broken:
    try:
        notary = Notary(directory.writer, key, directory.tree_before())
    except ValueError:  # what says where it begins is no such thing
        return Broken(directory.writer, directory.starts_after)
    last: Chained | None = None
    for last in directory.chained():
        if isinstance(last.line, Checkpoint) and not notary.agrees(last.line.note):
            return Broken(directory.writer, last.seq)
        notary.add([last.leaf])
    if last is None or not isinstance(last.line, Stop):
        return Broken(directory.writer, notary.size)
    return notary.end(now_ns)
