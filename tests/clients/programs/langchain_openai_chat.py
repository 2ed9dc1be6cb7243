"""langchain-openai: ChatOpenAI."""

import contextlib
from typing import Any

import langchain_openai
import orders
from openai_python import TOOL, describe
from orders import Order, View


def model(order: Order) -> langchain_openai.ChatOpenAI:
    return langchain_openai.ChatOpenAI(
        base_url=order.base_url,
        api_key=order.key,
        model=order.model,
        max_tokens=order.max_tokens,
        default_headers=order.headers,
        extra_body=order.extra,
        timeout=order.timeout_s,
        stream_usage=True,  # off by default with a base URL of one's own
        **order.given_retries(),
    )


def chat(order: Order, view: View) -> None:
    ask(model(order), order, view)


def tools(order: Order, view: View) -> None:
    ask(bound(order), order, view)


def stream(order: Order, view: View) -> None:
    ask_streamed(model(order), order, view)


def stream_tools(order: Order, view: View) -> None:
    ask_streamed(bound(order), order, view)


def bound(order: Order) -> Any:
    return model(order).bind_tools([TOOL], tool_choice=orders.WEATHER["name"])


def ask(runnable: Any, order: Order, view: View) -> None:
    message = runnable.invoke(order.prompt)
    view.add(message.text)
    note(view, message)


def ask_streamed(runnable: Any, order: Order, view: View) -> None:
    whole = None
    with contextlib.closing(runnable.stream(order.prompt)) as chunks:
        for chunk in chunks:
            view.add(chunk.text)
            whole = chunk if whole is None else whole + chunk
            if order.leave_after is not None and len(view.pieces) >= order.leave_after:
                return
    assert whole is not None
    note(view, whole)


def note(view: View, message: Any) -> None:
    view.finish = message.response_metadata.get("finish_reason")
    if message.usage_metadata is not None:
        view.prompt_tokens = message.usage_metadata["input_tokens"]
        view.completion_tokens = message.usage_metadata["output_tokens"]
    for call in message.tool_calls:
        view.called(call["name"], call["args"])


if __name__ == "__main__":
    orders.serve({"chat": chat, "stream": stream, "tools": tools, "stream_tools": stream_tools}, describe)
