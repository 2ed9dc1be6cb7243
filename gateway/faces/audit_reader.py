"""The process that answers one question of the audit face."""

import sys

import msgspec

from gateway.configuration.config import Config
from gateway.faces import reader
from gateway.faces.answers import Answer
from gateway.faces.audit_questions import Question, Task
from gateway.faces.reader import Reader

READER = Reader("gateway.faces.audit_reader", read_s=60, what="the journals")


async def read(question: Question, config: Config) -> Answer:
    """Have it answered by a process. Raises ReadError, OSError."""
    return await reader.read(READER, msgspec.json.encode(Task(config=config, question=question)))


def main() -> int:
    """Entry of `python -m gateway.faces.audit_reader SECONDS`."""
    # Here, since a worker asks by this module and needs none of what answers: that is 4 MiB.
    from gateway.faces import audit_answers, reader_process

    def answer(data: bytes) -> Answer:
        task = msgspec.json.decode(data, type=Task)
        return audit_answers.answer(task.question, task.config)

    return reader_process.run(READER.what, answer)


if __name__ == "__main__":
    sys.exit(main())
