"""Every recorded stream, cut at every point: the client's bytes are the backend's.

A raw TCP backend sends the recorded bytes, HTTP head and chunk framing included, in two writes (every
point) or in several (random points). The oracle is this file's own split of the stream into events.
"""

import asyncio
import functools
import json
import pathlib
import random
import socket
from collections.abc import Iterator

import pytest

from backends.simulator.settings import Settings
from tests.support import captures, mutants, simulator
from tests.support.gateway import running_async
from tests.support.rawbackend import Asked, backend
from tests.support.rawclient import RawClient

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

CLIENTS = 12
PAUSE_S = 0.001  # between two writes, so that they are two reads
SEED = 20261128


SIMULATED = {
    "simulator/chat_stream": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Weigh this."}]},
    ),
    "simulator/completions_stream": ("/v1/completions", {"prompt": "Weigh this."}),
}


@functools.cache
def recorded(name: str) -> bytes:
    """A raw response: one of the real vLLM's recordings, or what the simulator sends now."""
    if name not in SIMULATED:
        return (captures.VLLM / f"{name.partition('/')[2]}.response.http").read_bytes()
    path, ask = SIMULATED[name]
    body = json.dumps(
        ask | {"model": "m1", "stream": True, "max_tokens": 6, "stream_options": {"include_usage": True}}
    ).encode()
    with simulator.running(Settings(instance_type="inf2.48xlarge", model="m1", time_scale=0.01)) as simulated:
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
        with socket.create_connection(("127.0.0.1", simulated.port)) as sock, sock.makefile("rb") as file:
            sock.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            return file.read().replace(b"connection: close\r\n", b"")


NAMES = [*(f"vllm-0.32.0/{name}" for name in captures.streams()), *SIMULATED]


def without_usage_event(stream: bytes) -> bytes:
    """The stream without the event that a client did not ask for: `choices: []` and a usage that is not null."""
    kept = []
    for event in stream.split(b"\n\n")[:-1]:
        data = event.removeprefix(b"data: ")
        parsed = json.loads(data) if data.startswith(b"{") else None
        if not (parsed and parsed.get("choices") == [] and parsed.get("usage")):
            kept.append(event + b"\n\n")
    return b"".join(kept)


def cuts(raw: bytes, rng: random.Random) -> Iterator[tuple[int, ...]]:
    """Every single point, then random sets of points."""
    yield from ((point,) for point in range(1, len(raw)))
    for _ in range(100):
        yield tuple(sorted(rng.sample(range(1, len(raw)), rng.randint(2, 12))))


async def play(raw: bytes, name: str, tmp_path: pathlib.Path, **options: object) -> None:
    async def answer(asked: Asked, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at = 0
        for point in (*map(int, asked.headers["x-request-id"].split(".")), len(raw)):
            writer.write(raw[at:point])
            await asyncio.sleep(PAUSE_S)
            at = point

    path = "/v1/chat/completions" if "/chat" in name else "/v1/completions"
    whole = captures.read_response(raw).body
    expected = {True: whole, False: without_usage_event(whole)}
    rng = random.Random(SEED)
    todo = [
        (points, asked)
        for points in cuts(raw, rng)
        for asked in ([False, True] if len(points) > 1 else [False])
    ]
    async with backend(answer) as port:
        config = [{"name": "raw", "url": f"http://127.0.0.1:{port}", "model": "m1"}]
        async with running_async(tmp_path, config, **options) as gateway:
            queue = iter(todo)

            async def one(connection: RawClient, points: tuple[int, ...], asked: bool) -> None:
                body = {"model": "m1", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
                if asked:
                    body["stream_options"] = {"include_usage": True}
                got = await connection.post(path, body, x_request_id=".".join(map(str, points)))
                assert (got.status, got.complete) == (200, True), (name, points, got)
                assert got.body == expected[asked], (name, points, asked)

            async def client() -> None:
                connection = RawClient(gateway.port, gateway.keys["acme"])
                try:
                    for points, asked in queue:
                        await one(connection, points, asked)
                finally:
                    await connection.close()

            async with asyncio.TaskGroup() as clients:
                for _ in range(CLIENTS):
                    clients.create_task(client())
            records = gateway.lines("call")
            assert len(records) == len(todo)
            assert {record["outcome"] for record in records} == {"completed"}
            used = {(record["body_bytes"], json.dumps(record["usage"])) for record in records}
            assert len(used) == 2  # by the request, which a prompt is estimated from; not by the cuts


@pytest.mark.parametrize("name", NAMES)
def test_the_clients_bytes_do_not_depend_on_where_the_stream_was_cut(
    name: str, tmp_path: pathlib.Path
) -> None:
    asyncio.run(play(recorded(name), name, tmp_path))


def test_a_reader_that_loses_what_is_cut_is_found(tmp_path: pathlib.Path) -> None:
    name = "vllm-0.32.0/chat_stream_stop"
    with pytest.raises(ExceptionGroup) as found:
        asyncio.run(play(recorded(name), name, tmp_path, env=mutants.environment("events_cut_at_reads")))
    assert found.group_contains(AssertionError)
