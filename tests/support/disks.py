"""A small file system of its own for a test: a tmpfs, really mounted, so that «full» is what the kernel says it is.

That needs root, or a `sudo` that asks for no password. Where neither is there the test is skipped, and in CI it fails:
there its silence would be taken for a pass.
"""

import contextlib
import os
import pathlib
import subprocess
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def mounted(path: pathlib.Path, size_bytes: int) -> Iterator[pathlib.Path]:
    """A tmpfs of this size at `path`, which is made; gone with all that is in it at the end."""
    path.mkdir(parents=True)
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    options = f"size={size_bytes},uid={os.geteuid()},mode=755"
    done = subprocess.run(
        [*sudo, "mount", "-t", "tmpfs", "-o", options, "weighbridge-test", str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        reason = f"a small file system cannot be mounted: {done.stderr.strip()}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    try:
        yield path
    finally:
        subprocess.run([*sudo, "umount", "--lazy", str(path)], check=True)


class Filler:
    """A file that takes all room that is left on its file system, until it is removed."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path

    def fill(self) -> None:
        """Take what is free, to the last block."""
        with self._path.open("ab", buffering=0) as file:
            block = bytes(64 * 1024)
            while block:
                try:
                    written = file.write(block)
                except OSError:
                    written = 0
                if written < len(block):
                    block = block[: len(block) // 2]

    def remove(self) -> None:
        """Give it back."""
        self._path.unlink()
