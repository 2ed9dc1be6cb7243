"""The simulator's tokenizer, its chat template and its words. Pure.

A token is a run of ASCII letters and digits of at most 12, or one other character that is no blank. A chat
prompt costs 1 token, 4 a message besides its text, and 3 for the answer's heading (the shape of the
Llama 3 template). Answers are words drawn from the prompt's hash, one word or full stop a token, so that
the same request has the same answer everywhere, and the answer's text has as many tokens as were counted.
A token's number is made of its hash, and can be read back by the server that gave it.
"""

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

_TOKEN = re.compile(r"[A-Za-z0-9]{1,12}|[^\sA-Za-z0-9]")

BEGIN, HEADER, END_HEADER, BLANK_LINE, END = (
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "\n\n", "<|eot_id|>",
)  # fmt: skip

WORDS = (
    "axle", "balance", "beam", "bridge", "cargo", "cart", "deck", "dial",
    "driver", "empty", "freight", "gate", "gauge", "grain", "gross", "haul",
    "heavy", "hour", "ledger", "level", "light", "load", "lorry", "market",
    "measure", "mile", "morning", "net", "number", "office", "paper", "plate",
    "pound", "price", "quarry", "queue", "record", "river", "road", "salt",
    "sand", "scale", "seal", "share", "slow", "stamp", "steady", "steel",
    "stone", "sum", "tally", "tare", "ticket", "timber", "ton", "track",
    "trade", "trailer", "truck", "wagon", "weigh", "weight", "wheel", "yard",
)  # fmt: skip
ANSWER_TOKENS_MIN = 24
ANSWER_TOKENS_SPREAD = 104


def tokenize(text: str) -> list[str]:
    return _TOKEN.findall(text)


def chat_tokens(messages: Iterable[tuple[str, str]]) -> list[str]:
    """Tokens of a conversation of (role, text), ready for the answer of the assistant."""
    tokens = [BEGIN]
    for role, text in messages:
        tokens += (HEADER, role, END_HEADER)
        tokens += tokenize(text)
        tokens.append(END)
    tokens += (HEADER, "assistant", END_HEADER)
    return tokens


class Vocabulary:
    """Numbers of tokens. It keeps the `tokens_max` that were given out last, to read them back."""

    def __init__(self, tokens_max: int = 65_536) -> None:
        self._tokens: OrderedDict[int, str] = OrderedDict()
        self._tokens_max = tokens_max

    def number(self, token: str) -> int:
        """31 bits, the same everywhere."""
        digest = hashlib.blake2b(token.encode(errors="replace"), digest_size=4).digest()
        number = int.from_bytes(digest, "big") >> 1
        self._tokens[number] = token
        self._tokens.move_to_end(number)
        if len(self._tokens) > self._tokens_max:
            self._tokens.popitem(last=False)
        return number

    def text(self, numbers: Iterable[int]) -> str:
        """Tokens by their numbers, a blank before each word but the first; one that is not known is `<number>`."""
        tokens = (self._tokens.get(number, f"<{number}>") for number in numbers)
        return "".join(f" {token}" if token[0].isalnum() else token for token in tokens).removeprefix(" ")


def seed_of(tokens: Sequence[str], index: int) -> int:
    """64 bits that name the answer number `index` to this prompt."""
    digest = hashlib.blake2b("\x1f".join((*tokens, str(index))).encode(errors="replace"), digest_size=8)
    return int.from_bytes(digest.digest(), "big")


def natural_length(seed: int) -> int:
    """Tokens after which this answer ends by itself, its end token included."""
    return ANSWER_TOKENS_MIN + seed % ANSWER_TOKENS_SPREAD


def words(seed: int) -> Iterator[str]:
    """Pieces of text without end, one token each; the first has no leading blank."""
    state, blank, since_stop = seed, "", 0
    while True:
        state = (state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
        if since_stop >= 6 and state >> 61 == 0:
            since_stop = 0
            yield "."
        else:
            since_stop += 1
            yield blank + WORDS[(state >> 33) % len(WORDS)]
        blank = " "
