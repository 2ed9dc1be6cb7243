"""From `registration` lines to the hours that instances are paid for, and who owned them. Pure.

    lines of all writers ─▶ what each backend's word on each instance holds for ─▶ runs of an instance ─▶ its hours

**How long a word holds.** Until the next one of the same (writer, instance, backend); the last one as long as its
writer wrote anything. Behind that the last word of whoever was heard last is believed: until anybody's next one, for
an hour at most if it is an agent's, for SILENCE_DAYS if it is a configuration's, which is paid for whether a gateway
looked or not. So `gone` ends the words of its own writer and of those that have ended, not of those that go on.

**Paid.** A run is the time for which words about an instance hold without a gap. It begins with its launch, if that is
told (else with the first word), and ends with its termination, the newest told of each; within it the schedule counts
(`billed`). Words that tell of a launch behind the termination begin a new run (a stopped instance was started
again), and so does a backend that answers behind it. Runs, writers, copies of a journal: what overlaps counts once.

**Owned.** Between the launch and the first word the units belong to the backends that are told of within a minute of
that word, and none of them is ready yet. An instance that was gone and is back, with no launch since, was
nobody's in between.

Where words in force at the same time differ (units, slots, type, place), an hour goes by the newest of them.
"""

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from metering import units
from metering.cost import intervals, schedule
from metering.cost.intervals import Interval
from metering.record import Registration
from metering.units import NS_PER_HOUR, NS_PER_S

SILENCE_DAYS = 7
"""A gateway that is not heard of for longer no longer says that an instance is paid for."""
FIRST_WORDS_NS = 60 * NS_PER_S

_HELD_NS = {"agent": NS_PER_HOUR, "config": SILENCE_DAYS * 24 * NS_PER_HOUR}
_SERVING = ("ready", "draining")
_ALIVE = (*_SERVING, "compiling", "warming")  # states in which something has answered


class Told(NamedTuple):
    """A line and who wrote it."""

    writer: str
    line: Registration


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What an instance is and how it is bought; None: unknown.

    simulated: did anybody ever say so? It is not known before the first answer.
    """

    instance_type: str | None
    account: str | None
    region: str | None
    az: str | None
    purchase_option: str | None
    simulated: bool


class Stay(msgspec.Struct, frozen=True, kw_only=True):
    """A backend on an instance within one hour. owned: when the units were its own; ready: when it could serve, too.

    model: its pool. units: of the instance's units_total.
    """

    backend: str
    model: str | None
    units: int
    slots: int | None
    owned: tuple[Interval, ...]
    ready: tuple[Interval, ...]


class PaidHour(msgspec.Struct, frozen=True, kw_only=True):
    """An instance within one hour (since 1970, UTC) in which it was paid for. stays: by backend, sorted."""

    hour: int
    instance_id: str
    facts: Facts
    units_total: int
    paid: tuple[Interval, ...]
    stays: tuple[Stay, ...]

    @property
    def micro_hours(self) -> int:
        """What is paid: 1,000,000 for the whole hour."""
        return sum(units.micro_hours(*interval) for interval in self.paid)

    @property
    def paid_ns(self) -> int:
        """The same in ns."""
        return intervals.length_ns(self.paid)


def paid_hours(told: Iterable[Told], last_ns: Mapping[str, int], period: range) -> list[PaidHour]:
    """The paid hours of all instances in a period (a range of hours since 1970), by hour and instance id.

    told: lines of any number of writers, in any order, any of them twice. last_ns: when each of these writers wrote
    its last line of any kind, so far as that is known.
    """
    window = Interval(period.start * NS_PER_HOUR, period.stop * NS_PER_HOUR)
    by_instance: dict[str, list[Told]] = defaultdict(list)
    for one in _once(told):
        by_instance[one.line.instance_id].append(one)
    found = [
        hour
        for instance_id, words in by_instance.items()
        if any(one.line.state != "gone" for one in words)
        for hour in _Instance(instance_id, words, last_ns).hours(window)
    ]
    return sorted(found, key=lambda one: (one.hour, one.instance_id))


def _once(told: Iterable[Told]) -> list[Told]:
    """Each line once, in the order of time; a writer's own of one moment as it wrote them."""
    lines = {(one.writer, one.line.seq): one for one in sorted(set(told), key=_canonical)}
    return sorted(lines.values(), key=lambda one: (one.line.at_ns, one.writer, one.line.seq))


def _canonical(one: Told) -> tuple[str, bytes]:
    return one.writer, msgspec.json.encode(one.line)


class _Held(NamedTuple):
    """For how long a word holds."""

    interval: Interval
    line: Registration


