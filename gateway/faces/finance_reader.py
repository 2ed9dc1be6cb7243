"""The process that answers one question of the finance face, or makes one file."""

import sys

import msgspec

from gateway.faces import finance_answers, reader_process
from gateway.faces.answers import Answer, Download
from gateway.faces.finance_questions import Task


def main() -> int:
    """Entry of `python -m gateway.faces.finance_reader SECONDS`."""

    def answer(data: bytes) -> Answer | Download:
        task = msgspec.json.decode(data, type=Task)
        return finance_answers.answer(task.question, task.config)

    return reader_process.run("the closed hours", answer)


if __name__ == "__main__":
    sys.exit(main())
