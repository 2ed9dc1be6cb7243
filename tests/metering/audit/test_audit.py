"""Finding a call in the journals, and the page that shows it."""

import json
import os
import pathlib

import msgspec
import pytest

from metering import record
from metering.audit import audit
from metering.audit.audit import Found, NotFound
from metering.audit.audit_page import page
from metering.journal import chain
from metering.journal.journal import salvage_dead
from metering.record import (
    Admitted,
    AttemptOutcome,
    AttemptRecord,
    CallRecord,
    Expected,
    Host,
    Instance,
    LeftOut,
    Outcome,
    PriceBasis,
)
from metering.units import NS_PER_MS, NS_PER_S
from metering.usage import UNKNOWN, Usage, UsageSource
from tests.support.journals import AT_NS, WRITER, Make, admitted, call, start, stop, write_directory

OTHER = "w" + "b" * 16
HOST = Host(
    accelerator="inferentia2",
    backend="inf2-a",
    framework="vllm",
    framework_version="0.13.0",
    identity_source="config",
    model="llama",
    owner="team-a",
    region="us-east-1",
    served_model="llama",
)
DIGEST = "sha256:" + "5" * 64


def identity(digest: str = DIGEST) -> Make:
    return lambda seq, prev: record.Identity(at_ns=AT_NS, digest=digest, host=HOST, prev=prev, seq=seq)


def calls(writer: str, count: int, *, every_s: int = 10, first_s: int = 0) -> list[Make]:
    """`count` calls, one after another; call n ends at first_s + n × every_s."""
    makes = []
    for n in range(1, count + 1):
        at_ns = AT_NS + (first_s + n * every_s) * NS_PER_S
        makes += [admitted(f"{writer}-{n}", at_ns=at_ns), call(f"{writer}-{n}", at_ns=at_ns)]
    return makes


def ended(found: Found) -> CallRecord:
    assert isinstance(found.line, CallRecord)
    return found.line


def test_a_call_is_found_with_its_place_and_host(tmp_path: pathlib.Path) -> None:
    with_host = call(f"{WRITER}-3", identity_digest=DIGEST, backend="inf2-a")
    makes = [
        start(),
        identity("sha256:0"),
        identity(),
        *calls(WRITER, 2),
        with_host,
        *calls(WRITER, 11)[20:],
        stop(),
    ]
    path = write_directory(tmp_path, makes, per_segment=3)
    found = audit.find(tmp_path, f"{WRITER}-3")
    line = ended(found)
    assert (line.call_id, line.seq) == (f"{WRITER}-3", 8)
    assert found.host == HOST
    assert found.writer == WRITER
    assert found.file == path / "0000000000000007.jsonl"
    raw = found.file.read_bytes().splitlines()[1]
    assert found.leaf == chain.leaf(raw)
    assert line.prev == chain.leaf(found.file.read_bytes().splitlines()[0])
    assert audit.find(tmp_path, f"{WRITER}-1").host is None


def test_a_call_of_the_same_beginning_is_another(tmp_path: pathlib.Path) -> None:
    write_directory(tmp_path, [start(), *calls(WRITER, 12)])
    assert ended(audit.find(tmp_path, f"{WRITER}-1")).call_id == f"{WRITER}-1"


def test_an_open_call_shows_its_admission(tmp_path: pathlib.Path) -> None:
    write_directory(tmp_path, [start(), admitted(f"{WRITER}-1")])
    found = audit.find(tmp_path, f"{WRITER}-1")
    assert isinstance(found.line, Admitted)
    assert "open: admitted, not ended yet" in page(found)


def test_a_lost_call_is_in_the_salvage(tmp_path: pathlib.Path) -> None:
    path = write_directory(tmp_path, [start(), admitted(f"{WRITER}-1")])
    salvage_dead(tmp_path)
    found = audit.find(tmp_path, f"{WRITER}-1")
    assert ended(found).outcome is Outcome.LOST
    assert found.file == path / "salvage.jsonl"
    assert "sent to   not known: its process was killed" in page(found)
    assert "a lost call is not charged" in page(found)
    assert [ended(one).call_id for one in audit.last(tmp_path, 5)] == [f"{WRITER}-1"]


CARD_BASIS = PriceBasis(kind="card", prompt_pusd_per_mtok=300_000_000_000, date="2026-11-28", source="test")
DERIVED_BASIS = PriceBasis(
    kind="derived", instance_price_uusd_per_hour=6_490_630, date="2026-11-28", source="test"
)


