"""Paid hours: against a walk through the minutes, and by example."""

import collections
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from metering.cost import intervals
from metering.cost.hours import PaidHour, Told, paid_hours
from metering.record import Registration
from metering.units import NS_PER_HOUR
from tests.oracle import hours as oracle

PaidHours = Callable[[Iterable[Told], Mapping[str, int], range], list[PaidHour]]

MINUTE_NS = NS_PER_HOUR // 60
HOUR = 497_000  # 2026-09-12T08: a Saturday
FIRST = HOUR * 60
PERIOD = range(HOUR, HOUR + 4)
STATES = ("starting", "compiling", "warming", "ready", "draining", "down", "gone")


def line(writer: str, seq: int, minute: int, **fields: Any) -> dict[str, Any]:
    """As the oracle has it; minute: from the first of PERIOD."""
    plain = {
        "instance": "i-1", "backend": "a", "state": "ready", "source": "config", "billed": "always",
        "launched": None, "terminated": None,
    }  # fmt: skip
    return {**plain, "writer": writer, "seq": seq, "at": FIRST + minute, **fields}


def told(line: Mapping[str, Any]) -> Told:
    def ns(minute: int | None) -> int | None:
        return None if minute is None else minute * MINUTE_NS

    return Told(
        line["writer"],
        Registration(
            at_ns=line["at"] * MINUTE_NS, backend=line["backend"], billed=line["billed"],
            instance_id=line["instance"], launched_ns=ns(line["launched"]), prev="", seq=line["seq"],
            source=line["source"], state=line["state"], terminated_ns=ns(line["terminated"]),
            **line.get("facts", {}),
        ),
    )  # fmt: skip


def hours_of(
    lines: Iterable[Mapping[str, Any]],
    last: Mapping[str, int],
    period: range = PERIOD,
    by: PaidHours = paid_hours,
) -> list[PaidHour]:
    """last: minutes from the first of PERIOD."""
    last_ns = {writer: (FIRST + minute) * MINUTE_NS for writer, minute in last.items()}
    return by(map(told, lines), last_ns, period)


MINUTES = st.integers(-30, 250)
MAYBE = st.one_of(st.none(), st.none(), st.integers(-60, 250).map(lambda minute: FIRST + minute))


@st.composite
def stories(draw: st.DrawFn, ties: bool = True) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """What up to three writers say of two instances and two backends, and when each wrote its last line.

    ties: may a writer's own lines be of one moment?
    """
    lines, last = [], {}
    for writer in draw(st.sets(st.sampled_from(["wa", "wb", "wc"]), min_size=1)):
        moments = sorted(draw(st.lists(MINUTES, min_size=1, max_size=6, unique=not ties)))
        for seq, minute in enumerate(moments):
            launched, terminated = draw(MAYBE), draw(MAYBE)
            if launched is not None and terminated is not None and launched >= terminated:
                terminated = None  # the configuration's check refuses it
            lines.append(
                line(
                    writer, seq, minute,
                    instance=draw(st.sampled_from(["i-1", "i-1", "i-2"])),
                    backend=draw(st.sampled_from("ab")),
                    state=draw(st.sampled_from(STATES)),
                    source=draw(st.sampled_from(["agent", "config"])),
                    billed=draw(st.sampled_from([*["always"] * 3, *oracle.WEEKS])),
                    launched=launched,
                    terminated=terminated,
                )
            )  # fmt: skip
        last[writer] = moments[-1] + draw(st.integers(0, 90))
    return lines, last


Story = tuple[list[dict[str, Any]], dict[str, int]]


def is_what_the_minutes_say(by: PaidHours, story: Story) -> bool:
    lines, last = story
    expected = oracle.minutes(
        lines, {writer: FIRST + minute for writer, minute in last.items()}, range(FIRST, FIRST + 240)
    )
    found: dict[tuple[str, int], oracle.Minute] = {}
    for one in hours_of(lines, last, by=by):
        for at in minutes_of(one.paid):
            owners = frozenset(stay.backend for stay in one.stays if at in minutes_of(stay.owned))
            ready = frozenset(stay.backend for stay in one.stays if at in minutes_of(stay.ready))
            found[one.instance_id, at] = oracle.Minute(True, owners, ready)
    return found == expected


