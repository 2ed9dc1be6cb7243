"""A page as another process finds it."""

import os
import pathlib
from collections.abc import Iterator

import pytest

from metering.journal import chain
from metering.pages import families, pages
from metering.pages.families import CALLS, IN_FLIGHT, Families, Series
from metering.pages.pages import Page, PageError
from metering.record import Line
from tests.support import lines

WRITER = "w" + "a" * 16
ACME = Series(CALLS.name, ("acme", "llama", "inf2", "completed"))


@pytest.fixture
def stuck() -> list[OSError]:
    return []


@pytest.fixture
def page(tmp_path: pathlib.Path, stuck: list[OSError]) -> Iterator[Page]:
    """A page with so little room that it must grow soon."""
    page = Page(tmp_path / "pages", WRITER, on_stuck=stuck.append, defs_room=64, cells_room=8)
    yield page
    page.close()


@pytest.fixture
def path(page: Page, tmp_path: pathlib.Path) -> pathlib.Path:
    return pages.path_of(tmp_path / "pages", WRITER)


def fold(page: Page, first_seq: int, *some: Line) -> int:
    for seq, line in enumerate(some, first_seq):
        page.fold(line, seq, lines.leaf_of(line))
    return first_seq + len(some) - 1


def turn(page: Page, first_seq: int, *some: Line) -> None:
    page.turn(fold(page, first_seq, *some), lines.leaf_of(some[-1]))


def test_a_new_page_is_empty_and_live(page: Page, path: pathlib.Path) -> None:
    found = pages.read(path)
    assert (found.writer, found.seq, found.leaf, found.totals, found.live) == (
        WRITER,
        0,
        chain.ZEROS,
        {},
        True,
    )


def test_a_turn_shows_all_its_lines_and_what_they_stand_for(page: Page, path: pathlib.Path) -> None:
    some = [lines.call(1), lines.call(2), lines.refused(3)]
    last = fold(page, 1, *some)
    assert pages.read(path).seq == 0  # not before the turn
    page.turn(last, lines.leaf_of(some[-1]))
    expected = Families()
    for line in some:
        expected.observe(line)
    found = pages.read(path)
    assert (found.seq, found.leaf) == (3, lines.leaf_of(some[-1]))
    assert found.totals == expected.cells.totals()


def test_a_page_outgrows_its_room(page: Page, path: pathlib.Path) -> None:
    before = path.stat()
    for seq in range(1, 31):
        turn(page, seq, lines.call(seq, tenant=f"t{seq}"))
        found = pages.read(path)
        assert found.live
        assert found.seq == seq
        assert sum(value[0] for one, value in found.totals.items() if one.family == CALLS.name) == seq
    assert path.stat().st_size > 8 * before.st_size
    assert [one.name for one in path.parent.iterdir()] == [path.name]  # nothing temporary is left


def test_growth_needs_both_rooms_looked_at(tmp_path: pathlib.Path) -> None:
    page = Page(tmp_path, WRITER, on_stuck=lambda _: None, defs_room=1 << 16, cells_room=4)
    turn(page, 1, lines.call(1))
    page.close()
    assert pages.read(pages.path_of(tmp_path, WRITER)).totals[ACME] == (1,)


def test_a_page_that_cannot_grow_stays_as_it_was_and_goes_on_later(
    page: Page, path: pathlib.Path, stuck: list[OSError]
) -> None:
    away = path.parent.with_name("away")
    path.parent.rename(away)  # stands for a full disk: no file can be made
    turn(page, 1, lines.call(1))
    turn(page, 2, lines.call(2))
    assert pages.read(away / path.name).seq == 0  # behind its journal, not wrong
    assert len(stuck) == 1  # said once
    away.rename(path.parent)
    turn(page, 3, lines.call(3))
    assert pages.read(path).seq == 3
    assert pages.read(path).totals[ACME] == (3,)


def test_a_page_whose_new_file_cannot_take_its_place_stays_as_it_was(
    page: Page, path: pathlib.Path, stuck: list[OSError]
) -> None:
    away = path.rename(path.with_name("away"))
    path.mkdir()
    turn(page, 1, lines.call(1))
    assert [type(error) for error in stuck] == [IsADirectoryError]
    path.rmdir()
    away.rename(path)
    found = pages.read(path)
    assert (found.seq, found.live) == (0, True)
    turn(page, 2, lines.call(2))
    assert pages.read(path).totals[ACME] == (2,)


