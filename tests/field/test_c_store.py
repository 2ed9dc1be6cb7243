"""Field reports on the ledger's store: gone, hanging, empty, or answering somebody else. Calls do not notice."""

import asyncio
import contextlib
import os
import pathlib
import re
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from metering.ledger.store import Store, StoreUnavailable
from tests.oracle import journal, ledger
from tests.oracle.resp import Connection
from tests.support import stores
from tests.support.gateway import eventually
from tests.support.stage import LATE_S, REPORTED, R, Stage, billed
from tests.support.valkey import Valkey

pytestmark = pytest.mark.integration

CALLS = 12
SERVED_S = 1.0 + LATE_S
LEVEL_S = 45.0
ROUNDS = 3
"""A busy machine is late in one round or another; a gateway that waits for its store is in each."""


class External:
    """A store that is not the gateway's own, in memory only: what ends it empties it."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._stack = contextlib.ExitStack()
        self.url = f"unix://{directory / 'sock'}"
        self.start()

    def start(self) -> None:
        self._stack.enter_context(
            stores.process(
                stores.valkey_binary(),
                self._directory,
                {"port": "0", "unixsocket": self.url[len("unix://") :]},
            )
        )
        eventually(lambda: stores.answers(self.url))

    def stop(self) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def gone(self) -> Iterator[None]:
        """There is none; then it is there again, and empty."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """It takes connections and says nothing."""
        with Valkey(self.url) as raw:
            found = re.search(r"process_id:(\d+)", raw.ask("INFO", "server"))
        assert found
        os.kill(int(found[1]), signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(int(found[1]), signal.SIGCONT)


@pytest.fixture(scope="module")
def external(tmp_path_factory: pytest.TempPathFactory) -> Iterator[External]:
    running = External(tmp_path_factory.mktemp("store"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def setting(external: External) -> dict:
    return {"redis": {"url": external.url}}


def is_level(stage: Stage, external: External) -> bool:
    """Does the store hold what the journals say?"""
    with Connection(external.url) as connection:
        held = ledger.read(connection)
    return held == ledger.recompute(journal.read(stage.gateway.state_dir / "journal"))


def serve(stage: Stage) -> float:
    """Some calls: each is answered, and recorded. Returns how long the slowest took, in seconds."""
    took_s = []
    for _ in range(CALLS):
        began_s = time.monotonic()
        reply = stage.post(R)
        took_s.append(time.monotonic() - began_s)
        assert reply.status == 200
        assert billed(stage.record(reply.call_id)) == REPORTED
    return max(took_s)


def check_unnoticed(
    stage: Stage, external: External, away: Callable[[], contextlib.AbstractContextManager[None]]
) -> None:
    """Calls are answered at once while the store is away, and it is told of all of them when it is back."""
    slowest_s: list[float] = []
    while len(slowest_s) < ROUNDS and min(slowest_s, default=SERVED_S) >= SERVED_S:
        eventually(lambda: is_level(stage, external), within_s=LEVEL_S)
        with away():
            slowest_s.append(serve(stage))
            eventually(lambda: stage.count("weighbridge_ledger_lag_records") >= CALLS)
        eventually(lambda: is_level(stage, external), within_s=LEVEL_S)
        eventually(lambda: stage.count("weighbridge_ledger_lag_records") == 0)
    assert min(slowest_s) < SERVED_S, slowest_s


# -- BR-029


def test_br_029_a_store_that_is_gone_costs_no_call_and_nothing_is_lost(
    stage: Stage, external: External
) -> None:
    serve(stage)
    check_unnoticed(stage, external, external.gone)


def test_br_029_a_store_that_never_answers_costs_no_call_either(stage: Stage, external: External) -> None:
    check_unnoticed(stage, external, external.hanging)


def test_br_029_a_tenant_is_not_called_ready_before_an_empty_store_is_filled(
    stage: Stage, external: External
) -> None:
    serve(stage)
    early = []

    def ready_and_level() -> bool:
        with Connection(external.url) as connection:
            epoch = connection.ask("GET", "wb:1:epoch")
            meta = connection.hash("wb:1:{acme}:meta")
            ready = epoch is not None and epoch == meta.get("epoch") == meta.get("ready")
            held = ledger.read(connection)
        level = held == ledger.recompute(journal.read(stage.gateway.state_dir / "journal"))
        if ready and not level:
            early.append(held)
        return ready and level

    eventually(ready_and_level, within_s=LEVEL_S)
    with Valkey(external.url) as raw:
        raw.ask("FLUSHALL")
    serve(stage)
    eventually(ready_and_level, within_s=LEVEL_S)
    assert early == []


# -- BR-030


async def _delaying(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A store whose replies take 20 ms; the value of a key is its name."""
    try:
        while line := await reader.readline():
            words = []
            for _ in range(int(line[1:])):
                await reader.readline()
                words.append((await reader.readline()).strip())
            await asyncio.sleep(0.02)
            value = words[1] if words[0] == b"GET" else b"OK"
            if words[0] == b"HGETALL":
                writer.write(b"*2\r\n$1\r\nw\r\n$2\r\n{}\r\n")
            else:
                writer.write(b"$%d\r\n%s\r\n" % (len(value), value))
    except (ConnectionError, ValueError, asyncio.CancelledError):
        pass
    finally:
        writer.close()


async def _answers_of_others() -> int:
    """How many of 50 look-ups got what another, cancelled one had asked for."""
    server = await asyncio.start_server(_delaying, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    wrong = 0
    async with server, Store(f"redis://127.0.0.1:{port}") as client:
        for _ in range(50):
            asking = asyncio.create_task(client.writers())
            await asyncio.wait([asking], timeout=0.01)
            asking.cancel()
            await asyncio.wait([asking])
            try:
                wrong += await client.epoch() != "wb:1:epoch"
            except (StoreUnavailable, TypeError, AttributeError):
                wrong += 1
    return wrong


def test_br_030_a_cancelled_look_up_answers_nobody_else() -> None:
    assert asyncio.run(_answers_of_others()) == 0


def test_br_030_is_seen_where_a_connection_outlives_its_cancelled_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from redis.asyncio.connection import AbstractConnection

    read = AbstractConnection.read_response

    async def read_and_stay(connection: AbstractConnection, **options: object) -> object:
        return await read(connection, **(options | {"disconnect_on_error": False}))

    monkeypatch.setattr(AbstractConnection, "read_response", read_and_stay)
    assert asyncio.run(_answers_of_others()) > 5
