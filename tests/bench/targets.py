"""What is measured: started, waited for, and asked about its processes."""

import contextlib
import fcntl
import importlib.metadata
import json
import pathlib
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tests.bench import ours, peers, proc
from tests.bench.cache import BIN, CACHE, ROOT
from tests.bench.process import (
    GATEWAY_CORE,
    LOAD_CORE,
    BenchError,
    ask,
    eventually,
    free_port,
    running,
)
from tests.bench.samples import DIRECT, OURS
from tests.bench.scenarios import COMPARED, MODELS, SCENARIOS, body
from tests.support import stores

READY_S = 90.0


class Target(NamedTuple):
    """A gateway that answers. headers: of each request to it. root: its first process; None: it is `direct`.

    keys: a file of keys that connections take in turn, in the place of the one of `headers`. store: the process of a
    store that is not among the gateway's own.
    """

    name: str
    version: str
    port: int
    headers: Mapping[str, str]
    root: int | None
    books: ours.Books | None = None
    keys: pathlib.Path | None = None
    store: int | None = None

    def processes(self) -> dict[int, str]:
        """Its processes now and what each is: of a peer all are `gateway`."""
        if self.root is None:
            return {}
        if self.name != OURS:
            return dict.fromkeys(proc.tree(self.root), "gateway")
        found = {pid: ours.role(proc.command_line(pid)) for pid in proc.tree(self.root)}
        return found if self.store is None else found | {self.store: "store"}


def known() -> list[str]:
    """Names of all that can be measured, as they are shown."""
    return [OURS, *peers.ALL]


@contextlib.contextmanager
def started(names: Iterable[str], *, over_tcp: bool = False) -> Iterator[list[Target]]:
    """The mock, and before it each of these. Those that are not installed are left out, with a line that says so.

    over_tcp: the store of ours is a process of its own, asked over TCP; else it is the gateway's.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_alone())
        run = CACHE / "run"
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir(parents=True)
        backend, mock = stack.enter_context(_mock(run))
        found = [Target(DIRECT, "", mock, {"authorization": f"Bearer {peers.KEY}"}, None)]
        for name in names:
            directory = run / name
            directory.mkdir()
            if name == OURS:
                found.append(stack.enter_context(_ours(directory, mock, over_tcp=over_tcp)))
            elif (program := peers.ALL[name].program()) is None:
                print(f"{name}: not installed (python -m tests.bench.install {name})", flush=True)
            else:
                found.append(stack.enter_context(_peer(peers.ALL[name], program, directory, mock)))
        for target in found:
            _wait_ready(target, backend)
        yield found


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other run of this cache goes on: two at once would measure each other."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another run goes on; this one waits for its end", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _mock(run: pathlib.Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    port_file = run / "mock.port"
    with port_file.open("wb") as output, running(
        [BIN / "backend", *MODELS], run / "mock.log", core=LOAD_CORE, stdout=output.fileno()
    ) as child:  # fmt: skip
        yield child, int(eventually(port_file.read_text, within_s=5, what="the mock backend listens"))


@contextlib.contextmanager
def _ours(directory: pathlib.Path, mock: int, *, over_tcp: bool) -> Iterator[Target]:
    port = free_port()
    state_dir, file, keys = directory / "state", directory / "weighbridge.yaml", directory / "keys"
    keys.write_text("\n".join(ours.KEYS))
    with contextlib.ExitStack() as stack:
        url, store = stack.enter_context(_store(directory)) if over_tcp else (None, None)
        config = ours.config(port, mock, state_dir, MODELS, url)
        file.write_text(json.dumps(config, indent=1))  # YAML reads JSON
        command: list[str | pathlib.Path] = [*ours.COMMAND, file]
        child = stack.enter_context(
            running(command, directory / "log", core=GATEWAY_CORE, env=ours.ENV, cwd=ROOT)
        )
        headers = {"authorization": f"Bearer {ours.KEY}"}
        yield Target(
            OURS,
            version(),
            port,
            headers,
            child.pid,
            ours.Books(state_dir),
            keys if over_tcp else None,
            store,
        )


@contextlib.contextmanager
def _store(directory: pathlib.Path) -> Iterator[tuple[str, int]]:
    """A store as production has it: asked over TCP, each second on the disk. Gives its URL and its process."""
    port = free_port()
    data = directory / "store"
    data.mkdir()
    options = {
        "port": port, "bind": "127.0.0.1", "dir": data, "save": "", "appendonly": "yes", "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
    }  # fmt: skip
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    with running([stores.valkey_binary(), *words], directory / "store.log", core=GATEWAY_CORE) as child:
        url = f"redis://127.0.0.1:{port}"
        eventually(lambda: stores.answers(url), within_s=READY_S, what="the store answers")
        yield url, child.pid


@contextlib.contextmanager
def _peer(peer: peers.Peer, program: pathlib.Path, directory: pathlib.Path, mock: int) -> Iterator[Target]:
    place = peers.Place(free_port(), free_port(), mock, directory)
    launch = peer.launch(program, place)
    with running(
        launch.command, directory / "log", core=GATEWAY_CORE, env=launch.env, cwd=directory
    ) as child:
        headers = {"authorization": f"Bearer {peers.KEY}", **launch.headers}
        yield Target(peer.name, peer.version(), place.port, headers, child.pid)


def version() -> str:
    """Of ours, with the commit that it was run from."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return f"{importlib.metadata.version('weighbridge')} ({commit.stdout.strip() or 'no commit'})"


def _wait_ready(target: Target, backend: subprocess.Popen[str]) -> None:
    """Until it has answered one request of each kind."""
    headers = {"content-type": "application/json", **target.headers}
    log = CACHE / "run" / target.name / "log"
    for name in COMPARED:
        request = body(SCENARIOS[name])

        def answered(request: bytes = request) -> bool:
            if target.root is not None and not proc.command_line(target.root):
                raise BenchError(f"{target.name} has ended: {log}")
            if backend.poll() is not None:
                raise BenchError("the mock backend has ended")
            return ask(target.port, "POST", "/v1/chat/completions", body=request, headers=headers)[0] == 200

        eventually(answered, within_s=READY_S, what=f"{target.name} answers {name}; see {log}")
    if target.books is not None:
        target.books.count()