def test_no_page_is_left_where_its_blocks_cannot_be_had(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        Page(tmp_path, WRITER, on_stuck=lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_gauges_are_shown_at_once_when_published(page: Page, path: pathlib.Path) -> None:
    page.gauges.in_flight("b1", 3)
    page.publish()
    assert families.gauges(pages.read(path).totals) == {Series(IN_FLIGHT.name, ("b1",)): (3,)}


def test_a_page_whose_process_let_go_is_not_live(page: Page, path: pathlib.Path) -> None:
    turn(page, 1, lines.call(1))
    assert pages.is_live(path)
    page.close()
    assert not pages.is_live(path)
    found = pages.read(path)
    assert not found.live
    assert found.totals[ACME] == (1,)


def test_a_reader_that_holds_the_file_before_growth_goes_on_to_the_new_one(
    page: Page, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock is free by then, which must not be taken for the writer's death."""
    really_open = os.open
    opened = []

    def grow_after_open(*args: object, **kwargs: object) -> int:
        fd = really_open(*args, **kwargs)  # type: ignore[arg-type]
        if args[0] == path and not opened:
            opened.append(fd)
            turn(page, 1, lines.call(1))
        return fd

    monkeypatch.setattr(os, "open", grow_after_open)
    found = pages.read(path)
    assert opened
    assert (found.live, found.seq) == (True, 1)


def halves(path: pathlib.Path) -> list[int]:
    """Offsets of the two heads."""
    assert path.stat().st_size > pages._HEADS[1]
    return list(pages._HEADS)


def tear(path: pathlib.Path, offset: int, data: bytes = b"\xff") -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.parametrize("half", [0, 1])
def test_a_torn_half_is_never_shown(page: Page, path: pathlib.Path, half: int) -> None:
    """A kill in the middle of a turn leaves the other half, whole."""
    turn(page, 1, lines.call(1))
    turn(page, 2, lines.call(2))
    page.close()
    whole = {pages.read(path).seq}
    tear(path, halves(path)[half] + 20)
    found = pages.read(path)
    assert found.totals[ACME] == (found.seq,)
    assert found.seq in whole | {1}


def test_both_halves_torn_is_an_error_that_names_the_page(page: Page, path: pathlib.Path) -> None:
    for head in halves(path):
        tear(path, head + 20)
    with pytest.raises(PageError, match=f"{WRITER}.page: no half is whole"):
        pages.read(path)


@pytest.mark.parametrize(
    "data",
    [b"", b"WBPAGE1\n", b"not a page" * 100],
    ids=["empty", "cut", "something else"],
)
def test_what_is_no_page_is_an_error(page: Page, path: pathlib.Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(PageError, match="no half is whole"):
        pages.read(path)


def test_a_cut_file_is_an_error(page: Page, path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(PageError, match="no half is whole"):
        pages.read(path)


def test_a_page_of_another_layout_is_an_error(page: Page, path: pathlib.Path) -> None:
    tear(path, 8, b"0123456789abcdef")
    with pytest.raises(PageError, match="laid out otherwise"):
        pages.read(path)


def test_definitions_are_checked_too(page: Page, path: pathlib.Path) -> None:
    turn(page, 1, lines.call(1))
    data = path.read_bytes()
    tear(path, data.index(b"acme"), b"adme")
    with pytest.raises(PageError, match="no half is whole"):
        pages.read(path)


def test_no_flipped_bit_goes_unseen(page: Page, path: pathlib.Path) -> None:
    """Whatever byte is damaged: an error, or the figures of one of the last two turns."""
    turn(page, 1, lines.refused(1))
    turn(page, 2, lines.refused(2))
    page.close()
    sound = path.read_bytes()
    refused = Series(CALLS.name, ("unknown", "unknown", "unknown", "refused"))
    for at in range(len(sound)):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        try:
            found = pages.read(path)
        except PageError:
            continue
        assert found.totals[refused] == (found.seq,)


def test_beside_a_torn_half_the_older_one_is_not_believed_while_the_writer_goes_on(
    page: Page, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader looked at half 0 before a turn and at half 1 in the middle of the turn after: falling
    back to what half 0 was would show less than an earlier scrape did."""
    turn(page, 1, lines.refused(1))
    turn(page, 2, lines.refused(2))
    turn(page, 3, lines.refused(3))
    newest = pages.read(path).seq
    assert newest == 3
    sound = path.read_bytes()
    half_of_newest = max(halves(path), key=lambda head: int.from_bytes(sound[head + 8 : head + 16], "little"))
    looks = [sound[: half_of_newest + 30] + b"\xff" + sound[half_of_newest + 31 :], sound]
    monkeypatch.setattr(os, "pread", lambda *_: looks.pop(0))
    assert pages.read(path).seq == newest


def test_a_reader_gives_up_in_the_end(
    page: Page, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_READS_MAX", 3)
    with monkeypatch.context() as patched:
        changing = iter(range(100))
        patched.setattr(os, "pread", lambda *_: b"%d" % next(changing))
        with pytest.raises(PageError, match="changed in 3 reads"):
            pages.read(path)
    page.close()
    with monkeypatch.context() as patched:
        patched.setattr(os.path, "samestat", lambda *_: False)
        with pytest.raises(PageError, match="replaced in 3 reads"):
            pages.read(path)


def test_files_that_are_no_pages_are_not_listed(page: Page, path: pathlib.Path) -> None:
    for name in ("gone", "gone.tmp", "notes.page", "README"):
        (path.parent / name).touch()
    half_made = path.with_suffix(".tmp")
    half_made.touch()
    assert pages.files(path.parent) == [path, half_made]
    assert pages.files(path.parent / "absent") == []
