"""Answers that must have a form: a call of a tool, or JSON. Pure.

A tool is called only where `tool_choice` demands it: by its name, or (`required`, Anthropic's `any`) the first one that
the conversation has no call of yet, so that a loop over tools comes to its end; else the first. Its arguments fit its
schema (schemas.py). With `auto` the model answers in words.
"""

import json
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from backends.simulator.refusals import bad_parameter
from backends.simulator.schemas import fit


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that is offered. parameters: a JSON schema of its arguments; None: it has none."""

    name: str
    parameters: dict[str, Any] | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """The call that the answer is. arguments: JSON. named: it was demanded by name."""

    name: str
    arguments: str
    named: bool


def call_of(tool: Tool, *, named: bool) -> ToolCall:
    return ToolCall(
        name=tool.name, arguments=_spaced(fit(tool.parameters or {"type": "object"})), named=named
    )


def required(tools: Sequence[Tool], called: Collection[str]) -> ToolCall:
    """Any tool must be called; called: names of those that were. Raises Refused."""
    if not tools:
        message = "Tool choice 'required' must be specified with 'tools' parameter."
        raise bad_parameter(message, "tool_choice")
    tool = next((tool for tool in tools if tool.name not in called), tools[0])
    return call_of(tool, named=False)


def by_name(tools: Sequence[Tool], name: str | None) -> ToolCall:
    """This tool must be called. Raises Refused."""
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        raise bad_parameter("Tool choice 'function' not found in 'tools' parameter.", "tool_choice")
    return call_of(tool, named=True)


class JsonSchema(msgspec.Struct, frozen=True):
    schema: dict[str, Any] | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """`response_format` of a chat. type: text, json_object or json_schema."""

    type: str
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, frozen=True):
    """`structured_outputs`, vLLM's own: of its forms, those that are simulated."""

    json: dict[str, Any] | str | None = None
    json_object: bool | None = None
    choice: list[str] | None = None


def script(format_: ResponseFormat | None, structured: StructuredOutputs | None) -> str | None:
    """The text that a demanded form makes of the answer; None: it is free. Raises Refused."""
    if format_ is not None and format_.type == "json_schema":
        return schema_script(None if format_.json_schema is None else format_.json_schema.schema)
    if format_ is not None and format_.type == "json_object":
        return "{}"
    if structured is None:
        return None
    if structured.choice:
        return structured.choice[0]
    if isinstance(structured.json, str):
        return schema_script(_schema(structured.json))
    if structured.json is not None:
        return schema_script(structured.json)
    return "{}" if structured.json_object else None


def schema_script(schema: dict[str, Any] | None) -> str | None:
    return None if schema is None else _spaced(fit(schema))


def _spaced(value: object) -> str:
    """JSON with blanks, as a model writes it."""
    return json.dumps(value, ensure_ascii=False)


def _schema(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise bad_parameter("Invalid JSON schema.", "structured_outputs") from error
