"""One gateway a file; every test leaves it as it found it, and that is checked."""

from collections.abc import Iterator

import pytest

from tests.support.stage import SIZED, Stage, staged


@pytest.fixture(scope="module")
def setting() -> dict:
    """Further options of this file's stage."""
    return {}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, setting: dict) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("field"), **setting) as stage:
        yield stage


@pytest.fixture
def stage(built: Stage) -> Iterator[Stage]:
    """The stage with its backends as new. What must hold after every call is checked behind the test."""
    for one in (built.b1, built.b2):
        one.asked.clear()
        one.script.clear()
        one.default = SIZED
    yield built
    built.check()
