"""Token counts: unknown is not zero, and a part is never more than the whole."""

import pytest

from metering.usage import UNKNOWN, Usage, UsageSource


def test_zero_and_unknown_are_two_things() -> None:
    known = Usage(source=UsageSource.REPORTED, prompt_tokens=0, cached_prompt_tokens=0, completion_tokens=0)
    assert known != Usage(source=UsageSource.REPORTED)
    assert UNKNOWN.prompt_tokens is None
    assert UNKNOWN.completion_tokens is None


@pytest.mark.parametrize(
    "counts",
    [
        {"source": UsageSource.UNKNOWN, "prompt_tokens": 1},
        {"source": UsageSource.UNKNOWN, "completion_tokens": 0},
        {"source": UsageSource.REPORTED, "cached_prompt_tokens": 0},
        {"source": UsageSource.REPORTED, "prompt_tokens": 5, "cached_prompt_tokens": 6},
        {"source": UsageSource.REPORTED, "prompt_tokens": 5, "cached_prompt_tokens": -1},
        {"source": UsageSource.REPORTED, "reasoning_tokens": 0},
        {"source": UsageSource.REPORTED, "completion_tokens": 5, "reasoning_tokens": 6},
    ],
)
def test_counts_that_cannot_be(counts: dict[str, object]) -> None:
    with pytest.raises(AssertionError):
        Usage(**counts)  # type: ignore[arg-type]


def test_parts_may_be_all_of_the_whole() -> None:
    Usage(
        source=UsageSource.REPORTED,
        prompt_tokens=5,
        cached_prompt_tokens=5,
        completion_tokens=3,
        reasoning_tokens=3,
    )
