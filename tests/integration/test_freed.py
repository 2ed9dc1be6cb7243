"""A connection that is over is gone, with its buffers: nothing of it waits for the cycle collector."""

import asyncio
import gc

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from gateway.calls.direct import DirectProtocol, Door, protocol
from gateway.configuration.config import Bounds

pytestmark = pytest.mark.integration


async def found(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def visit(port: int, *, closing: bool) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    last = b"connection: close\r\n" if closing else b""
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: h\r\n%b\r\n" % last)
    assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("closing", [False, True], ids=["the client closes", "the server closes"])
def test_a_connection_that_uvicorn_has_answered_on_is_freed_at_its_end(closing: bool) -> None:
    async def body() -> None:
        config = uvicorn.Config(found, lifespan="off", log_config=None)
        config.load()
        made, state = protocol(Door(Bounds())), ServerState()
        server = await asyncio.get_running_loop().create_server(
            lambda: made(config=config, server_state=state, app_state={}),  # type: ignore[call-arg]
            "127.0.0.1",
            0,
        )
        for _ in range(3):
            await visit(server.sockets[0].getsockname()[1], closing=closing)
        async with asyncio.timeout(10):
            while any(isinstance(each, DirectProtocol) for each in gc.get_objects()):
                await asyncio.sleep(0.01)
        server.close()

    gc.collect()
    gc.disable()
    try:
        asyncio.run(body())
    finally:
        gc.enable()
