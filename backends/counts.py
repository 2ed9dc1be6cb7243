"""Token counts as backends report them, in the words of each API. Pure.

    OpenAI      prompt_tokens, completion_tokens, and parts of them in …_details
    Responses   input_tokens, output_tokens, and parts of them in …_details
    Anthropic   input_tokens without what came from the cache or went into it: those are added
    audio       of a stream as chat's; of a whole transcript the seconds heard, or as the Responses API's

What is no count (negative, a fraction, a boolean, a text, above COUNT_MAX) is left out and flagged, the others stand.
"""

import math
from typing import Any

import msgspec

from metering.usage import UNKNOWN, Usage, UsageSource

COUNT_MAX = 10**9
"""A larger token count is no count: no model has such a context, and one lying backend must not fill a ledger."""


AUDIO_S = "audio_s"
"""Seconds of audio, in a usage's `other`."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A usage object as read.

    usage: what of it are counts; `UNKNOWN` if none are. invalid: something in it was none, or there were none at
    all. clamped: a part was larger than its whole and was cut to it.
    """

    usage: Usage
    invalid: bool = False
    clamped: bool = False


NOTHING = Reading(usage=UNKNOWN, invalid=True)


def openai(value: Any) -> Reading:
    """A decoded usage object of chat and text completions. total_tokens is not read: the bill is made of the parts."""
    return _with_details(value, "prompt_tokens", "completion_tokens")


def responses(value: Any) -> Reading:
    """A decoded usage object of the Responses API."""
    return _with_details(value, "input_tokens", "output_tokens")


def pooled(value: Any) -> Reading:
    """A decoded usage object of what only reads (embeddings, scores, classes…): its completion is 0, not unknown.

    Where prompt_tokens are left out, as older servers do in a ranking, the total is the prompt.
    """
    if not isinstance(value, dict):
        return NOTHING
    fields = value | {"completion_tokens": 0}
    if fields.get("prompt_tokens") is None:
        fields["prompt_tokens"] = value.get("total_tokens")
    if fields["prompt_tokens"] is None:
        return NOTHING
    return openai(fields)


def anthropic(value: Any) -> Reading:
    """A decoded usage object of the Messages API; an answer's last event may have only some of the counts."""
    if not isinstance(value, dict):
        return NOTHING
    fresh, invalid = _count(value.get("input_tokens"))
    read, read_invalid = _count(value.get("cache_read_input_tokens"))
    written, written_invalid = _count(value.get("cache_creation_input_tokens"))
    completion, completion_invalid = _count(value.get("output_tokens"))
    prompt = None if fresh is None else fresh + (read or 0) + (written or 0)
    return Reading(
        usage=_usage(prompt, None if prompt is None else read, completion, None),
        invalid=invalid
        or read_invalid
        or written_invalid
        or completion_invalid
        or prompt is completion is None,
    )


def transcribed(value: Any) -> Reading:
    """A decoded usage object of a whole transcript: `{"type": "duration", "seconds": …}`, or one of tokens.

    Seconds stand in the usage's `other`, begun ones as whole ones, which is how OpenAI counts them.
    """
    if not isinstance(value, dict) or value.get("type") != "duration":
        return responses(value)
    seconds = value.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return NOTHING
    if not 0 <= seconds <= COUNT_MAX:  # NaN is neither
        return NOTHING
    return Reading(usage=Usage(other={AUDIO_S: math.ceil(seconds)}, source=UsageSource.REPORTED))


def tokenized(value: Any) -> Usage:
    """Of an answer for which no token was computed: none is billed.

    value: how many the tokenizer made, if that is known.
    """
    number, _ = _count(value)
    return Usage(
        prompt_tokens=0,
        completion_tokens=0,
        other=None if number is None else {"tokenized_tokens": number},
        source=UsageSource.REPORTED,
    )


def merged(earlier: Usage, later: Usage) -> Usage:
    """Of each count the last one that is known; never a sum. A part is at most its whole."""
    prompt = _last(earlier.prompt_tokens, later.prompt_tokens)
    completion = _last(earlier.completion_tokens, later.completion_tokens)
    cached = _last(earlier.cached_prompt_tokens, later.cached_prompt_tokens)
    reasoning = _last(earlier.reasoning_tokens, later.reasoning_tokens)
    return _usage(prompt, _part(cached, prompt)[0], completion, _part(reasoning, completion)[0])


def _with_details(value: Any, prompt_name: str, completion_name: str) -> Reading:
    if not isinstance(value, dict):
        return NOTHING
    prompt, invalid = _count(value.get(prompt_name))
    completion, completion_invalid = _count(value.get(completion_name))
    cached, cached_invalid = _count(_detail(value, prompt_name, "cached_tokens"))
    reasoning, reasoning_invalid = _count(_detail(value, completion_name, "reasoning_tokens"))
    cached, cached_clamped = _part(cached, prompt)
    reasoning, reasoning_clamped = _part(reasoning, completion)
    return Reading(
        usage=_usage(prompt, cached, completion, reasoning),
        invalid=invalid
        or completion_invalid
        or cached_invalid
        or reasoning_invalid
        or prompt is completion is None,
        clamped=cached_clamped or reasoning_clamped,
    )


def _usage(prompt: int | None, cached: int | None, completion: int | None, reasoning: int | None) -> Usage:
    if prompt is completion is None:
        return UNKNOWN
    return Usage(
        cached_prompt_tokens=cached,
        completion_tokens=completion,
        prompt_tokens=prompt,
        reasoning_tokens=reasoning,
        source=UsageSource.REPORTED,
    )


def _detail(value: dict[str, Any], of: str, name: str) -> Any:
    details = value.get(f"{of}_details")
    return details.get(name) if isinstance(details, dict) else None


def _count(value: Any) -> tuple[int | None, bool]:
    """A count, and whether it was none. None is unknown; True is an int to Python and no count to us."""
    if value is None:
        return None, False
    if type(value) is int and 0 <= value <= COUNT_MAX:
        return value, False
    return None, True


def _part(part: int | None, whole: int | None) -> tuple[int | None, bool]:
    if part is None or whole is None:
        return None, False
    return min(part, whole), part > whole


def _last(earlier: int | None, later: int | None) -> int | None:
    return earlier if later is None else later
