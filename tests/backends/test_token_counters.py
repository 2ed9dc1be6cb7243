"""A server's own token counters, as vLLM and its look-alike write them."""

import pytest

from backends import token_counters
from backends.simulator.metrics import Metrics

PAGE = b"""# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1234.0
vllm:prompt_tokens_total{engine="1",model_name="a \\"b\\" {c}"} 1e+03
# TYPE vllm:prompt_tokens_created gauge
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:generation_tokens_total 7 1795863600000
vllm:iteration_tokens_total_sum{engine="0"} 99.0
"""


def test_counters_are_summed_over_engines_and_models() -> None:
    assert token_counters.read(PAGE) == (2234, 7)
    assert token_counters.read(PAGE.replace(b"\n", b"\r\n")) == (2234, 7)


def test_the_simulators_page_is_read() -> None:
    metrics = Metrics("m")
    metrics.prompt_tokens = 5
    assert token_counters.read(metrics.page(running=0, waiting=0, cache_used=0.0).encode()) == (5, 0)


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"<html>",
        b"vllm:prompt_tokens_total 1\n",
        PAGE.replace(b"1234.0", b"NaN"),
        PAGE.replace(b"1234.0", b"-1"),
        PAGE.replace(b"1234.0", b"many"),
    ],
)
def test_a_page_without_counts_is_none(page: bytes) -> None:
    assert token_counters.read(page) is None
