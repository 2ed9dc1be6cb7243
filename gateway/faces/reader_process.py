"""The other side of gateway/faces/reader.py: the process that reads, from its task to its last byte."""

import os
import signal
import sys
from collections.abc import Callable

from gateway.configuration.config_tree import ConfigErrors
from gateway.faces.answers import Answer, Download, framed, frames
from gateway.faces.reader import EXIT_LATE, EXIT_UNWANTED
from metering.archive.objects import ArchiveError
from metering.cost.close_files import CloseFileError

NICENESS = 10
"""Workers come first."""
_STDOUT = 1


def run(what: str, answer: Callable[[bytes], Answer | Download]) -> int:
    """Answer the task that stands on stdin, within the seconds of the first argument.

    what: it reads, for messages; answer: may raise ConfigErrors, ArchiveError, CloseFileError, OSError. Whatever ends
    it, what it has fetched is deleted.
    """
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(EXIT_LATE))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_UNWANTED))
    signal.alarm(int(sys.argv[1]))
    os.nice(NICENESS)
    task = sys.stdin.buffer.read()
    has_begun = False
    try:
        found = answer(task)
        if not isinstance(found, Download):
            return _write(framed(found))
        for frame in frames(found):
            has_begun = True
            _write(frame)
    except ConnectionError:  # nobody waits for it any more
        return EXIT_UNWANTED
    except (ConfigErrors, ArchiveError, CloseFileError, OSError) as error:
        if has_begun:
            raise
        return _write(framed(Answer(status=503, message=_words(what, error))))
    return 0


def _words(what: str, error: Exception) -> str:
    match error:
        case ArchiveError():
            return f"the archive cannot be read: {error}"
        case OSError():
            return f"{what} cannot be read: {error.strerror or error}"
    return str(error)


def _write(data: bytes) -> int:
    """Without a buffer: at its end the process would wait for whoever has stopped reading."""
    view = memoryview(data)
    while view:
        view = view[os.write(_STDOUT, view) :]
    return 0
