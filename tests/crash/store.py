"""A store that is not the gateway's own and that this run does harm to: a Valkey or Redis, found by a link.

<directory>/store.sock ──link──▶ <n>.sock of the server that is the store now
"""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator

from tests.support.gateway import eventually
from tests.support.ports import free_port
from tests.support.valkey import Valkey, ValkeyError

SNAPSHOT = "dump.rdb"
AOF = "appendonlydir"


class Server:
    """One server process with a directory of its own. Ended by `kill`."""

    def __init__(self, program: str, directory: pathlib.Path, number: int) -> None:
        self.socket = directory / f"{number}.sock"
        self.port = free_port()
        self.data = directory / f"data{number}"
        self.data.mkdir()
        self._program = program
        self._log = directory / f"{number}.log"
        self.process = self.start()

    def start(self, *, aof: bool = True, replica_of: int | None = None) -> subprocess.Popen[bytes]:
        """Start it (again) with what it has on its disk. replica_of: another server's port."""
        options = {
            "bind": "127.0.0.1", "port": str(self.port), "unixsocket": str(self.socket), "dir": str(self.data),
            "save": "", "appendonly": "yes" if aof else "no", "appendfsync": "everysec",
            "maxmemory-policy": "noeviction", "repl-diskless-sync-delay": "0",
        }  # fmt: skip
        if replica_of is not None:
            options["replicaof"] = f"127.0.0.1 {replica_of}"
        words = [word for name, value in options.items() for word in (f"--{name}", *value.split(" "))]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen([self._program, *words], stdout=log, stderr=log)
        eventually(self.answers, within_s=20)
        return self.process

    def answers(self) -> bool:
        with contextlib.suppress(OSError, ValkeyError):
            return self.ask("PING") == "PONG"
        return False

    def ask(self, *words: str) -> object:
        with Valkey(f"unix://{self.socket}") as connection:
            return connection.ask(*words)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=10)


class Store:
    """What the gateway knows as its store. Made by `running`."""

    def __init__(self, program: str, directory: pathlib.Path) -> None:
        self.url = f"unix://{directory / 'store.sock'}"
        self._program = program
        self._directory = directory
        self._servers = 0
        self._now = self._new()
        self._link(self._now)

    def _new(self) -> Server:
        self._servers += 1
        return Server(self._program, self._directory, self._servers)

    def _link(self, server: Server) -> None:
        temporary = self._directory / "store.new"
        temporary.symlink_to(server.socket)
        os.replace(temporary, self._directory / "store.sock")

    # What is done to it

    def kill(self) -> None:
        self._now.kill()

    def start(self) -> None:
        """With the AOF of its last life: a killed process loses nothing of it."""
        self._now.start()

    def keep_in_memory(self, *, snapshot: bool) -> None:
        """From here on nothing reaches a disk; what it holds now does, if there is to be a snapshot."""
        assert self._now.ask("CONFIG", "SET", "appendonly", "no") == "OK"
        shutil.rmtree(self._now.data / AOF)
        (self._now.data / SNAPSHOT).unlink(missing_ok=True)
        if snapshot:
            assert self._now.ask("SAVE") == "OK"

    def start_from_snapshot(self) -> None:
        """As after `keep_in_memory` and a kill: all that came since is lost. Then it keeps an AOF again."""
        self._now.start(aof=False)
        assert self._now.ask("CONFIG", "SET", "appendonly", "yes") == "OK"

    def flush(self) -> None:
        assert self._now.ask("FLUSHALL") == "OK"

    def stop_for(self, seconds: float) -> None:
        """SIGSTOP, and after a while SIGCONT."""
        self._now.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self._now.process.send_signal(signal.SIGCONT)

    def replica(self) -> Server:
        """A replica that has all that the store holds, and gets no more: it lags from now on."""
        replica = self._new()
        port = str(self._now.port)
        assert replica.ask("REPLICAOF", "127.0.0.1", port) == "OK"
        eventually(lambda: "master_link_status:up" in str(replica.ask("INFO", "replication")), within_s=20)
        assert replica.ask("REPLICAOF", "NO", "ONE") == "OK"
        return replica

    def fail_over(self, replica: Server) -> None:
        """The store dies, and this one takes its place."""
        self._now.kill()
        shutil.rmtree(self._now.data)
        self._link(replica)
        self._now = replica


@contextlib.contextmanager
def running(program: str, directory: pathlib.Path) -> Iterator[Store]:
    """program: a server's path. All servers are ended on leaving."""
    store = Store(program, directory)
    try:
        yield store
    finally:
        store.kill()
