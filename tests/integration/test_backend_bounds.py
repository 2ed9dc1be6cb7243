"""The bounds on connections to backends, each gone past in a running gateway."""

import asyncio
import json
import pathlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.gateway import Gateway, eventually, running
from tests.support.rawbackend import Scripted, sized

pytestmark = pytest.mark.integration

ASKED = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
ANSWER = json.dumps({
    "id": "c1", "object": "chat.completion", "created": 1, "model": "m1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
}).encode()  # fmt: skip


def burst(gateway: Gateway, backend: Scripted, calls: int) -> None:
    """As many calls at once, each on a connection of its own."""

    async def answer(_asked: object, _reader: object, writer: object) -> None:
        seen.append(writer)
        while len(seen) < calls:
            await asyncio.sleep(0.001)
        writer.write(sized(ANSWER))

    seen: list[object] = []
    backend.script = [answer] * calls
    with ThreadPoolExecutor(calls) as threads:
        answers = list(
            threads.map(lambda _: gateway.post("/v1/chat/completions", ASKED).status, range(calls))
        )
    assert answers == [200] * calls


@pytest.mark.parametrize(("bounds", "left"), [
    ({"backend_idle_max": 2, "backend_idle_s": 60}, 2),
    ({"backend_idle_max": 0}, 0),
    ({"backend_idle_s": 0.2}, 0),
])  # fmt: skip
def test_idle_connections(tmp_path: pathlib.Path, bounds: dict[str, float], left: int) -> None:
    backend = Scripted(sized(ANSWER))
    backends = [{"name": "b1", "url": f"http://127.0.0.1:{backend.port}", "model": "m1"}]
    try:
        with running(tmp_path, backends, bounds=bounds) as gateway:
            burst(gateway, backend, 6)
            eventually(lambda: backend.open_connections == left)
    finally:
        backend.stop()
