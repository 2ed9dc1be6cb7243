"""Probes of servers that answer oddly: what they say is bounded, and no answer ends the probing."""

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator

import pytest

from backends.health import PROBE_INTERVAL_S, Health, Hold, State
from backends.identity import Probed
from backends.model import Backend
from backends.registry import VERSION_CHARACTERS_MAX, Entry, Registry
from backends.upstream import Upstream
from metering.units import NS_PER_S
from tests.support.rawbackend import sized
from tests.support.rawserver import Peer, serve

pytestmark = pytest.mark.integration

DEEP = b"[" * 100_000 + b"]" * 100_000
PLAIN = {"/health": b"", "/version": b'{"version":"0.32.0"}', "/v1/models": b'{"data":[{"id":"m"}]}'}


async def answer(pages: dict[str, bytes], peer: Peer) -> None:
    while True:
        head, _ = await peer.request()
        await peer.send(sized(pages[head.split()[1].decode()]))


@contextlib.asynccontextmanager
async def probed(pages: dict[str, bytes], on_change=lambda _: None) -> AsyncIterator[tuple[Registry, Entry]]:
    """A registry of one server, which serves these pages."""
    async with serve(functools.partial(answer, PLAIN | pages)) as port:
        backend = Backend(name="b", url=f"http://127.0.0.1:{port}", model="m")
        upstream = Upstream(backend, key=None, loop=asyncio.get_running_loop())
        entry = Entry(backend, upstream)
        try:
            yield Registry([entry], on_change), entry
        finally:
            await upstream.close()


@pytest.mark.parametrize("page", ["/version", "/v1/models"])
@pytest.mark.parametrize("body", [b'{"version":"\xff","data":"\xff"}', DEEP, b"", b"null", b'"\\ud800"'])
def test_a_page_that_cannot_be_read_says_nothing(page: str, body: bytes) -> None:
    async def play() -> None:
        async with probed({page: body}) as (registry, entry):
            await registry.probe(entry)
            assert entry.health.state is State.READY
            assert entry.probed == Probed(
                framework=None if page == "/version" else "vllm",
                framework_version=None if page == "/version" else "0.32.0",
            )

    asyncio.run(play())


@pytest.mark.parametrize(
    ("said", "known"), [(4096, 4096), (0, None), (-1, None), (10**30, None), (10**12, None)]
)
def test_a_length_that_is_none_is_not_known(said: int, known: int | None) -> None:
    async def play() -> None:
        page = json.dumps({"data": [{"id": "m", "max_model_len": said}]}).encode()
        async with probed({"/v1/models": page}) as (registry, entry):
            await registry.probe(entry)
            assert (entry.health.state, entry.probed.max_model_len) == (State.READY, known)

    asyncio.run(play())


def test_a_long_version_is_cut_for_it_stands_in_the_journal() -> None:
    async def play() -> None:
        async with probed({"/version": json.dumps({"version": "9" * 100_000}).encode()}) as (registry, entry):
            await registry.probe(entry)
            assert entry.probed.framework_version == "9" * VERSION_CHARACTERS_MAX

    asyncio.run(play())


def test_each_new_reason_not_to_be_ready_is_told_once_however_often_it_comes() -> None:
    async def play() -> None:
        told: list[tuple[State, str]] = []
        pages = {"/v1/models": b'{"data":[{"id":"other"}]}'}
        async with probed(pages, lambda entry: told.append((entry.health.state, entry.health.reason))) as (
            registry,
            entry,
        ):
            for _ in range(3):
                registry.connect_failed("b", "connect refused")
            for _ in range(2):
                await registry.probe(entry)
        assert told == [
            (State.STARTING, "connect refused"),
            (State.STARTING, "it does not serve m; it serves other"),
        ]

    asyncio.run(play())


def test_a_fault_of_ours_in_one_probe_does_not_end_the_watch() -> None:
    async def play() -> None:
        changes: list[State] = []
        went_on = asyncio.Event()

        def changed(entry: Entry) -> None:
            changes.append(entry.health.state)
            if len(changes) == 1:
                entry.health = Health()  # so that the next probe is a change again
                raise RuntimeError("a mistake of ours")
            went_on.set()

        async with probed({}, changed) as (registry, entry):
            watch = asyncio.create_task(registry.watch(entry))
            async with asyncio.timeout(3 * PROBE_INTERVAL_S):
                await went_on.wait()
            watch.cancel()
            assert changes == [State.READY, State.READY]

    asyncio.run(play())


def test_a_busy_backend_is_held_back_and_stays_ready() -> None:
    async def play() -> None:
        changes: list[Entry] = []
        async with probed({}, changes.append) as (registry, entry):
            await registry.probe(entry)
            changes.clear()
            registry.busy("b", 429, 7, NS_PER_S)
            assert (
                entry.held(NS_PER_S)
                == entry.held(8 * NS_PER_S - 1)
                == Hold(status=429, until_ns=8 * NS_PER_S)
            )
            assert entry.held(8 * NS_PER_S) is None
            assert [entry.held_s(at_ns) for at_ns in (NS_PER_S, 8 * NS_PER_S - 1, 8 * NS_PER_S)] == [
                7,
                1,
                None,
            ]
            registry.busy("b", 503, None, 2 * NS_PER_S)  # it does not say when: what it said before stands
            assert entry.held(7 * NS_PER_S) is not None
            registry.busy("b", 503, 0, 2 * NS_PER_S)  # at once
            assert entry.held(2 * NS_PER_S) is None
            assert entry.health.state is State.READY
            assert entry.health.connect_failures == 0
            assert changes == []

    asyncio.run(play())


def test_a_backend_that_has_started_anew_is_not_held_back() -> None:
    async def play() -> None:
        async with probed({}) as (registry, entry):
            await registry.probe(entry)
            registry.busy("b", 503, 60, 0)
            await registry.probe(entry)
            assert entry.held(1) is not None  # ready all the time: its word stands
            for _ in range(3):
                registry.connect_failed("b", "connect refused")
            await registry.probe(entry)
            assert entry.held(1) is None

    asyncio.run(play())


def test_a_hold_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        async with probed({}) as (registry, _):
            with caplog.at_level("INFO", logger="weighbridge.registry"):
                for now_ns in (0, NS_PER_S, 2 * NS_PER_S):
                    registry.busy("b", 429, 2, now_ns)
            assert [record.message for record in caplog.records] == ["backend busy"]

    asyncio.run(play())
