"""Installs the client libraries that the tests here run, apart from the project's own environment.

    python -m tests.clients.environment     install them, unless they are there

They lie in $CLIENTS_CACHE_DIR, else `.clients/` in the repository (about 800 MB, one to two minutes):

    <cache>/venv/               Python libraries and Node.js, as in requirements.lock
    <cache>/node/node_modules/  JavaScript libraries, as in node/package-lock.json
    <cache>/node/programs       a link to programs/: Node.js looks for libraries above a program
    <cache>/installed           written last: what was installed, so a half of it is done again

A package is installed only if its hash is the lock file's. No install script of a JavaScript package is run.
"""

import dataclasses
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
REQUIREMENTS = HERE / "requirements.lock"
PACKAGES = (HERE / "node" / "package.json", HERE / "node" / "package-lock.json")
PROGRAMS = HERE / "programs"


@dataclasses.dataclass(frozen=True)
class Environment:
    """A cache directory: paths of what lies in it."""

    cache: pathlib.Path

    @property
    def bin(self) -> pathlib.Path:
        return self.cache / "venv" / "bin"

    @property
    def node(self) -> pathlib.Path:
        return self.cache / "node"

    @property
    def stamp(self) -> pathlib.Path:
        return self.cache / "installed"

    def is_installed(self) -> bool:
        return self.stamp.is_file() and self.stamp.read_text() == recipe()

    def command(self, program: str) -> list[str]:
        """The command line of a program of programs/, by its file's name."""
        if program.endswith(".py"):
            return [str(self.bin / "python"), str(PROGRAMS / program)]
        links = [
            "--preserve-symlinks",
            "--preserve-symlinks-main",
        ]  # else the link is not where it is looked for
        return [str(self.bin / "node"), *links, str(self.node / "programs" / program)]


def default() -> Environment:
    """The cache that $CLIENTS_CACHE_DIR names, else the one in the repository."""
    return Environment(pathlib.Path(os.environ.get("CLIENTS_CACHE_DIR") or ROOT / ".clients").resolve())


def recipe() -> str:
    """What a cache was made from: it changes when this file or a lock file does."""
    inputs = b"".join(path.read_bytes() for path in (pathlib.Path(__file__), REQUIREMENTS, *PACKAGES))
    return hashlib.sha256(inputs).hexdigest() + "\n"


def install(environment: Environment) -> None:
    """Fill the cache, unless it is filled. Raises subprocess.CalledProcessError; the tool's words are on stderr."""
    if not environment.is_installed():
        _fill(environment)
    link = environment.node / "programs"
    link.unlink(missing_ok=True)
    link.symlink_to(PROGRAMS)


def _fill(environment: Environment) -> None:
    shutil.rmtree(environment.cache, ignore_errors=True)
    environment.node.mkdir(parents=True)
    _run(sys.executable, "-m", "venv", environment.cache / "venv")
    pip = (
        environment.bin / "python",
        "-m",
        "pip",
        "install",
        "--no-input",
        "--disable-pip-version-check",
        "--quiet",
    )
    _run(*pip, "--require-hashes", "--requirement", REQUIREMENTS)
    for path in PACKAGES:
        shutil.copy(path, environment.node)
    _run(environment.bin / "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=environment.node)
    environment.stamp.write_text(recipe())


def _run(*command: str | pathlib.Path, cwd: pathlib.Path = ROOT) -> None:
    subprocess.run([str(part) for part in command], check=True, cwd=cwd, stdout=sys.stderr)


if __name__ == "__main__":
    install(default())
    print(f"the client libraries are in {default().cache}")
