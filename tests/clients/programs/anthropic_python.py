"""The anthropic SDK, whose `/v1/messages` vLLM serves. Its base URL ends before `/v1`."""

import functools
from typing import Any

import anthropic
import orders
from orders import Order, View

TOOL = {
    "name": orders.WEATHER["name"],
    "description": orders.WEATHER["description"],
    "input_schema": orders.WEATHER["parameters"],
}
CHOICE = {"type": "tool", "name": orders.WEATHER["name"]}


@functools.cache
def client(base_url: str, key: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=base_url.removesuffix("/v1"), api_key=key)


def messages(order: Order) -> Any:
    given = client(order.base_url, order.key).with_options(timeout=order.timeout_s, **order.given_retries())
    return given.messages


def arguments(order: Order) -> dict[str, Any]:
    return {
        "model": order.model,
        "messages": order.messages,
        "max_tokens": order.max_tokens,
        "extra_headers": order.headers,
        "extra_body": order.extra,
    }


def chat(order: Order, view: View, **more: Any) -> None:
    raw = messages(order).with_raw_response.create(**arguments(order), **more)
    view.call_id = raw.headers.get("x-weighbridge-call-id")
    answer = raw.parse()
    assert answer._request_id == raw.headers["x-request-id"]
    for block in answer.content:
        if block.type == "text":
            view.add(block.text)
    note(view, answer)


def stream(order: Order, view: View, **more: Any) -> None:
    with messages(order).stream(**arguments(order), **more) as events:
        view.call_id = events.response.headers.get("x-weighbridge-call-id")
        for event in events:
            if event.type == "text":
                view.add(event.text)
            if order.leave_after is not None and len(view.pieces) >= order.leave_after:
                return
        note(view, events.get_final_message())


def note(view: View, answer: anthropic.types.Message) -> None:
    view.finish = answer.stop_reason
    view.prompt_tokens, view.completion_tokens = answer.usage.input_tokens, answer.usage.output_tokens
    for block in answer.content:
        if block.type == "tool_use":
            view.called(block.name, block.input)


def tools(order: Order, view: View) -> None:
    chat(order, view, tools=[TOOL], tool_choice=CHOICE)


def stream_tools(order: Order, view: View) -> None:
    stream(order, view, tools=[TOOL], tool_choice=CHOICE)


def count(order: Order, view: View) -> None:
    counted = messages(order).count_tokens(
        model=order.model, messages=order.messages, extra_headers=order.headers
    )
    view.prompt_tokens = counted.input_tokens


def describe(error: Exception) -> dict[str, Any]:
    names = ("status_code", "type", "request_id")
    return {name: getattr(error, name) for name in names if hasattr(error, name)}


if __name__ == "__main__":
    orders.serve(
        {"chat": chat, "stream": stream, "tools": tools, "stream_tools": stream_tools, "count": count},
        describe,
    )
