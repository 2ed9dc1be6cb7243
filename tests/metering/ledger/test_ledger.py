"""Postings, marks, batches, and the store's script in Python."""

import datetime
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.ledger import ledger
from metering.ledger.ledger import (
    RANGE_MAX,
    START,
    UNITS,
    Account,
    Balances,
    Batch,
    Done,
    Gap,
    Mark,
    Posted,
    Refused,
)
from metering.record import CallRecord
from metering.usage import UNKNOWN
from tests.support import lines
from tests.support.ledgers import MemoryDirectory, WithoutPredecessor, folded, random_directory

HOUR = "2026092114"
FIELD = "web|llama|inf2|calls"
M3, M5, M8 = Mark(3, "3" * 16), Mark(5, "5" * 16), Mark(8, "8" * 16)
integers = st.integers(0, 1_000_000)


def batch_of(prev: Mark, last: Mark, **sums: int) -> Batch:
    named = {(HOUR, f"web|llama|inf2|{unit}"): amount for unit, amount in sums.items()}
    return Batch(tenant="acme", writer="w", prev=prev, last=last, sums=named)


def test_a_record_moves_one_call_its_tokens_and_its_cost() -> None:
    record = lines.call(project="web", cost_pusd=9, usage=lines.usage(10, 4, 7))
    at = ledger.hour_text(record.finished_ns // (3_600 * 10**9))
    prefix = "web|llama|inf2|"
    assert ledger.postings(record) == {
        (at, prefix + "calls"): 1,
        (at, prefix + "prompt_tokens"): 10,
        (at, prefix + "cached_prompt_tokens"): 4,
        (at, prefix + "completion_tokens"): 7,
        (at, prefix + "cost_pusd"): 9,
    }


def test_what_is_not_known_adds_nothing_but_a_call_without_a_price() -> None:
    record = lines.call(project=None, instance_family=None, cost_pusd=None, usage=UNKNOWN)
    assert {field: amount for (_, field), amount in ledger.postings(record).items()} == {
        "|llama|unknown|calls": 1,
        "|llama|unknown|unpriced_calls": 1,
    }


def test_a_cost_of_zero_is_a_price() -> None:
    assert not any(field.endswith("unpriced_calls") for _, field in ledger.postings(lines.call(cost_pusd=0)))


@pytest.mark.parametrize(
    ("finished_ns", "hour"),
    [
        (0, "1970010100"),
        (1_741_496_400 * 10**9 - 1, "2025030904"),  # the last moment of an hour
        (1_741_496_400 * 10**9, "2025030905"),  # and the first of the next: half-open
    ],
)
def test_the_hour_is_that_of_the_end_in_utc(finished_ns: int, hour: str) -> None:
    assert {key for key, _ in ledger.postings(lines.call(finished_ns=finished_ns))} == {hour}


@given(st.integers(0, 70_000_000))
def test_hours_read_back(hour: int) -> None:
    assert ledger.hour_number(ledger.hour_text(hour)) == hour


@pytest.mark.parametrize(
    "text", ["", "20260921", "2026092124", "2026-09-21", "20260921140", "２０２６０９２１１４"]
)
def test_what_is_no_hour(text: str) -> None:
    with pytest.raises(ValueError):
        ledger.hour_number(text)


@given(st.text("abc-_.", max_size=5), st.sampled_from(UNITS))
def test_fields_read_back(project: str, unit: str) -> None:
    account = Account(7, project, "llama", "inf2")
    assert ledger.field_parts(7, ledger.field_text(account, unit)) == (account, unit)


def test_a_field_of_other_parts_is_none_of_ours() -> None:
    with pytest.raises(ValueError, match="no field"):
        ledger.field_parts(7, "web|llama|calls")


@given(st.integers(0, 10**16 - 1), st.text("0123456789abcdef", min_size=16, max_size=16))
def test_marks_read_back(seq: int, leaf: str) -> None:
    assert Mark.parse(str(Mark(seq, leaf))) == Mark(seq, leaf)


@pytest.mark.parametrize(
    "text",
    ["", "7", "7:000", f"07:{START.leaf}", f"7:{START.leaf}0", "7:" + "F" * 16, f"{10**16}:{START.leaf}"],
)
def test_what_is_no_mark(text: str) -> None:
    with pytest.raises(ValueError, match="no mark"):
        Mark.parse(text)


@given(st.randoms(use_true_random=False), st.integers(0, 30))
def test_a_batch_is_the_sum_of_its_records(rng: random.Random, length: int) -> None:
    directory = random_directory(rng, "w", length)
    postings = [
        ledger.posting(line, seq, leaf) for line, seq, leaf in directory.lines if isinstance(line, CallRecord)
    ]
    total: dict[tuple[str, str], int] = {}
    for line, _, _ in directory.lines:
        if isinstance(line, CallRecord):
            for key, amount in ledger.postings(line).items():
                total[key] = total.get(key, 0) + amount
    assert ledger.sums(ledger.by_origin(postings)) == total
    if postings:
        made = ledger.batch("acme", "w", START, postings)
        assert (made.prev, made.last, made.sums) == (START, postings[-1].mark, total)


def test_a_cost_is_spent_in_the_windows_of_the_admission() -> None:
    """Of a call that began in one month and ended in the next, by a clock that is not ours."""
    begun = datetime.datetime(2026, 9, 30, 23, 59, 59, tzinfo=datetime.UTC)
    begun_ns = int(begun.timestamp()) * 10**9
    record = lines.call(
        admitted_ns=begun_ns,
        finished_ns=begun_ns + 60 * 10**9,
        project="web",
        key_id="0123456789ab",
        cost_pusd=9,
    )
    scopes = ("t", "p:web", "k:0123456789ab", "m:llama")
    wanted = {(window, scope): 9 for window in ("202609", "20260930", "2026093023") for scope in scopes}
    assert ledger.spent(ledger.by_origin([ledger.posting(record, 1, "0" * 64)])) == wanted
    assert {hour for hour, _ in ledger.postings(record)} == {"2026100100"}
    free = msgspec.structs.replace(record, cost_pusd=0)
    unpriced = msgspec.structs.replace(record, cost_pusd=None)
    assert ledger.spent(ledger.by_origin(ledger.posting(one, 1, "0" * 64) for one in (free, unpriced))) == {}
    homeless = msgspec.structs.replace(record, project=None)
    assert ("202609", "p:") not in ledger.spent(ledger.by_origin([ledger.posting(homeless, 1, "0" * 64)]))


def test_a_window_closes_when_the_floor_has_passed_all_of_it() -> None:
    windows = ("202609", "20260921", "2026092114", "2026092113")
    batch = Batch(
        tenant="acme",
        writer="w",
        prev=START,
        last=M3,
        sums={},
        spent={(window, "t"): 1 for window in windows},
    )

    def kept(floor: str) -> set[str]:
        balances = Balances()
        balances.set_floor("acme", floor)
        assert balances.post(batch) == Posted()
        return {window for _, window, _ in balances.spent}

    assert kept("2026092113") == set(windows)
    assert kept("2026092114") == {"202609", "20260921", "2026092114"}
    assert kept("2026092200") == {"202609"}
    assert kept("2026100100") == set()


def test_a_mark_carries_a_part_of_the_leaf() -> None:
    assert ledger.mark(7, "0123456789abcdef" * 4) == Mark(7, "0123456789abcdef")


def test_a_batch_goes_forward() -> None:
    with pytest.raises(AssertionError):
        batch_of(M5, M3, calls=1)
    with pytest.raises(AssertionError):
        batch_of(M5, M5, calls=1)


@pytest.mark.parametrize(
    ("mark", "sent", "reply"),
    [
        (None, batch_of(START, M3, calls=2), Posted()),
        (M3, batch_of(M3, M5, calls=2), Posted()),
        (M5, batch_of(M3, M5, calls=2), Done(M5)),  # a repeat
        (M8, batch_of(M3, M5, calls=2), Done(M8)),  # somebody else has been here
        (Mark(5, "f" * 16), batch_of(M3, M5, calls=2), Done(Mark(5, "f" * 16))),  # with another journal
        (None, batch_of(M3, M5, calls=2), Gap(START)),  # the store has lost something
        (Mark(3, "f" * 16), batch_of(M3, M5, calls=2), Gap(Mark(3, "f" * 16))),
        (Mark(4, "4" * 16), batch_of(M3, M5, calls=2), Gap(Mark(4, "4" * 16))),  # cut elsewhere
        (M5, ledger.probe("acme", "w", M5), Done(M5)),
        (None, ledger.probe("acme", "w", START), Done(START)),
        (M3, ledger.probe("acme", "w", M5), Gap(M3)),
        ("5", batch_of(M3, M5, calls=2), Refused("FORM", "w")),
    ],
)
def test_what_a_batch_is_answered(mark: Mark | str | None, sent: Batch, reply: ledger.Reply) -> None:
    balances = Balances()
    if mark is not None:
        balances.marks["acme", "w"] = str(mark)
    before = dict(balances.marks)
    assert balances.post(sent) == reply
    if reply == Posted():
        assert balances.marks["acme", "w"] == str(sent.last)
        assert balances.tenant("acme") == sent.sums
    else:
        assert (balances.marks, balances.values) == (before, {})


@pytest.mark.parametrize(
    ("value", "amount", "reply"),
    [
        (str(RANGE_MAX - 1), 1, Posted()),
        (str(RANGE_MAX), 1, Refused("RANGE", FIELD)),
        (str(-RANGE_MAX), 1, Refused("RANGE", FIELD)),  # |value| + |amount|, though the sum would fit
        ("0", RANGE_MAX, Posted()),
        ("0", RANGE_MAX + 1, Refused("RANGE", FIELD)),
        ("9" * 30, 1, Refused("RANGE", FIELD)),
        ("1.5", 1, Refused("FORM", FIELD)),
        ("007", 1, Refused("FORM", FIELD)),
        ("-0", 1, Refused("FORM", FIELD)),
        ("", 1, Refused("FORM", FIELD)),
    ],
)
def test_a_balance_that_is_none_or_would_be_too_large(value: str, amount: int, reply: ledger.Reply) -> None:
    balances = Balances()
    balances.values["acme", HOUR, FIELD] = value
    assert balances.post(batch_of(START, M3, prompt_tokens=5, calls=amount)) == reply
    assert (("acme", "w") in balances.marks) == (reply == Posted())
    assert (len(balances.values) == 2) == (reply == Posted())  # all of a batch, or nothing


EARLIER, LATER = "2026092113", "2026092115"


@pytest.mark.parametrize(
    ("floor", "kept"),
    [(None, 3), (EARLIER, 3), (HOUR, 2), (LATER, 1), ("2026092116", 0)],
)
def test_hours_below_the_floor_are_closed_and_the_mark_moves(floor: str | None, kept: int) -> None:
    """What is below it is not even looked at: what stands there may be what it will."""
    balances = Balances()
    balances.values["acme", EARLIER, FIELD] = "1"
    if floor is not None:
        balances.floors["acme"] = floor
    sums = {(hour, FIELD): 10 for hour in (EARLIER, HOUR, LATER)}
    batch = Batch(tenant="acme", writer="w", prev=START, last=M3, sums=sums)
    assert balances.post(batch) == Posted()
    assert balances.marks["acme", "w"] == str(M3)
    assert sum(map(int, balances.values.values())) == 1 + 10 * kept


def test_what_is_below_the_floor_stops_nothing() -> None:
    balances = Balances()
    balances.values["acme", EARLIER, FIELD] = "rubbish"
    balances.floors["acme"] = HOUR
    sent = Batch(tenant="acme", writer="w", prev=START, last=M3, sums={(EARLIER, FIELD): RANGE_MAX + 1})
    assert balances.post(sent) == Posted()


@pytest.mark.parametrize("floor", ["", "20260921", "x026092114", "2026-09-21", "20260921140"])
def test_a_floor_that_is_none_stops_the_batch(floor: str) -> None:
    balances = Balances()
    balances.floors["acme"] = floor
    assert balances.post(batch_of(START, M3, calls=1)) == Refused("FORM", "floor")
    assert balances.post(ledger.probe("acme", "w", START)) == Done(START)  # only where it would be written


def test_a_tenant_is_ready_in_the_epoch_that_it_is_in() -> None:
    balances = Balances()
    assert balances.renew("", "e1") == "e1"
    assert balances.renew("", "e2") == "e1"  # somebody else was quicker
    balances.begin("acme", "e1")
    assert not balances.set_ready("acme", "e0")
    assert balances.set_ready("acme", "e1")
    balances.begin("acme", "e1")  # again changes nothing
    assert balances.ready == {"acme": "e1"}
    balances.begin("acme", "e2")
    assert balances.ready == {}


def test_a_floor_never_falls() -> None:
    balances = Balances()
    assert balances.set_floor("acme", HOUR) == HOUR
    assert balances.set_floor("acme", EARLIER) == HOUR
    assert balances.set_floor("acme", LATER) == LATER


def resend(balances: Balances, directory: MemoryDirectory, rng: random.Random) -> None:
    """Overlapping batches in no order, cut anywhere; then from wherever the store is to the end."""
    by_tenant: dict[str, list[ledger.Posting]] = {}
    for line, seq, leaf in directory.lines:
        if isinstance(line, CallRecord):
            by_tenant.setdefault(line.tenant, []).append(ledger.posting(line, seq, leaf))
    for tenant, postings in by_tenant.items():
        for _ in range(rng.randrange(8)):
            start = rng.randrange(len(postings))
            end = rng.randrange(start, len(postings)) + 1
            prev = postings[start - 1].mark if start else START
            balances.post(ledger.batch(tenant, directory.writer, prev, postings[start:end]))
        at = Mark.parse(balances.marks.get((tenant, directory.writer), str(START)))
        if rest := [posting for posting in postings if posting.mark.seq > at.seq]:
            assert balances.post(ledger.batch(tenant, directory.writer, at, rest)) == Posted()


@given(st.randoms(use_true_random=False))
def test_repeats_and_cuts_change_nothing(rng: random.Random) -> None:
    directories = [random_directory(rng, name, rng.randrange(20)) for name in ("w1", "w2")]
    balances = Balances()
    for directory in directories:
        resend(balances, directory, rng)
    assert {key: int(value) for key, value in balances.values.items()} == folded(directories)


def test_the_law_sees_a_script_without_the_predecessor() -> None:
    wrong = 0
    for seed in range(50):
        rng = random.Random(seed)
        directory = random_directory(rng, "w1", 20)
        balances = WithoutPredecessor()
        resend(balances, directory, rng)
        wrong += {key: int(value) for key, value in balances.values.items()} != folded([directory])
    assert wrong > 25


@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_what_was_spent_is_what_the_journals_cost_however_they_are_cut(
    rng: random.Random, length: int
) -> None:
    """By month, tenant and scope; counted from the lines by another way."""
    directory = random_directory(rng, "w", length)
    wanted: dict[tuple[str, str, str], int] = {}
    postings: dict[str, list[ledger.Posting]] = {}
    for line, seq, leaf in directory.lines:
        if isinstance(line, CallRecord):
            postings.setdefault(line.tenant, []).append(ledger.posting(line, seq, leaf))
            month = datetime.datetime.fromtimestamp(line.admitted_ns // 10**9, datetime.UTC).strftime("%Y%m")
            for scope in {"t", f"m:{line.model}", f"k:{line.key_id}", f"p:{line.project}"} - {"p:None"}:
                key = (line.tenant, month, scope)
                wanted[key] = wanted.get(key, 0) + (line.cost_pusd or 0)
    balances = Balances()
    for tenant, records in postings.items():
        at, prev = 0, START
        while at < len(records):
            end = rng.randrange(at, len(records)) + 1
            for _ in range(rng.randrange(1, 3)):
                balances.post(ledger.batch(tenant, "w", prev, records[at:end]))
            at, prev = end, records[end - 1].mark
    months = {key: int(value) for key, value in balances.spent.items() if len(key[1]) == len("yyyymm")}
    assert months == {key: cost for key, cost in wanted.items() if cost}
