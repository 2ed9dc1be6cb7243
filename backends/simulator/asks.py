"""What every generating API has in common: limits, the answer's room, sampling fields. Pure.

Accepted without effect: temperature, top_p, seed, penalties, logit_bias, best_of, suffix, reasoning, images, and any
field that no body names. The bodies of the APIs are in `apis/`.
"""

import abc
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import msgspec

from backends.simulator import plans
from backends.simulator.answers import Heading, Writer, openai_error
from backends.simulator.forms import StructuredOutputs
from backends.simulator.kept import KeptResponses
from backends.simulator.plans import Plan
from backends.simulator.refusals import Refused, bad_parameter, bad_request
from backends.simulator.tokens import Vocabulary, seed_of

SEQUENCES_MAX = 16_384


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """The model as its requests see it. max_model_len: prompt and answer, in tokens."""

    model: str
    max_model_len: int
    vocabulary: Vocabulary
    responses: KeptResponses


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A request that will be served. prompts: the tokens of each; none: it is answered without the engine.

    max_tokens: of each sequence, cut to fit. script: what the answer will be; None: words. reads: it generates nothing.
    """

    prompts: tuple[list[str], ...]
    n: int = 1
    max_tokens: int = 1
    min_tokens: int = 0
    ignore_eos: bool = False
    salt: str | None = None
    script: str | None = None
    stops: tuple[str, ...] = ()
    stream: bool = False
    reads: bool = False

    def plan(self, prompt: Sequence[str], number: int) -> Plan:
        """Of choice `number` of a prompt."""
        if self.reads:
            return plans.nothing()
        if self.script is not None:
            plan = plans.scripted(self.script, max_tokens=self.max_tokens)
        else:
            plan = plans.spoken(
                seed_of(prompt, number),
                max_tokens=self.max_tokens,
                min_tokens=self.min_tokens,
                ignore_eos=self.ignore_eos,
            )
        return plans.stopped(plan, self.stops)


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """The body of one API: what it asks for, and how it is answered. model: None is any. is_form: it is no JSON."""

    model: str | None = None

    id_prefix: ClassVar[str]
    is_form: ClassVar[bool] = False
    id_of_request: ClassVar[bool] = True
    """The request's `x-request-id` becomes part of the answer's id."""

    @abc.abstractmethod
    def ask(self, served: Served) -> Ask:
        """Check it in vLLM's order and work out what it asks for. Raises Refused."""

    @abc.abstractmethod
    def writer(self, heading: Heading, ask: Ask, served: Served, /) -> Writer:
        """Of the answer to what `ask` gave; of a stream, where that says so, a StreamWriter."""

    @property
    def streams(self) -> bool:
        return False

    @property
    def given_id(self) -> str | None:
        """What the answer is to be called; None: the server says."""
        return None

    def given(self) -> int:
        """How many fields have a value, of those that are known here."""
        return sum(value is not None for value in msgspec.structs.astuple(self))

    @classmethod
    def error(cls, refused: Refused) -> bytes:
        return openai_error(refused)


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingBody(Body, frozen=True, kw_only=True):
    """What chat and completions have in common."""

    n: int | None = 1
    max_tokens: int | None = None
    min_tokens: int | None = 0
    ignore_eos: bool | None = False
    cache_salt: str | None = None
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    structured_outputs: StructuredOutputs | None = None

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    def check(self, served: Served) -> None:
        """Raises Refused."""
        if self.stream_options is not None and not self.stream:
            raise bad_parameter("Stream options can only be defined when `stream=True`.", "stream_options")
        check_model(self.model, served)


def stop_strings(given: str | list[str] | None) -> tuple[str, ...]:
    """Raises Refused."""
    stops = (given,) if isinstance(given, str) else tuple(given or ())
    if not all(stops):
        raise bad_request("stop cannot contain an empty string.")
    return stops


def check_model(asked: str | None, served: Served) -> None:
    """Raises Refused."""
    if asked and asked != served.model:
        message = f"The model `{asked}` does not exist. Valid aliases: {served.model}."
        raise Refused(404, message, "NotFoundError", "model")


def check_prompts(prompts: Iterable[Sequence[str]], served: Served) -> int:
    """The longest prompt's tokens. Raises Refused."""
    lengths = [len(prompt) for prompt in prompts]
    if not all(lengths):
        raise bad_request("The decoder prompt cannot be empty")
    longest = max(lengths)
    if longest > served.max_model_len:
        raise _too_long(served.max_model_len)
    return longest


def room(wanted: int | None, longest: int, served: Served, param: str = "max_tokens") -> int:
    """Tokens that an answer may have; wanted: None is as many as fit. Raises Refused."""
    left = served.max_model_len - longest
    max_tokens = left if wanted is None else min(wanted, left)
    if max_tokens < 1:
        raise bad_parameter(f"{param} must be at least 1, got {max_tokens}.", param, max_tokens)
    return max_tokens


def choices(n: int | None, prompts: int) -> int:
    """Choices a prompt. Raises Refused."""
    count = 1 if n is None else n
    if count < 1:
        raise bad_request(f"n must be at least 1, got {count}.")
    if count * prompts > SEQUENCES_MAX:
        raise bad_request(f"n must be at most {SEQUENCES_MAX}, got {count}.")
    return count


def text_of(content: Any) -> str:
    """The text of a message: a string, or parts of which those with a text count."""
    if isinstance(content, list):
        return "\n".join(text for part in content if (text := _part_text(part)) is not None)
    return content if isinstance(content, str) else ""


def _part_text(part: Any) -> str | None:
    text = part.get("text") if isinstance(part, dict) else part
    return text if isinstance(text, str) else None


def _too_long(max_model_len: int) -> Refused:
    """vLLM cuts a prompt at one token above the limit before it counts: hence «at least»."""
    return bad_parameter(
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains at least "
        f"{max_model_len + 1} input tokens, which exceeds this limit even without any output tokens. "
        "Please reduce the length of the input prompt.",
        "input_tokens",
        max_model_len + 1,
    )
