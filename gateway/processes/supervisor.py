"""The first process: takes the state directory and the port, starts the store and the workers, outlives them.

    state_dir's lock ─▶ port ─▶ store ─▶ journals of the dead ─▶ sockets ─▶ workers, clerk     (closed in reverse)

A worker that dies is started again (gateway/processes/restarts.py); its journal is closed, counted and folded
(gateway/duties/caretaker.py). SIGTERM or SIGINT: the workers get a SIGTERM and 30 s; a second one kills them.
If this process is killed, its workers see the end of their control pair and the kernel tells the store:
none of them stays.
"""

import contextlib
import errno
import fcntl
import logging
import os
import pathlib
import selectors
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from gateway.admission import salt_key
from gateway.configuration.archives import archive_of
from gateway.configuration.config import Config, Redis, host_and_port, to_json, with_digests
from gateway.configuration.config_load import redis_url
from gateway.duties.caretaker import Caretaker
from gateway.processes import logs
from gateway.processes.control import Behind, ControlError, Ready
from gateway.processes.desk import Desk
from gateway.processes.signals import ENDING, Signals
from gateway.processes.sockets import Address, Port
from gateway.processes.workplaces import WORKER, Ports, Workplace
from metering import files
from metering.audit.keys import Keys
from metering.journal import digests, event_journal
from metering.ledger import directory_journal
from metering.ledger.directory_file import DirectoryFile
from metering.ledger.embedded import Embedded, EmbeddedError
from metering.logs import log
from metering.units import NS_PER_S

LOCK = "lock"
STOP_WAIT_S = 10
"""For the workers to end, beyond what they give to the answers under way (`drain_s`)."""
STORE_POLL_NS = NS_PER_S
"""How often it is seen to that the embedded store runs."""
FOLD_WAIT_S = 5
"""For the ledger to get what the workers wrote last."""

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_TAKEN = 3

logger = logging.getLogger("weighbridge.supervisor")


