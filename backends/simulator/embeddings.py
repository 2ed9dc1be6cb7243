"""Vectors for texts: the sum of one fixed vector a token, brought to length 1. Pure.

Texts that share tokens are near each other, which is all that is claimed of them.
"""

import hashlib
import math
import struct
from collections.abc import Sequence

SIZE = 64


def embed(tokens: Sequence[str], size: int = SIZE) -> list[float]:
    """`size` (1 to SIZE) numbers as 32-bit floats have them, their squares adding up to 1."""
    assert 1 <= size <= SIZE
    sums = [0] * size
    for token in tokens:
        digest = hashlib.blake2b(token.encode(errors="replace"), digest_size=SIZE).digest()
        for position in range(size):
            sums[position] += 2 * digest[position] - 255  # odd: never 0 for one token
    norm = math.sqrt(sum(value * value for value in sums)) or 1.0
    return list(struct.unpack(f"<{size}f", pack([value / norm for value in sums])))


def pack(vector: Sequence[float]) -> bytes:
    """32-bit floats, little-endian."""
    return struct.pack(f"<{len(vector)}f", *vector)


def softmax(values: Sequence[float]) -> list[float]:
    """Positive numbers in the same order that add up to 1."""
    powers = [math.exp(value - max(values)) for value in values]
    return [power / sum(powers) for power in powers]


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Of two vectors of length 1."""
    return sum(a * b for a, b in zip(one, other, strict=True))
