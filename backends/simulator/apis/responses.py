"""POST /v1/responses: answers are made, and kept unless `store` is false; none in the background. Pure.

Source of the bytes: vllm/entrypoints/openai/responses/{protocol,serving,streaming_events}.py. A stream begins before
the prompt is read; its last event is `response.completed`, also where the answer was cut, and no `[DONE]` follows.
For an error in the middle of it vLLM has no event: it breaks off.
"""

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from backends.simulator import forms
from backends.simulator.answers import Choice, Heading, Piece, StreamWriter, Usage, Writer, dumps
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
from backends.simulator.kept import Kept, Said
from backends.simulator.refusals import Refused, bad_request
from backends.simulator.tokens import chat_tokens

Json = dict[str, Any]

_NO_STORE = (
    "This vLLM engine does not support `store=True` and therefore does not support the background mode. To enable "
    "these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server."
)


class ResponsesBody(Body, frozen=True, kw_only=True):
    """input: a text, or items of which messages and what functions said count. tools: only functions are called."""

    input: str | list[Json]
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = False
    background: bool | None = False
    stop: str | list[str] | None = None
    ignore_eos: bool | None = False
    cache_salt: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    metadata: Json | None = None
    parallel_tool_calls: bool | None = True
    previous_response_id: str | None = None
    reasoning: Json | None = None
    request_id: str | None = None
    service_tier: str | None = "auto"
    store: bool | None = True
    text: Json | None = None
    tool_choice: str | Json | None = "auto"
    tools: list[Json] | None = None
    truncation: str | None = "disabled"
    user: str | None = None

    id_prefix = "resp_"
    id_of_request = False

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def given_id(self) -> str | None:
        return self.request_id

    def ask(self, served: Served) -> Ask:
        check_model(self.model, served)
        if self.background:
            raise Refused(400, _NO_STORE, "invalid_request_error", "background")
        said = self._said(served)
        call = self.call()
        prompt = chat_tokens(said)
        longest = check_prompts((prompt,), served)
        return Ask(
            prompts=(prompt,),
            max_tokens=room(self.max_output_tokens, longest, served, "max_output_tokens"),
            ignore_eos=bool(self.ignore_eos),
            salt=self.cache_salt,
            script=self._script() if call is None else call.arguments,
            stops=stop_strings(self.stop) if call is None else (),
            stream=self.streams,
        )

    def _said(self, served: Served) -> list[Said]:
        """The conversation so far; its earlier instructions no longer count. Raises Refused."""
        messages = [] if self.instructions is None else [("system", self.instructions)]
        if self.previous_response_id is not None:
            earlier = served.responses.get(self.previous_response_id).said
            messages += [one for one in earlier if one[0] != "system"]
        if isinstance(self.input, str):
            return [*messages, ("user", self.input)]
        if not self.input:
            raise bad_request(
                "Cannot apply chat template to an empty conversation. Provide at least one message."
            )
        return messages + [_message(item) for item in self.input]

    def call(self) -> ToolCall | None:
        """The call that the answer must be. Raises Refused."""
        tools = [_tool(tool) for tool in self.tools or () if tool.get("type") == "function"]
        if self.tool_choice == "required":
            return forms.required(tools, self._called())
        if isinstance(self.tool_choice, dict):
            return forms.by_name(tools, self.tool_choice.get("name"))
        return None

    def _called(self) -> set[str]:
        items = () if isinstance(self.input, str) else self.input
        return {str(item.get("name")) for item in items if item.get("type") == "function_call"}

    def _script(self) -> str | None:
        match self._format():
            case {"type": "json_schema", "schema": dict(schema)}:
                return forms.schema_script(schema)
            case {"type": "json_object"}:
                return "{}"
            case _:
                return None

    def _format(self) -> Json:
        given = (self.text or {}).get("format")
        return given if isinstance(given, dict) else {}

    def writer(self, heading: Heading, ask: Ask, served: Served, /) -> Writer:
        said = tuple(self._said(served))

        def keep(text: str, body: bytes) -> None:
            if self.store:
                served.responses.keep(heading.id, Kept(body, (*said, ("assistant", text))))

        return ResponseWriter(heading, self._shown(heading, ask), self.call(), keep)

    def _shown(self, heading: Heading, ask: Ask) -> Json:
        """The response with what the request says, and nothing generated."""
        tools = [_shown_tool(tool) for tool in self.tools or ()]
        return {
            "id": heading.id, "created_at": heading.created, "incomplete_details": None,
            "instructions": self.instructions, "metadata": self.metadata, "model": heading.model,
            "object": "response", "output": [],
            "parallel_tool_calls": True if self.parallel_tool_calls is None else self.parallel_tool_calls,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "tool_choice": _shown_choice(self.tool_choice) if tools else "none", "tools": tools,
            "top_p": 1.0 if self.top_p is None else self.top_p, "background": False,
            "max_output_tokens": ask.max_tokens, "max_tool_calls": None,
            "previous_response_id": self.previous_response_id, "prompt": None, "reasoning": self.reasoning,
            "service_tier": self.service_tier or "auto", "status": "in_progress", "text": self._shown_text(),
            "top_logprobs": None, "truncation": self.truncation or "disabled", "usage": None, "user": self.user,
            "presence_penalty": 0.0, "frequency_penalty": 0.0, "kv_transfer_params": None,
            "ec_transfer_params": None, "input_messages": None, "output_messages": None,
        }  # fmt: skip

    def _shown_text(self) -> Json | None:
        if self.text is None:
            return None
        shown = given = self._format()
        if given.get("type") == "json_schema":
            keys = ("name", "schema", "type", "description", "strict")
            shown = {key: given.get(key) for key in keys}
        return {"format": shown or None, "verbosity": self.text.get("verbosity")}