class StartError(Exception):
    """It cannot start; the message is the one line that says why. code: the exit status."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


def run(
    config: Config, *, on_ready: Callable[[Address], None] = lambda _: None, worker: Sequence[str] = WORKER
) -> int:
    """Serve until SIGTERM or SIGINT. Main thread only.

    on_ready: called once, with the address, when all workers take calls.
    worker: the command that starts a worker; the flags of gateway/processes/worker.py are added.
    returns: the exit status: 0; or, with one line on stderr, 3: port or directory taken, 1: failed.
    Raises ConfigErrors if redis.url_file cannot be read.
    """
    logs.set_up(sys.stderr, process="supervisor")
    url = redis_url(config.redis)
    try:
        with contextlib.ExitStack() as stack:
            return _run(config, url, stack, on_ready, worker)
    except KeyboardInterrupt:  # before it was up
        return EXIT_OK
    except StartError as error:
        sys.stderr.write(f"weighbridge: {error}\n")
        return error.code


def _run(
    config: Config,
    url: str | None,
    stack: contextlib.ExitStack,
    on_ready: Callable[[Address], None],
    worker: Sequence[str],
) -> int:
    signals = stack.enter_context(Signals())
    state_dir = pathlib.Path(config.state_dir)
    stack.enter_context(lock(state_dir))
    files.clear_leftovers(state_dir)
    main = stack.enter_context(contextlib.closing(take_port("listen", config.listen)))
    ops = None
    if config.ops.listen is not None:
        ops = stack.enter_context(contextlib.closing(take_port("ops.listen", config.ops.listen)))
    store = None
    if url is None:
        store = stack.enter_context(contextlib.closing(_store(state_dir)))
        url = store.url
    keys = Keys(state_dir, config.journal.signing_key_file)
    try:
        keys.ensure(time.time_ns(), event_journal.telling(state_dir / "journal", "serve", None, keys))
    except OSError as error:
        raise StartError(f"no key to sign the journal with: {_reason(error)}", code=EXIT_FAILED) from error
    tenants = [tenant.name for tenant in config.tenants]
    caretaker = Caretaker(
        state_dir,
        url,
        keys,
        tenants=tenants,
        host=socket.gethostname(),
        backends=[backend.name for backend in config.backends if backend.slots is not None],
        retention_days=config.retention_days,
        archive=archive_of(config.journal),
    )
    resolved = to_json(msgspec.structs.replace(config, redis=Redis(url=url)))
    mirror_fd = None
    if config.journal.mirror == "stdout":
        assert sys.__stdout__ is not None
        mirror_fd = os.dup(sys.__stdout__.fileno())  # the workers' own stdout is stderr
        stack.callback(os.close, mirror_fd)
    try:
        caretaker.tidy()
        digests.ensure(state_dir, with_digests(config))
        salt_key.ensure(state_dir)
        journals = state_dir / "journal"
        DirectoryFile(state_dir).ensure(lambda: directory_journal.entries(journals))
        workplaces = [
            Workplace(index, config.workers, Ports(main, ops), worker, resolved, mirror_fd=mirror_fd)
            for index in range(config.workers)
        ]
    except OSError as error:
        where = error.filename or state_dir
        raise StartError(f"cannot use {where}: {_reason(error)}", code=EXIT_TAKEN) from error
    caretaker.start()
    stack.callback(caretaker.close, FOLD_WAIT_S)
    signals.hold()

    def ready() -> None:
        where = {"url": main.address.url} | ({"ops": ops.address.url} if ops else {})
        log(logger, logging.INFO, "ready", **where)
        on_ready(main.address)

    stop_wait_s = config.drain_s + STOP_WAIT_S
    desk = stack.enter_context(contextlib.closing(Desk(resolved)))
    return Supervisor(workplaces, signals, caretaker, desk, store, ready, stop_wait_s).serve()


class Supervisor:
    """Keeps the workers up, until told to stop."""

    def __init__(
        self,
        workplaces: Sequence[Workplace],
        signals: Signals,
        caretaker: Caretaker,
        desk: Desk,
        store: Embedded | None,
        on_ready: Callable[[], None],
        stop_wait_s: float,
    ) -> None:
        self._workplaces = workplaces
        self._signals = signals
        self._caretaker = caretaker
        self._desk = desk
        self._store = store
        self._on_ready = on_ready
        self._stop_wait_s = stop_wait_s
        self._ready: set[int] = set()  # workers that have been ready at least once
        self._endings = 0  # signals to end that have come
        self._stopping = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals, selectors.EVENT_READ)

    def serve(self) -> int:
        """Until a signal to end, or until it is clear that the workers do not start. returns: exit status."""
        try:
            while not self._endings:
                self._start_due()
                self._desk.keep_up()
                if self._hopeless():
                    log(logger, logging.ERROR, "workers do not start")
                    return EXIT_FAILED
                self._turn(self._next_due_ns())
            return EXIT_OK
        finally:
            self._stop()
            self._selector.close()

    def _hopeless(self) -> bool:
        """Did a worker die too often before any was ever ready?"""
        return not self._ready and any(place.restarts.failing for place in self._workplaces)

    def _next_due_ns(self) -> int | None:
        due_ns = [place.start_ns for place in self._workplaces if place.start_ns is not None]
        if self._desk.start_ns is not None:
            due_ns.append(self._desk.start_ns)
        if self._store is not None:
            due_ns.append(time.monotonic_ns() + STORE_POLL_NS)
        return min(due_ns, default=None)

    def _start_due(self) -> None:
        for place in self._workplaces:
            if place.start_ns is None or place.start_ns > time.monotonic_ns():
                continue
            try:
                place.start()
            except OSError as error:
                log(logger, logging.ERROR, "worker not started", worker=place.index, error=_reason(error))
                self._again(place)
            else:
                assert place.control is not None
                self._selector.register(place.control, selectors.EVENT_READ, place)

    def _turn(self, deadline_ns: int | None) -> None:
        """Wait until something happens or the deadline passes, and take in what has happened."""
        wait_s = None if deadline_ns is None else max(0, deadline_ns - time.monotonic_ns()) / NS_PER_S
        for key, _ in self._selector.select(wait_s):
            if key.data is None:
                self._endings += sum(number in ENDING for number in self._signals.read())
            else:
                self._listen_to(key.data)
        for place in self._workplaces:
            if place.ended():
                self._died(place)
        if self._store is not None and not self._stopping:
            self._store.keep_up()

    def _listen_to(self, place: Workplace) -> None:
        assert place.control is not None
        try:
            messages = place.messages()
        except ControlError as error:
            log(logger, logging.ERROR, "worker makes no sense", worker=place.index, error=error)
            messages = None
            place.signal(signal.SIGKILL)
        if messages is None:
            self._selector.unregister(place.control)
            return
        for message in messages:
            match message:
                case Ready(writer):
                    if (
                        place.writer is not None
                    ):  # its journal before this one has failed, and is to be closed
                        self._caretaker.poke()
                    place.writer = writer
                    place.member = place.member or writer
                    log(logger, logging.INFO, "worker ready", worker=place.index, writer=writer)
                    self._count_ready(place.index)
                case Behind():
                    self._compare_all(place)

    def _compare_all(self, behind: Workplace) -> None:
        """A store that lost records of one journal has lost others' as well, of the dead and of the living."""
        self._caretaker.behind()
        for place in self._workplaces:
            if place is not behind:
                place.say(Behind())

    def _count_ready(self, index: int) -> None:
        news = index not in self._ready
        self._ready.add(index)
        if news and len(self._ready) == len(self._workplaces):
            self._on_ready()

    def _died(self, place: Workplace) -> None:
        if place.control is not None and place.control in self._selector.get_map():
            self._selector.unregister(place.control)
        pid, writer, member = place.pid, place.writer, place.member
        status = place.clear()
        log(
            logger,
            logging.INFO if self._stopping and status == 0 else logging.WARNING,
            "worker ended",
            worker=place.index,
            writer=writer,
            pid=pid,
            status=status if status >= 0 else f"killed by signal {-status}",
        )
        if member is not None:
            self._caretaker.gone(member)
        self._caretaker.poke()
        if not self._stopping:
            self._again(place)

    def _again(self, place: Workplace) -> None:
        restart = place.restarts.died(place.started_ns, time.monotonic_ns())
        place.start_ns = restart.at_ns
        if not restart.listening:
            log(logger, logging.ERROR, "worker keeps dying, its socket is closed", worker=place.index)
            place.stop_listening()

    def _stop(self) -> None:
        self._stopping = True
        told = self._endings
        log(logger, logging.INFO, "stopping", workers=len(self._workplaces), wait_s=self._stop_wait_s)
        deadline_ns = time.monotonic_ns() + round(self._stop_wait_s * NS_PER_S)
        self._desk.dismiss()
        for place in self._workplaces:
            place.start_ns = None
            place.signal(signal.SIGTERM)
            place.stop_listening()
        killed = False
        while any(place.pid for place in self._workplaces):
            late = time.monotonic_ns() >= deadline_ns
            if not killed and (late or self._endings > told):
                log(logger, logging.WARNING, "workers killed", late=late)
                for place in self._workplaces:
                    place.signal(signal.SIGKILL)
                killed = True
            self._turn(None if killed else deadline_ns)


