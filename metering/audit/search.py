"""Looking for lines in a segment by their bytes: it costs far less than decoding all of them. Pure.

What is found is a line by its newlines alone; whether the chain holds it is another question.
"""

from collections.abc import Iterator

EVENT = b'"kind":"event"'
DIRECTORY = b'"kind":"directory"'
CHECKPOINT = b'"kind":"checkpoint"'


def lines_with(data: bytes, needle: bytes) -> Iterator[bytes]:
    """Whole lines that hold `needle`, in order, without their newlines."""
    at = data.find(needle)
    while at >= 0:
        end = data.find(b"\n", at)
        if end < 0:
            return
        yield data[data.rfind(b"\n", 0, at) + 1 : end]
        at = data.find(needle, end)


def last_line_with(data: bytes, needle: bytes) -> bytes | None:
    """The last whole line that holds `needle`, without its newline; None: none does."""
    whole = data.rfind(b"\n")
    at = data.rfind(needle, 0, max(whole, 0))
    if at < 0:
        return None
    return data[data.rfind(b"\n", 0, at) + 1 : data.find(b"\n", at)]
