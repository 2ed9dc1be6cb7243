"""A process that answers for a face, and never comes to its end: `python -m tests.support.slow_reader SECONDS`.

What it is to do stands in its task: `question` is never answered, `file` is begun and never ended, `stuck` does not
even end itself after its time.
"""

import signal
import sys
from collections.abc import Iterator

from gateway.faces import reader_process
from gateway.faces.answers import Answer, Download, Sent


def _answer(task: bytes) -> Answer | Download:
    match task:
        case b"file":
            return Download(Answer(status=200, file_name="a"), _pieces(), _never)
        case b"stuck":
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM, signal.SIGTERM})
    _wait()
    raise AssertionError


def _pieces() -> Iterator[bytes]:
    yield b"the first piece"
    _wait()


def _wait() -> None:
    while True:
        signal.pause()


def _never() -> Sent:
    raise AssertionError


if __name__ == "__main__":
    sys.exit(reader_process.run("nothing", _answer))
