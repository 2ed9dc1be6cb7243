"""The lock files: made with one Python, whole for each that is supported."""

import importlib.metadata
import pathlib
import re

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = pathlib.Path(__file__).parent.parent
PYTHONS = ["3.11.2", "3.11.7", "3.12.1", "3.13.0"]  # the first is Debian 12's
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def pins(lock: str) -> set[tuple[str, str]]:
    """Name and version of each package."""
    return {(canonicalize_name(name), version) for name, version in _PIN.findall((ROOT / lock).read_text())}


def wanted_by(package: str, python: str) -> set[str]:
    """What an installed package needs beside it, by its own word."""
    version = {"python_version": python.rpartition(".")[0], "python_full_version": python, "extra": ""}
    there = default_environment() | version
    needed = map(Requirement, importlib.metadata.requires(package) or ())
    return {canonicalize_name(one.name) for one in needed if one.marker is None or one.marker.evaluate(there)}


@pytest.mark.parametrize("python", PYTHONS)
def test_what_a_locked_package_needs_is_locked(python: str) -> None:
    names = {name for name, _ in pins("requirements.lock")}
    needed = set().union(*(wanted_by(name, python) for name in names))
    assert needed <= names


def test_the_development_lock_has_all_of_the_other() -> None:
    assert pins("requirements.lock") <= pins("requirements-dev.lock")
