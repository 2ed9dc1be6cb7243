"""What a call is billed by when its backend reported all, something, or nothing."""

import dataclasses
import itertools

import pytest

from backends.settling import Settled, is_settled, of_nothing, of_sized, of_stream, prompt_estimate
from metering.usage import UNKNOWN, Usage, UsageSource

REPORTED, COUNTED, ESTIMATED = UsageSource.REPORTED, UsageSource.COUNTED, UsageSource.ESTIMATED
PROMPT = 9
GUESSED = ("prompt_estimated",)


def usage(prompt: int | None, completion: int | None, source: UsageSource = REPORTED, **more: int) -> Usage:
    return Usage(prompt_tokens=prompt, completion_tokens=completion, source=source, **more)  # type: ignore[arg-type]


@dataclasses.dataclass
class Seen:
    """What a reader of a stream, or of a sized answer, knows."""

    usage: Usage = UNKNOWN
    usage_final: bool = False
    counted: int = 0
    usage_invalid: int = 0
    usage_clamped: int = 0
    text_bytes: int = 0


@pytest.mark.parametrize(
    ("seen", "settled", "flags"),
    [
        (Seen(usage(10, 5), True, 4), usage(10, 5), ()),
        (Seen(usage(0, 0), True, 4), usage(0, 0), ()),  # a reported zero is a zero
        (Seen(usage(10, 5, cached_prompt_tokens=3), True), usage(10, 5, cached_prompt_tokens=3), ()),
        (Seen(UNKNOWN, False, 4), usage(PROMPT, 4, COUNTED), GUESSED),  # cut
        (Seen(UNKNOWN, True, 4), usage(PROMPT, 4, COUNTED), GUESSED),  # ended well, but told nothing
        (Seen(UNKNOWN, False, 0), usage(PROMPT, 0, ESTIMATED), GUESSED),  # cut before the first token
        (Seen(UNKNOWN, True, 0), usage(PROMPT, 0, COUNTED), GUESSED),  # ended well with no token
        (Seen(usage(10, 7), False, 4), usage(10, 7, COUNTED), ()),  # what the backend had counted so far
        (Seen(usage(10, 2), False, 4), usage(10, 4, COUNTED), ()),  # … of one choice of two
        (Seen(usage(10, 0), False, 4), usage(10, 4, COUNTED), ()),  # Anthropic's first event tells the prompt
        (Seen(usage(10, 0), False, 0), usage(10, 0, COUNTED), ()),
        (Seen(usage(10, None), True, 4), usage(10, 4, COUNTED), ()),
        (
            Seen(usage(None, 5), True, 4, usage_invalid=1),
            usage(PROMPT, 5, ESTIMATED),
            ("usage_invalid", *GUESSED),
        ),
        (
            Seen(usage(10, 5), True, usage_invalid=1, usage_clamped=1),
            usage(10, 5),
            ("usage_invalid", "usage_clamped"),
        ),
        (Seen(usage(10, 5), True, usage_clamped=2), usage(10, 5), ("usage_clamped",)),
    ],
)
def test_a_stream(seen: Seen, settled: Usage, flags: tuple[str, ...]) -> None:
    assert of_stream(seen, PROMPT) == Settled(usage=settled, flags=flags)


@pytest.mark.parametrize(
    ("seen", "settled", "flags"),
    [
        (Seen(usage(10, 5), text_bytes=400), usage(10, 5), ()),
        (Seen(UNKNOWN, text_bytes=401), usage(PROMPT, 101, ESTIMATED), GUESSED),
        (Seen(UNKNOWN), usage(PROMPT, 0, ESTIMATED), GUESSED),
        (Seen(usage(10, None), text_bytes=8), usage(10, 2, ESTIMATED), ()),
        (Seen(usage(None, 5), usage_invalid=1), usage(PROMPT, 5, ESTIMATED), ("usage_invalid", *GUESSED)),
    ],
)
def test_a_sized_answer(seen: Seen, settled: Usage, flags: tuple[str, ...]) -> None:
    assert of_sized(seen, PROMPT) == Settled(usage=settled, flags=flags)


def test_work_that_was_begun_and_answered_nothing() -> None:
    assert of_nothing(PROMPT) == Settled(usage=usage(PROMPT, 0, ESTIMATED), flags=GUESSED)


@pytest.mark.parametrize(
    ("body_bytes", "max_model_len", "tokens"),
    [(0, None, 1), (3, None, 1), (4, 100, 1), (80, None, 20), (400, 100, 100), (5_000_000, 2048, 2048)],
)
def test_a_request_has_at_least_one_token_and_no_more_than_its_backend_holds(
    body_bytes: int, max_model_len: int | None, tokens: int
) -> None:
    assert prompt_estimate(body_bytes, max_model_len) == tokens


@pytest.mark.parametrize(
    ("seen", "settled"),
    [
        (Seen(usage(3004, 6), True, 6), usage(3004, 6)),
        (Seen(UNKNOWN, False, 4), usage(None, 4, COUNTED)),
        (Seen(UNKNOWN, False, 0), usage(None, 0, ESTIMATED)),
        (Seen(usage(3004, 2), False, 4), usage(3004, 4, COUNTED)),
        (Seen(usage(None, 6), True, 4), usage(None, 6)),
    ],
)
def test_a_stream_about_something_that_is_no_text_has_no_estimate_of_a_prompt(
    seen: Seen, settled: Usage
) -> None:
    assert of_stream(seen, None) == Settled(usage=settled)


def test_nor_has_an_answer_of_that_kind() -> None:
    seconds = Usage(other={"audio_s": 6}, source=REPORTED)
    assert of_sized(Seen(seconds, text_bytes=99), None) == Settled(usage=seconds)
    assert of_sized(Seen(UNKNOWN, text_bytes=99), None) == Settled(usage=usage(None, 25, ESTIMATED))
    invalid = Settled(usage=usage(None, 25, ESTIMATED), flags=("usage_invalid",))
    assert of_sized(Seen(UNKNOWN, text_bytes=99, usage_invalid=1), None) == invalid
    assert of_nothing(None) == Settled(usage=UNKNOWN)


def test_what_is_settled_by_itself_is_what_settling_would_add_nothing_to() -> None:
    counts = (None, 0, 7)
    for prompt, completion, invalid, clamped in itertools.product(counts, counts, (0, 1), (0, 1)):
        seen = Seen(usage(prompt, completion), usage_invalid=invalid, usage_clamped=clamped)
        assert is_settled(seen) == (of_sized(seen, PROMPT) == Settled(usage=seen.usage))