@pytest.mark.parametrize(
    ("expected", "open_says", "lost_says"),
    [
        (
            Expected(
                cost_pusd=7_500_000, price_basis=CARD_BASIS, rate_card="m/inf2@2026-11-28", unpriced_reason=None,
                usage=Usage(source=UsageSource.ESTIMATED, prompt_tokens=25, completion_tokens=5),
            ),
            "if lost   $0.000007500000, what it is expected to cost\n",
            [
                "cost      $0.000007500000 (expected at its admission)\n",
                "rate card m/inf2@2026-11-28: prompt $0.3 per 1M tokens\n",
                "tokens    prompt 25  completion 5  source estimated\n",
            ],
        ),
        (
            Expected(
                cost_pusd=7_500_000, price_basis=DERIVED_BASIS, rate_card=None, unpriced_reason=None, usage=UNKNOWN
            ),
            "if lost   $0.000007500000, what it is expected to cost\n",
            ["what such calls cost of late, derived from slot time at $6.49063/h\n"],
        ),
        (
            Expected(
                cost_pusd=None, price_basis=None, rate_card=None, unpriced_reason="usage_unknown", usage=UNKNOWN
            ),
            "if lost   unpriced\n",
            ["cost      unpriced: usage_unknown\n", "its worker had seen no such call end"],
        ),
        (
            Expected(
                cost_pusd=None, price_basis=None, rate_card=None, unpriced_reason="instance_price_unknown",
                usage=UNKNOWN,
            ),
            "if lost   unpriced\n",
            ["cost      unpriced: instance_price_unknown\n", "weighbridge prices import"],
        ),
    ],
)  # fmt: skip
def test_a_lost_call_that_is_billed_says_by_what(
    tmp_path: pathlib.Path, expected: Expected, open_says: str, lost_says: list[str]
) -> None:
    write_directory(tmp_path, [start(), admitted(f"{WRITER}-1", expected=expected)])
    assert open_says in page(audit.find(tmp_path, f"{WRITER}-1"))
    salvage_dead(tmp_path)
    text = page(audit.find(tmp_path, f"{WRITER}-1"))
    assert [said for said in lost_says if said not in text] == []


@pytest.mark.parametrize(
    ("call_id", "said"),
    [
        ("x", "is no call id"), ("", "is no call id"), ("../../etc-1", "is no call id"),
        (f"{WRITER}-x", "is no call id"),
        (f"{OTHER}-1", "no journal of the writer"), (f"{WRITER}-9", "there is no call"),
    ],
)  # fmt: skip
def test_what_is_not_there(tmp_path: pathlib.Path, call_id: str, said: str) -> None:
    write_directory(tmp_path, [start(), *calls(WRITER, 2)])
    with pytest.raises(NotFound, match=said):
        audit.find(tmp_path, call_id)


def test_an_altered_line_is_no_record(tmp_path: pathlib.Path) -> None:
    path = write_directory(tmp_path, [start(), *calls(WRITER, 3), stop()]) / "0000000000000001.jsonl"
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"cost_pusd":22500000', b'"cost_pusd":22500001', 1))
    for number in (1, 2):  # neither it nor what comes after it is held by the chain any more
        with pytest.raises(NotFound, match=r"a record of .* the chain does not hold it"):
            audit.find(tmp_path, f"{WRITER}-{number}")


def altered(root: pathlib.Path, line: int, *, per_segment: int = 1_000_000) -> None:
    """A closed directory of three calls, a byte of one of its eight lines changed."""
    path = write_directory(root, [start(), *calls(WRITER, 3), stop()], per_segment=per_segment)
    for file in sorted(path.glob("*.jsonl")):
        lines = file.read_bytes().splitlines(keepends=True)
        first = int(file.stem)
        if first <= line < first + len(lines):
            lines[line - first] = lines[line - first].replace(b'"tenant":"', b'"tenant":"x')
        file.write_bytes(b"".join(lines))


def test_a_call_whose_record_is_behind_the_break_is_not_called_open(tmp_path: pathlib.Path) -> None:
    altered(tmp_path, 4)  # the admission of the second
    path = tmp_path / WRITER / "0000000000000001.jsonl"
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"kind":"call"', b'"kind":"Call"'))
    with pytest.raises(NotFound, match=rf"{WRITER}-1 was admitted; .* is not proven: .* at seq 3"):
        audit.find(tmp_path, f"{WRITER}-1")
    with pytest.raises(NotFound, match=r"there is no call .*; the journal of .* is broken at seq 3"):
        audit.find(tmp_path, f"{WRITER}-9")


