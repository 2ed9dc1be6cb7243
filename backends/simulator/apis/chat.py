"""POST /v1/chat/completions. Pure.

Source of the bytes: vllm/entrypoints/openai/chat_completion/{protocol,serving}.py. Streams leave out fields that were
never set, sized answers carry all of them. A call of a tool comes as its name, then its arguments token by token;
its finish reason is `stop` if it was demanded by name, else `tool_calls`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from backends.simulator import forms, logprobs
from backends.simulator.answers import Choice, Heading, Piece, Usage, Writer, dumps, quote
from backends.simulator.apis.chunks import DONE, ChunkWriter, sized_usage, start
from backends.simulator.asks import (
    Ask,
    SamplingBody,
    Served,
    StreamOptions,
    check_prompts,
    choices,
    room,
    stop_strings,
    text_of,
)
from backends.simulator.forms import Tool, ToolCall
from backends.simulator.refusals import bad_parameter, bad_request
from backends.simulator.tokens import chat_tokens


class _CalledFunction(msgspec.Struct, frozen=True):
    name: str | None = None


class _Called(msgspec.Struct, frozen=True):
    function: _CalledFunction | None = None


class Message(msgspec.Struct, frozen=True):
    role: str
    content: str | list[dict[str, Any] | str] | None = None
    tool_calls: list[_Called] | None = None


class _OfferedTool(msgspec.Struct, frozen=True):
    function: Tool
    type: Literal["function"] = "function"


class _Choice(msgspec.Struct, frozen=True):
    """`tool_choice` as an object."""

    function: _CalledFunction | None = None


class ChatBody(SamplingBody, frozen=True, kw_only=True):
    """`tool_choice` other than `none`, `auto` and `required` names a function."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    tools: list[_OfferedTool] | None = None
    tool_choice: str | _Choice | None = None
    response_format: forms.ResponseFormat | None = None

    id_prefix = "chatcmpl-"

    def ask(self, served: Served) -> Ask:
        self.check(served)
        n = choices(self.n, 1)
        call = self.call()
        prompt = self.prompt()
        longest = check_prompts((prompt,), served)
        wanted = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        return Ask(
            prompts=(prompt,),
            n=n,
            max_tokens=room(wanted, longest, served),
            min_tokens=self.min_tokens or 0,
            ignore_eos=bool(self.ignore_eos),
            salt=self.cache_salt,
            script=forms.script(self.response_format, self.structured_outputs)
            if call is None
            else call.arguments,
            stops=stop_strings(self.stop) if call is None else (),
            stream=self.streams,
        )

    def prompt(self) -> list[str]:
        """Tokens of the conversation. Raises Refused."""
        return conversation(self.messages)

    def call(self) -> ToolCall | None:
        """The call that the answer must be. Raises Refused."""
        tools = [offered.function for offered in self.tools or ()]
        match self.tool_choice:
            case None | "auto" | "none":
                return None
            case "required":
                return forms.required(tools, self._called())
            case _Choice(function=named):
                return forms.by_name(tools, None if named is None else named.name)
            case other:
                raise bad_parameter(f"Invalid value for `tool_choice`: {other}", "tool_choice")

    def _called(self) -> set[str]:
        calls = (call for message in self.messages for call in message.tool_calls or ())
        return {call.function.name for call in calls if call.function is not None and call.function.name}

    def writer(self, heading: Heading, _ask: Ask, _served: Served, /) -> Writer:
        top = (self.top_logprobs or 0) if self.logprobs else None
        call = self.call()
        if call is not None:
            return ToolWriter(heading, self.stream_options, call)
        return ChatWriter(heading, self.stream_options, top)


def conversation(messages: Sequence[Message]) -> list[str]:
    """Its tokens. Raises Refused."""
    if not messages:
        raise bad_request(
            "Cannot apply chat template to an empty conversation. Provide at least one message."
        )
    return chat_tokens((message.role, text_of(message.content)) for message in messages)


