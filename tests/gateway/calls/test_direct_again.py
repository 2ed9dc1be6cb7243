"""A request whose head is that of the last one is begun without a parser: only where the parser would begin it too."""

import asyncio
import inspect
import textwrap
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httptools
import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway.calls import direct
from gateway.calls.bounds import Phase
from gateway.calls.direct import DirectProtocol, Door, protocol
from gateway.configuration.config import Bounds

OK = b"content-type: text/plain\r\ncontent-length: 2\r\n"


def ask(body: bytes, *more: bytes, path: bytes = b"/v1/chat/completions") -> bytes:
    lines = [b"POST " + path + b" HTTP/1.1", b"Host: a", b"Content-Length: %d" % len(body), *more]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


class Api:
    """The API as the driver sees it. begun: each body, and whether its head was known."""

    body_bytes_max = 100

    def __init__(self) -> None:
        self.begun: list[tuple[bytes, bool]] = []
        self.refused: list[Exception] = []
        self.good = True

    def visit(self, _path: str, headers: Any) -> Any:
        return SimpleNamespace(headers=dict(headers), known=False)

    def visit_again(self, last: Any) -> Any:
        return SimpleNamespace(headers=last.headers, known=True) if self.good else None

    def authorize(self, _visit: Any, _method: str, _origin: Any) -> None:
        pass

    def begin(self, visit: Any, body: bytes, _client: Any) -> Any:
        self.begun.append((body, visit.known))
        return SimpleNamespace(start=lambda: None, gone=lambda: None, pause=lambda: None, resume=lambda: None)

    def refuse(self, error: Exception, _visit: Any) -> Any:
        self.refused.append(error)
        return 413, [(b"content-length", b"0")], b""