@pytest.mark.parametrize("per_segment", [1_000_000, 4, 2])
@pytest.mark.parametrize("line", range(2, 8))
def test_the_last_calls_say_which_journal_is_broken(
    tmp_path: pathlib.Path, line: int, per_segment: int
) -> None:
    altered(tmp_path, line, per_segment=per_segment)
    broken: list[chain.Broken] = []
    found = audit.last(tmp_path, 9, broken.append)
    assert {one.writer for one in broken} == {WRITER}
    assert all(ended(one).seq != line for one in found)
    assert all(ended(one).tenant == "acme" for one in found)


def test_a_whole_journal_is_not_called_broken(tmp_path: pathlib.Path) -> None:
    write_directory(tmp_path, [start(), *calls(WRITER, 3), stop()], per_segment=3)
    write_directory(tmp_path, [start(writer=OTHER), *calls(OTHER, 2), admitted("x")], writer=OTHER)
    broken: list[chain.Broken] = []
    assert len(audit.last(tmp_path, 9, broken.append)) == 5
    salvage_dead(tmp_path)
    assert len(audit.last(tmp_path, 9, broken.append)) == 6
    assert broken == []


def test_a_torn_line_is_no_record(tmp_path: pathlib.Path) -> None:
    path = write_directory(tmp_path, [start(), *calls(WRITER, 1)]) / "0000000000000001.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert isinstance(audit.find(tmp_path, f"{WRITER}-1").line, Admitted)
    path.write_bytes(whole[:-5] + b"\n")
    assert isinstance(audit.find(tmp_path, f"{WRITER}-1").line, Admitted)


@pytest.mark.parametrize("per_segment", [1, 3, 1000])
@pytest.mark.parametrize("count", [1, 4, 5, 100])
def test_the_last_calls_over_all_writers(tmp_path: pathlib.Path, per_segment: int, count: int) -> None:
    write_directory(tmp_path, [start(), *calls(WRITER, 7), stop()], per_segment=per_segment)
    write_directory(
        tmp_path, [start(writer=OTHER), *calls(OTHER, 7, first_s=5)], writer=OTHER, per_segment=per_segment
    )
    expected = [f"{writer}-{n}" for n in range(7, 0, -1) for writer in (OTHER, WRITER)]
    assert [ended(found).call_id for found in audit.last(tmp_path, count)] == expected[:count]


def test_directories_that_ended_before_are_not_read(tmp_path: pathlib.Path) -> None:
    write_directory(tmp_path, [start(), *calls(WRITER, 3), stop()])
    # By its files' times it ended long ago; if it were read, its calls would be the last.
    makes = [start(writer=OTHER), *calls(OTHER, 3, first_s=1000)]
    (segment,) = write_directory(tmp_path, makes, writer=OTHER).glob("*.jsonl")
    os.utime(segment, ns=(AT_NS, AT_NS))
    assert [ended(found).call_id for found in audit.last(tmp_path, 2)] == [f"{WRITER}-3", f"{WRITER}-2"]


def test_only_an_identity_line_gives_the_host(tmp_path: pathlib.Path) -> None:
    misleading = call(f"{WRITER}-1", identity_digest=DIGEST, tags={"digest": DIGEST})
    write_directory(tmp_path, [start(), misleading, stop()])
    assert audit.find(tmp_path, f"{WRITER}-1").host is None
    write_directory(tmp_path / "other", [start(), misleading, identity(), stop()])
    assert audit.find(tmp_path / "other", f"{WRITER}-1").host == HOST


def test_nothing_is_there_yet(tmp_path: pathlib.Path) -> None:
    assert audit.last(tmp_path / "none", 3) == []