@contextlib.contextmanager
def lock(state_dir: pathlib.Path) -> Iterator[None]:
    """Make the state directory and hold its lock. Raises StartError: it is locked, or can't be written to."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=state_dir).close()  # an old lock may lie in what is read-only now
        fd = os.open(state_dir / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        message = f"the state directory {state_dir} cannot be written to: {_reason(error)}"
        raise StartError(message, code=EXIT_TAKEN) from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = (
                f"the state directory {state_dir} is in use by another weighbridge; "
                "end that, or choose another with --state-dir"
            )
            raise StartError(message, code=EXIT_TAKEN) from error
        yield
    finally:
        os.close(fd)


def take_port(key: str, listen: str) -> Port:
    """The port of a configuration key. Raises StartError: it is taken, or cannot be had."""
    try:
        return Port(Address(*host_and_port(listen)))
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        other = "another with --port" if key == "listen" else f"another {key}"
        reason = f"another process has it; end that, or choose {other}" if taken else _reason(error)
        raise StartError(f"cannot listen on {listen} ({key}): {reason}", code=EXIT_TAKEN) from error


def _store(state_dir: pathlib.Path) -> Embedded:
    try:
        return Embedded.start(state_dir)
    except EmbeddedError as error:
        raise StartError(str(error), code=EXIT_FAILED) from error


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
