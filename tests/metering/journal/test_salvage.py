"""The closing of a dead directory depends on its bytes and on nothing else."""

import hashlib
import itertools
import json
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metering import record
from metering.cost.pricing import RateCard, Unpriced
from metering.journal import chain, salvage
from metering.journal.chain import Segment
from metering.journal.journal import SALVAGE, Directory, salvage_dead
from metering.usage import Usage, UsageSource
from tests.mutants import mutations
from tests.support import journals
from tests.support.journals import AT_NS, Make


def closed(data: bytes) -> tuple[list[record.Line | None], salvage.Closed]:
    found = salvage.close(chain.walk([Segment(1, [data])]))
    front = chain.scan(data)
    end = chain.scan(found.data, front.seq, front.prev)
    assert end.offset == len(found.data), "it continues seq and chain"
    return [line.line for line in end.lines], found


def test_open_calls_are_lost_in_the_order_of_admission() -> None:
    makes = [journals.start()]
    makes += [journals.admitted(f"w-{n}", at_ns=AT_NS + n, tenant=f"t{n}") for n in (3, 1, 2)]
    makes += [journals.call("w-1"), journals.tick(at_ns=AT_NS + 9)]
    end, found = closed(b"".join(journals.encoded(makes)))

    *lost, stop = end
    assert [line.call_id for line in lost if isinstance(line, record.CallRecord)] == ["w-3", "w-2"]
    assert isinstance(stop, record.Stop)
    assert (stop.reason, stop.lost, stop.at_ns) == ("salvaged", 2, AT_NS + 9)
    assert (stop.torn_bytes, stop.torn_digest) == (0, None)
    assert (found.lost, found.torn_bytes) == (2, 0)


def test_a_lost_record_has_all_of_its_admission_and_costs_nothing() -> None:
    make = journals.admitted("w-1", trace_id="4bf92f", project=None, stream=False)
    end, _ = closed(b"".join(journals.encoded([journals.start(), make, journals.tick(at_ns=AT_NS + 5)])))
    lost, admitted = end[0], make(2, "")
    assert isinstance(lost, record.CallRecord)
    assert isinstance(admitted, record.Admitted)
    for field in set(record.Admitted.__struct_fields__) - {"at_ns", "expected", "kind", "prev", "seq"}:
        assert getattr(lost, field) == getattr(admitted, field), field
    assert lost.outcome is record.Outcome.LOST
    assert (lost.at_ns, lost.finished_ns, lost.cost_pusd) == (AT_NS + 5, AT_NS + 5, 0)
    assert (lost.status, lost.attempts, lost.rate_card, lost.usage) == (None, (), None, record.UNKNOWN)


CARD = RateCard(
    model="llama", hardware="inf2", prompt=300_000, cached_prompt=30_000, completion=1_200_000, per_request=7,
    other={"audio_s": 5}, date="2026-11-28", source="test",
)  # fmt: skip


@st.composite
def expectations(draw: st.DrawFn) -> record.Expected:
    """With a cost by a card, or with a reason why there is none."""
    counts = st.none() | st.integers(0, 2**53)
    usage = record.UNKNOWN
    if draw(st.booleans()):
        usage = Usage(
            source=UsageSource.ESTIMATED, prompt_tokens=draw(counts), completion_tokens=draw(counts)
        )
    reason = draw(st.none() | st.sampled_from(list(Unpriced)).map(str))
    return record.Expected(
        cost_pusd=draw(st.integers(0, 2**60)) if reason is None else None,
        price_basis=CARD.basis if reason is None else None,
        rate_card=CARD.id if reason is None else None,
        unpriced_reason=reason,
        usage=usage,
    )


BILL = ("cost_pusd", "price_basis", "rate_card", "unpriced_reason", "usage")
FREE = {
    "cost_pusd": 0, "price_basis": None, "rate_card": None, "unpriced_reason": None,
    "usage": {
        "cached_prompt_tokens": None, "completion_tokens": None, "energy_uj": None, "other": None,
        "prompt_tokens": None, "reasoning_tokens": None, "source": "unknown",
    },
}  # fmt: skip


def ends_of(lines: list[bytes]) -> list[dict[str, object]]:
    """The lost records that these lines are closed with, read as plain JSON."""
    found = salvage.close(chain.walk([Segment(1, [b"".join(lines)])]))
    return [one for one in map(json.loads, found.data.splitlines()) if one["kind"] == "call"]


