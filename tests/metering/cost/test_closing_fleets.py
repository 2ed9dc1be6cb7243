"""Random fleets: what is paid for is split to the last micro-hour and picodollar, and every call stands once.

Restarts, failed attempts, shared instances, several writers, records that come late, a month that ends: the sums hold,
and what was closed in two steps is what is closed in one.
"""

import collections
import pathlib
import shutil
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from metering.cost.allocation import Method, Sharing
from metering.cost.close_row import CloseRow, RowKind
from tests.support.fleet import (
    AT_NS,
    HOUR,
    MINUTE_NS,
    NS_PER_HOUR,
    UUSD_PER_HOUR,
    Site,
    busy,
    in_time,
    registration,
    terms,
)
from tests.support.journals import Make, stop

HOURS = range(HOUR, HOUR + 3)
END = 3 * 60
STEP = 5  # minutes
LATE_NS = AT_NS + 5 * NS_PER_HOUR
STATES = ("starting", "ready", "draining", "down")
BACKENDS = {
    "a": ("i-1", 12),
    "b": ("i-1", 8),
    "c": ("i-2", 24),
    "d": (None, 0),
}  # of 24 units each; d: not registered


class Call(NamedTuple):
    """Times in minutes. tried: a backend that failed before."""

    backend: str | None
    tried: str | None
    tenant: str
    start: int
    minutes: int
    cost: int | None


CALLS = st.builds(
    Call,
    backend=st.sampled_from([*BACKENDS, None]),
    tried=st.none() | st.sampled_from([*BACKENDS]),
    tenant=st.sampled_from(["acme", "globex", "initech"]),
    start=st.integers(0, END // STEP - 1).map(lambda n: n * STEP),
    minutes=st.integers(0, 18).map(lambda n: n * STEP),
    cost=st.none() | st.integers(0, 10**12),
).map(lambda one: one._replace(minutes=min(one.minutes, END - one.start - 1)))
WORDS = st.lists(
    st.tuples(
        st.integers(0, END // STEP - 1).map(lambda n: n * STEP),
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(STATES),
    ),
    max_size=6,
)


def writer(n: int) -> str:
    return "w" + "abc"[n] * 16


def journal(n: int, words: list[tuple[int, str, str]], calls: list[Call]) -> list[Make]:
    makes: list[tuple[int, Make]] = []
    for at, backend, state in words:
        instance_id, units = BACKENDS[backend]
        told = registration(
            AT_NS + at * MINUTE_NS, state, backend=backend, instance_id=instance_id, units=units, slots=2
        )
        makes.append((at, told))
    for number, one in enumerate(calls):
        made = busy(
            f"{writer(n)}-{number}",
            AT_NS + one.start * MINUTE_NS,
            one.minutes * MINUTE_NS,
            backend=one.backend,
            failed=one.tried if one.tried != one.backend else None,
            tenant=one.tenant,
            cost_pusd=one.cost,
        )
        makes += zip((one.start, one.start + one.minutes), made, strict=True)
    return [*in_time(makes), stop(at_ns=AT_NS + END * MINUTE_NS)]


def paid_micro_hours(words: list[tuple[int, str, str]]) -> dict[tuple[int, str], int]:
    """Of each (hour, instance): from the first word about it on, for a configuration's is believed for long."""
    first: dict[str, int] = {}
    for at, backend, _ in words:
        instance_id = str(BACKENDS[backend][0])
        first[instance_id] = min(at, first.get(instance_id, END))
    return {
        (HOUR + hour, instance_id): 1_000_000 - max(0, at - hour * 60) * 1_000_000 // 60
        for instance_id, at in first.items()
        for hour in range(at // 60, 3)
    }


def check(rows: list[CloseRow], words: list[tuple[int, str, str]], calls: list[Call]) -> None:
    micro_hours: collections.Counter[Any] = collections.Counter()
    money: collections.Counter[Any] = collections.Counter()
    for row in rows:
        if row.instance_id is not None:
            micro_hours[row.hour, row.instance_id] += row.micro_hours
            money[row.hour, row.instance_id] += row.allocated_pusd or 0
        else:
            assert (row.micro_hours, row.kind) == (0, RowKind.TENANT)
    assert micro_hours == paid_micro_hours(words)
    assert money == {place: n * UUSD_PER_HOUR for place, n in micro_hours.items()}
    assert sum(row.shared_micro_hours for row in rows) == 0
    expected: collections.Counter[Any] = collections.Counter()
    for one in calls:
        hour = HOUR + (one.start + one.minutes) // 60
        expected[hour, one.tenant, "calls"] += 1
        expected[hour, one.tenant, "estimated"] += one.cost or 0
        expected[hour, one.tenant, "unpriced"] += one.cost is None
        expected[hour, one.tenant, "prompt"] += 100
    found: collections.Counter[Any] = collections.Counter()
    for row in rows:
        found[row.hour, row.tenant, "calls"] += row.calls
        found[row.hour, row.tenant, "estimated"] += row.estimated_pusd
        found[row.hour, row.tenant, "unpriced"] += row.unpriced_calls
        found[row.hour, row.tenant, "prompt"] += row.prompt_tokens
    assert +found == +expected
    assert len({(row.hour, row.key) for row in rows}) == len(rows)


@settings(
    max_examples=10,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # an example takes a second: none is made smaller
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.tuples(WORDS, st.lists(CALLS, max_size=5)), min_size=1, max_size=3),
    st.sampled_from(Method),
    st.sampled_from(Sharing),
    st.integers(0, 3),
)
def test_sums_hold_for_any_fleet(
    tmp_path: pathlib.Path,
    writers: list[tuple[list[tuple[int, str, str]], list[Call]]],
    method: Method,
    sharing: Sharing,
    early: int,
) -> None:
    rules = {"terms": terms(method, sharing)}
    roots = [tmp_path / "one", tmp_path / "two"]
    for root in roots:
        shutil.rmtree(root, ignore_errors=True)
    at_once, in_steps = map(Site, roots)
    for n, (words, calls) in enumerate(writers):
        at_once.journal(journal(n, words, calls), writer=writer(n))
        if n == early:
            in_steps.close(LATE_NS, HOURS, **rules)
        in_steps.journal(journal(n, words, calls), writer=writer(n))
    for site in (at_once, in_steps):
        site.close(LATE_NS, HOURS, **rules)
    rows = list(at_once.closes.rows(at_once.closes.hours(HOURS)))
    check(
        rows, [word for words, _ in writers for word in words], [one for _, calls in writers for one in calls]
    )
    assert list(in_steps.closes.rows(in_steps.closes.hours(HOURS))) == rows
    assert at_once.close(LATE_NS, HOURS, **rules) == []
