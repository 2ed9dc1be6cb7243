"""Reads a journal from its files, with nothing but the standard library.

It is the outside judge of what the gateway wrote: it imports nothing of ours.
"""

import collections.abc
import dataclasses
import hashlib
import json
import pathlib
import typing

Line = dict[str, typing.Any]


class BrokenChain(ValueError):
    """A line does not continue the one before it."""


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Sums of token counts."""

    prompt: int
    completion: int

    def __sub__(self, other: "Tokens") -> "Tokens":
        return Tokens(self.prompt - other.prompt, self.completion - other.completion)


def lines(state_dir: pathlib.Path) -> collections.abc.Iterator[Line]:
    """All lines of all writers, each writer's in order; one counts with its newline. Raises BrokenChain."""
    for directory in sorted((state_dir / "journal").iterdir()):
        seq, leaf = 0, "0" * 64
        for segment in sorted(directory.glob("*.jsonl")):  # digits sort before salvage.jsonl
            for raw in segment.read_bytes().split(b"\n")[:-1]:
                line = json.loads(raw)
                if (line["seq"], line["prev"]) != (seq + 1, leaf):
                    raise BrokenChain(f"{segment.name}: line {line['seq']} behind line {seq}")
                seq, leaf = line["seq"], hashlib.sha256(b"\0" + raw).hexdigest()
                yield line


def records(state_dir: pathlib.Path) -> dict[str, Line]:
    """Call records by request id, for callers who never use one twice."""
    calls = [line for line in lines(state_dir) if line["kind"] == "call"]
    found = {call["request_id"]: call for call in calls}
    assert len(found) == len(calls), "more than one record of a request"
    return found


def tokens(calls: collections.abc.Iterable[Line]) -> Tokens:
    """What the records say was used. A null adds nothing: unknown is not zero, and is listed elsewhere."""
    usages = [call["usage"] for call in calls]
    return Tokens(
        sum(usage["prompt_tokens"] or 0 for usage in usages),
        sum(usage["completion_tokens"] or 0 for usage in usages),
    )
