"""Finding a call's record in the journals of a state directory, with its place in the chain.

No gateway need run, and a running one is not disturbed. The chain is verified from the start of the
segment that holds the record up to it, and to the line behind it, which holds it.
"""

import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from metering.audit import search
from metering.journal import chain, segments
from metering.journal.chain import Broken, Chained
from metering.journal.journal import SALVAGE, WRITER_PATTERN, Directory, directories
from metering.record import Admitted, CallRecord, Host, Identity, Stop


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A call and where it stands. line: its record, or what was admitted if it is still open.

    host: the facts of the backend that served it, from the same journal; None if there are none.
    """

    line: CallRecord | Admitted
    host: Host | None
    writer: str
    leaf: str
    file: pathlib.Path


class NotFound(LookupError):
    """There is no such call here, or none that the chain holds; the message says what was looked for."""


def find(root: pathlib.Path, call_id: str) -> Found:
    """The call of this id. root: <state_dir>/journal. Raises NotFound, OSError."""
    writer, _, number = call_id.rpartition("-")
    if not WRITER_PATTERN.fullmatch(writer) or not number.isdecimal():
        raise NotFound(f"{call_id!r} is no call id: it has the form <writer>-<number>")
    if not (root / writer).is_dir():
        raise NotFound(f"there is no journal of the writer {writer} in {root}")
    directory = Directory(root / writer)
    before = directory.starts_after
    lines = [
        line
        for line in _lines_with(directory, _needle(call_id))
        if isinstance(line, CallRecord | Admitted) and line.seq > before
    ]
    # The record comes after the admission; each is checked to be a part of the chain.
    tail = directory.tail()  # asked before the chain is read: a live one grows meanwhile
    for line in sorted(lines, key=lambda line: line.seq, reverse=True):
        chained, behind = itertools.islice(itertools.chain(directory.chained(line.seq - 1), (None, None)), 2)
        held = behind is not None or tail is None or tail.seq <= line.seq
        if chained is not None and chained.line == line and held:
            if isinstance(line, Admitted) and (broken := _broken(directory)):
                raise NotFound(f"{call_id} was admitted; its record is not proven: {broken}")
            return _found(directory, line, chained.leaf)
        if isinstance(line, CallRecord):
            raise NotFound(
                f"a record of {call_id} stands in {directory.file_of(line.seq)} (seq {line.seq}), "
                "and the chain does not hold it: it, or a line beside or before it, was altered, dropped or moved"
            )
    lost = f"; {broken}" if (broken := _broken(directory)) else ""
    lost += f"; its lines up to seq {before} are in the archive alone" if before else ""
    raise NotFound(f"there is no call {call_id} in {directory.path}{lost}")


def admission(directory: Directory, call_id: str) -> Admitted | None:
    """The line that says that this call was admitted; it is not checked to be a part of the chain."""
    lines = _lines_with(directory, _needle(call_id))
    return next((line for line in lines if isinstance(line, Admitted) and line.call_id == call_id), None)


def last(root: pathlib.Path, count: int, on_broken: Callable[[Broken], None] = lambda _: None) -> list[Found]:
    """The `count` calls that ended last, the newest first, over all writers. Raises OSError.

    on_broken: told of journals that were altered, as far as they are read: what is behind that is left out.
    """
    assert count > 0
    newest: list[tuple[CallRecord, Directory, str]] = []
    by_age = sorted(((_touched_ns(directory), directory) for directory in directories(root)), key=_age)
    for touched_ns, directory in by_age:
        # Nothing in this directory, or in those after it, was written after the oldest one we have.
        if len(newest) == count and touched_ns < newest[-1][0].finished_ns:
            break
        newest += [
            (record, directory, leaf)
            for record, leaf in itertools.islice(_backwards(directory, on_broken), count)
        ]
        newest.sort(key=lambda one: (-one[0].finished_ns, one[0].call_id))
        del newest[count:]
    return [_found(directory, record, leaf) for record, directory, leaf in newest]


def as_json(line: msgspec.Struct) -> bytes:
    """A line, or what was found, as JSON for programs. Times (`…_ns`) are strings: many read numbers as floats."""
    return msgspec.json.encode(times_as_text(msgspec.to_builtins(line)), order="sorted")


def times_as_text(value: Any) -> Any:
    """Builtins with every `…_ns` as a string: many programs read numbers as floats."""
    if isinstance(value, dict):
        return {
            key: str(item) if key.endswith("_ns") and isinstance(item, int) else times_as_text(item)
            for key, item in value.items()
        }
    return [times_as_text(item) for item in value] if isinstance(value, list | tuple) else value


def _found(directory: Directory, line: CallRecord | Admitted, leaf: str) -> Found:
    digest = line.identity_digest if isinstance(line, CallRecord) else None
    return Found(
        line=line,
        host=_host(directory, digest) if digest else None,
        writer=directory.writer,
        leaf=leaf,
        file=directory.file_of(line.seq),
    )


def _host(directory: Directory, digest: str) -> Host | None:
    """The host facts of this digest: they stand once in a journal, before the records that name them."""
    for line in _lines_with(directory, b'"digest":%s' % msgspec.json.encode(digest)):
        if isinstance(line, Identity):
            return line.host
    return None


def _needle(call_id: str) -> bytes:
    return b'"call_id":%s' % msgspec.json.encode(call_id)


def _lines_with(directory: Directory, needle: bytes) -> Iterator[Any]:
    """Lines that hold `needle`, decoded; searching bytes costs far less than decoding all lines."""
    for path in _files(directory):
        for line in search.lines_with(segments.read(path), needle):
            try:
                yield chain.decode(line)
            except chain.NotALine:
                pass  # torn or altered: what the chain does not hold is no record


def _files(directory: Directory) -> list[pathlib.Path]:
    salvage = [directory.path / SALVAGE] if directory.closed_by_salvage else []
    return [path for _, path in directory.segment_paths()] + salvage


def _broken(directory: Directory) -> Broken | None:
    """Is this directory closed, and its chain not whole? Reads all of it."""
    if not directory.complete:
        return None
    end = _end(directory.chained(), 0)
    return None if end.is_stop else Broken(directory.writer, end.seq)


def _backwards(directory: Directory, on_broken: Callable[[Broken], None]) -> Iterator[tuple[CallRecord, str]]:
    """Records from the last to the first, each with its leaf; segment by segment."""
    closed = directory.complete  # asked before it is read: a live one may get its `stop` meanwhile
    until: int | None = None
    for first_seq in sorted((first for first, _ in directory.segment_paths()), reverse=True):
        segment = list(_until(directory.chained(first_seq - 1), until))
        end = _end(segment, first_seq - 1)
        if end.seq != until - 1 if until else closed and not end.is_stop:
            on_broken(Broken(directory.writer, end.seq))
            del segment[-1:]  # nothing holds it
        calls = [(one.line, one.leaf) for one in segment if isinstance(one.line, CallRecord)]
        yield from reversed(calls)
        until = first_seq


class _End(NamedTuple):
    seq: int
    is_stop: bool


def _end(lines: Iterable[Chained], before: int) -> _End:
    """Where lines end. before: the seq that they begin after."""
    seq, line = before, None
    for one in lines:
        seq, line = one.seq, one.line
    return _End(seq, isinstance(line, Stop))


def _until(lines: Iterable[Chained], seq: int | None) -> Iterable[Chained]:
    return lines if seq is None else itertools.takewhile(lambda one: one.seq < seq, lines)


def _touched_ns(directory: Directory) -> int:
    return max((segments.modified_ns(path) for path in _files(directory)), default=0)


def _age(entry: tuple[int, Directory]) -> tuple[int, str]:
    touched_ns, directory = entry
    return -touched_ns, directory.writer