def billed_as_expected(expected: list[record.Expected | None]) -> None:
    """The law: who is billed for lost calls has what was expected; everybody else's records do not change by a byte."""
    made = [f"w-{number}" for number in range(1, len(expected) + 1)]
    free = [journals.start(), *(journals.admitted(call_id) for call_id in made)]
    mixed = [
        journals.admitted(call_id) if one is None else journals.admitted(call_id, expected=one)
        for call_id, one in zip(made, expected, strict=True)
    ]
    lines = journals.encoded([journals.start(), *mixed])
    of_all, of_free = ends_of(lines), ends_of(journals.encoded(free))
    admissions = [json.loads(line) for line in lines[1:]]
    for admission, billed, unbilled in zip(admissions, of_all, of_free, strict=True):
        assert {name: unbilled[name] for name in BILL} == FREE
        if "expected" not in admission:
            assert admission["v"] == 1
            assert billed | {"prev": ""} == unbilled | {"prev": ""}, "but for the line before"
            continue
        assert admission["v"] == 2
        assert {name: billed[name] for name in BILL} == admission["expected"]
        of_version_2 = unbilled | admission["expected"] | {"prev": billed["prev"], "v": 2}
        assert billed == of_version_2, "and nothing else is another"


@given(st.lists(st.none() | expectations(), min_size=1, max_size=6))
def test_a_lost_call_is_billed_what_its_admission_expects(expected: list[record.Expected | None]) -> None:
    billed_as_expected(expected)


def test_lost_calls_that_are_all_free_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: what was expected is not looked at."""
    monkeypatch.setattr(salvage, "lost", salvage.lost)  # is put back at the end
    mutations.lost_for_nothing()
    one = record.Expected(
        cost_pusd=3, price_basis=CARD.basis, rate_card=CARD.id, unpriced_reason=None, usage=record.UNKNOWN
    )
    with pytest.raises(AssertionError):
        billed_as_expected([one])


@pytest.mark.parametrize("data", [b"", b"\0" * 4096, b'{"at_ns":17'])
def test_a_directory_without_a_whole_line_is_closed_at_time_0(data: bytes) -> None:
    end, found = closed(data)
    torn = data.rstrip(b"\0")
    assert len(end) == 1
    assert isinstance(end[0], record.Stop)
    assert (end[0].at_ns, end[0].seq, end[0].prev, found.lost) == (0, 1, chain.ZEROS, 0)
    assert end[0].torn_bytes == len(torn)


def test_the_last_time_may_be_that_of_a_line_of_a_later_version() -> None:
    start = journals.encoded([journals.start()])[0]
    newer = b'{"at_ns":%d,"kind":"weather","prev":"%s","seq":2,"v":9}\n' % (
        AT_NS + 1,
        chain.leaf(start[:-1]).encode(),
    )
    end, _ = closed(start + newer)
    assert isinstance(end[0], record.Stop)
    assert (end[0].at_ns, end[0].seq) == (AT_NS + 1, 3)


@given(
    st.lists(st.sampled_from([b"", b"\0", b"\0" * 70_000, b"x", b"x\n", b"\0y\0"])),
    st.lists(st.integers(0, 500_000), max_size=5),
)
def test_the_torn_tail_is_noted_less_its_trailing_nuls(parts: list[bytes], cuts: list[int]) -> None:
    start = journals.encoded([journals.start()])[0]
    tail = b"".join(parts)
    edges = sorted({0, len(tail), *(cut for cut in cuts if cut < len(tail))})
    blocks = [tail[a:b] for a, b in itertools.pairwise(edges)]
    found = salvage.close(chain.walk([Segment(1, [start, *blocks])]))
    stop = chain.decode(found.data)
    assert isinstance(stop, record.Stop)
    torn = tail.rstrip(b"\0")
    digest = f"sha256:{hashlib.sha256(torn).hexdigest()}" if torn else None
    assert (stop.torn_bytes, stop.torn_digest) == (len(torn), digest)


# The law over whole directories on disk


@st.composite
def histories(draw: st.DrawFn) -> list[Make]:
    """A start, then calls admitted and ended in any order, with other lines between."""
    makes, open_calls, count = [journals.start()], [], 0
    for step in draw(st.lists(st.integers(0, 9), max_size=14)):
        at_ns = AT_NS + len(makes)
        if step < 4:
            count += 1
            open_calls.append(f"w-{count}")
            makes.append(journals.admitted(open_calls[-1], at_ns=at_ns))
        elif step < 7 and open_calls:
            makes.append(journals.call(open_calls.pop(step % len(open_calls)), at_ns=at_ns))
        else:
            makes.append(journals.tick(at_ns=at_ns) if step < 9 else journals.refused(at_ns=at_ns))
    return makes


class Harm(NamedTuple):
    kind: str
    where: float  # 0 to 1
    value: int


HARMS = st.builds(
    Harm,
    st.sampled_from(["none", "cut", "flip", "swap", "drop", "nuls", "junk"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 255),
)


def do_harm(path: pathlib.Path, harm: Harm) -> None:
    """Damage one of the directory's segments; where all of it is empty, add to it."""
    segments = sorted(path.glob("0*.jsonl"))
    segment = segments[int(harm.where * len(segments))]
    data = segment.read_bytes()
    pieces = data.splitlines(keepends=True)
    at, line = int(harm.where * len(data)), int(harm.where * len(pieces))
    match harm.kind:
        case "cut":
            data = data[:at]
        case "flip" if data:
            data = data[:at] + bytes([data[at] ^ harm.value]) + data[at + 1 :]
        case "swap" if line + 1 < len(pieces):
            pieces[line : line + 2] = pieces[line + 1], pieces[line]
            data = b"".join(pieces)
        case "drop" if pieces:
            del pieces[line]
            data = b"".join(pieces)
        case "nuls":
            data = data[:at] + bytes(harm.value)
        case "junk":
            data += b'{"kind":"call"}\n' * (harm.value % 3) + b"{"
    segment.write_bytes(data)


