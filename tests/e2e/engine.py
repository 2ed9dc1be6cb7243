"""Runs the real vLLM as a child process."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import time
import types
import typing
import urllib.error
import urllib.request
from collections.abc import Mapping

from tests.e2e.environment import MODEL, Environment

START_S_MAX = 600
STOP_S_MAX = 30
MAX_MODEL_LEN = 2048
SLOTS = 8

COMMON = (
    *("--served-model-name", MODEL),
    *("--max-model-len", str(MAX_MODEL_LEN)),
    *("--max-num-seqs", str(SLOTS)),
    *("--dtype", "bfloat16"),
    "--enforce-eager",
)
GENERATING = (
    *COMMON,
    "--enable-prompt-tokens-details",  # else usage says nothing of cached prompt tokens
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
)
POOLING = (*COMMON, "--runner", "pooling", "--convert", "embed")
TWO_CLASSES = {"method": "no_post_processing", "classifier_from_token": ["yes", "no"]}
"""Makes a classifier of any model: how near the last token is to each of these words."""
CLASSIFYING = (
    *COMMON,
    *("--runner", "pooling", "--convert", "classify", "--hf-overrides", json.dumps(TWO_CLASSES)),
)
KEEPING = {"VLLM_ENABLE_RESPONSES_API_STORE": "1"}
"""Responses are kept; by default they are not."""
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


class EngineFailed(Exception):
    """vLLM did not come up; the message has the end of its log."""


@contextlib.contextmanager
def engine(
    environment: Environment,
    log: pathlib.Path,
    flags: tuple[str, ...] = GENERATING,
    *,
    more: Mapping[str, str] = types.MappingProxyType({}),
) -> typing.Iterator[int]:
    """Serve the small model on a free loopback port and yield the port. more: of its variables. Raises EngineFailed.

    It runs at a low priority: a machine of two cores also runs what is tested.
    """
    port = free_port()
    serve = (str(environment.vllm), "serve", MODEL, "--host", "127.0.0.1", "--port", str(port))
    with log.open("wb") as output:
        child = subprocess.Popen(
            ("nice", *serve, *flags),
            cwd=environment.cache,  # the model by a relative path: /v1/models shows it, and captures are kept
            env={**os.environ, **QUIET, "VLLM_CPU_KVCACHE_SPACE": "2", **more},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_until_well(child, port, log)
            yield port
        finally:
            stop(child)


def wait_until_well(child: subprocess.Popen[bytes], port: int, log: pathlib.Path) -> None:
    deadline = time.monotonic() + START_S_MAX
    while time.monotonic() < deadline and child.poll() is None:
        if is_well(port):
            return
        time.sleep(0.5)
    tail = log.read_text(errors="replace")[-4_000:]
    raise EngineFailed(f"vLLM did not come up within {START_S_MAX} s (exit code {child.poll()}):\n{tail}")


def is_well(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def stop(child: subprocess.Popen[bytes]) -> None:
    """End vLLM and the engine processes of its session."""
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(STOP_S_MAX)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
