"""The chain: what is a line, what continues it, and what never does."""

import hashlib
import itertools
import json
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering import record
from metering.journal import chain
from metering.journal.chain import Chained, Segment
from metering.ledger import ledger
from metering.usage import UsageSource
from tests.support import journals
from tests.support.ledgers import random_line

MAKES = [
    journals.start(),
    journals.admitted("w-1"),
    journals.refused(),
    journals.admitted("w-2"),
    journals.call("w-1"),
    journals.tick(),
    journals.call("w-2"),
    journals.stop(),
]
LINES = journals.encoded(MAKES)
JOURNAL = b"".join(LINES)


def with_newline_dropped(line: bytes) -> bytes:
    return line.removesuffix(b"\n")


def raw(seq: int, prev: str, **fields: object) -> bytes:
    return (
        msgspec.json.encode({"at_ns": 1, "prev": prev, "seq": seq, "v": 1} | fields, order="sorted") + b"\n"
    )


@pytest.mark.parametrize("line", LINES, ids=lambda line: json.loads(line)["kind"])
def test_a_line_is_canonical_json(line: bytes) -> None:
    value = json.loads(line)
    again = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    assert line == again
    assert not any(isinstance(v, float) for v in value.values())


def test_the_leaf_is_that_of_rfc_6962() -> None:
    assert chain.leaf(b"") == "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
    assert chain.leaf(b"line") == hashlib.sha256(b"\x00line").hexdigest()


def test_what_is_encoded_is_decoded() -> None:
    for make in MAKES:
        line = make(7, "f" * 64)
        assert chain.decode(chain.encode(line)) == line


def test_the_whole_journal_is_read() -> None:
    found = chain.scan(JOURNAL)
    assert [line.data + b"\n" for line in found.lines] == LINES
    assert [line.seq for line in found.lines] == list(range(1, len(LINES) + 1))
    assert found.offset == len(JOURNAL)
    assert (found.seq, found.prev) == (len(LINES), chain.leaf(LINES[-1][:-1]))
    assert found.lines[0].line == MAKES[0](1, chain.ZEROS)
    assert found.lines[0].at_ns == journals.AT_NS


def test_reading_goes_on_from_any_line() -> None:
    for count in range(len(LINES)):
        front = chain.scan(b"".join(LINES[:count]))
        rest = chain.scan(b"".join(LINES[count:]), front.seq, front.prev)
        assert front.lines + rest.lines == chain.scan(JOURNAL).lines


LEAF = chain.leaf(LINES[0][:-1])


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (with_newline_dropped(raw(2, LEAF, kind="tick")), "no newline"),
        (raw(3, LEAF, kind="weather"), "a seq is left out"),
        (raw(1, LEAF, kind="weather"), "a seq comes twice"),
        (raw(2, chain.ZEROS, kind="weather"), "prev is not the leaf before"),
        (raw(2, LEAF), "no kind"),
        (raw(2, LEAF, kind="weather", v="1"), "v is no number"),
        (raw(2, LEAF, kind="tick"), "says tick and is none"),
        (b"[1]\n", "no object"),
        (b"\n", "empty"),
        (b"{}\n", "nothing of a line"),
        (b"\0" * 40 + b"\n", "NULs"),
        (b'{"at_ns":1,"kind":"\xff","prev":"","seq":2,"v":1}\n', "not UTF-8"),
        (b'{"kind":' + b"[" * 100_000 + b"\n", "too deep"),
        (
            journals.encoded([journals.call("w-1")], 1, LEAF)[0].replace(
                b'"cached_prompt_tokens":0', b'"cached_prompt_tokens":101'
            ),
            "a usage that cannot be",
        ),
    ],
)
def test_a_line_that_does_not_continue_the_chain_ends_it(second: bytes, why: str) -> None:
    found = chain.scan(LINES[0] + second + LINES[2])
    assert (len(found.lines), found.offset, found.seq) == (1, len(LINES[0]), 1), why


