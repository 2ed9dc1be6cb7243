"""What every Python program here does with its library: one order a line on stdin, one view a line on stdout.

A view is what the library made of an answer, in words that all libraries share:

    text, pieces            the whole text; the pieces of it that came one after the other
    finish                  why it ended, in the library's own word
    prompt_tokens, …        the usage that the library tells
    tool                    name and arguments of the tool that was called
    call_id                 of the gateway's header, where the library shows headers
    vectors                 embeddings, where they were asked for
    error                   the exception: class, its bases, and the fields that the library put into it
"""

import asyncio
import dataclasses
import json
import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
}
"""The tool that is called, as a function of OpenAI's API."""


@dataclasses.dataclass(frozen=True)
class Order:
    """One thing to do.

    extra: fields of the body besides those the library has arguments for. retries: None is the library's default.
    leave_after: pieces after which the stream is left. timeout_s: after which the library gives up.
    """

    do: str
    base_url: str
    key: str
    model: str
    request_id: str
    prompt: str
    max_tokens: int
    extra: dict[str, Any]
    retries: int | None
    leave_after: int | None
    timeout_s: float

    @property
    def headers(self) -> dict[str, str]:
        return {"x-request-id": self.request_id}

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.prompt}]

    def given_retries(self) -> dict[str, int]:
        """The argument `max_retries`, if it is not the library's default that is wanted."""
        return {} if self.retries is None else {"max_retries": self.retries}


@dataclasses.dataclass
class View:
    """What the library made of an answer. Filled as it comes, so that an error keeps what came before it."""

    pieces: list[str] = dataclasses.field(default_factory=list)
    finish: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    tool: dict[str, Any] | None = None
    call_id: str | None = None
    vectors: list[list[float]] | None = None
    error: dict[str, Any] | None = None

    def add(self, text: str | None) -> None:
        if text:
            self.pieces.append(text)

    def called(self, name: str, arguments: str | dict[str, Any]) -> None:
        self.tool = {
            "name": name,
            "arguments": json.loads(arguments) if isinstance(arguments, str) else arguments,
        }


Handler = Callable[[Order, View], Awaitable[None] | None]
Describe = Callable[[Exception], dict[str, Any]]


def serve(handlers: dict[str, Handler], describe: Describe) -> None:
    """Carry out orders until stdin ends. describe: the fields of the library's exceptions."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some libraries print
    asyncio.run(_serve(handlers, describe, answers.write, answers.flush))


async def _serve(
    handlers: dict[str, Handler],
    describe: Describe,
    write: Callable[[str], object],
    flush: Callable[[], None],
) -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        order, view = Order(**json.loads(line)), View()
        try:
            done = handlers[order.do](order, view)
            if done is not None:
                await done
        except Exception as error:  # noqa: BLE001  it is what the test asks about
            traceback.print_exc()
            bases = [base.__name__ for base in type(error).__mro__]
            view.error = {"class": type(error).__name__, "bases": bases, "message": str(error)} | describe(
                error
            )
        write(json.dumps(dataclasses.asdict(view) | {"text": "".join(view.pieces)}) + "\n")
        flush()
