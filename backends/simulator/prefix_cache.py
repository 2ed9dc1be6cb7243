"""Which prefixes of prompts are still in the cache of a simulated server. Pure.

As in vLLM: the unit is a full block of 16 tokens, named by its tokens, the block before it and the
request's `cache_salt`, so two salts never share; the last token of a prompt is always computed;
the blocks least recently used go first.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

BLOCK_TOKENS = 16


class PrefixCache:
    """At most `blocks_max` blocks."""

    def __init__(self, blocks_max: int) -> None:
        assert blocks_max > 0
        self._blocks_max = blocks_max
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def take(self, tokens: Sequence[str], salt: str | None) -> int:
        """Look a prompt up and put it in; return how many of its tokens were there: 0 or a multiple of 16."""
        names = list(_names(tokens, salt))
        usable = names[: (len(tokens) - 1) // BLOCK_TOKENS]
        hits = 0
        while hits < len(usable) and usable[hits] in self._blocks:
            hits += 1
        # The tail goes in first: the front of a prompt is what others share, so it has to go last.
        for name in reversed(names):
            self._blocks[name] = None
            self._blocks.move_to_end(name)
        while len(self._blocks) > self._blocks_max:
            self._blocks.popitem(last=False)
        return hits * BLOCK_TOKENS


def _names(tokens: Sequence[str], salt: str | None) -> Iterator[int]:
    name = hash(salt)
    for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        name = hash((name, *tokens[start : start + BLOCK_TOKENS]))
        yield name
