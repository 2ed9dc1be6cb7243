"""Segments in both forms: what a reader sees does not depend on which."""

import os
import pathlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from metering.journal import segments
from metering.journal.segments import Archived, Blocks, segment_name

LINES = b'{"seq":1}\n{"seq":2}\n{"seq":3}\n'


def put(directory: pathlib.Path, data: bytes = LINES, *, sealed: bool, first_seq: int = 1) -> pathlib.Path:
    path = directory / segment_name(first_seq)
    if sealed:
        path = segments.sealed_path(path)
        data = zstandard.ZstdCompressor(write_checksum=True).compress(data)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("sealed", [False, True])
def test_both_forms_read_the_same(tmp_path: pathlib.Path, sealed: bool) -> None:
    path = put(tmp_path, sealed=sealed)
    assert segments.paths(tmp_path) == [(1, path)]
    assert segments.read(path) == LINES
    assert b"".join(Blocks(path)) == b"".join(Blocks(path)) == LINES
    assert segments.last_line(path) == b'{"seq":3}'
    assert segments.size(path) == path.stat().st_size
    assert segments.modified_ns(path) == path.stat().st_mtime_ns


def test_of_two_forms_the_plain_one_counts(tmp_path: pathlib.Path) -> None:
    put(tmp_path, b"half", sealed=True)
    plain = put(tmp_path, sealed=False)
    later = put(tmp_path, sealed=True, first_seq=4)
    assert segments.paths(tmp_path) == [(1, plain), (4, later)]


def test_other_names_are_no_segments(tmp_path: pathlib.Path) -> None:
    for name in (".0000000000000001.jsonl.zst", "1.jsonl", "salvage.jsonl", "0000000000000001.jsonl.tmp"):
        (tmp_path / name).touch()
    assert segments.paths(tmp_path) == []


def test_a_plain_segment_that_is_sealed_meanwhile_is_read_on(tmp_path: pathlib.Path) -> None:
    path = put(tmp_path, sealed=False)
    sealed = put(tmp_path, sealed=True)
    path.unlink()
    assert segments.read(path) == LINES
    assert segments.last_line(path) == b'{"seq":3}'
    assert segments.size(path) == sealed.stat().st_size
    assert segments.modified_ns(path) == sealed.stat().st_mtime_ns


def test_a_segment_in_no_form_is_not_found(tmp_path: pathlib.Path) -> None:
    path = tmp_path / segment_name(1)
    for read in (segments.read, segments.last_line, segments.modified_ns):
        with pytest.raises(FileNotFoundError):
            read(path)
    with pytest.raises(FileNotFoundError):
        segments.read(tmp_path / "salvage.jsonl")
    assert segments.size(path) == 0


@pytest.mark.parametrize("cut", [-1, -5, 12])
def test_a_sealed_segment_ends_where_it_is_damaged(tmp_path: pathlib.Path, cut: int) -> None:
    path = put(tmp_path, os.urandom(1 << 20) + LINES, sealed=True)
    whole = segments.read(path)
    path.write_bytes(path.read_bytes()[:cut])
    assert whole.startswith(segments.read(path))
    assert len(segments.read(path)) < len(whole) or cut == -1  # only its checksum is gone


def test_a_flipped_byte_in_a_sealed_segment_ends_it(tmp_path: pathlib.Path) -> None:
    path = put(tmp_path, os.urandom(1 << 20), sealed=True)
    data = bytearray(path.read_bytes())
    data[20] ^= 0xFF
    path.write_bytes(data)
    assert len(segments.read(path)) < 1 << 20


@given(parts=st.lists(st.sampled_from([b"", b"\n", b"a\n", b"bb", b"c" * 70_000 + b"\n", b"d" * 300_000])))
def test_the_last_line_is_the_same_in_both_forms(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    data = b"".join(parts)
    directory = tmp_path_factory.mktemp("d")
    whole = data[: data.rfind(b"\n") + 1]
    want = whole[:-1].rpartition(b"\n")[2] if whole else None
    assert segments.last_line(put(directory, data, sealed=False)) == want
    assert segments.last_line(put(directory, data, sealed=True)) == want


def test_a_listing_is_of_one_moment(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first half of a long listing may lack the new name of a segment, the second half its old one."""
    put(tmp_path, sealed=True)
    answers = [[], *[os.listdir(tmp_path)] * 2]
    monkeypatch.setattr(os, "listdir", lambda _path: answers.pop(0))
    assert [first for first, _ in segments.paths(tmp_path)] == [1]


def test_where_a_trimmed_directory_begins(tmp_path: pathlib.Path) -> None:
    assert segments.read_archived(tmp_path) is None
    (tmp_path / segments.ARCHIVED).write_text('{"frontier":["aa"],"last_seq":8,"leaf":"bb","v":1}')
    assert segments.read_archived(tmp_path) == Archived(frontier=("aa",), last_seq=8, leaf="bb")
    (tmp_path / segments.ARCHIVED).write_text('{"frontier"')
    assert segments.read_archived(tmp_path) is None
