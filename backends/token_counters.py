"""What a model server says of its own tokens: two counters of its /metrics. Pure.

vLLM's `vllm:prompt_tokens_total` (cached ones included) and `vllm:generation_tokens_total`, each summed
over engines and models; vLLM-Neuron and the forks have the same names.
"""

import math
import re
from typing import NamedTuple

_SAMPLE_PATTERN = re.compile(
    rb"^vllm:(prompt|generation)_tokens_total(?:\{[^\n]*\})?[ \t]+(\S+)(?:[ \t]+-?[0-9]+)?\r?$", re.MULTILINE
)


class TokenCounters(NamedTuple):
    """Tokens since the server's start."""

    prompt: int
    completion: int


def read(page: bytes) -> TokenCounters | None:
    """The counters on a page in Prometheus' text format; None if it lacks one, or has no count there."""
    sums: dict[bytes, int] = {}
    for kind, text in _SAMPLE_PATTERN.findall(page):
        try:
            value = float(text)
        except ValueError:
            return None
        if not math.isfinite(value) or value < 0:
            return None
        sums[kind] = sums.get(kind, 0) + round(value)
    if len(sums) < 2:
        return None
    return TokenCounters(sums[b"prompt"], sums[b"generation"])
