"""Requests that generate: what was asked, or why vLLM would not have it. Pure.

Fields that are not here are accepted and have no effect, as an unknown field has none in vLLM: tools, logprobs, stop,
echo, temperature, continuous_usage_stats, … A body is refused with the status, type, param and words of vLLM
0.32.0 where a capture shows them (tests/data/vllm-0.32.0), else in the same shape.
"""

import json
import re
from typing import ClassVar

import msgspec

from backends.simulator.tokens import chat_tokens, tokenize

COMPLETION_TOKENS_DEFAULT = 16
"""Of /v1/completions; a chat without max_tokens may fill the context."""
SEQUENCES_MAX = 16_384

_POSITION = re.compile(r"\[(\d+)\]")


class Refused(Exception):
    """A 4xx. type, param: of the error body; `code` is the status."""

    def __init__(self, status: int, message: str, type_: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type_
        self.param = param


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A request that will be served. prompts: the tokens of each; max_tokens: of each sequence, cut to fit."""

    chat: bool
    prompts: tuple[list[str], ...]
    n: int
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    salt: str | None
    stream: bool
    include_usage: bool


class _StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class _Part(msgspec.Struct, frozen=True):
    text: str | None = None


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str | list[_Part] | None = None

    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text or "" for part in self.content)
        return self.content or ""


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that both operations have. model: None is any."""

    model: str | None = None
    n: int | None = 1
    max_tokens: int | None = None
    min_tokens: int | None = 0
    ignore_eos: bool | None = False
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    cache_salt: str | None = None


class ChatBody(Body, frozen=True, kw_only=True):
    messages: list[_Message]
    max_completion_tokens: int | None = None

    chat: ClassVar[bool] = True

    def prompts(self) -> tuple[list[str], ...]:
        if not self.messages:
            message = "Cannot apply chat template to an empty conversation. Provide at least one message."
            raise Refused(400, message, "BadRequestError")
        return (chat_tokens((message.role, message.text()) for message in self.messages),)

    def tokens_wanted(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionBody(Body, frozen=True, kw_only=True):
    """prompt: a text, tokens as numbers, or a list of either."""

    prompt: str | list[str | int | list[int]] | None = None

    chat: ClassVar[bool] = False

    def prompts(self) -> tuple[list[str], ...]:
        if not self.prompt:
            message = "Either prompt or prompt_embeds must be provided and non-empty."
            raise _bad_parameter(message, "prompt")
        if isinstance(self.prompt, str):
            return (tokenize(self.prompt) or [self.prompt],)
        if all(isinstance(item, int) for item in self.prompt):
            return ([str(item) for item in self.prompt],)
        return tuple(
            (tokenize(item) or [item]) if isinstance(item, str) else [str(token) for token in _numbers(item)]
            for item in self.prompt
        )

    def tokens_wanted(self) -> int | None:
        return COMPLETION_TOKENS_DEFAULT if self.max_tokens is None else self.max_tokens


def _numbers(item: int | list[int]) -> list[int]:
    return [item] if isinstance(item, int) else item


def read(body: bytes, body_type: type[ChatBody] | type[CompletionBody]) -> ChatBody | CompletionBody:
    """Decode a body. Raises Refused."""
    try:
        return msgspec.json.decode(body, type=body_type)
    except msgspec.ValidationError as error:
        raise _invalid(_parse(body), str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _parse(body)
        raise _unreadable() from error  # JSON to one parser and not to the other: NaN, half a surrogate pair


def ask(body: ChatBody | CompletionBody, model: str, max_model_len: int) -> Ask:
    """Check a decoded body in vLLM's order and work out what it asks for. Raises Refused."""
    if body.stream_options is not None and not body.stream:
        raise _bad_parameter("Stream options can only be defined when `stream=True`.", "stream_options")
    if body.model and body.model != model:
        message = f"The model `{body.model}` does not exist. Valid aliases: {model}."
        raise Refused(404, message, "NotFoundError", "model")
    n = 1 if body.n is None else body.n
    if n < 1:
        raise Refused(400, f"n must be at least 1, got {n}.", "BadRequestError")
    prompts = body.prompts()
    if not all(prompts):
        raise Refused(400, "The decoder prompt cannot be empty", "BadRequestError")
    if n * len(prompts) > SEQUENCES_MAX:
        raise Refused(400, f"n must be at most {SEQUENCES_MAX}, got {n}.", "BadRequestError")
    longest = max(len(prompt) for prompt in prompts)
    if longest > max_model_len:
        raise _too_long(max_model_len)
    wanted = body.tokens_wanted()
    max_tokens = max_model_len - longest if wanted is None else min(wanted, max_model_len - longest)
    if max_tokens < 1:
        raise _bad_parameter(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens", max_tokens)
    options = body.stream_options
    return Ask(
        chat=body.chat,
        prompts=prompts,
        n=n,
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        ignore_eos=bool(body.ignore_eos),
        salt=body.cache_salt,
        stream=bool(body.stream),
        include_usage=options is not None and bool(options.include_usage),
    )


def _bad_parameter(message: str, param: str, value: int | None = None) -> Refused:
    extra = f"parameter={param}" + ("" if value is None else f", value={value}")
    return Refused(400, f"{message} ({extra})", "BadRequestError", param)


def _too_long(max_model_len: int) -> Refused:
    """vLLM cuts a prompt at one token above the limit before it counts: hence «at least»."""
    return _bad_parameter(
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains at least "
        f"{max_model_len + 1} input tokens, which exceeds this limit even without any output tokens. "
        "Please reduce the length of the input prompt.",
        "input_tokens",
        max_model_len + 1,
    )


def _parse(body: bytes) -> object:
    """The body as JSON. Raises Refused where vLLM's parser, which is this one, would stop."""
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        where = f"body.{error.pos}"
        detail = {
            "type": "json_invalid", "loc": where, "msg": "JSON decode error", "input": "<dict of 0 items>",
            "ctx": {"error": error.msg},
        }  # fmt: skip
        raise Refused(400, f"1 validation error:\n  {detail}", "Bad Request", where) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise _unreadable() from error


def _unreadable() -> Refused:
    return Refused(400, "There was an error parsing the body", "Bad Request")


def _invalid(given: object, problem: str) -> Refused:
    """problem: msgspec's words, as in "Expected `int`, got `str` - at `$.max_tokens`"."""
    message, _, path = problem.partition(" - at `$")
    path = _POSITION.sub(r".\1", path.rstrip("`"))
    detail: dict[str, str]
    if message.startswith("Object missing required field"):
        where = f"body{path}.{message.split('`')[1]}"
        summary = f"<dict of {len(given)} items>" if isinstance(given, dict) and not path else "<dict>"
        detail = {"type": "missing", "loc": where, "msg": "Field required", "input": summary}
    else:
        where = f"body{path}"
        detail = {"type": "type_error", "loc": where, "msg": message}
    return Refused(400, f"1 validation error:\n  {detail}", "Bad Request", where)