def _message(item: Json) -> tuple[str, str]:
    match item.get("type"):
        case "function_call":
            return "assistant", text_of(item.get("arguments"))
        case "function_call_output":
            return "tool", text_of(item.get("output"))
        case _:
            return str(item.get("role", "user")), text_of(item.get("content"))


def _tool(tool: Json) -> Tool:
    parameters = tool.get("parameters")
    return Tool(name=str(tool.get("name")), parameters=parameters if isinstance(parameters, dict) else None)


def _shown_tool(tool: Json) -> Json:
    if tool.get("type") != "function":
        return tool
    keys = (
        *("name", "parameters", "strict", "type", "allowed_callers", "async", "defer_loading"),
        *("description", "output_schema"),
    )
    return {key: tool.get(key) for key in keys}


def _shown_choice(choice: str | Json | None) -> str | Json:
    if isinstance(choice, dict):
        return {"name": choice.get("name"), "type": choice.get("type")}
    return choice or "auto"


class ResponseWriter(StreamWriter):
    """shown: the response before anything was generated. call: what the answer must be; None: a message.

    keep: is given the text, and the body of the whole answer.
    """

    early = True

    def __init__(
        self, heading: Heading, shown: Json, call: ToolCall | None, keep: Callable[[str, bytes], None]
    ) -> None:
        self._shown = shown
        self._keep = keep
        self._item: _Item = _MessageItem(heading) if call is None else _CallItem(heading, call)
        self._texts: list[str] = []
        self._cut = False
        self._number = 0

    def begin(self, _prompts: Sequence[Usage], /) -> Iterator[bytes]:
        for name in ("response.created", "response.in_progress"):
            yield self._event({"response": self._shown}, name)

    def token(self, piece: Piece, /) -> Iterator[bytes]:
        self._cut = piece.finish_reason == "length"
        if not piece.text:
            return
        if not self._texts:
            for data, name in self._item.opening():
                yield self._event(data, name)
        self._texts.append(piece.text)
        yield self._event(*self._item.delta(piece.text))

    def end(self, usage: Usage, /) -> Iterator[bytes]:
        text = "".join(self._texts)
        if text:
            for data, name in self._item.closing(text):
                yield self._event(data, name)
        ended = self._ended(text, usage, cut=self._cut)
        self._keep(text, dumps(ended).encode())
        yield self._event({"response": ended}, "response.completed")

    def fail(self, _refused: Refused, /) -> None:
        return None

    def sized(self, choices: Sequence[Choice], usage: Usage, /) -> bytes:
        (choice,) = choices
        body = dumps(self._ended(choice.text, usage, cut=choice.finish_reason == "length")).encode()
        self._keep(choice.text, body)
        return body

    def _event(self, data: Json, name: str) -> bytes:
        numbered = dict(sorted((data | {"sequence_number": self._number, "type": name}).items()))
        if "name" in numbered:  # a call's, which vLLM adds behind
            numbered["name"] = numbered.pop("name")
        self._number += 1
        return event(numbered)

    def _ended(self, text: str, usage: Usage, *, cut: bool) -> Json:
        return self._shown | {
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self._item.whole(text)] if text else [],
            "status": "incomplete" if cut else "completed",
            "usage": _usage(usage),
        }


