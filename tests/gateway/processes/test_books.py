"""A worker's books while its disk is full."""

import asyncio
import pathlib
import time

import pytest

from gateway.configuration.config import Config
from gateway.processes.books import PAGES, Books
from metering.audit.keys import Keys
from metering.limits.limiter import Limiter


def test_a_page_without_room_leaves_no_directory(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried for again and again, and each try began with a journal."""
    Keys(tmp_path, None).ensure(time.time_ns())
    (tmp_path / PAGES).write_text("in the way")

    async def go() -> bool:
        config = Config(state_dir=str(tmp_path), tenants=(), models=(), backends=())
        url = f"unix://{tmp_path}/none"
        limiter = Limiter(url, loop=asyncio.get_running_loop())
        books = Books(config, 0, url, behind=lambda: None, limiter=limiter)
        await books.open(lambda: None)
        again = await books.again(lambda: None, lambda: None)
        written = books.is_written
        await books.close()
        return again or written

    assert asyncio.run(go()) is False
    assert list((tmp_path / "journal").iterdir()) == []
    assert "journal cannot be made" in caplog.text
