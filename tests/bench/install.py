"""Installs the gateways that ours is compared with, into the cache (tests/bench/cache.py); needs no root.

    python -m tests.bench.install              all of them, unless they are there
    python -m tests.bench.install nginx envoy

Versions are pinned in peers/: requirements of virtual environments, a lock file of npm. nginx and HAProxy
are those on PATH, else Debian's packages, unpacked: of the version that the distribution has now. What
cannot be installed is said in one line, and the benchmark goes without it.

Ours gets an environment too, of its lock file: what is written in Python runs on the system's own interpreter,
if that is one it can run on. Distributions, and the official images, build theirs with the profile-guided
optimisation that a version manager leaves out; ours takes a tenth less CPU time there.
"""

import hashlib
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable

from tests.bench import peers
from tests.bench.cache import CACHE, DEBIAN_ROOT, OURS, PEERS, ROOT, build

DEBIAN = ("nginx", "haproxy")
PYTHON = ("envoy", "sglang-router", "vllm-router", "litellm")
SYSTEM_PYTHON = pathlib.Path("/usr/bin/python3")
PYTHON_MIN = (3, 11)
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
    python = interpreter()
    print(f"python {python}", flush=True)
    install_ours(python)
    for name in names:
        peer = peers.ALL[name]
        try:
            installer(name, python)()
            if peer.program() is None:
                raise InstallError("its program is not where it should be")
            print(f"{name} {peer.version()}", flush=True)
        except InstallError as error:
            print(f"{name}: not installed: {error}", flush=True)
    return 0


def interpreter() -> str:
    """What Python programs are run by."""
    probe = f"import ensurepip, sys, venv; sys.exit(sys.version_info < {PYTHON_MIN})"
    try:
        subprocess.run([SYSTEM_PYTHON, "-c", probe], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return sys.executable
    return str(SYSTEM_PYTHON)


def install_ours(python: str) -> None:
    """The environment that ours runs in; its code is the repository's. Raises InstallError."""
    make_environment(python, OURS, ROOT / "requirements.lock", "--require-hashes")


def installer(name: str, python: str) -> Callable[[], None]:
    """What installs it, unless it is there. It raises InstallError."""
    if name in DEBIAN:
        return lambda: install_debian(name)
    if name == "portkey":
        return install_portkey
    return lambda: make_environment(python, CACHE / name, PEERS / f"{name}.txt")


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


def make_environment(python: str, directory: pathlib.Path, pins: pathlib.Path, *options: str) -> None:
    if stamped(directory, pins, python):
        return
    shutil.rmtree(directory, ignore_errors=True)
    run(python, "-m", "venv", directory)
    pip = (directory / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-input", *options)
    run(*pip, "--disable-pip-version-check", "--requirement", pins)
    stamp(directory, pins, python)


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


def stamped(directory: pathlib.Path, pins: pathlib.Path, python: str = "") -> bool:
    """Was this directory made from these pins, by this interpreter, and to its end?"""
    file = directory / STAMP
    return file.exists() and file.read_text() == digest(pins, python)


def stamp(directory: pathlib.Path, pins: pathlib.Path, python: str = "") -> None:
    (directory / STAMP).write_text(digest(pins, python))


def digest(pins: pathlib.Path, python: str) -> str:
    return f"{hashlib.sha256(pins.read_bytes()).hexdigest()} {python}\n"


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
