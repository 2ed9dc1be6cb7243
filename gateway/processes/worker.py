"""One worker process: takes what the supervisor hands over, serves until told to stop.

Started by exec with three inherited descriptors: the resolved configuration as JSON, a listening
socket that the supervisor keeps, and one end of a socket pair (gateway/processes/control.py). The end of
that pair is the end of the supervisor: the worker then stops too.
"""

import argparse
import asyncio
import contextlib
import gc
import logging
import math
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator

import uvicorn
import uvloop

from gateway.calls import direct
from gateway.configuration import config as cfg
from gateway.configuration.config import Config
from gateway.processes import control, logs
from gateway.processes.app import Worker, create_apps
from metering.logs import log

LEAVE_S = 3
"""After the drain (app.py), for the ends of answers to reach their clients; who takes longer is cut off."""


GC_THRESHOLDS = (50_000, 20, 50)
"""A call leaves no cycles, so the collector finds next to nothing; with Python's own thresholds its looks cost 8 %."""

SWITCH_S = 0.0005
"""How long a thread beside the loop (a scrape's text, the files' sizes) may hold the interpreter against it. With
Python's own 5 ms all answers of that moment would be so much later."""

OTHER_FILES = 128
"""Open files beside a client's and a backend's connection for each call: journal, pages, probes, the store's."""

logger = logging.getLogger("weighbridge.worker")


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: two servers share this process, and the supervisor speaks to it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


def server(
    app: object, config: Config, *, lifespan: str, http: type[asyncio.Protocol] | None = None
) -> Server:
    """uvicorn with what costs least: httptools, no access log, no proxy headers. http: its protocol; None: its own."""
    return Server(
        uvicorn.Config(
            app,  # type: ignore[arg-type]
            http=http or "httptools",
            ws="none",
            lifespan=lifespan,  # type: ignore[arg-type]
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=None if http else config.bounds.connections_max,
            timeout_keep_alive=math.ceil(config.bounds.idle_s),
            timeout_graceful_shutdown=math.ceil(config.drain_s) + LEAVE_S,
        )
    )


async def serve(args: argparse.Namespace, config: Config) -> int:
    """Serve until SIGTERM or the end of the supervisor. returns: the exit code."""
    assert config.redis.url is not None
    loop = asyncio.get_running_loop()
    failed = False
    servers: list[Server] = []
    stopping = asyncio.Event()

    def stop() -> None:
        stopping.set()
        for one in servers:
            one.should_exit = True

    def dead() -> None:
        nonlocal failed
        failed = True
        stop()

    line = await control.connect(args.control_fd, on_end=stop)
    worker = Worker(
        index=args.index,
        workers=args.workers,
        config=config,
        redis_url=config.redis.url,
        ready=line.ready,
        behind=line.behind,
        on_behind=line.on_behind,
        dead=dead,
        stopping=stopping,
        mirror_fd=args.mirror_fd,
    )
    door = direct.Door(config.bounds, direct=config.driver == "direct", cors=bool(config.cors.origins))
    ops_door = direct.Door(config.bounds, direct=False)
    main_app, ops_app = create_apps(worker, door, ops_door)
    servers.append(server(main_app, config, lifespan="on", http=_protocol(door)))
    door.connections = servers[0].server_state.connections
    sockets = [socket.socket(fileno=args.socket_fd)]
    if args.ops_fd is not None:
        servers.append(server(ops_app, config, lifespan="off", http=_protocol(ops_door)))
        ops_door.connections = servers[1].server_state.connections
        sockets.append(socket.socket(fileno=args.ops_fd))
    loop.add_signal_handler(signal.SIGTERM, stop)
    if stopping.is_set():  # the supervisor went before there was anything to stop
        stop()
    await asyncio.gather(*(one.serve(sockets=[sock]) for one, sock in zip(servers, sockets, strict=True)))
    return 1 if failed else 0


def _protocol(door: direct.Door) -> type[asyncio.Protocol] | None:
    if not direct.usable():
        log(
            logger,
            logging.WARNING,
            "another uvicorn than ours: the plain driver serves, with uvicorn's own bounds",
        )
        return None
    return direct.protocol(door)


def raise_open_files(needed: int) -> int:
    """Allow this process as many open files as the system lets it. returns: how many; logs if they are too few.

    A usual soft limit is 1,024, made for programs that use select(2): some 500 calls.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:  # not on Linux
        return hard
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < needed:
        log(
            logger,
            logging.WARNING,
            "fewer open files than bounds.connections_max needs",
            limit=hard,
            needed=needed,
        )
    return hard


def favour_the_loop() -> None:
    """Have the collector and the threads beside the loop hold it up as little as they can. Once all is imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_S)


def main() -> int:
    """Entry of `python -m gateway.processes.worker`; see supervisor.py for who calls it."""
    parser = argparse.ArgumentParser(prog="weighbridge-worker", description=__doc__)
    for name in ("--config-fd", "--socket-fd", "--control-fd", "--index", "--workers"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--ops-fd", type=int)
    parser.add_argument("--mirror-fd", type=int)
    args = parser.parse_args()
    # Ctrl-C may reach the whole group; the supervisor speaks for it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logs.set_up(sys.stderr, worker=args.index)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # its start and end are told by the supervisor
    with os.fdopen(args.config_fd, "rb") as file:
        config = cfg.from_json(file.read())
    raise_open_files(2 * config.bounds.connections_max + OTHER_FILES)
    favour_the_loop()
    return uvloop.run(serve(args, config))


if __name__ == "__main__":
    sys.exit(main())
