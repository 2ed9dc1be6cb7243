"""What a worker does again and again beside its calls, and what it does with them at its end.

each 100 ms   deadlines of calls, idle connections to backends; how late the loop is
each second   deadlines of clients' connections; gauges; whether a journal can be made, where there is none
at the end    running answers go on for a while, then each is ended with its record
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable

from backends.registry import Entry
from gateway.api import errors
from gateway.calls.direct import Door
from gateway.calls.events import Stopping
from gateway.calls.relay import Services
from gateway.processes.books import Books
from metering.logs import log
from metering.units import NS_PER_S

SWEEP_S = 0.1
SLOW_SWEEP_S = 1.0
STOP_WAIT_S = 5.0
AGAIN_S_MIN, AGAIN_S_MAX = 1.0, 8.0
"""How long after a journal has failed, or could not be made, it is tried again; twice as long each time."""

logger = logging.getLogger("weighbridge.worker")


def sweep(services: Services, entries: Iterable[Entry]) -> None:
    """One look at the deadlines of all calls, and at the loop's own lag."""
    now_ns = services.clock()
    services.lag.tick(now_ns)
    for relay in tuple(services.open):
        relay.sweep(now_ns)
    for entry in entries:
        entry.upstream.sweep(now_ns)


def sweep_clients(services: Services, doors: Iterable[Door]) -> None:
    """One look at the deadlines of all clients' connections.

    A loop that was late has not read yet what clients sent meanwhile: this round judges nobody.
    """
    if services.lag.worst_ns < SLOW_SWEEP_S * NS_PER_S:
        for door in doors:
            door.sweep(services.clock())


async def every(seconds: float, work: Callable[[], None]) -> None:
    """For ever: without the sweep no deadline would ever end a call again."""
    while True:
        await asyncio.sleep(seconds)
        try:
            work()
        except Exception as error:  # noqa: BLE001  our own mistake in one round must not be the last round
            log(logger, logging.ERROR, "fault in a round", error=repr(error))


async def cancel(task: "asyncio.Task[None]") -> None:
    """Cancel a task and wait for its end."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def keep_open(
    books: Books,
    failed: asyncio.Event,
    opened: Callable[[], None],
    dead: Callable[[], None],
    ready: Callable[[str], None],
) -> None:
    """For ever: where there is no journal, try to open one; where one failed, that or the end of the worker.

    failed: set when an open one has failed; opened: called when another one is open; dead: ends the worker;
    ready: told the new writer, once the failed journal has been let go of.
    """
    wait_s = AGAIN_S_MIN
    while True:
        if books.is_written:
            await failed.wait()
            wait_s = AGAIN_S_MIN
            if books.ends_the_worker:
                dead()
                return
        failed.clear()
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, AGAIN_S_MAX)
        try:
            if await books.again(failed.set, opened):
                ready(books.recorder.writer)
        except Exception as error:  # noqa: BLE001  our own mistake must not be the last try
            log(logger, logging.ERROR, "fault in a round", error=repr(error))


async def drain(stopping: asyncio.Event, services: Services, drain_s: float) -> None:
    """Once it is to end: let the calls under way go on for a while, then end them while their clients still listen.

    With a journal that cannot be written no call can end well: they are ended at once.
    """
    await stopping.wait()
    deadline = services.clock() + round(drain_s * NS_PER_S)
    while not services.recorder.ended and services.clock() < deadline:
        await asyncio.sleep(SWEEP_S)
    await stop_calls(services)


async def stop_calls(services: Services) -> None:
    """End what is still open, each with its record, before the journal is closed."""
    deadline = services.clock() + round(STOP_WAIT_S * NS_PER_S)
    while services.open and services.clock() < deadline:
        for relay in tuple(services.open):
            relay.feed(Stopping(error=errors.ShuttingDown("the gateway is shutting down")))
        await asyncio.sleep(SWEEP_S / 10)