class _Run:
    """Words about an instance that hold without a gap."""

    def __init__(self, first: Registration) -> None:
        self.first_ns = self.end_ns = first.at_ns
        self.launched_ns: int | None = None
        self.terminated_ns: int | None = None

    def goes_on(self, line: Registration) -> bool:
        """Does this word, which is newer than all before, belong to the run?"""
        if line.at_ns > self.end_ns:
            return False
        if self.terminated_ns is None:
            return True
        if line.launched_ns is not None and line.launched_ns >= self.terminated_ns:
            return False
        answers = line.state in _ALIVE and line.terminated_ns is None
        return not (answers and line.at_ns >= self.terminated_ns)

    def take(self, line: Registration, end_ns: int) -> None:
        self.end_ns = max(self.end_ns, end_ns)
        if line.launched_ns is not None:
            self.launched_ns = line.launched_ns
        if line.terminated_ns is not None:
            self.terminated_ns = line.terminated_ns

    @property
    def from_ns(self) -> int:
        return self.first_ns if self.launched_ns is None else self.launched_ns

    @property
    def paid(self) -> Interval:
        end_ns = self.end_ns if self.terminated_ns is None else min(self.end_ns, self.terminated_ns)
        return Interval(self.from_ns, end_ns)


class _Instance:
    """What is said about one instance. words: in the order of time; not all of them `gone`."""

    def __init__(self, instance_id: str, words: Sequence[Told], last_ns: Mapping[str, int]) -> None:
        self._id = instance_id
        self._words = [one.line for one in words if one.line.state != "gone"]
        self._simulated = any(line.simulated for line in self._words)
        by_backend: dict[str, list[Told]] = defaultdict(list)
        for one in words:
            by_backend[one.line.backend].append(one)
        self._held = {backend: _held(told, last_ns) for backend, told in by_backend.items()}
        self._lines = {backend: [line for _, line in held] for backend, held in self._held.items()}
        self._runs = self._find_runs()
        self._owned, self._ready = self._find_owners()

    def hours(self, window: Interval) -> Iterator[PaidHour]:
        paid = intervals.intersection(
            self._scheduled(window), intervals.union(run.paid for run in self._runs)
        )
        for hour, within in _by_hour(paid):
            words = {backend: word for backend in self._held if (word := self._word_on(backend, within))}
            newest = _newest(self._words, within[-1].to_ns)
            yield PaidHour(
                hour=hour,
                instance_id=self._id,
                facts=Facts(
                    instance_type=newest.instance_type,
                    account=newest.account,
                    region=newest.region,
                    az=newest.az,
                    purchase_option=newest.purchase_option,
                    simulated=self._simulated,
                ),
                units_total=max(_units(word)[1] for word in words.values() or [newest]),
                paid=tuple(within),
                stays=tuple(self._stay(word, within) for _, word in sorted(words.items())),
            )

    def _find_runs(self) -> list[_Run]:
        ends: dict[int, int] = defaultdict(int)
        for interval, line in itertools.chain.from_iterable(self._held.values()):
            ends[id(line)] = max(interval.to_ns, ends[id(line)])
        runs: list[_Run] = []
        for line in self._words:
            if not runs or not runs[-1].goes_on(line):
                runs.append(_Run(line))
            runs[-1].take(line, ends[id(line)])
        return runs

    def _find_owners(self) -> tuple[dict[str, list[Interval]], dict[str, list[Interval]]]:
        """By backend: when its units were its own, and when it could serve."""
        owned, ready = {}, {}
        for backend, held in self._held.items():
            early = [
                Interval(begin_ns, line.at_ns)
                for begin_ns, run in self._starts()
                for _, line in held
                if 0 <= line.at_ns - run.first_ns <= FIRST_WORDS_NS
            ]
            owned[backend] = intervals.union([*early, *(interval for interval, _ in held)])
            ready[backend] = intervals.union(interval for interval, line in held if line.state in _SERVING)
        return owned, ready

    def _starts(self) -> Iterator[tuple[int, _Run]]:
        """Since when the first words of each run hold: its launch; the word itself, if the instance is only back."""
        paid_until_ns: int | None = None
        for run in self._runs:
            is_back = paid_until_ns is not None and run.from_ns < paid_until_ns
            yield run.first_ns if is_back else run.from_ns, run
            paid_until_ns = run.paid.to_ns

    def _scheduled(self, window: Interval) -> list[Interval]:
        """When it is paid for by the schedules that were in force; before the first word by the first one."""
        found: list[Interval] = []
        billed, from_ns = self._words[0].billed, window.from_ns
        for line in [*self._words, None]:
            if line is not None and line.billed == billed:
                continue
            until_ns = window.to_ns if line is None else line.at_ns
            for part in intervals.intersection([window], _set(from_ns, until_ns)):
                found += schedule.parse(billed).between(*part)
            if line is not None:
                billed, from_ns = line.billed, line.at_ns
        return intervals.union(found)

    def _word_on(self, backend: str, paid: Sequence[Interval]) -> Registration | None:
        """The newest word on a backend that held while it owned its units; None: it owned none."""
        if owned := intervals.intersection(paid, self._owned[backend]):
            return _newest(self._lines[backend], owned[-1].to_ns)
        return None

    def _stay(self, word: Registration, paid: Sequence[Interval]) -> Stay:
        owned = intervals.intersection(paid, self._owned[word.backend])
        return Stay(
            backend=word.backend,
            model=word.model,
            units=_units(word)[0],
            slots=word.slots,
            owned=tuple(owned),
            ready=tuple(intervals.intersection(owned, self._ready[word.backend])),
        )


