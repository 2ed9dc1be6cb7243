"""The token counts that a call is billed by: what the backend reported, else what can be known without it. Pure.

    reported    both counts, and the answer came to its end
    counted     a stream: what the backend had counted so far, or one token for each delta, whichever is more
    estimated   one token for each 4 bytes of text; of the request at least one, at most what the backend can hold
    unknown     the prompt of a request that is no text

An answer that reports something else than tokens, as seconds of audio, has none that are estimated.

A count that was reported stands beside one that was not; `source` names the weaker. Nothing is tokenised: all this
takes one pass over an answer at most, and none over the request.
"""

from typing import Any, Protocol

import msgspec

from metering.usage import UNKNOWN, Usage, UsageSource

BYTES_PER_TOKEN = 4
"""Of English text in the tokenizers of today's models; JSON and other scripts have more tokens, pictures fewer."""


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """Counts to bill by. flags: what the record is to say of them."""

    usage: Usage
    flags: tuple[str, ...] = ()


class Stream(Protocol):
    """What a reader of a stream knows; see StreamReader."""

    counted: int
    usage: Usage
    usage_clamped: int
    usage_invalid: int

    @property
    def usage_final(self) -> bool:
        """The usage is of the whole answer."""


class Answered(Protocol):
    """What is known of a sized answer; see Sized."""

    @property
    def usage(self) -> Usage:
        """As reported."""

    @property
    def usage_clamped(self) -> int:
        """How many counts were cut to size."""

    @property
    def usage_invalid(self) -> int:
        """How many were no counts."""

    @property
    def text_bytes(self) -> int:
        """Of what was generated."""


def prompt_estimate(body_bytes: int, max_model_len: int | None) -> int:
    """How many tokens a request may have had. max_model_len: what the backend can hold; None: not known."""
    tokens = max(1, body_bytes // BYTES_PER_TOKEN)
    return tokens if max_model_len is None else min(tokens, max_model_len)


def of_stream(reader: Stream, prompt: int | None) -> Settled:
    """The counts of a stream, whole or cut. prompt: its estimate; None: there can be none."""
    usage, flags = reader.usage, _flags(reader)
    if not reader.usage_final:
        completion = max(usage.completion_tokens or 0, reader.counted)
        source = UsageSource.COUNTED
        if usage.completion_tokens is None and not reader.counted:
            source = UsageSource.ESTIMATED  # no token was seen; there may have been some
    elif usage.completion_tokens is None:
        completion, source = reader.counted, UsageSource.COUNTED
    else:
        completion, source = usage.completion_tokens, UsageSource.REPORTED
    return _settled(usage, completion, source, prompt, flags)


def is_settled(answer: Answered) -> bool:
    """Can a sized answer be billed as it reports itself? Then `of_sized` has nothing to add."""
    usage = answer.usage
    return not (
        usage.prompt_tokens is None
        or usage.completion_tokens is None
        or answer.usage_invalid
        or answer.usage_clamped
    )


def of_sized(answer: Answered, prompt: int | None) -> Settled:
    """The counts of a sized answer. prompt: its estimate; None: there can be none."""
    usage, flags = answer.usage, _flags(answer)
    if usage.other is not None:  # seconds of audio, or what a tokenizer made: all that there is to count
        return Settled(usage=usage, flags=flags)
    if usage.completion_tokens is None:
        completion = -(-answer.text_bytes // BYTES_PER_TOKEN)
        return _settled(usage, completion, UsageSource.ESTIMATED, prompt, flags)
    return _settled(usage, usage.completion_tokens, UsageSource.REPORTED, prompt, flags)


def of_nothing(prompt: int | None) -> Settled:
    """The counts of work that was begun and gave no answer: its prompt, by estimate; None: there can be none."""
    if prompt is None:
        return Settled(usage=UNKNOWN)
    usage = Usage(prompt_tokens=prompt, completion_tokens=0, source=UsageSource.ESTIMATED)
    return Settled(usage=usage, flags=("prompt_estimated",))


def _settled(
    usage: Usage, completion: int, source: UsageSource, prompt: int | None, flags: tuple[str, ...]
) -> Settled:
    if source is UsageSource.REPORTED and usage.prompt_tokens is not None:
        return Settled(usage=usage, flags=flags)  # nearly always
    changes: dict[str, Any] = {"completion_tokens": completion}
    if usage.prompt_tokens is None and prompt is not None:
        flags += ("prompt_estimated",)
        changes["prompt_tokens"] = prompt
        if source is UsageSource.REPORTED:
            source = UsageSource.ESTIMATED
    return Settled(usage=msgspec.structs.replace(usage, source=source, **changes), flags=flags)


def _flags(answer: Stream | Answered) -> tuple[str, ...]:
    """A count that was none is left out, a part larger than its whole is cut to it; the record says so."""
    invalid = ("usage_invalid",) if answer.usage_invalid else ()
    return (*invalid, "usage_clamped") if answer.usage_clamped else invalid
