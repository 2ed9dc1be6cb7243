"""POST /v1/messages and /v1/messages/count_tokens, Anthropic's API as vLLM serves it. Pure.

Source of the bytes: vllm/entrypoints/anthropic/{protocol,serving}.py. `input_tokens` leaves out cached tokens, but in
`message_start` it has them all. Errors have Anthropic's shape, except those of the body itself.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from backends.simulator import forms
from backends.simulator.answers import (
    Choice,
    Heading,
    Piece,
    StreamWriter,
    Usage,
    Writer,
    dumps,
    openai_error,
)
from backends.simulator.apis.events import event
from backends.simulator.asks import (
    Ask,
    Body,
    Served,
    check_model,
    check_prompts,
    room,
    stop_strings,
    text_of,
)
from backends.simulator.forms import Tool, ToolCall
from backends.simulator.refusals import INVALID, Refused, bad_request
from backends.simulator.tokens import chat_tokens

Json = dict[str, Any]
Content = str | list[Json]


class Message(msgspec.Struct, frozen=True):
    role: str
    content: Content

    def text(self) -> str:
        """Of text blocks, and of what tools said."""
        if isinstance(self.content, str):
            return self.content
        said = (
            block.get("content") if block.get("type") == "tool_result" else [block] for block in self.content
        )
        return "\n".join(map(text_of, said))

    def called(self) -> set[str]:
        blocks = () if isinstance(self.content, str) else self.content
        return {str(block.get("name")) for block in blocks if block.get("type") == "tool_use"}


class _OfferedTool(msgspec.Struct, frozen=True):
    name: str
    input_schema: Json | None = None


class _ToolChoice(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None


class _Conversation(Body, frozen=True, kw_only=True):
    """What is counted, and what is answered."""

    model: str
    messages: list[Message]
    system: Content | None = None
    tools: list[_OfferedTool] | None = None
    tool_choice: _ToolChoice | None = None

    id_prefix = "chatcmpl-"

    @classmethod
    def error(cls, refused: Refused) -> bytes:
        if refused.type == INVALID:
            return openai_error(refused)
        return dumps({"type": "error", "error": {"type": refused.type, "message": refused.message}}).encode()

    def prompt(self, served: Served) -> list[str]:
        """Tokens of the conversation; tools cost none. Raises Refused."""
        check_model(self.model, served)
        if not self.messages:
            raise bad_request(
                "Cannot apply chat template to an empty conversation. Provide at least one message."
            )
        system = [] if self.system is None else [("system", text_of(self.system))]
        tokens = chat_tokens([*system, *((message.role, message.text()) for message in self.messages)])
        check_prompts((tokens,), served)
        return tokens


class MessagesBody(_Conversation, frozen=True, kw_only=True):
    max_tokens: int
    stream: bool | None = False
    stop_sequences: list[str] | None = None
    cache_salt: str | None = None

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    def ask(self, served: Served) -> Ask:
        call = self.call()
        prompt = self.prompt(served)
        return Ask(
            prompts=(prompt,),
            max_tokens=room(self.max_tokens, len(prompt), served),
            salt=self.cache_salt,
            script=None if call is None else call.arguments,
            stops=stop_strings(self.stop_sequences) if call is None else (),
            stream=self.streams,
        )

    def call(self) -> ToolCall | None:
        """The call that the answer must be. Raises Refused."""
        tools = [Tool(name=tool.name, parameters=tool.input_schema) for tool in self.tools or ()]
        match self.tool_choice:
            case _ToolChoice(type="any"):
                called = {name for message in self.messages for name in message.called()}
                return forms.required(tools, called)
            case _ToolChoice(type="tool", name=name):
                return forms.by_name(tools, name)
            case _:
                return None

    def writer(self, heading: Heading, _ask: Ask, _served: Served, /) -> Writer:
        return MessageWriter(heading, self.call())


class CountTokensBody(_Conversation, frozen=True, kw_only=True):
    def ask(self, served: Served) -> Ask:
        self.prompt(served)
        return Ask(prompts=())

    def writer(self, _heading: Heading, _ask: Ask, served: Served, /) -> Writer:
        return CountWriter(len(self.prompt(served)))


class CountWriter(Writer):
    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def sized(self, _choices: Sequence[Choice], _usage: Usage, /) -> bytes:
        counted = {"original_input_tokens": self._tokens}
        return dumps({"input_tokens": self._tokens, "context_management": counted}).encode()


class MessageWriter(StreamWriter):
    """One content block: a text, or the use of a tool."""

    def __init__(self, heading: Heading, call: ToolCall | None) -> None:
        self._heading = heading
        self._call = call
        self._begun = False
        self._stop: Json = {"stop_reason": None, "stop_sequence": None}

    def begin(self, prompts: Sequence[Usage], /) -> Iterator[bytes]:
        (usage,) = prompts
        message = self._message([]) | {
            "stop_reason": None, "stop_sequence": None,
            "usage": {"input_tokens": usage.prompt_tokens, "output_tokens": 0},
        }  # fmt: skip
        yield event({"type": "message_start", "message": message})

    def token(self, piece: Piece, /) -> Iterator[bytes]:
        if piece.finish_reason is not None:
            self._stop = self._stops(piece.finish_reason, piece.stop_reason)
        if not piece.text:
            return
        if not self._begun:
            self._begun = True
            yield event({"type": "content_block_start", "content_block": self._block(""), "index": 0})
        delta = (
            {"type": "text_delta", "text": piece.text}
            if self._call is None
            else {"type": "input_json_delta", "partial_json": piece.text}
        )
        yield event({"type": "content_block_delta", "delta": delta, "index": 0})

    def end(self, usage: Usage, /) -> Iterator[bytes]:
        if self._begun:
            yield event({"type": "content_block_stop", "index": 0})
        yield event({"type": "message_delta", "delta": self._stop, "usage": _usage(usage)})
        yield event({"type": "message_stop"})

    def fail(self, refused: Refused, /) -> Iterator[bytes]:
        error = {"type": "internal_error", "message": refused.message}
        yield event({"type": "error", "error": error})

    def sized(self, choices: Sequence[Choice], usage: Usage, /) -> bytes:
        (choice,) = choices
        stop = self._stops(choice.finish_reason, choice.stop_reason)
        shown = {name: value for name, value in stop.items() if value is not None}
        message = self._message([self._block(choice.text)]) | shown | {"usage": _usage(usage)}
        return dumps(message).encode()

    def _message(self, content: list[Json]) -> Json:
        return {
            "id": self._heading.id, "type": "message", "role": "assistant", "content": content,
            "model": self._heading.model,
        }  # fmt: skip

    def _block(self, text: str) -> Json:
        if self._call is None:
            return {"type": "text", "text": text}
        tool_id = self._heading.inner_id("chatcmpl-tool-")
        return {"type": "tool_use", "id": tool_id, "name": self._call.name, "input": _arguments(text)}

    def _stops(self, finish_reason: str, stop_reason: str | None) -> Json:
        if finish_reason == "length":
            reason = "max_tokens"
        elif self._call is not None:
            reason = "tool_use"
        else:
            reason = "end_turn" if stop_reason is None else "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": stop_reason}


def _arguments(text: str) -> Json:
    """Of a call; those that were cut short are none (vLLM has no sized answer then)."""
    try:
        read = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return read if isinstance(read, dict) else {}


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens, "output_tokens": usage.completion_tokens,
        "cache_creation_input_tokens": 0, "cache_read_input_tokens": usage.cached_tokens,
    }  # fmt: skip