def longest_good_prefix(path: pathlib.Path) -> list[bytes]:
    """The rule again, by plain JSON and another order of steps: the oracle."""
    good: list[bytes] = []
    for segment in sorted(path.glob("0*.jsonl")):
        if int(segment.stem) != len(good) + 1:
            return good
        *whole, rest = segment.read_bytes().split(b"\n")
        for data in whole:
            prev = hashlib.sha256(b"\0" + good[-1]).hexdigest() if good else "0" * 64
            try:
                line = chain.decode(data)
            except chain.NotALine:
                return good
            if line is None:
                value = chain.link(data)
                if (value.seq, value.prev) != (len(good) + 1, prev):
                    return good
            elif (line.seq, line.prev) != (len(good) + 1, prev):
                return good
            good.append(data)
        if rest:
            return good
    return good


@pytest.fixture(scope="module")
def scratch() -> Iterator[pathlib.Path]:
    with tempfile.TemporaryDirectory() as path:
        yield pathlib.Path(path)


@given(makes=histories(), per_segment=st.integers(1, 6), harms=st.lists(HARMS, max_size=3))
@settings(max_examples=150, deadline=None)
def test_any_damage_leaves_the_longest_good_prefix_and_one_end(
    scratch: pathlib.Path, makes: list[Make], per_segment: int, harms: list[Harm]
) -> None:
    for name in ("a", "b"):
        shutil.rmtree(scratch / name, ignore_errors=True)
    path = journals.write_directory(scratch / "a", makes, per_segment=per_segment)
    for harm in harms:
        do_harm(path, harm)
    shutil.copytree(scratch / "a", scratch / "b")
    good = longest_good_prefix(path)
    assert [line.data for line in Directory(path).chained()] == good

    assert len(salvage_dead(scratch / "a")) == 1
    assert len(salvage_dead(scratch / "b")) == 1
    end = (path / SALVAGE).read_bytes()
    assert (scratch / "b" / journals.WRITER / SALVAGE).read_bytes() == end, (
        "two copies close to the same bytes"
    )
    assert salvage_dead(scratch / "a") == [], "again is nothing"
    assert (path / SALVAGE).read_bytes() == end

    directory = Directory(path)
    assert directory.complete
    whole = list(directory.chained())
    assert [line.data for line in whole] == good + end.splitlines()
    admissions = [line.line.call_id for line in whole if isinstance(line.line, record.Admitted)]
    records = [line.line.call_id for line in whole if isinstance(line.line, record.CallRecord)]
    assert set(admissions) <= set(records), "a record for each admission"
    if all(harm.kind != "flip" for harm in harms):  # a last line may be altered and still be a line
        assert sorted(admissions) == sorted(records), "and one only"
    for after in range(len(whole) + 2):
        assert list(directory.chained(after)) == whole[after:]
    assert directory.tail() == whole[-1]
