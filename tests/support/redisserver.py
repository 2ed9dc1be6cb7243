"""A store that is not the gateway's own: Debian's redis-server, on a unix socket, in memory only."""

import contextlib
import pathlib
import re
import shutil
import subprocess
from collections.abc import Iterator

from tests.support.gateway import eventually
from tests.support.valkey import Valkey

MAJOR_MIN = 7


def binary() -> str | None:
    """Where it is; None: it is not installed, or too old."""
    path = shutil.which("redis-server")
    if path is None:
        return None
    found = re.search(
        r"v=(\d+)\.", subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    )
    return path if found and int(found[1]) >= MAJOR_MIN else None


@contextlib.contextmanager
def running(path: str, directory: pathlib.Path) -> Iterator[str]:
    """Run the program at `path`; gives its URL. It is ended on leaving."""
    socket = directory / "redis.sock"
    options = {
        "port": "0", "unixsocket": str(socket), "save": "", "appendonly": "no", "maxmemory-policy": "noeviction",
    }  # fmt: skip
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    with (directory / "redis.log").open("wb") as log:
        process = subprocess.Popen([path, *words], cwd=directory, stdout=log, stderr=log)
    try:
        eventually(lambda: _answers(f"unix://{socket}"))
        yield f"unix://{socket}"
    finally:
        process.terminate()
        process.wait(timeout=10)


def _answers(url: str) -> bool:
    with contextlib.suppress(OSError), Valkey(url) as store:
        return store.ask("PING") == "PONG"
    return False