class _Item(abc.ABC):
    """What is in `output`. Its events are pairs of members and name."""

    @abc.abstractmethod
    def opening(self) -> Iterator[tuple[Json, str]]:
        """Before the first delta."""

    @abc.abstractmethod
    def delta(self, text: str) -> tuple[Json, str]:
        """One token."""

    @abc.abstractmethod
    def closing(self, text: str) -> Iterator[tuple[Json, str]]:
        """After the last delta; text: of all of them."""

    @abc.abstractmethod
    def whole(self, text: str) -> Json:
        """The item as `output` has it in the end."""


class _MessageItem(_Item):
    def __init__(self, heading: Heading) -> None:
        self._id = heading.inner_id("msg_")
        self._where: Json = {"item_id": self._id, "output_index": 0}

    def opening(self) -> Iterator[tuple[Json, str]]:
        item = self._shown([], "in_progress")
        yield {"item": item, "output_index": 0}, "response.output_item.added"
        part = _part("", logprobs=[])
        yield {"content_index": 0} | self._where | {"part": part}, "response.content_part.added"

    def delta(self, text: str) -> tuple[Json, str]:
        data = {"content_index": 0, "delta": text, "item_id": self._id, "logprobs": [], "output_index": 0}
        return data, "response.output_text.delta"

    def closing(self, text: str) -> Iterator[tuple[Json, str]]:
        done = {"content_index": 0, "item_id": self._id, "logprobs": [], "output_index": 0}
        yield done | {"text": text}, "response.output_text.done"
        part = _part(text, logprobs=None)
        yield {"content_index": 0} | self._where | {"part": part}, "response.content_part.done"
        yield {"item": self.whole(text), "output_index": 0}, "response.output_item.done"

    def whole(self, text: str) -> Json:
        return self._shown([_part(text, logprobs=None)], "completed")

    def _shown(self, content: list[Json], status: str) -> Json:
        return {
            "id": self._id, "content": content, "role": "assistant", "status": status, "type": "message",
            "phase": None,
        }  # fmt: skip


class _CallItem(_Item):
    def __init__(self, heading: Heading, call: ToolCall) -> None:
        self._call = call
        self._id = heading.inner_id("fc_")
        self._call_id = heading.inner_id("chatcmpl-tool-")
        self._where: Json = {"item_id": self._id, "output_index": 0}

    def opening(self) -> Iterator[tuple[Json, str]]:
        item = self._shown("", "in_progress")
        yield {"item": item, "output_index": 0}, "response.output_item.added"

    def delta(self, text: str) -> tuple[Json, str]:
        return {"delta": text} | self._where, "response.function_call_arguments.delta"

    def closing(self, text: str) -> Iterator[tuple[Json, str]]:
        done = {"arguments": text} | self._where | {"name": self._call.name}
        yield done, "response.function_call_arguments.done"
        yield {"item": self.whole(text), "output_index": 0}, "response.output_item.done"

    def whole(self, text: str) -> Json:
        return self._shown(text, "completed")

    def _shown(self, arguments: str, status: str) -> Json:
        return {
            "arguments": arguments, "call_id": self._call_id, "name": self._call.name, "type": "function_call",
            "id": self._id, "async": None, "caller": None, "namespace": None, "status": status,
        }  # fmt: skip


def _part(text: str, logprobs: list[Json] | None) -> Json:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": logprobs}


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens, "cache_write_tokens": 0, "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {
            "reasoning_tokens": 0, "tool_output_tokens": 0, "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }  # fmt: skip
