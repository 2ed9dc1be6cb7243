"""pydantic-ai: an agent for tools, and its model interface for the rest; both on its OpenAIChatModel."""

from typing import Any

import orders
import pydantic
from openai import AsyncOpenAI
from orders import Order, View
from pydantic_ai import Agent, direct
from pydantic_ai.messages import ModelRequest, ModelResponse
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings


class Weather(pydantic.BaseModel):
    """The weather in a city"""

    city: str
    days: int


def model(order: Order) -> OpenAIChatModel:
    client = AsyncOpenAI(base_url=order.base_url, api_key=order.key, **order.given_retries())
    return OpenAIChatModel(order.model, provider=OpenAIProvider(openai_client=client))


def settings(order: Order) -> ModelSettings:
    return ModelSettings(
        max_tokens=order.max_tokens,
        extra_headers=order.headers,
        extra_body=order.extra,
        timeout=order.timeout_s,
    )


async def chat(order: Order, view: View) -> None:
    answer = await direct.model_request(
        model(order), [ModelRequest.user_text_prompt(order.prompt)], model_settings=settings(order)
    )
    view.add(answer.text)
    note(view, answer)


async def stream(order: Order, view: View) -> None:
    asked = direct.model_request_stream(
        model(order), [ModelRequest.user_text_prompt(order.prompt)], model_settings=settings(order)
    )
    async with asked as events:
        async for event in events:
            if event.event_kind == "part_start":
                view.add(event.part.content)
            elif event.event_kind == "part_delta":
                view.add(event.delta.content_delta)
            if order.leave_after is not None and len(view.pieces) >= order.leave_after:
                return
        note(view, events.get())


async def tools(order: Order, view: View) -> None:
    """Output of a type: the agent offers it as a tool and asks the server to call one."""
    agent = Agent(model(order), output_type=Weather)
    result = await agent.run(order.prompt, model_settings=settings(order))
    view.called(orders.WEATHER["name"], result.output.model_dump())
    view.prompt_tokens, view.completion_tokens = result.usage.input_tokens, result.usage.output_tokens


async def stream_tools(order: Order, view: View) -> None:
    agent = Agent(model(order), output_type=Weather)
    async with agent.run_stream(order.prompt, model_settings=settings(order)) as result:
        output = await result.get_output()
        view.called(orders.WEATHER["name"], output.model_dump())
        view.prompt_tokens, view.completion_tokens = result.usage.input_tokens, result.usage.output_tokens


def note(view: View, answer: ModelResponse) -> None:
    view.finish = answer.finish_reason
    view.prompt_tokens, view.completion_tokens = answer.usage.input_tokens, answer.usage.output_tokens


def describe(error: Exception) -> dict[str, Any]:
    names = ("status_code", "provider_error_code", "provider_error_type", "in_stream", "retry_after")
    return {name: getattr(error, name) for name in names if hasattr(error, name)}


if __name__ == "__main__":
    orders.serve({"chat": chat, "stream": stream, "tools": tools, "stream_tools": stream_tools}, describe)
