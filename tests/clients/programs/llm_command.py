"""The `llm` command with a model of `extra-openai-models.yaml`: one run of the command an order.

It knows no other field of a body than its options, and has no option for retries. A stream is left as a person
does it: Ctrl-C.
"""

import asyncio
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
from typing import Any

import orders
from orders import Order, View

LLM = pathlib.Path(sys.executable).parent / "llm"
USAGE = re.compile(r"Token usage: ([\d,]+) input, ([\d,]+) output")
FUNCTION = '''
def get_weather(city: str, days: int) -> str:
    """The weather in a city"""
    return "rain"
'''


class CommandFailed(Exception):
    """The command ended with a status that is not 0; its message is what it said on stderr."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status


async def chat(order: Order, view: View) -> None:
    await run(order, view, "--no-stream")


async def stream(order: Order, view: View) -> None:
    await run(order, view)


async def tools(order: Order, view: View) -> None:
    """It offers tools, and cannot ask that one be called."""
    await run(order, view, "--no-stream", "--functions", FUNCTION)


async def stream_tools(order: Order, view: View) -> None:
    await run(order, view, "--functions", FUNCTION)


async def run(order: Order, view: View, *options: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        configure(pathlib.Path(directory), order)
        process = await asyncio.create_subprocess_exec(
            LLM, "-m", "weighbridge", "--usage", "--no-log", "-o", "max_tokens", str(order.max_tokens), *options,
            order.prompt, env={**os.environ, "LLM_USER_PATH": directory}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        while piece := await process.stdout.read(4096):
            view.add(piece.decode())
            if order.leave_after is not None:
                process.send_signal(signal.SIGINT)
        said = (await process.stderr.read()).decode()
        if await process.wait() != 0 and order.leave_after is None:
            raise CommandFailed(process.returncode or 0, said)
    if view.pieces:
        view.pieces[-1] = view.pieces[-1].removesuffix("\n")  # the newline is the command's
    if usage := USAGE.search(said):
        view.prompt_tokens, view.completion_tokens = (int(count.replace(",", "")) for count in usage.groups())


def configure(directory: pathlib.Path, order: Order) -> None:
    model = {
        "model_id": "weighbridge",
        "model_name": order.model,
        "api_base": order.base_url,
        "api_key_name": "weighbridge",
        "headers": order.headers,
        "supports_tools": True,
    }
    (directory / "extra-openai-models.yaml").write_text(json.dumps([model]))  # YAML reads JSON
    (directory / "keys.json").write_text(json.dumps({"weighbridge": order.key}))


def describe(error: Exception) -> dict[str, Any]:
    return {"exit": error.status} if isinstance(error, CommandFailed) else {}


if __name__ == "__main__":
    orders.serve({"chat": chat, "stream": stream, "tools": tools, "stream_tools": stream_tools}, describe)
