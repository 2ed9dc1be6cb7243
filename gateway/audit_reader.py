"""The process that answers one question of the audit face: a task on stdin, an answer on stdout, both JSON.

A process for each: what it reads takes memory, which goes with it, and time, which a worker's loop does not have.
It ends itself after READ_S, whoever may still wait for it.
"""

import asyncio
import asyncio.subprocess
import contextlib
import os
import signal
import sys
from types import FrameType

import msgspec

from gateway import audit_answers
from gateway.audit_questions import Answer, Question, Task
from gateway.config import Config
from gateway.config_tree import ConfigErrors
from gateway.workplaces import environment
from metering.objects import ArchiveError

READER = (sys.executable, "-P", "-m", "gateway.audit_reader")
READ_S = 60
LATE_S = 5
"""How much later the process is killed, should it not end itself."""
EXIT_LATE = 3
NICENESS = 10
"""Workers come first."""


class ReadError(Exception):
    """There is no answer; the message says why."""


async def read(question: Question, config: Config) -> Answer:
    """Have it answered by a process. Raises ReadError, OSError."""
    process = await asyncio.create_subprocess_exec(
        *READER,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment(),
    )
    try:
        async with asyncio.timeout(READ_S + LATE_S):
            data, _ = await process.communicate(msgspec.json.encode(Task(config=config, question=question)))
    except TimeoutError:
        raise ReadError(f"the journals could not be read within {READ_S} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):  # whoever asked has gone
            process.kill()
    if process.returncode == EXIT_LATE:
        raise ReadError(f"the journals could not be read within {READ_S} s")
    if process.returncode != 0:
        raise ReadError("the reader of the journals failed")
    return msgspec.json.decode(data, type=Answer)


def main() -> int:
    """Entry of `python -m gateway.audit_reader`."""
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(READ_S)
    os.nice(NICENESS)
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    try:
        found = audit_answers.answer(task.question, task.config)
    except ConfigErrors as error:
        found = Answer(status=503, message=str(error))
    except ArchiveError as error:
        found = Answer(status=503, message=f"the archive cannot be read: {error}")
    except OSError as error:
        found = Answer(status=503, message=f"the journals cannot be read: {error.strerror or error}")
    sys.stdout.buffer.write(msgspec.json.encode(found))
    return 0


def _late(_number: int, _frame: FrameType | None) -> None:
    sys.exit(EXIT_LATE)


if __name__ == "__main__":
    sys.exit(main())
