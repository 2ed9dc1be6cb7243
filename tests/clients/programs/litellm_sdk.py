"""The litellm SDK, used as a client of an OpenAI-compatible server."""

from typing import Any

import litellm
import orders
from openai_python import CHOICE, TOOL, describe
from orders import Order, View


def arguments(order: Order) -> dict[str, Any]:
    return {
        "model": f"openai/{order.model}",
        "api_base": order.base_url,
        "api_key": order.key,
        "messages": order.messages,
        "max_tokens": order.max_tokens,
        "extra_headers": order.headers,
        "extra_body": order.extra,
        "timeout": order.timeout_s,
        **order.given_retries(),
    }


def chat(order: Order, view: View, **more: Any) -> None:
    answer = litellm.completion(**arguments(order), **more)
    (choice,) = answer.choices
    view.add(choice.message.content)
    view.finish = choice.finish_reason
    view.prompt_tokens, view.completion_tokens = answer.usage.prompt_tokens, answer.usage.completion_tokens
    for call in choice.message.tool_calls or []:
        view.called(call.function.name, call.function.arguments)


def stream(order: Order, view: View, **more: Any) -> None:
    chunks = litellm.completion(
        **arguments(order), **more, stream=True, stream_options={"include_usage": True}
    )
    name, called = None, ""
    for chunk in chunks:
        usage = getattr(chunk, "usage", None)
        if usage is not None:
            view.prompt_tokens, view.completion_tokens = usage.prompt_tokens, usage.completion_tokens
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


if __name__ == "__main__":
    orders.serve({"chat": chat, "stream": stream, "tools": tools, "stream_tools": stream_tools}, describe)
