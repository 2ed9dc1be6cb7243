"""Log probabilities that nobody computed: made of the tokens themselves, in both of OpenAI's shapes. Pure.

A token has between −0.05 and −2; the alternatives beside it are words of the simulator's, each less likely than the
last.
"""

import hashlib
from typing import Any

from backends.simulator.tokens import END, WORDS

_STEP = 0.75


def of_chat(texts: list[str], top: int) -> dict[str, Any]:
    """`choices[].logprobs` of a chat, `top` alternatives a token (the token itself is the first)."""
    return {
        "content": [
            _entry(text, value) | {"top_logprobs": [_entry(*each) for each in _top(text, value, top)]}
            for text in map(_shown, texts)
            for value in (_logprob(text),)
        ]
    }


def of_completion(texts: list[str], top: int, offset: int) -> dict[str, Any]:
    """`choices[].logprobs` of a completion; offset: characters of the choice's text before the first token."""
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    shown = [_shown(text) for text in texts]
    values = [_logprob(text) for text in shown]
    return {
        "text_offset": offsets,
        "token_logprobs": values,
        "tokens": shown,
        "top_logprobs": [
            dict(_top(text, value, max(1, top))) for text, value in zip(shown, values, strict=True)
        ],
    }


def _shown(text: str) -> str:
    """The end token has no text, and is one."""
    return text or END


def _entry(text: str, value: float) -> dict[str, Any]:
    return {"token": text, "logprob": value, "bytes": list(text.encode(errors="replace"))}


def _logprob(text: str) -> float:
    digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=2).digest()
    return -0.05 - 1.95 * int.from_bytes(digest, "big") / 65_536


def _top(text: str, value: float, top: int) -> list[tuple[str, float]]:
    others = (word for word in (f" {word}" for word in WORDS) if word != text)
    return [
        (text, value),
        *((word, value - _STEP * n) for n, word in zip(range(1, top), others, strict=False)),
    ][:top]