@pytest.mark.parametrize("fields", [{"kind": "weather"}, {"kind": "call", "v": record.VERSIONS["call"] + 1}])
def test_an_unknown_kind_or_newer_version_continues_the_chain(fields: dict[str, object]) -> None:
    second = raw(2, LEAF, **fields)
    third = chain.encode(journals.tick()(3, chain.leaf(second[:-1])))
    found = chain.scan(LINES[0] + second + third)
    assert [line.line is None for line in found.lines] == [False, True, False]
    assert found.lines[1].at_ns == 1
    assert chain.decode(second) is None
    assert chain.link(second).kind == fields["kind"]


def test_bytes_that_are_no_line_are_not_decoded() -> None:
    for data in (b"", b"{", b'{"kind":"call"}'):
        with pytest.raises(chain.NotALine):
            chain.decode(data)
        with pytest.raises(chain.NotALine):
            chain.link(data)


def walked(blocks_of_segments: list[tuple[int, list[bytes]]]) -> tuple[list[Chained], bytes]:
    pieces = list(chain.walk(Segment(first, blocks) for first, blocks in blocks_of_segments))
    good = [piece for piece in pieces if not isinstance(piece, bytes)]
    assert pieces[: len(good)] == good, "no line after bytes that are none"
    return good, b"".join(piece for piece in pieces if isinstance(piece, bytes))


@st.composite
def segments(draw: st.DrawFn) -> list[tuple[int, list[bytes]]]:
    """The journal in segments, each cut into blocks anywhere."""
    firsts = sorted({0, *draw(st.lists(st.integers(0, len(LINES) - 1)))})
    found = []
    for first, end in itertools.pairwise([*firsts, len(LINES)]):
        data = b"".join(LINES[first:end])
        cuts = sorted({0, len(data), *draw(st.lists(st.integers(0, len(data)), max_size=6))})
        found.append((first + 1, [data[a:b] for a, b in itertools.pairwise(cuts)]))
    return found


@given(segments())
def test_lines_do_not_depend_on_segments_and_blocks(cut: list[tuple[int, list[bytes]]]) -> None:
    assert walked(cut) == (chain.scan(JOURNAL).lines, b"")


@given(segments(), st.integers(0, len(JOURNAL) - 1), st.integers(1, 255))
def test_an_altered_byte_ends_the_chain_at_its_line_or_the_next(
    cut: list[tuple[int, list[bytes]]], at: int, flip: int
) -> None:
    data = bytearray(JOURNAL)
    data[at] ^= flip
    altered, offset = [], 0
    for first, blocks in cut:
        altered.append((first, [bytes(data[offset + a : offset + b]) for a, b in spans(blocks)]))
        offset += sum(map(len, blocks))
    good, torn = walked(altered)

    ends = list(itertools.accumulate(map(len, LINES)))
    line = next(n for n, end in enumerate(ends) if at < end)
    # An altered line may still read as a line; then the next one does not continue it.
    assert line <= len(good) <= line + 1
    assert [piece.data for piece in good[:line]] == [data[:-1] for data in LINES[:line]]
    assert b"".join(piece.data + b"\n" for piece in good) + torn == bytes(data)


def spans(blocks: list[bytes]) -> list[tuple[int, int]]:
    return list(itertools.pairwise([0, *itertools.accumulate(map(len, blocks))]))


def test_after_a_torn_segment_nothing_continues() -> None:
    first, second = b"".join(LINES[:3]), b"".join(LINES[3:])
    good, torn = walked([(1, [first[:-1]]), (3, [LINES[2], second])])
    assert len(good) == 2
    assert torn == LINES[2][:-1] + LINES[2] + second


def test_a_segment_whose_name_is_not_the_next_seq_does_not_continue() -> None:
    good, torn = walked([(1, LINES[:3]), (5, LINES[3:])])
    assert (len(good), torn) == (3, b"".join(LINES[3:]))


def test_a_long_plan_is_cut_and_counted() -> None:
    left_out = tuple(record.LeftOut(backend=f"backend-{n}", reason="full") for n in range(2_000))
    able = tuple(f"backend-{n}" for n in range(2_000))
    for plan in (
        record.Plan(able=able, left_out=left_out),
        record.Plan(able=able, cut=3),
        record.Plan(able=("a", "b"), left_out=left_out),
    ):
        line = journals.call("w-1", plan=plan)(1, chain.ZEROS)
        data = chain.encode(line)
        decoded = chain.decode(data)
        assert isinstance(decoded, record.CallRecord)
        kept = decoded.plan
        assert kept is not None
        assert record.RECORD_BYTES_MAX - 200 < len(data) <= record.RECORD_BYTES_MAX
        assert kept.cut - plan.cut == len(plan.able) + len(plan.left_out) - len(kept.able) - len(
            kept.left_out
        )
        assert kept.able == plan.able[: len(kept.able)]
        assert kept.left_out == plan.left_out[: len(kept.left_out)]
        assert not kept.left_out or kept.able == plan.able, "those to be tried are kept the longest"


