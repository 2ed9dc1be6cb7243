"""Installs the public validator of FOCUS files, apart from the project's own environment.

It lies in `.focus/` in the repository (about 900 MB, half a minute). Version 2.2.1 is for Python 3.12, but for one
f-string; on 3.11 that is written so that 3.11 reads it too. It has the rules of FOCUS 1.2 with it and fetches nothing.
"""

import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent.parent
CACHE = ROOT / ".focus"
PACKAGES = (
    "focus-validator==2.2.1",
    "pyarrow<22",
)  # later ones of pyarrow refuse the numpy that the validator wants
_STAMP = CACHE / "installed"
_PATCHED = "focus_validator/config_objects/focus_to_duckdb_converter.py"
_OLD = """f"'{k.replace('\\"', '\\"\\"')}'" for k"""
_NEW = """"'" + k.replace('"', '""') + "'" for k"""


def install() -> pathlib.Path:
    """Fill the cache, unless it is filled. returns: the validator's site-packages, where it must be run.

    Raises subprocess.CalledProcessError; pip's words are on stderr.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = CACHE / "lib" / version / "site-packages"
    if _STAMP.is_file() and packages.is_dir():
        return packages
    shutil.rmtree(CACHE, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(CACHE))
    pip = ("-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--quiet")
    _run(str(CACHE / "bin" / "python"), *pip, "--ignore-requires-python", *PACKAGES)
    patched = packages / _PATCHED
    text = patched.read_text()
    assert text.count(_OLD) == 1, f"{patched} is not the one that this was written for"
    patched.write_text(text.replace(_OLD, _NEW))
    _STAMP.touch()
    return packages


def _run(*command: str) -> None:
    apart = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, check=True, cwd=ROOT, stdout=sys.stderr, env=apart)
