"""A layer that forgets what was not synced: what a power cut leaves of a directory tree.

In each Python process of a test (tests/mutants/sitecustomize.py installs it there) `install` notes, in one log
outside the tree, every fsync and fdatasync that has returned: of a file how long it was when the sync began, of a
directory which names it held. When all these processes have been killed, `PowerCut.cut` takes from the tree

- the bytes of each file beyond its last synced length; with an `rng` a random part of them stays, and NULs may
  stand where the rest was, as file systems leave it;
- names that came after their directory's last sync; a rename after it is undone.

What was deleted stays deleted: that, too, a file system may do. The tree as `PowerCut` first sees it is durable.
Imports nothing of the product. A process that is no Python (a store) is not seen: keep its files outside the tree.
"""

import array
import contextlib
import fcntl
import json
import os
import pathlib
import random
import shutil
import stat
from collections.abc import Callable
from typing import Any, NamedTuple

LOG = "POWERCUT_LOG"
"""The variable that switches the layer on: the log's path."""
_ROOT = pathlib.Path(__file__).parents[2]
_GET_VERSION = 0x80087601  # FS_IOC_GETVERSION: tells a file from one that had its inode number before


class Node(NamedTuple):
    """What a name leads to, whatever the name: device, inode, generation."""

    device: int
    inode: int
    generation: int


class Cut(NamedTuple):
    """What the power took: bytes of files that stayed, names of files and directories that did not."""

    bytes: int
    names: list[str]


class PowerCut:
    """One tree, and what of it is durable. log: a file outside the tree."""

    def __init__(self, tree: pathlib.Path, log: pathlib.Path) -> None:
        assert tree not in log.parents
        self.tree = tree
        self.log = log
        tree.mkdir(parents=True, exist_ok=True)
        self._all_is_durable()

    @property
    def environment(self) -> dict[str, str]:
        """To be added to the environment of each process; goes together with that of tests/support/mutants.py."""
        return {"PYTHONPATH": f"{_ROOT / 'tests' / 'mutants'}{os.pathsep}{_ROOT}", LOG: str(self.log)}

    def durable_bytes(self, path: pathlib.Path) -> int:
        """How much of a file a power cut now would leave."""
        lengths, _ = self._noted()
        with _opened(path) as fd:
            return min(os.fstat(fd).st_size, lengths.get(_node(fd), 0))

    def cut(self, rng: random.Random | None = None) -> Cut:
        """Leave of the tree what a power cut would. Every process that writes there has been killed."""
        taken = _Taken(*self._noted(), rng)
        taken.directory(self.tree)
        self._all_is_durable()
        return Cut(taken.bytes, [str(pathlib.Path(name).relative_to(self.tree)) for name in taken.names])

    def _noted(self) -> tuple[dict[Node, int], dict[Node, dict[str, Node]]]:
        """Synced lengths of files, and synced names of directories."""
        lengths: dict[Node, int] = {}
        names: dict[Node, dict[str, Node]] = {}
        for line in self.log.read_text().splitlines():
            entry = json.loads(line)
            node = Node(*entry["node"])
            if "bytes" in entry:
                lengths[node] = entry["bytes"]
            else:
                names[node] = {name: Node(*below) for name, below in entry["names"].items()}
        return lengths, names

    def _all_is_durable(self) -> None:
        entries = []
        for folder, _, files in os.walk(self.tree):
            paths = [folder, *(os.path.join(folder, file) for file in files)]
            for path in paths:
                with contextlib.suppress(OSError), _opened(path) as fd:
                    entries.append(_entry(fd))
        self.log.write_text("".join(entries))


class _Taken:
    """The going through of a tree."""

    def __init__(
        self, lengths: dict[Node, int], names: dict[Node, dict[str, Node]], rng: random.Random | None
    ) -> None:
        self.bytes = 0
        self.names: list[str] = []
        self._lengths = lengths
        self._names = names
        self._rng = rng

    def directory(self, path: pathlib.Path) -> None:
        with _opened(path) as fd:
            durable = self._names.get(_node(fd), {})
            held = _listing(fd)
        before = {node: name for name, node in durable.items()}
        for name, node in sorted(held.items()):
            if durable.get(name) == node:
                continue
            self.names.append(str(path / name))
            old = before.get(node)
            if old is not None and old not in held:
                (path / name).rename(path / old)
            elif old is None and name in durable and not (path / name).is_dir():
                continue  # renamed over another one, which cannot be had back: the new one stays
            elif (path / name).is_dir():
                shutil.rmtree(path / name)
            else:
                (path / name).unlink()
        for below in sorted(path.iterdir()):
            if below.is_dir():
                self.directory(below)
            elif below.is_file():
                self._file(below)

    def _file(self, path: pathlib.Path) -> None:
        with open(path, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            durable = min(size, self._lengths.get(_node(file.fileno()), 0))
            if size == durable:
                return
            kept = durable if self._rng is None else self._rng.randrange(durable, size + 1)
            file.truncate(kept)
            if self._rng is not None and kept < size and self._rng.random() < 0.5:
                file.truncate(self._rng.randrange(kept, size + 1))  # NULs
            self.bytes += size - kept


# In the processes of the test


def install(log: str) -> None:
    """Note every sync of this process in the log."""
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.fsync = _noting(os.fsync, fd)
    os.fdatasync = _noting(os.fdatasync, fd)
    os.ftruncate = _shortening(os.ftruncate, fd)


def _noting(sync: Callable[[Any], None], log_fd: int) -> Callable[[Any], None]:
    def noted(file: Any) -> None:
        fd = file if isinstance(file, int) else file.fileno()
        entry = _entry(fd)  # what is written while the sync runs may or may not be in it
        sync(fd)
        os.write(log_fd, entry.encode())

    return noted


def _shortening(truncate: Callable[[int, int], None], log_fd: int) -> Callable[[int, int], None]:
    """What is written behind a cut is new, and not what was synced there before."""

    def noted(fd: int, length: int) -> None:
        size = os.fstat(fd).st_size
        truncate(fd, length)
        if length < size:
            os.write(log_fd, (json.dumps({"node": _node(fd), "bytes": length, "cut": True}) + "\n").encode())

    return noted


def _entry(fd: int) -> str:
    status = os.fstat(fd)
    found: dict[str, Any] = {"node": _node(fd)}
    if stat.S_ISDIR(status.st_mode):
        found["names"] = _listing(fd)
    else:
        found["bytes"] = status.st_size
    return json.dumps(found) + "\n"


def _node(fd: int) -> Node:
    status = os.fstat(fd)
    generation = array.array("l", [0])
    with contextlib.suppress(OSError):  # a file system that has none
        fcntl.ioctl(fd, _GET_VERSION, generation)
    return Node(status.st_dev, status.st_ino, generation[0] & 0xFFFFFFFF)


def _listing(fd: int) -> dict[str, Node]:
    found = {}
    for name in os.listdir(fd):
        with contextlib.suppress(OSError):  # gone meanwhile, or a socket
            below = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=fd)
            try:
                found[name] = _node(below)
            finally:
                os.close(below)
    return found


@contextlib.contextmanager
def _opened(path: str | pathlib.Path):
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield fd
    finally:
        os.close(fd)
