"""TLS towards a backend: who is believed, who is not, and what a failure is called."""

import asyncio
import contextlib
import json
import pathlib
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, cast

import pytest
import uvloop

from backends.errors import BackendUnavailable
from backends.model import Backend
from backends.upstream import Upstream
from tests.support import rawserver
from tests.support.certificates import Authority
from tests.support.exchanges import Told, ask, start, until
from tests.support.gateway import Gateway, eventually, running
from tests.support.rawbackend import Scripted, sized
from tests.support.rawserver import WAIT_S, Peer

pytestmark = pytest.mark.integration

Run = Callable[[Coroutine[Any, Any, None]], None]
ASKED = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
CHAT = json.dumps({
    "id": "c1", "object": "chat.completion", "created": 1, "model": "m1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
}).encode()  # fmt: skip
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def run_on_loop(body: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(body, 30))

    return run_on_loop


@pytest.fixture
def authority(tmp_path: pathlib.Path) -> Authority:
    return Authority(tmp_path)


@contextlib.asynccontextmanager
async def client(port: int, *, host: str = "127.0.0.1", **keys: Any) -> AsyncIterator[Upstream]:
    backend = Backend(name="b1", url=f"https://{host}:{port}", model="m1", **keys)
    upstream = Upstream(backend, key="secret", loop=asyncio.get_running_loop())
    yield upstream
    await upstream.close()


async def answer(peer: Peer) -> None:
    while True:
        await peer.request()
        await peer.send(OK)


def quiet(_loop: asyncio.AbstractEventLoop, _context: dict[str, Any]) -> None:
    """A server's side of a handshake that its client breaks off is no fault of the test's loop."""


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_an_answer_over_tls(run: Run, authority: Authority, newest: ssl.TLSVersion) -> None:
    async def body() -> None:
        async with (
            rawserver.serve(answer, tls=authority.server("127.0.0.1", newest=newest)) as port,
            client(port, ca_file=str(authority.file)) as upstream,
        ):
            for _ in range(2):
                told = await ask(upstream)
                assert (told.calls, told.body) == (["connected", "head", "data", "end"], b"ok")
            assert upstream.open_connections == 1  # reused

    run(body())


