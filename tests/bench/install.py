"""Installs the gateways that ours is compared with, into the cache (tests/bench/cache.py); needs no root.

    python -m tests.bench.install              all of them, unless they are there
    python -m tests.bench.install nginx envoy

Versions are pinned in peers/: requirements of virtual environments, a lock file of npm. nginx and HAProxy
are those on PATH, else Debian's packages, unpacked: of the version that the distribution has now. What
cannot be installed is said in one line, and the benchmark goes without it.
"""

import hashlib
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable

from tests.bench import peers
from tests.bench.cache import CACHE, DEBIAN_ROOT, PEERS, build

DEBIAN = ("nginx", "haproxy")
PYTHON = ("envoy", "sglang-router", "vllm-router", "litellm")
STAMP = "installed"
COMPLAINT_MAX = 200
TIMEOUT_S = 900


class InstallError(Exception):
    """It cannot be installed; the message, one line, says why."""


def main() -> int:
    names = sys.argv[1:] or list(peers.ALL)
    if unknown := set(names) - set(peers.ALL):
        print(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(peers.ALL)}", file=sys.stderr)
        return 2
    CACHE.mkdir(parents=True, exist_ok=True)
    build()
    for name in names:
        peer = peers.ALL[name]
        try:
            installer(name)()
            if peer.program() is None:
                raise InstallError("its program is not where it should be")
            print(f"{name} {peer.version()}", flush=True)
        except InstallError as error:
            print(f"{name}: not installed: {error}", flush=True)
    return 0


def installer(name: str) -> Callable[[], None]:
    """What installs it, unless it is there. It raises InstallError."""
    if name in DEBIAN:
        return lambda: install_debian(name)
    return install_portkey if name == "portkey" else lambda: install_python(name)


def install_debian(name: str) -> None:
    if peers.debian_program(name) is not None:
        return
    if shutil.which("apt-get") is None:
        raise InstallError("it is not on PATH, and this is not Debian")
    packages = CACHE / "debian"
    packages.mkdir(exist_ok=True)
    run("apt-get", "download", *(PEERS / "debian.packages").read_text().split(), cwd=packages)
    for package in sorted(packages.glob("*.deb")):
        run("dpkg-deb", "--extract", package, DEBIAN_ROOT, cwd=packages)


def install_python(name: str) -> None:
    requirements = PEERS / f"{name}.txt"
    directory = CACHE / name
    if stamped(directory, requirements):
        return
    shutil.rmtree(directory, ignore_errors=True)
    run(sys.executable, "-m", "venv", directory)
    pip = (directory / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-input")
    run(*pip, "--disable-pip-version-check", "--requirement", requirements)
    stamp(directory, requirements)


def install_portkey() -> None:
    lock = PEERS / "portkey" / "package-lock.json"
    directory = CACHE / "portkey"
    if stamped(directory, lock):
        return
    if shutil.which("npm") is None:
        raise InstallError("it needs node and npm")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name in ("package.json", lock.name):
        shutil.copy(lock.with_name(name), directory)
    run("npm", "ci", "--no-audit", "--no-fund", "--loglevel=error", cwd=directory)
    stamp(directory, lock)


def stamped(directory: pathlib.Path, pins: pathlib.Path) -> bool:
    """Was this directory made from these pins, and to its end?"""
    file = directory / STAMP
    return file.exists() and file.read_text() == digest(pins)


def stamp(directory: pathlib.Path, pins: pathlib.Path) -> None:
    (directory / STAMP).write_text(digest(pins))


def digest(pins: pathlib.Path) -> str:
    return hashlib.sha256(pins.read_bytes()).hexdigest() + "\n"


def run(*command: str | pathlib.Path, cwd: pathlib.Path | None = None) -> None:
    """Raises InstallError with the end of what the command said."""
    try:
        done = subprocess.run(
            [str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(str(error)) from error
    if done.returncode:
        said = " ".join((done.stdout + done.stderr).split())
        raise InstallError(f"{command[0]}: … {said[-COMPLAINT_MAX:]}")


if __name__ == "__main__":
    sys.exit(main())