def test_json_has_times_as_strings(tmp_path: pathlib.Path) -> None:
    attempt = AttemptRecord(
        backend="b", ended_ns=AT_NS + 5, outcome=AttemptOutcome.COMPLETED, slot_ns=5, started_ns=AT_NS
    )
    write_directory(tmp_path, [start(), call(f"{WRITER}-1", attempts=(attempt,))])
    text = audit.as_json(audit.find(tmp_path, f"{WRITER}-1").line)
    shown = json.loads(text)
    assert b"\n" not in text
    assert shown["finished_ns"] == str(AT_NS)
    assert shown["attempts"][0]["slot_ns"] == "5"
    assert shown["attempts"][0]["first_event_ns"] is None
    assert shown["cost_pusd"] == 22_500_000
    assert shown["tags"] == {"cost_centre": "1234", "team": "search"}
    assert set(shown) == set(CallRecord.__struct_fields__) - {"capture"}, (
        "which is there only of content that is kept"
    )

    def beyond_doubles(value: object) -> bool:
        if isinstance(value, dict):
            return any(map(beyond_doubles, value.values()))
        if isinstance(value, list):
            return any(map(beyond_doubles, value))
        return isinstance(value, int) and abs(value) > 2**53

    assert not beyond_doubles(shown)


CARD = PriceBasis(
    kind="card",
    prompt_pusd_per_mtok=150_000_000_000,
    cached_prompt_pusd_per_mtok=0,
    completion_pusd_per_mtok=600_000_000_000,
    date="2026-11-01",
    source="our list",
)


def shown(host: Host | None = HOST, **fields: object) -> str:
    line = call(f"{WRITER}-1", **fields)(5, chain.ZEROS)
    assert isinstance(line, CallRecord)
    file = pathlib.Path("journal") / WRITER / "0000000000000001.jsonl"
    return page(Found(line=line, host=host, writer=WRITER, leaf="f" * 64, file=file))


def test_the_page_shows_prices_beside_those_of_tokens() -> None:
    basis = msgspec.structs.replace(
        CARD, other_pusd_per_munit={"audio_s": 6_000_000_000_000}, per_request_pusd=1_000_000_000
    )
    text = shown(cost_pusd=1, rate_card="llama/inf2@2026-11-01", price_basis=basis)
    assert "completion $0.6 per 1M tokens, $6 per 1M audio_s, $0.001 per call\n" in text


def test_the_page_of_a_priced_call() -> None:
    attempt = AttemptRecord(
        backend="gpu",
        ended_ns=AT_NS + 3 * NS_PER_MS,
        error="connect refused",
        outcome=AttemptOutcome.UNAVAILABLE,
        reconnected=True,
        slot_ns=0,
        started_ns=AT_NS,
        status=503,
    )
    text = shown(
        attempts=(attempt,),
        backend="inf2-a",
        cost_pusd=45_000_000,
        fallback_reason="connect refused",
        finished_ns=AT_NS + 1_234 * NS_PER_MS + 560_000,
        identity_source="config",
        instances=(Instance(id="i-0a", type="inf2.48xlarge", units=8, units_total=24),),
        model_requested="cheap",
        neuron_version="2.28.0",
        params=record.Params(max_tokens=64, n=2),
        plan=record.Plan(able=("inf2-a",), left_out=(LeftOut(backend="trn1-a", reason="down"),)),
        price_basis=CARD,
        queue_wait_ns=2 * NS_PER_MS,
        rate_card="llama/inf2@2026-11-01",
        simulated=True,
        spill_reason="full",
        trace_id="abc",
        ttft_ns=80 * NS_PER_MS,
        usage=Usage(
            source=UsageSource.REPORTED,
            prompt_tokens=400,
            cached_prompt_tokens=100,
            completion_tokens=50,
            reasoning_tokens=7,
        ),
    )
    for expected in (
        f"{WRITER}-1  completed, HTTP 200  (simulated)",
        "tenant acme  project web  key 0123456789ab  cost_centre=1234  team=search",
        "chat  model llama (asked for as cheap)  streamed  max_tokens 64  n 2  312 bytes",
        f"req-{WRITER}-1  trace abc",
        "inf2-a  vllm 0.13.0  Neuron SDK 2.28.0  spill: full  fallback: connect refused",
        "family inf2  chip inferentia2  inf2.48xlarge (8 of 24 units) i-0a  (according to: config)",
        "region us-east-1  owner team-a",
        "received 2026-01-01T00:00:00.000Z  took 1234.5 ms  queued 2.0 ms  first token 80.0 ms",
        "prompt 400 (cached 100)  completion 50 (reasoning 7)  source reported",
        "$0.000045000000 (estimated)",
        "rate card llama/inf2@2026-11-01: prompt $0.15, cached prompt $0, completion $0.6 per 1M tokens",
        "price of 2026-11-01, source: our list",
        "attempt 1 gpu  unavailable, HTTP 503: connect refused  3.0 ms, on a fresh connection",
        "trn1-a (down)",
        f"writer {WRITER}  seq 5  file journal/{WRITER}/0000000000000001.jsonl",
        f"leaf {'f' * 64}",
        f"prev {chain.ZEROS}",
    ):
        assert expected in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_the_page_of_a_call_by_slot_time() -> None:
    text = shown(
        cost_pusd=1,
        instances=(Instance(type="g6e.xlarge", units=1, units_total=1),),
        price_basis=PriceBasis(kind="derived", instance_price_uusd_per_hour=1_861_000),
        slot_ns=250 * NS_PER_MS,
        slots=4,
    )
    assert "derived from slot time: $1.861/h × 1/1 × 250.0 ms ÷ 4 slots" in text
    assert "price of unknown, source: unknown" in text


