"""What a crash run has inside the gateway's processes. tests/mutants/sitecustomize.py installs it there.

It changes nothing that a process does. `<CRASH_PROBE>/<pid>.cells` is shared with the run, and outlives a `kill -9`:
in it stand the calls in each state of the call machine, and an armed crash: the process kills itself at one of its
disk operations, before it, in the midst of it, or after it.
"""

import mmap
import os
import pathlib
import signal
import sys
from collections.abc import Callable
from typing import Any

PROBE = "CRASH_PROBE"
ARM = "CRASH_ARM"
"""`<operations>:<mode>` for the supervisor that is started with it: a crash during its start."""
CELLS_BYTES = 4096
STATES_MAX = 16
COUNTDOWN = 16
"""Cell: crash at this many disk operations from now; 0: not armed."""
MODE = 17
BEFORE, HALF, AFTER = MODES = 0, 1, 2

Cells = memoryview


def cells_of(directory: pathlib.Path, pid: int) -> pathlib.Path:
    return directory / f"{pid}.cells"


def map_cells(path: pathlib.Path) -> Cells:
    """The cells as 32-bit integers, shared with whoever else has them. Raises OSError."""
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), CELLS_BYTES)).cast("I")


def install(directory: str) -> None:
    """Take hold of this process, before it imports anything of the product."""
    path = cells_of(pathlib.Path(directory), os.getpid())
    temporary = path.with_suffix(".new")
    temporary.write_bytes(bytes(CELLS_BYTES))
    temporary.rename(path)
    cells = map_cells(path)
    armed = os.environ.pop(ARM, None)
    if armed and "gateway.cli" in sys.orig_argv:
        cells[COUNTDOWN], cells[MODE] = map(int, armed.split(":"))
    Disk(cells).take_over()
    if "gateway.processes.worker" in sys.orig_argv:
        watch_calls(cells)


def watch_calls(cells: Cells) -> None:
    """Count the calls in each state, as they go from one to the next."""
    from gateway.calls.call import Call

    slot: Any = Call.__dict__["state"]

    class Watched:
        """In place of the attribute."""

        def __get__(self, call: Call | None, _owner: type[Call]) -> Any:
            return self if call is None else slot.__get__(call)

        def __set__(self, call: Call, state: int) -> None:
            try:
                cells[slot.__get__(call)] -= 1
            except AttributeError:
                pass  # its first one
            cells[state] += 1
            slot.__set__(call, state)

    Call.state = Watched()  # type: ignore[assignment]


class Disk:
    """The operating system's calls that reach a disk."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells

    def take_over(self) -> None:
        """Stand before them, in this process."""
        os.write = self._before_write(os.write)
        for name in ("fdatasync", "fsync", "rename", "replace", "unlink", "remove"):
            setattr(os, name, self._before(getattr(os, name)))

    def _before_write(self, write: Callable[[int, Any], int]) -> Callable[[int, Any], int]:
        """Those to a journal, and no others: a log's line is no operation on a disk."""

        def write_or_crash(fd: int, data: Any) -> int:
            if not self._cells[COUNTDOWN] or not os.readlink(f"/proc/self/fd/{fd}").endswith(".jsonl"):
                return write(fd, data)
            mode = self._due()
            if mode == BEFORE:
                crash()
            written = write(fd, data if mode != HALF else memoryview(data)[: len(data) // 2])
            if mode is not None:
                crash()
            return written

        return write_or_crash

    def _before(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def do_or_crash(*args: Any, **options: Any) -> Any:
            mode = self._due()
            if mode in (BEFORE, HALF):
                crash()
            done = operation(*args, **options)
            if mode == AFTER:
                crash()
            return done

        return do_or_crash

    def _due(self) -> int | None:
        """How to crash at this operation; None: not at this one."""
        if not self._cells[COUNTDOWN]:
            return None
        self._cells[COUNTDOWN] -= 1
        return None if self._cells[COUNTDOWN] else self._cells[MODE]


def crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
