"""Keeping content: in the file before anybody is told; dropped where it can't be kept; no half of it left behind."""

import asyncio
import errno
import hashlib
import os
import pathlib
import threading
from collections.abc import Callable

import pytest

from metering.capture import frame, keeper
from metering.capture.envelope import Opener
from metering.capture.keeper import Content, Keeper, Wanted
from metering.capture.shelf import Shelf, shelved
from metering.record import Capture
from metering.units import NS_PER_HOUR

OPENER = Opener.new()
WANTED = Wanted(OPENER.recipient, 1024, required=False)
HOUR_NS = 490_000 * NS_PER_HOUR


class Clock:
    def __init__(self) -> None:
        self.ns = HOUR_NS

    def __call__(self) -> int:
        return self.ns


class Bench:
    """A keeper with what it has counted."""

    def __init__(self, state_dir: pathlib.Path) -> None:
        self.clock = Clock()
        self.counted: list[str] = []
        self.state_dir = state_dir
        self.shelf = Shelf(state_dir)
        self.keeper = Keeper(
            state_dir, loop=asyncio.get_running_loop(), clock=self.clock, count=self.counted.append
        )

    async def keep(self, call_id: str = "w-1", prompt: bytes = b"p", answer: bytes = b"a", **more) -> Capture:
        done: asyncio.Future[Capture] = asyncio.get_running_loop().create_future()
        values = {"tenant": "acme", "prompt_bytes": len(prompt), "answer_bytes": len(answer)} | more
        content = Content(call_id=call_id, prompt=prompt, answer=answer, **values)
        self.keeper.keep(WANTED, content, done.set_result)
        assert not done.done()  # never from within
        return await asyncio.wait_for(done, 10)

    def frame(self, capture: Capture, tenant: str = "acme") -> frame.Frame:
        assert capture.file is not None
        one = shelved(tenant, capture.file)
        assert one is not None
        data = self.shelf.path(one).read_bytes()[capture.offset :][: capture.bytes]
        assert hashlib.sha256(data).hexdigest() == capture.sha256
        return frame.parse(data)


def run(tmp_path: pathlib.Path, test: Callable) -> None:
    async def all_of_it() -> None:
        bench = Bench(tmp_path)
        try:
            await test(bench)
        finally:
            await bench.keeper.close()

    asyncio.run(all_of_it())


def test_it_is_in_the_file_when_it_is_told(tmp_path: pathlib.Path) -> None:
    async def test(bench: Bench) -> None:
        for n, tenant in enumerate(("acme", "globex", "acme")):
            capture = await bench.keep(f"w-{n}", b"prompt %d" % n, b"answer", tenant=tenant)
            assert OPENER.open(bench.frame(capture, tenant)) == (b"prompt %d" % n, b"answer")
        cut = await bench.keep("w-9", b"12", b"34", answer_bytes=3)
        assert bench.frame(cut).header.is_cut
        assert bench.counted == ["kept", "kept", "kept", "cut"]
        assert len(list(bench.shelf.files())) == 2

    run(tmp_path, test)


def test_an_hour_and_a_size_begin_a_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(bench: Bench) -> None:
        names = [(await bench.keep()).file]
        bench.clock.ns += NS_PER_HOUR
        names.append((await bench.keep()).file)
        monkeypatch.setattr(keeper, "FILE_BYTES_MAX", 10)
        names.append((await bench.keep()).file)
        assert len(set(names)) == 3
        hours = [name[:13] for name in names if name]
        assert hours[0] < hours[1] == hours[2]

    run(tmp_path, test)


