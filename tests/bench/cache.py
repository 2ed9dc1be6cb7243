"""Where the benchmark keeps what is no part of the repository.

It lies in $BENCH_CACHE_DIR, else `.bench/` in the repository; git ignores it. Results go to $BENCH_OUT_DIR,
else `out/` beside this file.

    <cache>/bin/{backend,load}     the two programs of native/, compiled
    <cache>/debian/root/        programs of Debian's packages, unpacked, if they are not on PATH
    <cache>/ours/               the virtual environment that ours runs in
    <cache>/<peer>/             a virtual environment, or node_modules, of a peer
    <cache>/run/                configuration, state and logs of what runs
"""

import os
import pathlib
import subprocess

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
NATIVE = HERE / "native"
PEERS = HERE / "peers"
OUT = pathlib.Path(os.environ.get("BENCH_OUT_DIR") or HERE / "out").resolve()

CACHE = pathlib.Path(os.environ.get("BENCH_CACHE_DIR") or ROOT / ".bench").resolve()
BIN = CACHE / "bin"
OURS = CACHE / "ours"
DEBIAN_ROOT = CACHE / "debian" / "root"
DEBIAN_LIBRARIES = DEBIAN_ROOT / "usr/lib" / f"{os.uname().machine}-linux-gnu"


def build() -> None:
    """Compile the two programs, if they are older than their sources. Raises subprocess.CalledProcessError."""
    BIN.mkdir(parents=True, exist_ok=True)
    for source in sorted(NATIVE.glob("*.c")):
        program = BIN / source.stem
        if program.exists() and program.stat().st_mtime >= source.stat().st_mtime:
            continue
        made = program.with_suffix(f".{os.getpid()}")  # two runs may build at once
        subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-std=gnu11", "-o", made, source], check=True)
        made.rename(program)
