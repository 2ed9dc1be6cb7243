"""Installs Spark and a parser of Athena's dialect, apart from the project's own environment.

They lie in `.sql/` in the repository (about 600 MB, a minute). Spark needs a Java runtime, 17 or later, on PATH.
"""

import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent.parent
CACHE = ROOT / ".sql"
PACKAGES = ("pyspark==4.3.0", "sqlglot==30.30.0")
_STAMP = CACHE / "installed"


def install() -> pathlib.Path:
    """Fill the cache, unless it is filled. returns: its site-packages.

    Raises subprocess.CalledProcessError; pip's words are on stderr.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = CACHE / "lib" / version / "site-packages"
    if _STAMP.is_file() and packages.is_dir():
        return packages
    shutil.rmtree(CACHE, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(CACHE))
    pip = ("-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--quiet")
    _run(str(CACHE / "bin" / "python"), *pip, *PACKAGES)
    _STAMP.touch()
    return packages


def has_java() -> bool:
    """Is there one on PATH?"""
    return shutil.which("java") is not None


def _run(*command: str) -> None:
    apart = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, check=True, cwd=ROOT, stdout=sys.stderr, env=apart)