def test_a_file_that_was_deleted_is_not_gone_on_with(tmp_path: pathlib.Path) -> None:
    async def test(bench: Bench) -> None:
        await bench.keep()
        for one in bench.shelf.files():
            bench.shelf.path(one).unlink()
        assert OPENER.open(bench.frame(await bench.keep())) == (b"p", b"a")

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("code", "reason"), [(errno.ENOSPC, "disk_full"), (errno.EDQUOT, "disk_full"), (errno.EIO, "failed")]
)
def test_what_the_disk_does_not_take_is_dropped(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, code: int, reason: str
) -> None:
    write = os.write

    def half(fd: int, data: bytes) -> int:
        write(fd, data[: len(data) // 2])
        raise OSError(code, os.strerror(code))

    async def test(bench: Bench) -> None:
        first = await bench.keep("w-1")
        with monkeypatch.context() as broken:
            broken.setattr(keeper.os, "write", half)
            capture = await bench.keep("w-2")
        assert capture == Capture(dropped=reason, key=OPENER.recipient.id)
        assert not bench.keeper.takes
        bench.keeper.look()
        assert bench.keeper.takes
        third = await bench.keep("w-3")
        assert bench.counted == ["kept", reason, "kept"]
        assert OPENER.open(bench.frame(first)) == OPENER.open(bench.frame(third)) == (b"p", b"a")
        for one in bench.shelf.files():  # nothing of the dropped one is left between them
            data = bench.shelf.path(one).read_bytes()
            assert sum(len(found.front + found.box) for _, found in frame.scan(data)) == len(data)
        assert (first.file == third.file) == (reason == "disk_full")

    run(tmp_path, test)


def test_room_is_left_to_the_journal(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(bench: Bench) -> None:
        monkeypatch.setattr(keeper, "FREE_BYTES_MIN", 1 << 62)
        monkeypatch.setattr(keeper, "FREE_SHARE", 1)
        assert (await bench.keep()).dropped == "disk_full"
        bench.keeper.look()
        assert not bench.keeper.takes
        assert list(bench.shelf.files()) == []

    run(tmp_path, test)


def test_a_slow_disk_holds_no_call_up(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = threading.Event()
    is_full = Keeper._is_full

    def slow(one: Keeper) -> bool:
        assert hold.wait(10)
        return is_full(one)

    async def test(bench: Bench) -> None:
        monkeypatch.setattr(Keeper, "_is_full", slow)
        monkeypatch.setattr(keeper, "LATE_S", 0.05)
        assert (await bench.keep("w-1")).dropped == "late"
        assert (await bench.keep("w-2")).dropped == "late"  # it waited behind the first
        monkeypatch.setattr(keeper, "BACKLOG_BYTES_MAX", 4)
        assert (await bench.keep("w-3", b"far too much")).dropped == "late"
        assert not bench.keeper.takes
        hold.set()
        monkeypatch.setattr(keeper, "LATE_S", 5)
        monkeypatch.setattr(keeper, "BACKLOG_BYTES_MAX", 1024)
        kept = await bench.keep("w-4")
        data = [bench.shelf.path(one).read_bytes() for one in bench.shelf.files()]
        calls = [found.header.call_id for one in data for _, found in frame.scan(one)]
        assert calls[-1] == "w-4"
        assert "w-2" not in calls  # given up before it was begun
        assert bench.frame(kept).header.call_id == "w-4"

    run(tmp_path, test)


def test_our_own_mistake_drops_it_and_goes_on(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(bench: Bench) -> None:
        with monkeypatch.context() as broken:
            broken.setattr(keeper.shelf, "file_name", lambda *_: 1 // 0)
            assert (await bench.keep()).dropped == "failed"
        assert (await bench.keep()).dropped is None

    run(tmp_path, test)


def test_it_is_synced_with_its_names_and_a_file_whose_sync_failed_is_left(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []

    def note(fd: int) -> None:
        synced.append(fd)

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async def test(bench: Bench) -> None:
        monkeypatch.setattr(keeper, "_fdatasync", note)
        first = await bench.keep()
        bench.keeper.sync()
        assert len(synced) == 1
        bench.keeper.sync()
        assert len(synced) == 1  # nothing was written since
        await bench.keep()
        monkeypatch.setattr(keeper, "_fdatasync", fail)
        bench.keeper.sync()
        assert (await bench.keep()).file != first.file
        monkeypatch.setattr(keeper, "_fdatasync", note)
        monkeypatch.setattr(keeper, "sync_directory", fail)
        bench.keeper.sync()

    run(tmp_path, test)


def test_after_its_end_it_takes_nothing(tmp_path: pathlib.Path) -> None:
    async def test(bench: Bench) -> None:
        await bench.keep()
        await bench.keeper.close()
        assert (await bench.keep()).dropped == "late"

    async def all_of_it() -> None:
        await test(Bench(tmp_path))

    asyncio.run(all_of_it())
