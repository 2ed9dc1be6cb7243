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


def given(order: Order) -> openai.OpenAI:
    return client(order.base_url, order.key).with_options(timeout=order.timeout_s, **order.given_retries())


def arguments(order: Order) -> dict[str, Any]:
    return {
        "model": order.model,
        "messages": order.messages,
        "max_tokens": order.max_tokens,
        "extra_headers": order.headers,
        "extra_body": order.extra,
    }


def chat(order: Order, view: View, **more: Any) -> None:
    raw = given(order).chat.completions.with_raw_response.create(**arguments(order), **more)
    view.call_id = raw.headers.get("x-weighbridge-call-id")
    answer = raw.parse()
    (choice,) = answer.choices
    view.add(choice.message.content)
    view.finish = choice.finish_reason
    view.prompt_tokens, view.completion_tokens = answer.usage.prompt_tokens, answer.usage.completion_tokens
    for call in choice.message.tool_calls or []:
        view.called(call.function.name, call.function.arguments)


def stream(order: Order, view: View, **more: Any) -> None:
    chunks = given(order).chat.completions.create(
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


def responses(order: Order, view: View) -> None:
    note_response(view, given(order).responses.create(**response_arguments(order)))


def stream_responses(order: Order, view: View) -> None:
    for event in given(order).responses.create(**response_arguments(order), stream=True):
        if event.type == "response.output_text.delta":
            view.add(event.delta)
        elif event.type in ("response.completed", "response.incomplete"):
            text = "".join(view.pieces)
            assert text == event.response.output_text, "the deltas are not the text at the end"
            note_response(view, event.response)


def kept(order: Order, view: View) -> None:
    """A response, the same once more, and one that goes on from it."""
    api = given(order).responses
    first = api.create(**response_arguments(order))
    again = api.retrieve(first.id, extra_headers=order.headers)
    second = api.create(**response_arguments(order), previous_response_id=first.id)
    view.pieces = [answer.output_text for answer in (first, again, second)]


def response_arguments(order: Order) -> dict[str, Any]:
    return {
        "model": order.model,
        "input": order.prompt,
        "max_output_tokens": order.max_tokens,
        "extra_headers": order.headers,
        "extra_body": order.extra,
    }


def note_response(view: View, answer: Any) -> None:
    if not view.pieces:
        view.add(answer.output_text)
    view.finish = answer.status
    view.prompt_tokens, view.completion_tokens = answer.usage.input_tokens, answer.usage.output_tokens


def completion(order: Order, view: View) -> None:
    answer = given(order).completions.create(
        model=order.model, prompt=order.prompt, max_tokens=order.max_tokens, extra_headers=order.headers
    )
    (choice,) = answer.choices
    view.add(choice.text)
    view.finish = choice.finish_reason
    view.prompt_tokens, view.completion_tokens = answer.usage.prompt_tokens, answer.usage.completion_tokens


def embed(order: Order, view: View) -> None:
    """The library asks for base64 by itself, and gives numbers."""
    answer = given(order).embeddings.create(
        model=order.model, input=[order.prompt, "And three lakes."], extra_headers=order.headers
    )
    view.vectors = [one.embedding for one in answer.data]
    view.prompt_tokens, view.completion_tokens = answer.usage.prompt_tokens, 0


def models(order: Order, view: View) -> None:
    api = given(order).models
    names = [model.id for model in api.list(extra_headers=order.headers)]
    view.pieces = [api.retrieve(name, extra_headers=order.headers).id for name in names]


def describe(error: Exception) -> dict[str, Any]:
    names = ("status_code", "code", "type", "param", "request_id")
    return {name: getattr(error, name) for name in names if hasattr(error, name)}


if __name__ == "__main__":
    handlers = (
        chat, stream, tools, stream_tools, responses, stream_responses, kept, completion, embed, models,
    )  # fmt: skip
    orders.serve({handler.__name__: handler for handler in handlers}, describe)
