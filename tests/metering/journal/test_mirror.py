"""Copies of journal lines: whole, in order, and never waited for."""

import os
import pathlib
import threading

from metering.journal.mirror import LOCK, Mirror

LINES = [b'{"seq":%d}\n' % n for n in range(1, 2_000)]
DEADLINE_S = 20


def read_to_end(fd: int) -> bytes:
    data = b""
    while piece := os.read(fd, 65_536):
        data += piece
    return data


def test_lines_are_copied_in_order(tmp_path: pathlib.Path) -> None:
    read_fd, write_fd = os.pipe()
    mirror = Mirror(write_fd, tmp_path / LOCK, lambda _: None)
    for line in LINES:
        mirror.put(line)
    reader: list[bytes] = []
    thread = threading.Thread(target=lambda: reader.append(read_to_end(read_fd)))
    thread.start()
    mirror.close(DEADLINE_S)
    os.close(write_fd)
    thread.join()
    assert reader == [b"\n" + b"".join(LINES)]


def test_a_slow_reader_holds_up_nobody_and_what_it_misses_is_counted(tmp_path: pathlib.Path) -> None:
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)  # as a stdout may be that somebody else has set so
    dropped: list[int] = []
    mirror = Mirror(write_fd, tmp_path / LOCK, dropped.append, bytes_max=1 << 20)
    turn = b"".join(LINES[:1_000])
    for _ in range(1_000):
        mirror.put(turn)
    assert sum(dropped) > 0
    reader: list[bytes] = []
    thread = threading.Thread(target=lambda: reader.append(read_to_end(read_fd)))
    thread.start()
    mirror.close(DEADLINE_S)
    os.close(write_fd)
    thread.join()
    assert reader[0] == b"\n" + turn * ((1_000_000 - sum(dropped)) // 1_000), (
        "whole turns, or nothing of them"
    )


def test_two_workers_do_not_mix_their_lines(tmp_path: pathlib.Path) -> None:
    read_fd, write_fd = os.pipe()
    mirrors = [Mirror(write_fd, tmp_path / LOCK, lambda _: None) for _ in range(2)]
    turns = [b"x" * 50_000 + b"\n", b"y" * 50_000 + b"\n"]  # far more than a pipe takes at once
    for _ in range(20):
        for mirror, turn in zip(mirrors, turns, strict=True):
            mirror.put(turn)
    reader: list[bytes] = []
    thread = threading.Thread(target=lambda: reader.append(read_to_end(read_fd)))
    thread.start()
    for mirror in mirrors:
        mirror.close(DEADLINE_S)
    os.close(write_fd)
    thread.join()
    lines = [line for line in reader[0].split(b"\n") if line]
    assert sorted(lines) == sorted(turn[:-1] for turn in turns * 20)


def test_a_reader_that_has_gone_ends_the_copying_and_nothing_else(tmp_path: pathlib.Path) -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    dropped: list[int] = []
    mirror = Mirror(write_fd, tmp_path / LOCK, dropped.append)
    mirror._thread.join(DEADLINE_S)
    mirror.put(b"1\n2\n")
    assert dropped == [2]
    mirror.close()
    os.close(write_fd)


def test_without_a_lock_it_writes_all_the_same(tmp_path: pathlib.Path) -> None:
    read_fd, write_fd = os.pipe()
    mirror = Mirror(write_fd, tmp_path / "absent" / LOCK, lambda _: None)
    mirror.put(b"1\n")
    mirror.close(DEADLINE_S)
    os.close(write_fd)
    assert read_to_end(read_fd) == b"\n1\n"
