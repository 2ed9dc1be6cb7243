"""Token counts of one attempt or call. Pure."""

import enum

import msgspec


class UsageSource(enum.StrEnum):
    """Where the completion's count comes from; one that was reported beside an estimated prompt is `ESTIMATED`."""

    REPORTED = "reported"  # the backend's own usage object, of the whole answer
    COUNTED = "counted"  # tokens of a stream, counted as they passed or as the backend counted them so far
    ESTIMATED = "estimated"  # from the sizes of request and answer: nobody counted
    UNKNOWN = "unknown"  # nothing to go on; tokens that nobody counted are not billed


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Token counts. A count is None when unknown and 0 when known to be zero.

    The two are never interchangeable: `tokens or estimate` is a billing bug.
    cached_prompt_tokens are a part of prompt_tokens, reasoning_tokens of
    completion_tokens; `other` holds kinds that are not the model's, as a tokenizer's.
    """

    cached_prompt_tokens: int | None = None
    completion_tokens: int | None = None
    energy_uj: int | None = None
    other: dict[str, int] | None = None
    prompt_tokens: int | None = None
    reasoning_tokens: int | None = None
    source: UsageSource

    def __post_init__(self) -> None:
        if self.source is UsageSource.UNKNOWN:
            assert self.prompt_tokens is None
            assert self.completion_tokens is None
        if self.cached_prompt_tokens is not None:
            assert self.prompt_tokens is not None
            assert 0 <= self.cached_prompt_tokens <= self.prompt_tokens
        if self.reasoning_tokens is not None:
            assert self.completion_tokens is not None
            assert 0 <= self.reasoning_tokens <= self.completion_tokens


UNKNOWN = Usage(source=UsageSource.UNKNOWN)