class _Voice(NamedTuple):
    """What one writer says of one backend on one instance, from its first word on this to its last line on anything.

    lines: as it wrote them. first_ns: of the earliest of them.
    """

    first_ns: int
    end_ns: int
    writer: str
    lines: list[Registration]

    def held(self) -> Iterator[_Held]:
        """Each word until the next one; the last one until the writer's end."""
        ends = [*(line.at_ns for line in self.lines[1:]), self.end_ns]
        for line, until_ns in zip(self.lines, ends, strict=True):
            yield _Held(Interval(line.at_ns, max(line.at_ns, until_ns)), line)

    def believed(self, others: Sequence["_Voice"], next_ns: int | None) -> _Held:
        """Its last word behind its end: not at all where somebody else was speaking then, and goes on.

        next_ns: when anybody else spoke first behind it.
        """
        last = self.lines[-1]
        goes_on = any(
            other.first_ns <= self.end_ns and (self.end_ns, self.writer) < (other.end_ns, other.writer)
            for other in others
        )
        until_ns = self.end_ns if goes_on else self.end_ns + _HELD_NS[last.source]
        return _Held(Interval(self.end_ns, until_ns if next_ns is None else min(until_ns, next_ns)), last)


def _held(told: Sequence[Told], last_ns: Mapping[str, int]) -> list[_Held]:
    """For how long the words on one backend on one instance hold, `gone` left out; in the order of time."""
    by_writer: dict[str, list[Registration]] = defaultdict(list)
    for writer, line in sorted(told, key=lambda one: one.line.seq):
        by_writer[writer].append(line)
    voices = [
        _Voice(min(line.at_ns for line in lines), max(lines[-1].at_ns, last_ns.get(writer, 0)), writer, lines)
        for writer, lines in by_writer.items()
    ]
    words = sorted((line.at_ns, writer) for writer, line in told)
    held = [one for voice in voices for one in voice.held()]
    for voice in voices:
        behind = range(bisect.bisect(words, voice.end_ns, key=lambda word: word[0]), len(words))
        next_ns = next((words[at][0] for at in behind if words[at][1] != voice.writer), None)
        held.append(voice.believed([other for other in voices if other is not voice], next_ns))
    held = [one for one in held if one.line.state != "gone"]
    return sorted(held, key=lambda one: (one.line.at_ns, one.line.seq, one.interval))


def _newest(lines: Sequence[Registration], before_ns: int) -> Registration:
    """The last of the lines, which are in the order of time, before a moment; the first one, if none is."""
    return lines[max(0, bisect.bisect_left(lines, before_ns, key=lambda line: line.at_ns) - 1)]


def _units(line: Registration) -> tuple[int, int]:
    """How many units of how many; a share that is not told is all of it."""
    total = line.units_total or 1
    return line.units or total, total


def _set(from_ns: int, to_ns: int) -> list[Interval]:
    return intervals.union([Interval(from_ns, to_ns)])


def _by_hour(paid: Iterable[Interval]) -> Iterator[tuple[int, list[Interval]]]:
    """The intervals, cut at the hours, by hour."""
    hours: dict[int, list[Interval]] = defaultdict(list)
    for from_ns, to_ns in paid:
        for hour in range(from_ns // NS_PER_HOUR, (to_ns - 1) // NS_PER_HOUR + 1):
            start_ns = hour * NS_PER_HOUR
            hours[hour].append(Interval(max(from_ns, start_ns), min(to_ns, start_ns + NS_PER_HOUR)))
    yield from sorted(hours.items())
