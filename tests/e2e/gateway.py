"""Runs `weighbridge serve` as a child process, as a person with a vLLM of their own would."""

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time
import typing
import urllib.error
import urllib.request

from tests.e2e.engine import free_port

READY_S_MAX = 60
STOP_S_MAX = 30
COMMAND = pathlib.Path(sys.executable).with_name("weighbridge")


class GatewayFailed(Exception):
    """It did not get ready, or did not stop; the message has the end of its log."""


@dataclasses.dataclass(frozen=True)
class Gateway:
    """A running gateway."""

    port: int
    state_dir: pathlib.Path
    log: pathlib.Path

    @property
    def key(self) -> str:
        return (self.state_dir / "api-key").read_text().strip()

    def weighbridge(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run another command on the same state directory."""
        environment = os.environ | {"WEIGHBRIDGE_STATE_DIR": str(self.state_dir)}
        return subprocess.run(
            [COMMAND, *arguments],
            cwd=self.state_dir.parent,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@contextlib.contextmanager
def gateway(backend_port: int, directory: pathlib.Path, *flags: str) -> typing.Iterator[Gateway]:
    """Serve the model server at `backend_port`; yields once it is ready. Raises GatewayFailed."""
    running = Gateway(free_port(), directory / "state", directory / "gateway.log")
    serve = ("serve", "--backend", f"http://127.0.0.1:{backend_port}", "--port", str(running.port))
    with running.log.open("wb") as output:
        child = subprocess.Popen(
            [COMMAND, *serve, "--state-dir", running.state_dir, *flags],
            cwd=directory,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_until_ready(child, running)
            yield running
            child.terminate()
            code = child.wait(STOP_S_MAX)
            if code != 0:
                raise GatewayFailed(f"exit code {code} at SIGTERM:\n{tail(running.log)}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def wait_until_ready(child: subprocess.Popen[bytes], running: Gateway) -> None:
    deadline = time.monotonic() + READY_S_MAX
    while time.monotonic() < deadline and child.poll() is None:
        if is_ready(running.port):
            return
        time.sleep(0.1)
    raise GatewayFailed(f"not ready within {READY_S_MAX} s (exit code {child.poll()}):\n{tail(running.log)}")


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def tail(log: pathlib.Path) -> str:
    return log.read_text(errors="replace")[-4_000:]