@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 20_000))
def test_a_record_fits_if_its_plan_can_be_cut(able: int, left_out: int, other: int) -> None:
    plan = record.Plan(
        able=tuple(f"b{n}" * 9 for n in range(able)),
        left_out=tuple(record.LeftOut(backend=f"b{n}", reason="full") for n in range(left_out)),
    )
    make = journals.call("w-1", plan=plan, tags={"t": "x" * other})
    data = chain.encode(make(1, chain.ZEROS))
    least = chain.encode(
        journals.call("w-1", plan=record.Plan(cut=999), tags={"t": "x" * other})(1, chain.ZEROS)
    )
    assert len(data) <= max(record.RECORD_BYTES_MAX, len(least))


def test_what_has_no_plan_is_never_cut() -> None:
    tags = {"t": "x" * record.RECORD_BYTES_MAX}
    for make in (journals.admitted("w-1", tags=tags), journals.call("w-1", tags=tags)):
        line = make(1, chain.ZEROS)
        assert chain.decode(chain.encode(line)) == line


def test_unknown_is_not_zero() -> None:
    line = chain.decode(
        chain.encode(journals.call("w-1", usage=record.UNKNOWN, cost_pusd=None)(1, chain.ZEROS))
    )
    assert isinstance(line, record.CallRecord)
    assert line.usage.source is UsageSource.UNKNOWN
    assert (line.usage.prompt_tokens, line.cost_pusd) == (None, None)


@given(st.randoms(use_true_random=False))
def test_what_is_read_for_the_ledger_moves_what_the_record_moves(rng: random.Random) -> None:
    line = random_line(rng)
    data = chain.encode(line)[:-1]
    link, billed = chain.read_billed(data)
    assert (link.seq, link.prev, link.at_ns) == (line.seq, line.prev, line.at_ns)
    if isinstance(line, record.CallRecord):
        assert ledger.posting(billed, 7, "a" * 64) == ledger.posting(line, 7, "a" * 64)
        assert billed.tenant == line.tenant
    else:
        assert billed is None


@given(st.randoms(use_true_random=False))
def test_what_is_read_to_be_counted_is_what_the_line_says(rng: random.Random) -> None:
    line = random_line(rng)
    link, metered = chain.read_metered(chain.encode(line)[:-1])
    assert (link.seq, link.prev, link.at_ns) == (line.seq, line.prev, line.at_ns)
    if isinstance(line, record.CallRecord):
        assert ledger.posting(metered, 7, "a" * 64) == ledger.posting(line, 7, "a" * 64)
        tokens = [
            (one.backend, one.usage.prompt_tokens, one.usage.completion_tokens) for one in line.attempts
        ]
        assert tokens == [
            (one.backend, one.usage.prompt_tokens, one.usage.completion_tokens) for one in metered.attempts
        ]
    elif isinstance(line, record.Refused):
        assert (metered.tenant, metered.count) == (line.tenant, line.count)
    else:
        assert metered is None


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"\xff",
        b'{"at_ns":1,"kind":"call","prev":"0","seq":1,"v":1}',
        b'{"at_ns":1,"finished_ns":1,"kind":"call","model":"m","prev":"0","seq":1,"tenant":7,"v":1}',
    ],
)
def test_what_is_no_line_for_the_ledger(line: bytes) -> None:
    for read in (chain.read_billed, chain.read_metered):
        with pytest.raises(chain.NotALine):
            read(line)


def test_a_call_of_a_later_version_is_not_known_to_the_ledger_either() -> None:
    line = b'{"at_ns":1,"kind":"call","prev":"0","seq":1,"v":99}'
    assert chain.read_billed(line)[1] is None
    assert chain.read_metered(line)[1] is None
    assert chain.read_metered(line.replace(b"call", b"refused"))[1] is None
