"""What processes are there, as the kernel says. Linux only."""

import pathlib


def is_alive(pid: int) -> bool:
    """Does it run? A zombie does not."""
    return _stat(pid) is not None


def descendants(pid: int) -> set[int]:
    """Its children, theirs and so on."""
    parents = {
        int(path.name): stat[1]
        for path in pathlib.Path("/proc").glob("[0-9]*")
        if (stat := _stat(int(path.name))) is not None
    }
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def _stat(pid: int) -> tuple[str, int] | None:
    """State and parent; None: it has ended."""
    try:
        state, parent, *_ = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else (state, int(parent))
