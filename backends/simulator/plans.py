"""What one sequence will say, token by token, and why it ends. Pure.

    words      drawn from the prompt's hash (tokens.py), to their natural end or to `max_tokens`
    a script   text that the request asks for: arguments of a tool call, JSON for a schema, one of some choices

Stop strings cut either, and hold text back as vLLM's detokenizer does: what might be the begin of a stop string is
not said before it is known not to be (its `stop_buffer_length`), so a token may have no text, and another more.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from backends.simulator.tokens import natural_length, words

_PIECE = re.compile(r"\s*(?:[A-Za-z0-9]{1,12}|[^\sA-Za-z0-9])|\s+$")


class Plan:
    """`length` tokens. texts: of each token, in order; missing ones are empty, as the end token's is.

    finish_reason: stop or length. stop_reason: the stop string that was met.
    """

    __slots__ = ("finish_reason", "length", "stop_reason", "texts")

    def __init__(
        self, texts: Iterator[str], length: int, finish_reason: str, stop_reason: str | None = None
    ) -> None:
        assert length >= 1
        self.texts = texts
        self.length = length
        self.finish_reason = finish_reason
        self.stop_reason = stop_reason


def nothing() -> Plan:
    """One step of the engine, and no text: a prompt that is only read."""
    return Plan(iter(()), 1, "stop")


def spoken(seed: int, *, max_tokens: int, min_tokens: int, ignore_eos: bool) -> Plan:
    """Words; without `ignore_eos` they end by themselves, and the end token is the last."""
    natural = max(natural_length(seed), min_tokens)
    if ignore_eos or natural > max_tokens:
        return Plan(words(seed), max_tokens, "length")
    return Plan(islice(words(seed), natural - 1), natural, "stop")


def scripted(text: str, *, max_tokens: int) -> Plan:
    """A given text and the end token; it ends early if there is no room for it."""
    pieces = split(text)
    if len(pieces) >= max_tokens:
        return Plan(iter(pieces), max_tokens, "length")
    return Plan(iter(pieces), len(pieces) + 1, "stop")


def split(text: str) -> list[str]:
    """The tokens of a script; joined they are the text."""
    return _PIECE.findall(text)


def stopped(plan: Plan, stops: Sequence[str]) -> Plan:
    """The plan with stop strings; without any it is as it was. An empty one is not allowed."""
    if not stops:
        return plan
    assert all(stops)
    held_back = max(map(len, stops)) - 1
    text, said, texts = "", 0, []
    for number in range(1, plan.length + 1):
        text += next(plan.texts, "")
        begun = max(0, said - held_back)
        found = [(at, stop) for stop in stops if (at := text.find(stop, begun)) >= 0]
        if found:
            at, met = min(found)
            texts.append(text[said:at])
            return Plan(iter(texts), number, "stop", met)
        until = len(text) if number == plan.length else max(said, len(text) - held_back)
        texts.append(text[said:until])
        said = until
    return Plan(iter(texts), plan.length, plan.finish_reason)
