"""openai-python: the synchronous client."""

import functools
from typing import Any

import openai
import orders
from orders import Order, View

TOOL = {"type": "function", "function": orders.WEATHER}
CHOICE = {"type": "function", "function": {"name": orders.WEATHER["name"]}}


@functools.cache
def client(base_url: str, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=base_url, api_key=key)


def completions(order: Order) -> Any:
    given = client(order.base_url, order.key).with_options(timeout=order.timeout_s, **order.given_retries())
    return given.chat.completions


def arguments(order: Order) -> dict[str, Any]:
    return {
        "model": order.model,
        "messages": order.messages,
        "max_tokens": order.max_tokens,
        "extra_headers": order.headers,
        "extra_body": order.extra,
    }


def chat(order: Order, view: View, **more: Any) -> None:
    raw = completions(order).with_raw_response.create(**arguments(order), **more)
    view.call_id = raw.headers.get("x-weighbridge-call-id")
    answer = raw.parse()
    (choice,) = answer.choices
    view.add(choice.message.content)
    view.finish = choice.finish_reason
    view.prompt_tokens, view.completion_tokens = answer.usage.prompt_tokens, answer.usage.completion_tokens
    for call in choice.message.tool_calls or []:
        view.called(call.function.name, call.function.arguments)


def stream(order: Order, view: View, **more: Any) -> None:
    chunks = completions(order).create(
        **arguments(order), **more, stream=True, stream_options={"include_usage": True}
    )
    view.call_id = chunks.response.headers.get("x-weighbridge-call-id")
    name, called = None, ""
    for chunk in chunks:
        if chunk.usage is not None:
            view.prompt_tokens, view.completion_tokens = (
                chunk.usage.prompt_tokens,
                chunk.usage.completion_tokens,
            )
        for choice in chunk.choices:
            view.finish = choice.finish_reason or view.finish
            view.add(choice.delta.content)
            for call in choice.delta.tool_calls or []:
                name = call.function.name or name
                called += call.function.arguments or ""
        if order.leave_after is not None and len(view.pieces) >= order.leave_after:
            chunks.close()
            return
    if name is not None:
        view.called(name, called)


def tools(order: Order, view: View) -> None:
    chat(order, view, tools=[TOOL], tool_choice=CHOICE)


def stream_tools(order: Order, view: View) -> None:
    stream(order, view, tools=[TOOL], tool_choice=CHOICE)


def describe(error: Exception) -> dict[str, Any]:
    names = ("status_code", "code", "type", "param", "request_id")
    return {name: getattr(error, name) for name in names if hasattr(error, name)}


if __name__ == "__main__":
    orders.serve({"chat": chat, "stream": stream, "tools": tools, "stream_tools": stream_tools}, describe)