class Socket(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closing = False
        self.aborted = False
        self.ended = False  # nothing more is written

    def write(self, data: Any) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def write_eof(self) -> None:
        self.ended = True


class Connection:
    """A client's connection in memory."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        self.api = Api()
        door = Door(bounds or Bounds())
        door.api = self.api  # type: ignore[assignment]
        config = uvicorn.Config(_unused, log_config=None)
        config.load()
        self.socket = Socket()
        self.protocol: Any = protocol(door)(config, ServerState(), {}, self.loop)  # type: ignore[call-arg]
        self.protocol.connection_made(self.socket)

    def read(self, *reads: bytes) -> None:
        for one in reads:
            self.protocol.data_received(one)

    def answer(self) -> None:
        self.protocol.open(200, OK)
        self.protocol.finish(b"ok")

    async def forget(self) -> None:
        """End what uvicorn has begun."""
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    def answered(self, *reads: bytes) -> None:
        """Requests, each answered before the next one comes."""
        for one in reads:
            self.read(one)
            self.answer()


async def _unused(_scope: Any, _receive: Any, _send: Any) -> None:
    raise AssertionError("called")


@pytest.fixture
def connection() -> Iterator[Connection]:
    one = Connection()
    yield one
    one.loop.run_until_complete(one.forget())
    one.loop.close()


def known(connection: Connection) -> None:
    connection.answered(ask(b"one"), ask(b"another"), ask(b""), ask(b"x" * 100))
    assert connection.api.begun == [(b"one", False), (b"another", True), (b"", True), (b"x" * 100, True)]
    assert connection.socket.written.count(b"HTTP/1.1 200") == 4
    assert connection.protocol._watch.phase is Phase.IDLE
    connection.read(ask(b"late"))
    assert connection.protocol._watch.phase is Phase.ANSWER


def under_way(connection: Connection) -> None:
    connection.answered(ask(b"one"))
    connection.read(ask(b"two"), ask(b"three"))
    assert connection.api.begun == [(b"one", False), (b"two", True)], "the third one waits"


def behind_a_pipelined_one(connection: Connection) -> None:
    """Uvicorn serves the pipelined one once the first has its answer; the next one waits for both."""
    connection.answered(ask(b"one"))
    connection.read(ask(b"two"), ask(b"three"))
    connection.answer()
    connection.read(ask(b"four"))
    assert connection.api.begun == [(b"one", False), (b"two", True)]


def slow(connection: Connection) -> None:
    connection.answered(ask(b"one"))
    connection.protocol.pause_writing()
    connection.read(ask(b"two"))
    assert connection.api.begun == [(b"one", False)], "it has not taken its last answer"


def too_large(connection: Connection) -> None:
    connection.answered(ask(b"one"))
    connection.read(ask(b"x" * 101))
    assert connection.api.begun == [(b"one", False)]
    assert len(connection.api.refused) == 1


def rest_of_a_body(connection: Connection) -> None:
    """A body is refused before its end: what still comes of it is none of a request, whatever it looks like."""
    connection.answered(ask(b"one"))
    connection.read(ask(b"x" * 500)[:-300])
    assert len(connection.api.refused) == 1
    connection.read(ask(b"two"))
    assert connection.api.begun == [(b"one", False)]


def not_known_any_more(connection: Connection) -> None:
    connection.answered(ask(b"one"))
    connection.api.good = False
    connection.answered(ask(b"two"))
    assert connection.api.begun == [(b"one", False), (b"two", False)]


def cut(connection: Connection) -> None:
    """Of what came in more than one read nothing is known; nor may a part of it pass for a whole."""
    whole = ask(b"one")
    for at in range(1, len(whole)):
        connection.read(whole[:at])
        connection.answered(whole[at:])
    assert connection.api.begun == [(b"one", False)] * (len(whole) - 1)
    connection.answered(whole)
    connection.read(whole[:-1])
    assert len(connection.api.begun) == len(whole)
    connection.answered(whole[-1:], whole)
    assert [was_known for _, was_known in connection.api.begun[-2:]] == [False, False]
    begun = len(connection.api.begun)
    connection.read(whole[:20])
    connection.answered(whole[20:])
    connection.read(whole[20:])
    assert len(connection.api.begun) == begun + 1, "the rest of a head is no request"


def of_one_request(connection: Connection) -> None:
    connection.answered(*[ask(b"one", b"x-request-id: mine")] * 2, *[ask(b"one", b"traceparent: 0")] * 2)
    assert connection.api.begun == [(b"one", False)] * 4


def last_one(connection: Connection) -> None:
    connection.read(ask(b"one", b"Connection: close"))
    assert connection.protocol._known is None


SCENES = [
    known,
    under_way,
    behind_a_pipelined_one,
    slow,
    too_large,
    rest_of_a_body,
    not_known_any_more,
    cut,
    of_one_request,
    last_one,
]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_a_known_head(scene: Callable[[Connection], None], connection: Connection) -> None:
    scene(connection)


BROKEN = [
    ("_end", "if not self.pipeline:", "if True:", behind_a_pipelined_one),
    ("_again", "self._watch.phase is not _IDLE or ", "", rest_of_a_body),
    ("_again", " or self.flow.write_paused", "", slow),
    ("_again", " or len(body) > api.body_bytes_max", "", too_large),
    ("_again", "if visit is None:", "if False:", not_known_any_more),
    ("_again", "self._watch.enter(_ANSWER)", "pass", known),
    ("_learn", " and _OF_ONE_REQUEST.isdisjoint(visit.headers)", "", of_one_request),
    ("_learn", "self._keep_alive and ", "", last_one),
    ("data_received", 'data if watch.phase is _IDLE else b""', "data", cut),
]


@pytest.mark.parametrize(("name", "rule", "instead", "scene"), BROKEN)
def test_a_driver_without_one_of_its_rules_is_found(
    name: str,
    rule: str,
    instead: str,
    scene: Callable[[Connection], None],
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = textwrap.dedent(inspect.getsource(getattr(DirectProtocol, name)))
    assert source.count(rule) == 1
    source = source.replace("super()", "super(DirectProtocol, self)")  # it stands in no class
    names = vars(direct) | {"httptools": httptools}
    exec(source.replace(rule, instead), names)
    monkeypatch.setattr(DirectProtocol, name, names[name])
    with pytest.raises((AssertionError, AttributeError)):
        scene(connection)
