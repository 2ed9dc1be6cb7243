"""A journal that grows and is read again and again says what one reading of it says, and is not read from its start."""

import pathlib
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metering.journal import chain, revisits, sealing
from metering.journal.journal import Directory, segment_name
from metering.journal.revisits import Revisits
from metering.journal.segments import Blocks
from tests.support.journals import WRITER, admitted, call, encoded, refused, start

LINES = encoded(
    [start(), *[make for n in range(40) for make in (admitted(f"w-{n}"), call(f"w-{n}"), refused())]]
)
SEQS = range(1, len(LINES) + 1)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revisits, "BOOKMARK_LINES", 7)


class Growing:
    """A live writer's directory."""

    def __init__(self, root: pathlib.Path) -> None:
        self.path = root / WRITER
        self.path.mkdir(parents=True)
        self.directory = Directory(self.path)
        self._written = 0
        self._file = self.path / segment_name(1)

    def write(self, lines: int) -> None:
        with self._file.open("ab") as file:
            file.write(b"".join(LINES[self._written : self._written + lines]))
        self._written = min(len(LINES), self._written + lines)

    def rotate(self) -> None:
        self._file = self.path / segment_name(self._written + 1)
        self._file.touch()

    def seal(self) -> None:
        for path in sorted(self.path.glob("*.jsonl"))[:-1]:
            sealing.seal(path)

    @property
    def seqs(self) -> list[int]:
        return list(SEQS[: self._written])


def seqs(found: Iterator[tuple[object, int, str]]) -> list[int]:
    return [seq for _, seq, _ in found]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 40)),
        st.tuples(st.just("rotate"), st.just(0)),
        st.tuples(st.just("seal"), st.just(0)),
        st.tuples(st.just("look"), st.integers(0, 12)),
    ),
    max_size=14,
)


@settings(max_examples=150)
@given(STEPS)
def test_each_look_says_what_a_first_one_would(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    growing = Growing(tmp_path_factory.mktemp("revisits"))
    visits = Revisits()
    for step, count in [*steps, ("write", len(LINES)), ("look", 3), ("look", 0)]:
        match step:
            case "write":
                growing.write(count)
            case "rotate":
                growing.rotate()
            case "seal":
                growing.seal()
            case _:
                after_seq = max(0, len(growing.seqs) - count)
                assert seqs(visits.metered(growing.directory, after_seq)) == growing.seqs[after_seq:]


def test_what_was_read_is_not_read_again(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    growing, visits = Growing(tmp_path), Revisits()
    growing.write(60)
    assert seqs(visits.metered(growing.directory, 0)) == growing.seqs
    growing.write(20)
    offsets: list[int] = []
    made = Blocks.__init__

    def noted(blocks: Blocks, path: pathlib.Path, offset: int = 0) -> None:
        offsets.append(offset)
        made(blocks, path, offset)

    monkeypatch.setattr(Blocks, "__init__", noted)
    assert seqs(visits.metered(growing.directory, 60)) == growing.seqs[60:]
    assert offsets == [len(b"".join(LINES[:56]))]  # the bookmark before


def test_a_line_that_is_altered_behind_a_bookmark_ends_the_reading(tmp_path: pathlib.Path) -> None:
    growing, visits = Growing(tmp_path), Revisits()
    growing.write(60)
    assert seqs(visits.metered(growing.directory, 0)) == growing.seqs
    path = growing.path / segment_name(1)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20] + b"X" + whole[-19:])
    assert seqs(visits.metered(growing.directory, 50)) == list(range(51, 60))
    path.write_bytes(whole)
    assert seqs(visits.metered(growing.directory, 50)) == list(range(51, 61))


def test_what_is_counted_of_a_line_is_what_the_line_says(tmp_path: pathlib.Path) -> None:
    growing = Growing(tmp_path)
    growing.write(len(LINES))
    records = {seq: (line, leaf) for line, seq, leaf in growing.directory.records()}
    for line, seq, leaf in Revisits().metered(growing.directory, 0):
        whole, its_leaf = records[seq]
        assert leaf == its_leaf
        if whole.kind in ("call", "refused"):
            assert line is not None
            assert (line.kind, line.tenant) == (whole.kind, whole.tenant)
        else:
            assert line is None


def test_of_a_directory_without_a_segment_nothing_is_read(tmp_path: pathlib.Path) -> None:
    (tmp_path / WRITER).mkdir()
    assert seqs(Revisits().metered(Directory(tmp_path / WRITER), 0)) == []


def test_a_journal_that_begins_elsewhere_is_not_read(tmp_path: pathlib.Path) -> None:
    growing = Growing(tmp_path)
    lines = encoded([start()], prev=chain.leaf(b"another"))
    (growing.path / segment_name(1)).write_bytes(lines[0])
    assert seqs(Revisits().metered(growing.directory, 0)) == []
