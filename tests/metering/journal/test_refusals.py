"""Refusals folded by the second: lines bounded, sums equal."""

import collections
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from metering.journal import chain
from metering.journal.refusals import LINES_PER_S_MAX, Refusal, Refusals
from metering.pages.families import Families
from metering.record import Line, Refused
from tests.support import journals


def refusal(**fields: Any) -> Refusal:
    known: dict[str, Any] = {
        "at_ns": 1, "error_code": "invalid_api_key", "key_id": None, "model": None, "operation": "chat",
        "reason": "UnknownKey", "request_id": "r-1", "status": 401, "tenant": None,
    }  # fmt: skip
    return Refusal(**(known | fields))


class Lines:
    """What was put into the journal."""

    def __init__(self) -> None:
        self.lines: list[Refused] = []
        self.refusals = Refusals(self.note)

    def note(self, make: Any) -> None:
        line: Line = make(len(self.lines) + 1, "0" * 64)
        assert isinstance(line, Refused)
        self.lines.append(line)


def test_the_first_of_a_second_have_a_line_each_and_the_others_one_together() -> None:
    made = Lines()
    for n in range(1_000):
        made.refusals.refuse(refusal(at_ns=n, request_id=f"r-{n}"))
    assert [line.request_id for line in made.lines] == [f"r-{n}" for n in range(LINES_PER_S_MAX)]
    made.refusals.tell()
    last = made.lines[-1]
    assert (last.count, last.request_id, last.at_ns) == (990, "r-10", 999)
    made.refusals.tell()
    assert len(made.lines) == LINES_PER_S_MAX + 1, "it is told once"
    made.refusals.refuse(refusal(request_id="next"))
    assert (made.lines[-1].request_id, made.lines[-1].count) == ("next", 1)


def test_what_differs_among_those_that_were_folded_is_not_claimed() -> None:
    made = Lines()
    for n in range(LINES_PER_S_MAX + 3):
        made.refusals.refuse(refusal(tenant="acme", reason="NoBackend", model=f"m{n % 2}", key_id="k"))
    made.refusals.tell()
    assert (made.lines[-1].count, made.lines[-1].model, made.lines[-1].key_id) == (3, None, "k")


def test_a_tenant_that_is_refused_often_takes_no_line_of_another() -> None:
    made = Lines()
    for tenant in ("acme", "globex"):
        for _ in range(20):
            made.refusals.refuse(refusal(tenant=tenant))
    assert collections.Counter(line.tenant for line in made.lines) == {"acme": 10, "globex": 10}


FEW = st.sampled_from
KINDS = st.tuples(
    FEW([None, "acme", "globex"]), FEW(["UnknownKey", "TooSlow"]), FEW(["m1", None]), FEW([401, 408])
)


@given(st.lists(st.one_of(KINDS, st.none()), max_size=300))
def test_nothing_is_lost_or_counted_twice(events: list[Any]) -> None:
    made, families = Lines(), Families()
    told: collections.Counter[Any] = collections.Counter()
    for event in [*events, None]:
        if event is None:
            made.refusals.tell()
            continue
        tenant, reason, model, status = event
        told[tenant, reason, status] += 1
        made.refusals.refuse(refusal(tenant=tenant, reason=reason, model=model, status=status))
    counted: collections.Counter[Any] = collections.Counter()
    for line in made.lines:
        counted[line.tenant, line.reason, line.status] += line.count
        families.observe(line)
    assert counted == told
    totals = families.cells.totals()
    by_metric = sum(value[0] for one, value in totals.items() if one.family == "weighbridge_calls_total")
    assert by_metric == told.total()
    seconds = events.count(None) + 1
    assert len(made.lines) <= seconds * (6 * LINES_PER_S_MAX + 12)


def test_older_lines_are_read_and_a_later_version_is_passed_over() -> None:
    (new,) = journals.encoded([refusal(count=7).line])
    second = new.replace(b'"limit":null,', b"").replace(b'"v":3', b'"v":2')
    first = second.replace(b'"count":7,', b"").replace(b'"v":2', b'"v":1')
    for old, count, version in ((first, 1, 1), (second, 7, 2)):
        line = chain.decode(old)
        assert isinstance(line, Refused)
        assert (line.count, line.limit, line.v) == (count, None, version)
    assert chain.decode(new) == refusal(count=7).line(1, chain.ZEROS)
    assert chain.decode(new.replace(b'"v":3', b'"v":4')) is None


def test_a_line_of_many_names_the_limit_that_refused_them_all() -> None:
    made = Lines()
    limits = [
        "concurrency of the tenant: 2",
        "tokens_per_minute of the key k1: 9, and this call alone may take {}",
    ]
    for number in range(LINES_PER_S_MAX + 40):
        made.refusals.refuse(refusal(limit=limits[number % 2].format(number)))
    made.refusals.tell()
    many = {line.limit: line.count for line in made.lines if line.count > 1}
    assert many == {"concurrency of the tenant: 2": 20, "tokens_per_minute of the key k1: 9": 20}