def test_the_page_says_what_a_tokenizer_counted() -> None:
    counted = Usage(
        completion_tokens=0, other={"tokenized_tokens": 9}, prompt_tokens=0, source=UsageSource.REPORTED
    )
    assert "prompt 0  completion 0  tokenized_tokens 9  source reported" in shown(usage=counted)


def test_a_host_of_which_little_is_known() -> None:
    little = Host(backend="b", identity_source="unknown", model="llama", served_model="llama")
    text = shown(little, backend="b", instance_family=None)
    assert "served by b\n" in text
    assert "family unknown  (according to: unknown)" in text


@pytest.mark.parametrize(
    ("family", "version", "said"),
    [
        ("inf2", "2.28.0", "  Neuron SDK 2.28.0"),
        ("inf2", None, "  Neuron SDK unknown"),
        ("trn2u", None, "  Neuron SDK unknown"),
        ("g6e", None, "  no Neuron SDK"),  # a GPU
        ("c7i", None, "  no Neuron SDK"),  # a CPU
        ("infra", None, "  no Neuron SDK"),
        (None, "2.28.0", "  Neuron SDK 2.28.0"),
        (None, None, ""),
    ],
)
def test_the_sdk_of_a_host_that_cannot_have_one_is_not_unknown(
    family: str | None, version: str | None, said: str
) -> None:
    text = shown(None, backend="b", instance_family=family, neuron_version=version)
    assert f"served by b{said}\n" in text


def test_the_page_of_an_unpriced_call_says_what_would_price_it() -> None:
    text = shown(
        None,
        backend="backend-1",
        cost_pusd=None,
        instances=(Instance(),),
        unpriced_reason="no_rate_card_no_instance_type",
        usage=UNKNOWN,
    )
    assert "unpriced: no_rate_card_no_instance_type" in text
    assert "--instance-type" in text
    assert "prompt unknown  completion unknown  source unknown" in text


def test_the_page_of_a_call_that_failed_says_each_thing_once() -> None:
    failed = AttemptRecord(
        backend="inf2-a", ended_ns=AT_NS, error="status 500", outcome=AttemptOutcome.FAILED, slot_ns=0,
        started_ns=AT_NS, status=500,
    )  # fmt: skip
    text = shown(
        attempts=(failed,),
        error_code="backend_failed",
        outcome=Outcome.BACKEND_FAILED,
        status=502,
        cost_pusd=0,
    )
    assert "  backend_failed, HTTP 502\n" in text
    assert "sent to   " in text
    assert "served by" not in text
    assert "attempt 1 inf2-a  failed, HTTP 500  0.0 ms" in text


def test_the_page_of_a_call_that_nobody_served() -> None:
    text = shown(
        None, cost_pusd=0, error_code="no_backend", instance_family=None, outcome=Outcome.SHED, project=None,
        status=None, stream=False,
    )  # fmt: skip
    assert "shed, no_backend" in text
    assert "sent to   no backend" in text
    assert "nothing was served, so nothing is charged" in text
    assert "project none" in text
    assert "not streamed" in text


def test_the_page_has_what_audit_digest_prints() -> None:
    text = shown(digests={"answer": "hmac-sha256:aa", "key": "66fd2231", "prompt": "hmac-sha256:bb"})
    assert "digests   prompt hmac-sha256:bb  (key 66fd2231)\n          answer hmac-sha256:aa\n" in text
    assert "digests" not in shown()
