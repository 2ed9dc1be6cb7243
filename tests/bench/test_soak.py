import asyncio
import collections
import json

import pytest

from tests.bench import mixed, ours, soak
from tests.bench.mixed import Connection, Kind, Mixed
from tests.bench.soak import Seen

SENT = {
    Kind.COMPLETED: 40, Kind.STREAMED: 41, Kind.LEFT: 8, Kind.CUT: 4, Kind.FAILED: 5,
    Kind.REFUSED_KEY: 2, Kind.REFUSED_MODEL: 1, Kind.REFUSED_BODY: 1,
}  # fmt: skip
BOOKS = {"completed": 81, "client_gone": 8, "backend_failed": 9, ours.REFUSED: 4}


def load() -> Mixed:
    made = Mixed(1, ours.KEY, clients=1, seed=1)
    made.sent.update(SENT)
    return made


def seconds(rss_kib: list[int], lag_s: float = 0.001) -> list[Seen]:
    return [Seen(float(at), rss, lag_s, 0.0, 0) for at, rss in enumerate(rss_kib)]


def test_books_that_hold_everything_as_what_it_was() -> None:
    assert [finding.holds for finding in soak.books(load(), BOOKS)] == [True, True]


@pytest.mark.parametrize(
    "changed",
    [
        {"completed": 80},
        {"completed": 82},
        {"client_gone": 7, "completed": 82},
        {"lost": 1},
        {ours.REFUSED: 3},
    ],
)
def test_books_that_differ_by_one(changed: dict[str, int]) -> None:
    journal, clients = soak.books(load(), BOOKS | changed)
    assert (journal.holds, clients.holds) == (False, True)


def test_what_a_client_should_not_have_seen_is_a_fault() -> None:
    made = load()
    made.faults["streamed: a stream without its end"] += 2
    assert soak.books(made, BOOKS)[1] == soak.Finding(
        "clients saw what they should", False, "faults: 2 × streamed: a stream without its end"
    )


def test_memory_that_grows_at_first_and_then_stays_is_flat() -> None:
    assert soak.memory(seconds([40_000 + 100 * min(at, 50) for at in range(120)])).holds


def test_memory_that_goes_on_growing_is_not() -> None:
    assert not soak.memory(seconds([40_000 + 100 * at for at in range(120)])).holds


def test_a_loop_that_was_late_is_told() -> None:
    assert soak.loop(seconds([1, 1, 1], lag_s=0.0049)).holds
    assert not soak.loop(seconds([1, 1, 1], lag_s=0.0051)).holds


def test_what_the_kernel_made_a_worker_wait_is_not_its_own_lag() -> None:
    waited = [Seen(0, 1, 0.001, 0, 0), Seen(1, 1, 0.050, 0, 49_000_000), Seen(2, 1, 0.009, 0, 49_000_000)]
    assert soak.own_lags(waited) == pytest.approx(
        [0.001, 0.001, 0]
    )  # the last one: it may be of the second before
    assert soak.own_lags([Seen(0, 1, 0.0, 0, 0), Seen(1, 1, 0.050, 0, 0)]) == [0, 0.05]


def test_every_kind_has_its_share_and_a_request_of_its_own() -> None:
    assert mixed.SHARES.keys() == set(Kind)
    assert sum(mixed.SHARES.values()) == 100
    requests = {kind: mixed.request_of(kind, ours.KEY) for kind in Kind}
    shared = {requests[Kind.STREAMED]} & {requests[Kind.LEFT]}  # the same request; who asks ends it otherwise
    assert len(set(requests.values())) == len(Kind) - len(shared)
    with pytest.raises(json.JSONDecodeError):
        json.loads(requests[Kind.REFUSED_BODY].partition(b"\r\n\r\n")[2])


WHOLE = b'data: {"usage":{"prompt_tokens":1}}\n\ndata: [DONE]\n\n'
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
SIZED = b"HTTP/1.1 %s\r\ncontent-length: 2\r\n\r\n{}"


@pytest.mark.parametrize(
    ("kind", "answer", "fault", "spent"),
    [
        (Kind.COMPLETED, SIZED % b"200 OK", None, False),
        (Kind.COMPLETED, SIZED % b"500 Internal Server Error", "status 500", True),
        (Kind.FAILED, SIZED % b"502 Bad Gateway", None, False),
        (Kind.FAILED, SIZED % b"200 OK", "status 200", True),
        (Kind.STREAMED, CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(WHOLE), WHOLE), None, False),
        (Kind.STREAMED, CHUNKED + b"9\r\ndata: 1\n\n\r\n0\r\n\r\n", "a stream without its end", False),
        (Kind.CUT, CHUNKED + b'10\r\ndata: {"error":1\r\n0\r\n\r\n', None, False),
        (Kind.CUT, CHUNKED + b"0\r\n\r\n", "a cut stream without an error event", False),
        (Kind.LEFT, CHUNKED + b"data: 1\n\n" * mixed.EVENTS_BEFORE_LEAVING, None, True),
    ],
)
def test_an_answer_is_held_against_what_was_asked(
    kind: Kind, answer: bytes, fault: str | None, spent: bool
) -> None:
    async def exchange() -> tuple[str | None, bool]:
        gone = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await reader.read()  # until the client has gone
            writer.close()
            await writer.wait_closed()
            gone.set()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            connection = await Connection.open(server.sockets[0].getsockname()[1])
            found = await connection.exchange(kind, mixed.request_of(kind, ours.KEY))
            connection.close()
            await gone.wait()
            return found, connection.spent

    assert asyncio.run(exchange()) == (fault, spent)


def test_what_was_sent_is_counted_by_kind() -> None:
    assert isinstance(load().sent, collections.Counter)
    assert sum(load().sent.values()) == 102
