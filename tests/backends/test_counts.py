"""Token counts in the words of each API: what is a count, what is a part, which value holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends import counts
from backends.counts import COUNT_MAX, NOTHING, Reading, merged
from metering.usage import UNKNOWN, Usage, UsageSource


def usage(prompt: int | None, completion: int | None, **more: int | None) -> Usage:
    return Usage(prompt_tokens=prompt, completion_tokens=completion, source=UsageSource.REPORTED, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "reading"),
    [
        ({"input_tokens": 34, "output_tokens": 12}, Reading(usage=usage(34, 12))),
        (
            {
                "input_tokens": 199,
                "input_tokens_details": {"cached_tokens": 128},
                "output_tokens": 12,
                "output_tokens_details": {"reasoning_tokens": 3},
            },
            Reading(usage=usage(199, 12, cached_prompt_tokens=128, reasoning_tokens=3)),
        ),
        (
            {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 6}, "output_tokens": 1},
            Reading(usage=usage(5, 1, cached_prompt_tokens=5), clamped=True),
        ),
        ({"input_tokens": -1, "output_tokens": 2}, Reading(usage=usage(None, 2), invalid=True)),
        ({"prompt_tokens": 1, "completion_tokens": 2}, NOTHING),  # another API's
        ([], NOTHING),
    ],
)
def test_responses(value: object, reading: Reading) -> None:
    assert counts.responses(value) == reading


@pytest.mark.parametrize(
    ("value", "reading"),
    [
        ({"input_tokens": 199, "output_tokens": 0}, Reading(usage=usage(199, 0))),
        (
            {
                "input_tokens": 71,
                "output_tokens": 12,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 128,
            },
            Reading(usage=usage(199, 12, cached_prompt_tokens=128)),
        ),
        (
            {"input_tokens": 1, "output_tokens": 2, "cache_creation_input_tokens": 10},
            Reading(usage=usage(11, 2)),
        ),
        ({"output_tokens": 12}, Reading(usage=usage(None, 12))),
        ({"output_tokens": 12, "cache_read_input_tokens": 5}, Reading(usage=usage(None, 12))),
        (
            {"input_tokens": 1, "output_tokens": True},
            Reading(usage=usage(1, None), invalid=True),
        ),
        (
            {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": -3},
            Reading(usage=usage(1, 2), invalid=True),
        ),
        ({"cache_creation_input_tokens": "x"}, NOTHING),
        ({}, NOTHING),
        (7, NOTHING),
    ],
)
def test_anthropic_adds_what_came_from_the_cache(value: object, reading: Reading) -> None:
    assert counts.anthropic(value) == reading


@pytest.mark.parametrize(
    ("value", "reading"),
    [
        ({"prompt_tokens": 4, "total_tokens": 4}, Reading(usage=usage(4, 0))),
        ({"prompt_tokens": 4, "total_tokens": 4, "completion_tokens": 0}, Reading(usage=usage(4, 0))),
        ({"total_tokens": 9}, Reading(usage=usage(9, 0))),
        (
            {"prompt_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}},
            Reading(usage=usage(4, 0, cached_prompt_tokens=2)),
        ),
        ({"prompt_tokens": -4, "total_tokens": 4}, Reading(usage=usage(None, 0), invalid=True)),
        ({"completion_tokens": 3}, NOTHING),
        ({}, NOTHING),
        (None, NOTHING),
    ],
)
def test_what_generates_nothing_has_a_completion_of_zero(value: object, reading: Reading) -> None:
    assert counts.pooled(value) == reading


@pytest.mark.parametrize(
    ("number", "other"),
    [(7, {"tokenized_tokens": 7}), (0, {"tokenized_tokens": 0}), (-1, None), (None, None)],
)
def test_a_tokenizer_costs_no_tokens_and_that_is_known(number: object, other: object) -> None:
    assert counts.tokenized(number) == Usage(
        prompt_tokens=0, completion_tokens=0, other=other, source=UsageSource.REPORTED
    )


NUMBERS = st.none() | st.integers(0, 50)


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    prompt, completion = draw(NUMBERS), draw(NUMBERS)
    if prompt is completion is None:
        return UNKNOWN
    cached = draw(st.none() | st.integers(0, prompt)) if prompt is not None else None
    reasoning = draw(st.none() | st.integers(0, completion)) if completion is not None else None
    return usage(prompt, completion, cached_prompt_tokens=cached, reasoning_tokens=reasoning)


@given(st.lists(usages(), max_size=5))
def test_the_last_value_of_each_count_holds_and_none_is_a_sum(seen: list[Usage]) -> None:
    held = UNKNOWN
    for one in seen:
        held = merged(held, one)
    for name in ("prompt_tokens", "completion_tokens"):
        known = [getattr(one, name) for one in seen if getattr(one, name) is not None]
        assert getattr(held, name) == (known[-1] if known else None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, COUNT_MAX * 2) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(
        st.sampled_from(["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "input_tokens",
                         "cached_tokens", "output_tokens", "output_tokens_details", "cache_read_input_tokens"]), inner),
)  # fmt: skip


@given(JSON, st.sampled_from([counts.openai, counts.responses, counts.pooled, counts.anthropic]))
def test_no_backend_can_give_tokens_back(value: object, read: object) -> None:
    found = read(value).usage  # type: ignore[operator]
    for count in (found.prompt_tokens, found.completion_tokens, found.cached_prompt_tokens):
        assert count is None or 0 <= count <= 3 * COUNT_MAX
