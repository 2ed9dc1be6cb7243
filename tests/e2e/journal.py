"""What a gateway's journal says was used: read from its files by the oracle, which imports nothing of ours."""

import collections.abc
import dataclasses
import pathlib

from tests.oracle import journal
from tests.oracle.journal import Line


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Sums of token counts."""

    prompt: int
    completion: int

    def __sub__(self, other: "Tokens") -> "Tokens":
        return Tokens(self.prompt - other.prompt, self.completion - other.completion)


def records(state_dir: pathlib.Path) -> dict[str, Line]:
    """Call records by request id, for callers who never use one twice; the chain holds, too."""
    writers = journal.read(state_dir / "journal")
    faults = [str(fault) for writer in writers for fault in writer.faults]
    assert not faults, faults
    calls = list(journal.calls(writers))
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
