"""A gateway as its users start it: a child process with a configuration file, in a directory of its own.

It imports nothing of the product: what a test learns comes over sockets and from files.
"""

import asyncio
import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator

from tests.oracle import files, journal
from tests.support.ports import free_port

ROOT = pathlib.Path(__file__).parent.parent.parent
READY_S = 60.0


def eventually(check, *, within_s: float = 10.0, every_s: float = 0.02):
    """Call `check` until it returns something true; return that. Fails with its last answer."""
    deadline = time.monotonic() + within_s
    while not (found := check()):
        assert time.monotonic() < deadline, f"still {found!r} after {within_s} s"
        time.sleep(every_s)
    return found


class Gateway:
    """A running gateway. keys: tenant → API key; log: where its stderr goes; code: where its packages are."""

    def __init__(
        self,
        directory: pathlib.Path,
        config: dict,
        keys: dict[str, str],
        env: dict[str, str],
        code: pathlib.Path = ROOT,
    ) -> None:
        self.code = code
        self.directory = directory
        self.state_dir = pathlib.Path(config["state_dir"])
        self.port = int(config["listen"].rpartition(":")[2])
        self.keys = keys
        self.config_file = directory / "weighbridge.yaml"
        self.log = directory / "stderr.log"
        self.config_file.write_text(json.dumps(config))  # YAML reads JSON
        self._env = env
        self.process = self._start()

    def _start(self, **env: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "gateway.cli", "serve", "-c", str(self.config_file)],
                cwd=self.code, stdout=log, stderr=log,
                env={**os.environ, "PYTHONPATH": str(self.code), **self._env, **env},
                start_new_session=True,
            )  # fmt: skip

    def restart(self, **env: str) -> None:
        """Start it again after its end. env: for this start only."""
        assert self.process.poll() is not None
        self.process = self._start(**env)

    def wait_ready(self) -> None:
        """Until /readyz says 200."""
        eventually(lambda: self.alive("/readyz"), within_s=READY_S)

    def wait_checked(self) -> None:
        """Until the store can say of every tenant how its limits stand: before that, their policy decides."""

        def is_checked(key: str) -> bool:
            status, body = self.get("/v1/usage", key)
            return status == 200 and json.loads(body)["limits_checked"]

        for key in self.keys.values():
            eventually(lambda key=key: is_checked(key), within_s=READY_S)
        assert all(map(is_checked, self.keys.values()))

    def alive(self, path: str = "/healthz") -> bool:
        """Does this page say 200? Fails if the gateway has ended."""
        assert self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.get(path)[0] == 200
        return False

    def get(self, path: str, key: str | None = None) -> tuple[int, bytes]:
        """GET a page; returns status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            headers = {"authorization": f"Bearer {key}"} if key else {}
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def post(
        self, path: str, body: object, *, tenant: str = "acme", **headers: str
    ) -> http.client.HTTPResponse:
        """POST JSON (or bytes as they are); returns the answer, its body not read yet.

        As clients do (httpx, nginx), an answer is read even if it came before all of the request was taken.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {
            "authorization": f"Bearer {self.keys[tenant]}",
            "content-type": "application/json",
            "connection": "close",
        }
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.request("POST", path, body=data, headers=sent)
            return connection.getresponse()  # it closes the connection, at the answer's end
        except BaseException:
            connection.close()
            raise

    def lines(self, *kinds: str) -> list[dict]:
        """All journal lines of these kinds (all if none), writer by writer as they began, salvaged lines last."""
        journals = [_lines(directory) for directory in journal.directories(self.state_dir / "journal")]
        journals.sort(key=lambda lines: lines[0].get("at_ns", 0) if lines else 0)  # their names tell no order
        return [line for lines in journals for line in lines if not kinds or line["kind"] in kinds]

    def stop(self) -> int:
        """SIGTERM, and wait for its end; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def kill(self) -> None:
        """SIGKILL to everything that it started, at the end of a test."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=10)


def _lines(directory: pathlib.Path) -> list[dict]:
    segments = map(files.read, files.segments(directory))
    return [json.loads(line) for segment in segments for line in segment.split(b"\n")[:-1]]


def new_key() -> tuple[str, str]:
    """A key and its hash as the configuration holds it."""
    key = "wb-" + secrets.token_hex(32)
    return key, "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def _sections(of_tenant: dict[str, object]) -> tuple[dict, dict]:
    """What is laid over a tenant's section, and over its key's."""
    own = {name: value for name, value in of_tenant.items() if name != "key"}
    return own, dict(of_tenant.get("key", {}))


@contextlib.contextmanager
def running(
    directory: pathlib.Path,
    backends: list[dict],
    *,
    tiers: list[dict] | None = None,
    tenants: tuple[str, ...] = ("acme",),
    rate_cards: list[dict] | None = None,
    model: str = "m1",
    aliases: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    code: pathlib.Path = ROOT,
    ready: bool = True,
    scopes: dict[str, list[str]] | None = None,
    tenant_keys: dict[str, object] | None = None,
    of_tenants: dict[str, dict[str, object]] | None = None,
    **more: object,
) -> Iterator[Gateway]:
    """A gateway before these backends; its children are gone at the end.

    ready: wait until calls can be served. code: another release's packages. tiers: default: one, of all backends.
    Every tenant has one key with all scopes, or with those of `scopes` by its name. tenant_keys: laid over the
    section of each tenant; of_tenants: over those of some, by name (`key`: over that of its key).
    """
    made = {tenant: new_key() for tenant in tenants}
    sections = {tenant: _sections((of_tenants or {}).get(tenant, {})) for tenant in tenants}
    all_scopes = ["inference", "operator", "finance", "auditor"]
    config = {
        "listen": f"127.0.0.1:{free_port()}",
        "state_dir": str(directory / "state"),
        "tenants": [
            {"name": tenant, "projects": ["main"], "tags": {"cost_center": "42"},
             "keys": [{"hash": digest, "scopes": (scopes or {}).get(tenant, all_scopes), **sections[tenant][1]}],
             **(tenant_keys or {}), **sections[tenant][0]}
            for tenant, (_, digest) in made.items()
        ],
        "models": [
            {"name": model, "aliases": list(aliases), "rate_cards": rate_cards or [],
             "tiers": tiers or [{"backends": [backend["name"] for backend in backends]}]}
        ],
        "backends": backends,
        **more,
    }  # fmt: skip
    keys = {tenant: key for tenant, (key, _) in made.items()}
    gateway = Gateway(directory, config, keys, env or {}, code)
    try:
        if ready:
            gateway.wait_ready()
        yield gateway
    finally:
        gateway.kill()


@contextlib.asynccontextmanager
async def running_async(
    directory: pathlib.Path, backends: list[dict], **options: object
) -> AsyncIterator[Gateway]:
    """The same for a test whose backend lives in its own event loop: waiting does not block the loop."""
    manager = running(directory, backends, **options)
    gateway = await asyncio.to_thread(manager.__enter__)
    try:
        yield gateway
    finally:
        await asyncio.to_thread(manager.__exit__, None, None, None)