def minutes_of(found: Iterable[intervals.Interval]) -> range | set[int]:
    return {at for one in found for at in range(one.from_ns // MINUTE_NS, one.to_ns // MINUTE_NS)}


@settings(deadline=None)  # the walk is long
@given(stories())
def test_hours_are_what_the_minutes_say(story: Story) -> None:
    assert is_what_the_minutes_say(paid_hours, story)


def does_not_care_for_order_or_copies(by: PaidHours, story: Story) -> bool:
    lines, last = story
    mixed = lines * 2
    random.Random(len(lines)).shuffle(mixed)
    return hours_of(mixed, last, by=by) == hours_of(lines, last, by=by)


def counts_once_what_two_gateways_say(by: PaidHours, story: Story) -> bool:
    lines, last = story
    other = [{**one, "writer": f"{one['writer']}-too"} for one in lines]
    both = hours_of(lines + other, last | {f"{writer}-too": end for writer, end in last.items()}, by=by)
    return sizes(both) == sizes(hours_of(lines, last, by=by))


def adds_up_over_hours(by: PaidHours, story: Story) -> bool:
    """Each hour by itself, and all at once."""
    lines, last = story
    single = [one for hour in PERIOD for one in hours_of(lines, last, range(hour, hour + 1), by)]
    return single == hours_of(lines, last, by=by)


def is_paid_for_no_more_than_time(by: PaidHours, story: Story) -> bool:
    found = hours_of(*story, by=by)
    sums = collections.Counter[tuple[str, int]]()
    for one in found:
        sums[one.instance_id, one.hour] += one.micro_hours
        owned = [part for stay in one.stays for part in stay.owned]
        if intervals.difference(intervals.union(owned), one.paid):
            return False
        if any(intervals.difference(stay.ready, stay.owned) for stay in one.stays):
            return False
    return all(0 < amount <= 1_000_000 for amount in sums.values()) and len(sums) == len(found)


def is_not_changed_by_what_is_told_later(by: PaidHours, story: Story) -> bool:
    """What was known at the end of an hour is what is known of it ever after, but for launches and terminations."""
    lines = [{**one, "launched": None, "terminated": None} for one in story[0]]
    return all(
        known_at(hour, lines, story[1], by)
        == paid_and_ready(hours_of(lines, story[1], range(HOUR, hour), by))
        for hour in PERIOD
    )


def known_at(
    hour: int, lines: Iterable[Mapping[str, Any]], last: Mapping[str, int], by: PaidHours
) -> dict[tuple[str, int], Any]:
    minutes = (hour - HOUR) * 60
    said = [one for one in lines if one["at"] < FIRST + minutes]
    so_far = {writer: min(minutes, end) for writer, end in last.items()}
    return paid_and_ready(hours_of(said, so_far, range(HOUR, hour), by))


def paid_and_ready(found: Iterable[PaidHour]) -> dict[tuple[str, int], Any]:
    return {
        (one.instance_id, one.hour): (
            one.paid,
            {stay.backend: stay.ready for stay in one.stays if stay.ready},
        )
        for one in found
    }


def sizes(found: Iterable[PaidHour]) -> dict[tuple[str, int], tuple[int, dict[str, tuple[int, int]]]]:
    return {
        (one.instance_id, one.hour): (
            one.micro_hours,
            {
                stay.backend: (intervals.length_ns(stay.owned), intervals.length_ns(stay.ready))
                for stay in one.stays
            },
        )
        for one in found
    }


LAWS = [
    is_what_the_minutes_say, does_not_care_for_order_or_copies, counts_once_what_two_gateways_say,
    adds_up_over_hours, is_paid_for_no_more_than_time, is_not_changed_by_what_is_told_later,
]  # fmt: skip


@pytest.mark.parametrize("law", LAWS[1:], ids=lambda law: law.__name__)
def test_hours_keep(law: Callable[[PaidHours, Story], bool]) -> None:
    @settings(max_examples=50)
    @given(stories(ties=law is not counts_once_what_two_gateways_say))
    def keeps(story: Story) -> None:
        assert law(paid_hours, story)

    keeps()


def each_writer_by_itself(told: Iterable[Told], last_ns: Mapping[str, int], period: range) -> list[PaidHour]:
    told = list(told)
    found = [
        one
        for writer in sorted({writer for writer, _ in told})
        for one in paid_hours([one for one in told if one.writer == writer], last_ns, period)
    ]
    return sorted(found, key=lambda one: (one.hour, one.instance_id))


def without(**fields: Any) -> PaidHours:
    """As if no line said this."""

    def by(told: Iterable[Told], last_ns: Mapping[str, int], period: range) -> list[PaidHour]:
        plain = [one._replace(line=msgspec.structs.replace(one.line, **fields)) for one in told]
        return paid_hours(plain, last_ns, period)

    return by


def where_gone_is_not_heard(
    told: Iterable[Told], last_ns: Mapping[str, int], period: range
) -> list[PaidHour]:
    return paid_hours([one for one in told if one.line.state != "gone"], last_ns, period)


def where_silence_is_the_end(
    told: Iterable[Told], last_ns: Mapping[str, int], period: range
) -> list[PaidHour]:
    agents = [one._replace(line=msgspec.structs.replace(one.line, source="agent")) for one in told]
    return paid_hours(agents, last_ns, period)


def in_the_order_of_arrival(
    told: Iterable[Told], last_ns: Mapping[str, int], period: range
) -> list[PaidHour]:
    lines = [one._replace(line=msgspec.structs.replace(one.line, seq=seq)) for seq, one in enumerate(told)]
    return paid_hours(lines, last_ns, period)


@pytest.mark.parametrize(
    ("wrong", "law"),
    [
        (each_writer_by_itself, is_paid_for_no_more_than_time),
        (each_writer_by_itself, is_what_the_minutes_say),
        (without(launched_ns=None), is_what_the_minutes_say),
        (without(terminated_ns=None), is_what_the_minutes_say),
        (without(billed="always"), is_what_the_minutes_say),
        (where_gone_is_not_heard, is_what_the_minutes_say),
        (where_silence_is_the_end, is_what_the_minutes_say),
        (in_the_order_of_arrival, does_not_care_for_order_or_copies),
    ],
)
def test_wrong_hours_break_a_law(wrong: PaidHours, law: Callable[[PaidHours, Story], bool]) -> None:
    find(stories(), lambda story: not law(wrong, story), settings=QUICK, random=random.Random(1))


QUICK = settings(database=None, phases=[Phase.generate], max_examples=2_000, deadline=None)


def only(found: list[PaidHour]) -> PaidHour:
    (one,) = found
    return one


def at(hours: float) -> int:
    """A moment, in ns, so many hours after the first one of PERIOD."""
    return round((HOUR + hours) * 3_600) * 1_000_000_000


def word(writer: str, seq: int, hours: float, state: str = "ready", **fields: Any) -> Told:
    known = {"backend": "a", "instance_id": "i-1", "source": "config", **fields}
    return Told(writer, Registration(at_ns=at(hours), prev="", seq=seq, state=state, **known))


def lengths(found: list[PaidHour]) -> list[tuple[str, int, int, dict[str, tuple[int, int]]]]:
    """Instance, hour of PERIOD, micro-hours, and of each backend the minutes owned and ready."""
    return [
        (
            one.instance_id,
            one.hour - HOUR,
            one.micro_hours,
            {
                stay.backend: (
                    intervals.length_ns(stay.owned) // MINUTE_NS,
                    intervals.length_ns(stay.ready) // MINUTE_NS,
                )
                for stay in one.stays
            },
        )
        for one in found
    ]


def test_an_instance_is_paid_for_from_its_launch_and_starts_up_until_it_is_ready() -> None:
    words = [
        word("wa", 1, 1.5, "starting", launched_ns=at(0.5)),
        word("wa", 2, 2.25, "ready", launched_ns=at(0.5)),
    ]
    assert lengths(paid_hours(words, {"wa": at(4)}, PERIOD)) == [
        ("i-1", 0, 500_000, {"a": (30, 0)}),
        ("i-1", 1, 1_000_000, {"a": (60, 0)}),
        ("i-1", 2, 1_000_000, {"a": (60, 45)}),
        ("i-1", 3, 1_000_000, {"a": (60, 60)}),
    ]


def test_a_backend_that_moves_leaves_its_units_behind() -> None:
    words = [
        word("wa", 1, 0, units=8, units_total=24),
        word("wa", 2, 0, backend="b", units=8, units_total=24),
        word("wa", 3, 1.5, "gone"),
        word("wa", 4, 1.5, "starting", instance_id="i-2"),
        word("wa", 5, 1.75, "ready", instance_id="i-2"),
    ]
    found = paid_hours(words, {"wa": at(2)}, range(HOUR + 1, HOUR + 2))
    assert lengths(found) == [
        ("i-1", 1, 1_000_000, {"a": (30, 30), "b": (60, 60)}),
        ("i-2", 1, 500_000, {"a": (30, 15)}),
    ]
    assert [(stay.units, found[0].units_total) for stay in found[0].stays] == [(8, 24), (8, 24)]


def test_an_instance_that_all_backends_have_left_is_paid_for_no_more() -> None:
    words = [word("wa", 1, 0), word("wa", 2, 1.5, "gone")]
    assert lengths(paid_hours(words, {"wa": at(9)}, PERIOD)) == [
        ("i-1", 0, 1_000_000, {"a": (60, 60)}),
        ("i-1", 1, 500_000, {"a": (30, 30)}),
    ]


def test_a_restart_leaves_no_gap() -> None:
    """A gateway killed at 0:30 and started again at 1:15, as the next writer: the backend was there all the time."""
    words = [word("wa", 1, 0), word("wb", 1, 1.25, "starting"), word("wb", 2, 1.5, "ready")]
    assert lengths(paid_hours(words, {"wa": at(0.5), "wb": at(2)}, range(HOUR, HOUR + 2))) == [
        ("i-1", 0, 1_000_000, {"a": (60, 60)}),
        ("i-1", 1, 1_000_000, {"a": (60, 45)}),
    ]


def test_the_start_behind_a_kill_can_say_that_a_backend_is_gone() -> None:
    words = [word("wa", 1, 0), word("wb", 1, 1.25, "gone")]
    assert (
        sum(one.micro_hours for one in paid_hours(words, {"wa": at(0.5), "wb": at(9)}, PERIOD)) == 1_250_000
    )


def test_an_instance_that_was_gone_and_is_back_was_nobodys_in_between() -> None:
    """Its launch says that it was paid for."""
    words = [
        word("wa", 1, 0.5, launched_ns=at(0)),
        word("wa", 2, 1, "gone"),
        word("wb", 1, 2, launched_ns=at(0)),
    ]
    found = paid_hours(words, {"wa": at(2), "wb": at(3)}, range(HOUR, HOUR + 3))
    assert lengths(found) == [
        ("i-1", 0, 1_000_000, {"a": (60, 30)}),
        ("i-1", 1, 1_000_000, {}),
        ("i-1", 2, 1_000_000, {"a": (60, 60)}),
    ]


def test_one_gateway_that_goes_does_not_take_a_backend_from_another() -> None:
    words = [word("wa", 1, 0), word("wb", 1, 0), word("wa", 2, 0.5, "gone")]
    found = paid_hours(words, {"wa": at(4), "wb": at(4)}, PERIOD)
    assert lengths(found)[-1] == ("i-1", 3, 1_000_000, {"a": (60, 60)})


@pytest.mark.parametrize(("source", "hours"), [("agent", 1), ("config", 7 * 24)])
def test_a_silent_writer_is_believed_for_a_while(source: str, hours: int) -> None:
    words = [word("wa", 1, 0, source=source)]
    found = paid_hours(words, {"wa": at(2)}, range(HOUR, HOUR + 1000))
    assert len(found) == 2 + hours


def test_a_stopped_instance_that_is_started_again_is_paid_for_twice() -> None:
    words = [
        word("wa", 1, 0, launched_ns=at(-5)),
        word("wb", 1, 1, "down", launched_ns=at(-5), terminated_ns=at(0.5)),
        word("wc", 1, 3.5, "starting", launched_ns=at(3.25)),
    ]
    found = paid_hours(words, {"wa": at(1), "wb": at(3.5), "wc": at(4)}, PERIOD)
    assert lengths(found) == [
        ("i-1", 0, 500_000, {"a": (30, 30)}),
        ("i-1", 3, 750_000, {"a": (45, 0)}),
    ]


def test_what_answers_behind_its_termination_runs_again() -> None:
    words = [
        word("wa", 1, 0, terminated_ns=at(0.5)),
        word("wb", 1, 2, "down"),
        word("wb", 2, 2.5, "ready"),
    ]
    found = paid_hours(words, {"wa": at(1), "wb": at(3)}, range(HOUR, HOUR + 3))
    assert [(one.hour - HOUR, one.micro_hours) for one in found] == [(0, 500_000), (2, 500_000)]


def test_a_launch_that_is_corrected_is_the_newest_one_told() -> None:
    words = [word("wa", 1, 2, launched_ns=at(0)), word("wa", 2, 3, launched_ns=at(1.5))]
    found = paid_hours(words, {"wa": at(4)}, PERIOD)
    assert [(one.hour - HOUR, one.micro_hours) for one in found] == [
        (1, 500_000), (2, 1_000_000), (3, 1_000_000),
    ]  # fmt: skip


def test_a_clock_that_is_set_back_counts_nothing_twice() -> None:
    words = [word("wa", 1, 2), word("wa", 2, 1, "down"), word("wa", 3, 1.5)]
    assert lengths(paid_hours(words, {"wa": at(2)}, PERIOD)) == [
        ("i-1", 1, 1_000_000, {"a": (60, 30)}),
        ("i-1", 2, 1_000_000, {"a": (60, 60)}),
        ("i-1", 3, 1_000_000, {"a": (60, 60)}),
    ]


def test_a_schedule_counts_from_when_it_is_told() -> None:
    """It is Saturday."""
    words = [word("wa", 1, 0.5), word("wa", 2, 2.25, billed="mon-fri 07:00-19:00")]
    found = paid_hours(words, {"wa": at(4)}, PERIOD)
    assert [(one.hour - HOUR, one.micro_hours) for one in found] == [
        (0, 500_000), (1, 1_000_000), (2, 250_000),
    ]  # fmt: skip


def test_what_an_instance_is_may_change_from_hour_to_hour() -> None:
    words = [
        word("wa", 1, 0, instance_type="inf2.xlarge", purchase_option="spot", slots=4, model="m"),
        word(
            "wa", 2, 1.5, instance_type="inf2.xlarge", slots=8, model="m", region="us-east-1", simulated=True
        ),
    ]
    first, second = paid_hours(words, {"wa": at(2)}, range(HOUR, HOUR + 2))
    assert (first.facts.instance_type, first.facts.purchase_option) == ("inf2.xlarge", "spot")
    assert first.facts.simulated
    assert (second.facts.purchase_option, second.facts.region, second.facts.simulated) == (
        None,
        "us-east-1",
        True,
    )
    assert [(stay.slots, stay.model) for one in (first, second) for stay in one.stays] == [(4, "m"), (8, "m")]


def test_an_instance_of_which_only_its_end_is_told_is_none() -> None:
    assert paid_hours([word("wa", 1, 0, "gone")], {}, PERIOD) == []


def test_nanoseconds_of_hours_are_all_there() -> None:
    words = [word("wa", 1, 0)]
    one = only(paid_hours(words, {"wa": at(1)}, range(HOUR, HOUR + 1)))
    assert (one.paid_ns, one.micro_hours) == (NS_PER_HOUR, 1_000_000)
