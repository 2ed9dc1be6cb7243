"""Ballast: room that is really there, and is there again when it is given back."""

import errno
import os
import pathlib
import threading

import pytest

from metering.journal import ballast
from metering.journal.ballast import BASE_BYTES, STEP_BYTES, Ballast, bytes_for
from metering.record import RECORD_BYTES_MAX
from tests.support.disks import mounted

MIB = 1024 * 1024


def allocated(directory: pathlib.Path) -> int:
    return (directory / ballast.NAME).stat().st_blocks * 512


@pytest.fixture(params=["allocated", "zeros written", "not possible here"])
def made(request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Ballast:
    def refuses(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    if request.param == "zeros written":
        monkeypatch.setattr(ballast, "_allocate", None)
    if request.param == "not possible here":
        monkeypatch.setattr(ballast, "_allocate", refuses)
    return Ballast(tmp_path)


def test_it_holds_what_was_asked_for(made: Ballast, tmp_path: pathlib.Path) -> None:
    assert (made.calls, made.release(1)) == (0, False)
    assert made.resize(bytes_for(100))
    assert made.calls == 100
    assert allocated(tmp_path) >= bytes_for(100)
    assert made.resize(bytes_for(10))
    assert (made.calls, allocated(tmp_path)) == (10, bytes_for(10))


def test_it_gives_back_what_is_needed_in_whole_blocks_until_there_is_none(
    made: Ballast, tmp_path: pathlib.Path
) -> None:
    made.resize(BASE_BYTES + 2 * RECORD_BYTES_MAX)
    assert made.release(RECORD_BYTES_MAX - 1)
    assert (made.calls, allocated(tmp_path)) == (1, BASE_BYTES + RECORD_BYTES_MAX)
    assert made.release(1)
    assert (made.calls, allocated(tmp_path)) == (0, BASE_BYTES + RECORD_BYTES_MAX - 4096)
    assert made.release(MIB)
    assert allocated(tmp_path) == 0
    assert not made.release(1)


def test_it_leaves_the_most_of_what_is_free(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Ballast(tmp_path)
    monkeypatch.setattr(made, "_free_bytes", lambda: 4 * MIB)
    assert not made.resize(16 * MIB)
    assert made.calls == (MIB - BASE_BYTES) // RECORD_BYTES_MAX
    monkeypatch.setattr(made, "_free_bytes", lambda: 0)
    assert not made.resize(16 * MIB)
    assert made.calls == (MIB - BASE_BYTES) // RECORD_BYTES_MAX, "what it has it keeps"


def test_a_step_that_fails_leaves_it_as_it_was(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Ballast(tmp_path)
    allocate = os.posix_fallocate

    def fails_later(fd: int, at: int, more: int) -> None:
        allocate(fd, at, more)
        if at >= 2 * STEP_BYTES:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(ballast, "_allocate", fails_later)
    with pytest.raises(OSError, match="quota"):
        made.resize(4 * STEP_BYTES)
    assert allocated(tmp_path) == 2 * STEP_BYTES
    with pytest.raises(OSError, match="quota"):
        made.regain(4 * STEP_BYTES)
    assert allocated(tmp_path) == 2 * STEP_BYTES
    monkeypatch.setattr(ballast, "_allocate", allocate)
    assert made.regain(4 * STEP_BYTES)
    assert allocated(tmp_path) == 4 * STEP_BYTES


def test_who_grows_it_stops_when_some_of_it_is_given_back(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Ballast(tmp_path)
    free = threading.Lock()

    class Door:
        """The lock, and somebody else who gets it before the third step."""

        steps = 0

        def __enter__(self) -> None:
            self.steps += 1
            if self.steps == 3:
                monkeypatch.setattr(made, "_lock", free)
                assert made.release(1)
                monkeypatch.setattr(made, "_lock", self)
            free.acquire()

        def __exit__(self, *_: object) -> None:
            free.release()

    monkeypatch.setattr(made, "_lock", Door())
    assert not made.resize(64 * STEP_BYTES)
    assert allocated(tmp_path) == 2 * STEP_BYTES - 4096


def test_closed_it_is_gone_and_stays_so(made: Ballast, tmp_path: pathlib.Path) -> None:
    made.resize(bytes_for(10))
    made.close()
    made.close()
    assert made.calls == 0
    assert not made.resize(bytes_for(10))
    assert not made.regain(bytes_for(10))
    assert list(tmp_path.iterdir()) == []


def grown(directory: pathlib.Path, writers: int, *, said: int | None = None) -> tuple[int, list[Ballast]]:
    """So many ballasts that want far more than there is, each again and again. returns: what they leave free."""
    made = []
    for number in range(writers):
        path = directory / str(number)
        path.mkdir(parents=True)
        made.append(Ballast(path, said or writers))
    for _ in range(5):
        for one in made:
            assert not one.resize(STEP_BYTES * 1_000)
    stat = os.statvfs(directory)
    return stat.f_bavail * stat.f_frsize, made


@pytest.mark.parametrize("writers", [1, 2, 7])
def test_all_of_a_small_disk_take_a_quarter_together(tmp_path: pathlib.Path, writers: int) -> None:
    with mounted(tmp_path / "disk", 64 * MIB) as disk:
        free_bytes, made = grown(disk, writers)
        taken = [allocated(disk / str(number)) for number in range(writers)]
        assert sum(taken) <= 16 * MIB
        assert sum(taken) >= 12 * MIB
        assert max(taken) - min(taken) <= max(taken) // 4
        assert free_bytes >= 47 * MIB
        for one in made:
            one.close()


def test_the_law_sees_a_share_of_one_for_each(tmp_path: pathlib.Path) -> None:
    """The mutant: each takes itself for the only one."""
    with mounted(tmp_path / "disk", 64 * MIB) as disk:
        free_bytes, made = grown(disk, 7, said=1)
        assert free_bytes < 16 * MIB
        for one in made:
            one.close()