def test_the_server_is_asked_for_its_name_and_for_http_1(run: Run, authority: Authority) -> None:
    asked: list[str | None] = []

    def note(sock: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        asked.append(name)

    async def body() -> None:
        tls = authority.server("vllm.internal", "localhost")
        tls.sni_callback = note
        protocols: list[str | None] = []

        async def script(peer: Peer) -> None:
            protocols.append(peer.tls.selected_alpn_protocol())
            await answer(peer)

        async with rawserver.serve(script, tls=tls) as port:
            ca_file = str(authority.file)
            async with client(port, ca_file=ca_file, server_name="vllm.internal") as upstream:
                assert (await ask(upstream)).body == b"ok"
            async with client(port, ca_file=ca_file, host="localhost") as upstream:
                assert (await ask(upstream)).body == b"ok"
        assert asked == ["vllm.internal", "localhost"]
        assert protocols == ["http/1.1", "http/1.1"]

    run(body())


@pytest.mark.parametrize(("names", "expired", "keys", "reason"), [
    (["127.0.0.2"], False, {}, "certificate for another name"),
    (["localhost"], False, {}, "certificate for another name"),
    (["127.0.0.1"], False, {"server_name": "vllm.internal"}, "certificate for another name"),
    (["127.0.0.1"], True, {}, "certificate expired"),
    (["127.0.0.1"], False, {"ca_file": None}, "certificate not trusted"),  # the system does not know it
])  # fmt: skip
def test_a_certificate_that_is_not_believed(
    run: Run, authority: Authority, names: list[str], expired: bool, keys: dict[str, Any], reason: str
) -> None:
    async def body() -> None:
        asyncio.get_running_loop().set_exception_handler(quiet)
        requests = []

        async def script(peer: Peer) -> None:
            requests.append(await peer.request())

        async with (
            rawserver.serve(script, tls=authority.server(*names, expired=expired)) as port,
            client(port, **({"ca_file": str(authority.file)} | keys)) as upstream,
        ):
            told = await ask(upstream)
            assert isinstance(told.error, BackendUnavailable)
            assert told.error.reason == reason
            assert told.calls == ["lost"]
            assert upstream.open_connections == 0
        assert requests == []  # nor has it seen our key

    run(body())


def test_an_old_version_of_tls_is_refused(run: Run, authority: Authority) -> None:
    async def body() -> None:
        asyncio.get_running_loop().set_exception_handler(quiet)
        with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
            tls = authority.server("127.0.0.1", newest=ssl.TLSVersion.TLSv1_1)
        async with (
            rawserver.serve(answer, tls=tls) as port,
            client(port, ca_file=str(authority.file)) as upstream,
        ):
            told = await ask(upstream)
            assert told.error is not None
            assert told.error.reason == "TLS failed"

    run(body())


@pytest.mark.parametrize("farewell", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_a_server_that_speaks_no_tls(run: Run, authority: Authority, farewell: bytes) -> None:
    async def body() -> None:
        async def script(peer: Peer) -> None:
            await peer.read()
            await peer.send(farewell)

        async with rawserver.serve(script) as port, client(port, ca_file=str(authority.file)) as upstream:
            told = await ask(upstream)
            assert isinstance(told.error, BackendUnavailable)
            assert told.error.reason == "TLS failed"

    run(body())


def test_a_handshake_that_stalls_can_be_aborted(run: Run, authority: Authority) -> None:
    async def body() -> None:
        here, gone = asyncio.Event(), asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.read()
            here.set()
            assert await peer.gone()
            gone.set()

        async with rawserver.serve(script) as port, client(port, ca_file=str(authority.file)) as upstream:
            told = start(upstream, Told())
            async with asyncio.timeout(WAIT_S):
                await here.wait()
                assert told.attempt is not None
                told.attempt.abort()
                await gone.wait()
            assert told.calls == []
            assert upstream.open_connections == 0

    run(body())


def test_abort_closes_a_tls_connection_at_once(run: Run, authority: Authority) -> None:
    async def body() -> None:
        gone = asyncio.Event()

        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
            assert await peer.gone()
            gone.set()

        async with (
            rawserver.serve(script, tls=authority.server("127.0.0.1")) as port,
            client(port, ca_file=str(authority.file)) as upstream,
        ):
            told = start(upstream, Told())
            await told.called("data")
            assert told.attempt is not None
            told.attempt.abort()
            async with asyncio.timeout(WAIT_S):
                await gone.wait()
            await until(lambda: upstream.open_connections == 0)
            assert told.calls == ["connected", "head", "data"]

    run(body())


def test_a_paused_attempt_makes_a_tls_backend_wait(run: Run, authority: Authority) -> None:
    async def body() -> None:
        size = 64_000_000
        sent = 0

        async def script(peer: Peer) -> None:
            nonlocal sent
            await peer.request()
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
            for _ in range(size // 1_000_000):
                await peer.send(b"x" * 1_000_000)
                sent += 1_000_000

        async with (
            rawserver.serve(script, tls=authority.server("127.0.0.1")) as port,
            client(port, ca_file=str(authority.file)) as upstream,
        ):
            told = Told()
            told.then["head"] = lambda: told.attempt and told.attempt.pause()
            start(upstream, told)
            await told.called("head")
            before, still = -1, 0
            while still < 20:  # until the server has been stuck for a while
                still = still + 1 if sent == before else 0
                before = sent
                await asyncio.sleep(0.01)
            assert sent < size // 2
            assert told.attempt is not None
            told.attempt.resume()
            await told.over()
            assert len(told.body) == size

    run(body())


def test_a_gateway_before_a_tls_backend_whose_certificate_goes_bad(
    authority: Authority, tmp_path: pathlib.Path
) -> None:
    """Calls go over TLS; once its certificate is for another name they go elsewhere, and /readyz says why."""
    b1 = Scripted(sized(CHAT), tls=authority.server("127.0.0.1"))
    b2 = Scripted(sized(CHAT))
    backends = [
        {"name": "b1", "url": f"https://127.0.0.1:{b1.port}", "model": "m1", "ca_file": str(authority.file)},
        {"name": "b2", "url": f"http://127.0.0.1:{b2.port}", "model": "m1"},
    ]
    tiers = [{"backends": ["b1"]}, {"backends": ["b2"]}]
    try:
        with running(tmp_path, backends, tiers=tiers) as gateway:
            eventually(lambda: _status(gateway, "b1")["state"] == "ready")
            answer = gateway.post("/v1/chat/completions", ASKED)
            assert (answer.status, answer.read()) == (200, CHAT)
            assert len(b1.asked) == 1
            b1.stop()
            b1.tls = authority.server("vllm.internal")
            b1.start()
            answer = gateway.post("/v1/chat/completions", ASKED)
            assert (answer.status, answer.read()) == (200, CHAT)
            assert answer.headers["x-weighbridge-fallback"] in ("certificate for another name", "down")
            assert len(b1.asked) == 1
            down = eventually(lambda: _status(gateway, "b1")["state"] == "down" and _status(gateway, "b1"))
            assert down["reason"].startswith("certificate for another name")
            _, call = gateway.lines("call")
            assert [attempt["backend"] for attempt in call["attempts"]][-1] == "b2"
            b1.stop()
            b1.tls = authority.server("127.0.0.1")
            b1.start()
            eventually(lambda: _status(gateway, "b1")["state"] == "ready")
    finally:
        b1.stop()
        b2.stop()


def _status(gateway: Gateway, name: str) -> dict[str, Any]:
    _, page = gateway.get("/readyz")
    (found,) = [backend for backend in json.loads(page)["backends"] if backend["name"] == name]
    return cast(dict[str, Any], found)
