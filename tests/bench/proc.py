"""CPU time and memory of a process tree, as the kernel accounts for them. Linux only.

CPU: the first field of /proc/<pid>/task/<tid>/schedstat, nanoseconds on a processor, user and kernel,
summed over the threads. What threads that have ended took is in utime and stime of /proc/<pid>/stat, and
what ended children have left to their parents in cutime and cstime, both in clock ticks.
Memory: Pss of /proc/<pid>/smaps_rollup: a page that is shared is divided among those who share it, so that
the sum over a tree is right.
"""

import os
import pathlib
from typing import NamedTuple

PROC = pathlib.Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
NS_PER_S = 1_000_000_000


class Stat(NamedTuple):
    """Of /proc/<pid>/stat. ticks: of all its threads, those that have ended too; reaped_ticks: of ended children."""

    name: str
    state: str
    parent: int
    ticks: int
    reaped_ticks: int


def parse_stat(text: str) -> Stat:
    """The name may hold anything, brackets and spaces too: the last bracket ends it."""
    before, _, after = text.rpartition(") ")
    fields = after.split()
    return Stat(
        name=before.partition("(")[2], state=fields[0], parent=int(fields[1]),
        ticks=int(fields[11]) + int(fields[12]), reaped_ticks=int(fields[13]) + int(fields[14]),
    )  # fmt: skip


def parse_schedstat(text: str) -> int:
    """Nanoseconds on a processor; the other two fields are time in the queue, and turns."""
    return int(text.split()[0])


def parse_kib(text: str, name: str) -> int:
    """KiB of a line, as `Pss:`, of smaps_rollup. Raises ValueError if there is none."""
    for line in text.splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise ValueError(f"there is no line {name}")


def tree_of(root: int, parents: dict[int, int]) -> list[int]:
    """A process and all below it. parents: child → parent, of all processes."""
    found, added = [root], {root}
    while added:
        added = {child for child, parent in parents.items() if parent in added}
        found += sorted(added)
    return found


def tree(root: int) -> list[int]:
    """The processes of a tree now, `root` first."""
    stats = {int(path.name): _stat(int(path.name)) for path in PROC.glob("[0-9]*")}
    return tree_of(root, {pid: stat.parent for pid, stat in stats.items() if stat is not None})


def cpu_ns(pid: int) -> int:
    """Of all its threads, and of the children that it has waited for; 0 if it has ended."""
    stat = _stat(pid)
    if stat is None:
        return 0
    live = 0
    for path in PROC.glob(f"{pid}/task/*/schedstat"):
        try:
            live += parse_schedstat(path.read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread that has ended meanwhile
    # Ticks are rounded down: they are the greater only if a thread has ended with more than one of them.
    return max(live, _ns(stat.ticks)) + _ns(stat.reaped_ticks)


def waited_ns(pid: int) -> int:
    """That its first thread could have run and had no processor; 0 if it has ended."""
    try:
        return int((PROC / str(pid) / "schedstat").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def pss_kib(pid: int) -> int:
    """Its memory, its part of what is shared; 0 if it has ended."""
    return _rollup_kib(pid, "Pss:")


def rss_kib(pid: int) -> int:
    """Its memory, all of what is shared; 0 if it has ended."""
    return _rollup_kib(pid, "Rss:")


def command_line(pid: int) -> str:
    """Its words with spaces between; empty if it has ended."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def filesystem_of(path: pathlib.Path, mounts: str) -> str:
    """The type of the file system that `path`, absolute, lies on. mounts: text of /proc/self/mounts."""
    points = {fields[1]: fields[2] for fields in map(str.split, mounts.splitlines())}
    return next(points[str(parent)] for parent in (path, *path.parents) if str(parent) in points)


def _ns(ticks: int) -> int:
    return ticks * NS_PER_S // TICKS_PER_S


def _rollup_kib(pid: int, name: str) -> int:
    try:
        return parse_kib((PROC / str(pid) / "smaps_rollup").read_text(), name)
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return 0


def _stat(pid: int) -> Stat | None:
    try:
        stat = parse_stat((PROC / str(pid) / "stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if stat.state in "ZX" else stat
