"""The time that a process has which answers for a face: it ends itself, or is killed, whoever may still wait."""

import asyncio
import contextlib
import pathlib
from collections.abc import Coroutine
from typing import Any

import pytest

from gateway.faces import finance_api, reader
from gateway.faces.reader import Reader, ReadError
from tests.support.gateway import ROOT

pytestmark = pytest.mark.integration

SLOW = Reader("tests.support.slow_reader", 1, "the closed hours")
WITHIN_S = 20
"""Of a busy machine."""


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def run(making: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(making, WITHIN_S))


def running() -> list[int]:
    """Processes that answer with nothing."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"tests.support.slow_reader" in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def test_the_limits_are_those_of_the_page() -> None:
    page = (ROOT / "deploy" / "reference" / "api.md").read_text()
    questions, downloads = finance_api.QUESTIONS.read_s, finance_api.DOWNLOADS.read_s
    assert f"| time | {questions} s; downloads and manifests {downloads // 60} min |" in page


def test_a_question_that_takes_too_long_ends_itself() -> None:
    async def ask() -> None:
        with pytest.raises(ReadError, match="the closed hours could not be read within 1 s"):
            await reader.read(SLOW, b"question")

    run(ask())
    assert running() == []


def test_a_file_that_takes_too_long_is_cut_short() -> None:
    async def take() -> None:
        async with reader.reading(SLOW, b"file") as found:
            assert found.answer.file_name == "a"
            pieces = found.pieces()
            assert await anext(pieces) == b"the first piece"
            with pytest.raises(ReadError, match="within 1 s"):
                await anext(pieces)
            assert found.sent is None  # so that nobody takes it for whole

    run(take())
    assert running() == []


def test_one_that_does_not_end_itself_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "LATE_S", 0.5)

    async def ask() -> None:
        with pytest.raises(ReadError, match="within 1 s"):
            await reader.read(SLOW, b"stuck")
        await _gone()

    run(ask())


async def _gone() -> None:
    """The loop has to run for the killing; `eventually` would hold it."""
    while running():
        await asyncio.sleep(0.01)


def test_whoever_asked_and_has_gone_ends_it() -> None:
    async def ask() -> None:
        asking = asyncio.ensure_future(reader.read(SLOW._replace(read_s=600), b"question"))
        while not running():
            await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await _gone()

    run(ask())
