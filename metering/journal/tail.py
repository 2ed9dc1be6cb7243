"""The lines of all writers of a state directory as they come: each writer's in order, the chain followed.

A segment that is rotated away from, sealed or salvaged meanwhile is gone on with where it was left; writers that begin
meanwhile are taken up from their first line. Reads only, and disturbs nobody.
"""

import collections
import datetime
import pathlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from metering.journal import chain
from metering.journal.chain import Chained, Place
from metering.journal.journal import Directory, directories
from metering.journal.segments import segment_name
from metering.record import (
    Admitted,
    CallRecord,
    DirectoryChange,
    Event,
    Identity,
    Refused,
    Registration,
    Start,
    Stop,
    Tick,
)
from metering.units import NS_PER_S, PICO_USD_PER_USD


class Told(NamedTuple):
    """A line, and whose it is."""

    writer: str
    line: Chained


class Wanted(NamedTuple):
    """Which lines. kinds: none: all; tenant: None: anybody's, and nobody's."""

    kinds: frozenset[str] = frozenset()
    tenant: str | None = None

    def takes(self, one: Chained) -> bool:
        """Is it one of them?"""
        if self.kinds and kind_of(one) not in self.kinds:
            return False
        return self.tenant is None or getattr(one.line, "tenant", None) == self.tenant


class Tail:
    """All writers under a root. To be closed. wanted: which of their lines are told."""

    def __init__(self, root: pathlib.Path, wanted: Wanted) -> None:
        """Begins behind what is there now: `last` has that."""
        self._root = root
        self._wanted = wanted
        self._known: dict[str, _Following | None] = {}  # None: there will be no line of it any more
        self._last: list[Told] = []

    def last(self, count: int) -> list[Told]:
        """The lines that came last, at most so many, by time. To be asked once, first. Raises OSError."""
        found: list[Told] = []
        for directory in directories(self._root):
            following = _Following(directory, _last_segment(directory))
            recent = collections.deque(
                (Told(directory.writer, one) for one in following.read() if self._wanted.takes(one)),
                maxlen=count,
            )
            found += recent
            self._known[directory.writer] = None if following.ended else following
        found.sort(key=lambda told: told.line.at_ns)  # stable: of one writer they stay in order
        return found[max(0, len(found) - count) :]

    def more(self) -> Iterator[Told]:
        """What has come since. Raises OSError."""
        for directory in directories(self._root):
            if directory.writer not in self._known:
                self._known[directory.writer] = _Following(directory, chain.START)
        for writer, following in self._known.items():
            if following is None:
                continue
            for one in following.read():
                if self._wanted.takes(one):
                    yield Told(writer, one)
            if following.ended:
                self._known[writer] = None

    def close(self) -> None:
        """Close what is open."""
        for following in self._known.values():
            if following is not None:
                following.close()


class _Following:
    """One writer's directory, read up to a place. Its open file stays readable when its name is gone."""

    def __init__(self, directory: Directory, place: Place) -> None:
        self.ended = False
        self._directory = directory
        self._place = place
        self._file: BinaryIO | None = None
        self._rest = b""

    def read(self) -> Iterator[Chained]:
        """The lines behind the place."""
        while not self.ended:
            if self._file is None and not self._open_next():
                yield from self._took(self._directory.chained(self._place.seq))
                self.ended = self.ended or self._directory.complete  # a broken one has no end, and is over
                return
            assert self._file is not None
            data = self._rest + self._file.read()
            found = chain.scan(data, self._place.seq, self._place.leaf)
            self._rest = data[found.offset :]
            yield from self._took(found.lines)
            if not self.ended and not self._is_over():
                return
            self.close()
            self._file, self._rest = None, b""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open_next(self) -> bool:
        """False: it is sealed, salvaged, or not there; the directory knows how to read that."""
        at = self._place.seq + 1
        path = self._directory.file_of(at)
        if path.name != segment_name(at):
            return False
        try:
            self._file = open(path, "rb")  # noqa: SIM115  kept open: it may be sealed meanwhile
        except FileNotFoundError:
            return False
        return True

    def _is_over(self) -> bool:
        """Does what comes next stand in another file?"""
        assert self._file is not None
        at = self._place.seq + 1
        following = self._directory.file_of(at)
        return (
            following.name.removesuffix(".zst") != pathlib.Path(self._file.name).name and following.exists()
        )

    def _took(self, lines: Iterable[Chained]) -> Iterator[Chained]:
        for one in lines:
            self._place = Place(one.seq, one.leaf)
            self.ended = isinstance(one.line, Stop)
            yield one


def _last_segment(directory: Directory) -> Place:
    """The place before a directory's last segment that has a line."""
    for segment in reversed(directory.segments()):
        place = chain.before(segment)
        if place.leaf:
            return place
    return chain.START


def kind_of(one: Chained) -> str:
    """A line's kind, known here or not."""
    return one.line.kind if one.line is not None else chain.link(one.data).kind


def text(told: Told) -> str:
    """A line for a person: when, whose, at which place, what."""
    one = told.line
    at = datetime.datetime.fromtimestamp(one.at_ns / NS_PER_S, tz=datetime.UTC)
    when = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return " ".join([when, f"{told.writer}#{one.seq}", kind_of(one), *_facts(one)])


def _facts(one: Chained) -> Iterator[str]:
    match one.line:
        case CallRecord() as call:
            yield from (call.call_id, f"tenant={call.tenant}", f"model={call.model}", call.outcome.value)
            usage = call.usage
            yield f"tokens={_or_unknown(usage.prompt_tokens)}+{_or_unknown(usage.completion_tokens)}"
            usd = None if call.cost_pusd is None else f"{call.cost_pusd / PICO_USD_PER_USD:.12f}"
            yield f"usd={_or_unknown(usd)}"
        case Admitted() as admitted:
            yield from (admitted.call_id, f"tenant={admitted.tenant}", f"model={admitted.model}")
        case Refused() as refused:
            yield from (str(refused.status), refused.reason, f"tenant={_or_unknown(refused.tenant)}")
            yield f"count={refused.count}"
        case Event() as event:
            yield event.topic
            if event.actor is not None:
                yield f"actor={event.actor}"
            yield from (f"{name}={value!r}" for name, value in event.data.items())
        case DirectoryChange() as changed:
            entry = changed.entry
            yield from (
                entry.kind,
                entry.name,
                changed.change,
                f"version={entry.version}",
                f"actor={changed.actor}",
            )
        case Identity() as identity:
            yield from (f"backend={identity.host.backend}", f"model={identity.host.model}")
        case Registration() as told:
            yield from (told.state, f"backend={told.backend}", f"instance={told.instance_id}")
        case Tick() as tick:
            yield f"open={tick.open_calls}"
        case Start() as start:
            yield from (f"version={start.version}", f"worker={start.worker}")
        case Stop() as stop:
            yield from (stop.reason, f"lost={stop.lost}")


def _or_unknown(value: object) -> object:
    return "unknown" if value is None else value