class _Writer(ChunkWriter):
    """What answers in words and calls of tools share."""

    def __init__(self, heading: Heading, options: StreamOptions | None) -> None:
        super().__init__(heading, "chat.completion.chunk", options)
        self._sized_start = start("chat.completion", heading)

    def begin(self, prompts: Sequence[Usage], /) -> Iterator[bytes]:
        """The role, one event a choice."""
        delta = '{"role":"assistant","content":""}'
        for index, usage in enumerate(prompts):
            choice = f'{{"index":{index},"delta":{delta},"logprobs":null,"finish_reason":null}}'
            yield self._chunk(choice, usage, tail=',"prompt_token_ids":null,"prompt_text":null')

    def end(self, usage: Usage, /) -> Iterator[bytes]:
        if self._include_usage:
            yield self._usage_event(usage, f'"cached_tokens":{usage.cached_tokens},"created_cache_tokens":0')
        yield DONE

    def _running_details(self) -> str:
        return ',"completion_tokens_details":null'

    def _delta(self, piece: Piece, delta: str, shown: str, finish_reason: str | None) -> bytes:
        """An event with a choice's delta; shown: its logprobs."""
        first = f'{{"index":{piece.index},"delta":{delta},"logprobs":{shown},'
        if finish_reason is None:
            return self._chunk(f'{first}"finish_reason":null,"token_ids":null}}', piece.usage)
        stop_reason = "null" if piece.stop_reason is None else quote(piece.stop_reason)
        last = f'"finish_reason":"{finish_reason}","stop_reason":{stop_reason},"token_ids":null}}'
        return self._chunk(first + last, piece.usage, stamped=True)

    def _sized(self, shown: Sequence[str], usage: Usage) -> bytes:
        return (
            f'{self._sized_start}[{",".join(shown)}],"service_tier":null,'
            f'"system_fingerprint":{self._fingerprint},"usage":{sized_usage(usage, created="0")},'
            '"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,'
            '"ec_transfer_params":null,"metrics":null}'
        ).encode()


class ChatWriter(_Writer):
    """An answer in words. top_logprobs: None is no log probabilities at all."""

    def __init__(
        self, heading: Heading, options: StreamOptions | None, top_logprobs: int | None = None
    ) -> None:
        super().__init__(heading, options)
        self._top = top_logprobs

    def token(self, piece: Piece, /) -> Iterator[bytes]:
        if not piece.text and piece.finish_reason is None:
            return  # a stop string may have begun
        delta = f'{{"content":{quote(piece.text)}}}'
        yield self._delta(piece, delta, self._logprobs([piece.text]), piece.finish_reason)

    def sized(self, choices: Sequence[Choice], usage: Usage, /) -> bytes:
        return self._sized([self._choice(*each) for each in enumerate(choices)], usage)

    def _choice(self, index: int, choice: Choice) -> str:
        stop_reason = "null" if choice.stop_reason is None else quote(choice.stop_reason)
        return (
            f'{{"index":{index},"message":{{"role":"assistant","content":{quote(choice.text)},"refusal":null,'
            '"annotations":null,"audio":null,"function_call":null,"reasoning":null},'
            f'"logprobs":{self._logprobs(choice.texts)},"finish_reason":"{choice.finish_reason}",'
            f'"stop_reason":{stop_reason},"token_ids":null,"routed_experts":null}}'
        )

    def _logprobs(self, texts: list[str]) -> str:
        return "null" if self._top is None else dumps(logprobs.of_chat(texts, self._top))


class ToolWriter(_Writer):
    """An answer that calls one tool."""

    def __init__(self, heading: Heading, options: StreamOptions | None, call: ToolCall) -> None:
        super().__init__(heading, options)
        self._call = call
        self._begun: set[int] = set()

    def token(self, piece: Piece, /) -> Iterator[bytes]:
        if piece.index not in self._begun:
            self._begun.add(piece.index)
            name = f'"type":"function","index":0,"function":{{"name":{quote(self._call.name)}}}'
            yield self._part(piece, f'"id":"{self._call_id(piece.index)}",{name}')
        if piece.text:
            yield self._part(piece, f'"index":0,"function":{{"arguments":{quote(piece.text)}}}')
        if piece.finish_reason is not None:
            yield self._delta(piece, "{}", "null", self._finish(piece.finish_reason))

    def sized(self, choices: Sequence[Choice], usage: Usage, /) -> bytes:
        return self._sized([self._choice(*each) for each in enumerate(choices)], usage)

    def _choice(self, index: int, choice: Choice) -> str:
        function = f'{{"name":{quote(self._call.name)},"arguments":{quote(choice.text)}}}'
        call = f'{{"id":"{self._call_id(index)}","type":"function","function":{function}}}'
        return (
            f'{{"index":{index},"message":{{"role":"assistant","content":"","refusal":null,"annotations":null,'
            f'"audio":null,"function_call":null,"tool_calls":[{call}],"reasoning":null}},"logprobs":null,'
            f'"finish_reason":"{self._finish(choice.finish_reason)}","stop_reason":null,"token_ids":null,'
            '"routed_experts":null}'
        )

    def _part(self, piece: Piece, members: str) -> bytes:
        return self._delta(piece, f'{{"content":null,"tool_calls":[{{{members}}}]}}', "null", None)

    def _call_id(self, index: int) -> str:
        return self._heading.inner_id("chatcmpl-tool-", index)

    def _finish(self, reason: str) -> str:
        return "tool_calls" if reason == "stop" and not self._call.named else reason
