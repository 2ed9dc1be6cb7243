"""The judges of `make e2e` must themselves be right; these need no engine."""

import pathlib

import pytest

from tests.e2e import exposition, journal
from tests.e2e.journal import Tokens
from tests.oracle import journal as oracle
from tests.oracle.journal import Line

METRICS = """\
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="a"} 7.0
vllm:prompt_tokens_total{engine="1",model_name="a,b=\\"c\\""} 1e+01
vllm:num_requests_running 0
process_cpu_seconds_total 3.5
"""


def chained(*lines: Line) -> bytes:
    prev, written = oracle.ZEROS, b""
    for seq, line in enumerate(lines, start=1):
        raw = oracle.encode(line | {"at_ns": 1, "prev": prev, "seq": seq, "v": 1})
        prev = oracle.leaf_of(raw)
        written += raw + b"\n"
    return written


def call(request_id: str, prompt: int | None, completion: int | None) -> Line:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {
        "call_id": f"w1-{request_id}", "cost_pusd": None, "finished_ns": 1, "kind": "call", "model": "m",
        "outcome": "completed", "request_id": request_id, "tenant": "t", "usage": usage,
    }  # fmt: skip


START: Line = {"kind": "start", "pid": 1, "writer": "w1"}


@pytest.fixture
def state_dir(tmp_path: pathlib.Path) -> pathlib.Path:
    """A state directory with one writer, two calls, and a third line that is half written."""
    directory = tmp_path / "journal" / "w1"
    directory.mkdir(parents=True)
    lines = chained(START, call("a", 10, 5), call("b", None, None), call("c", 1, 1))
    (directory / "0000000000000001.jsonl").write_bytes(lines[:-9])
    return tmp_path


def test_records_are_the_whole_lines(state_dir: pathlib.Path) -> None:
    assert journal.records(state_dir).keys() == {"a", "b"}


def test_unknown_adds_nothing(state_dir: pathlib.Path) -> None:
    assert journal.tokens(journal.records(state_dir).values()) == Tokens(10, 5)


def test_an_altered_line_breaks_the_chain(state_dir: pathlib.Path) -> None:
    (segment,) = state_dir.glob("journal/w1/*.jsonl")
    segment.write_bytes(segment.read_bytes().replace(b'"prompt_tokens":10', b'"prompt_tokens":11'))
    with pytest.raises(AssertionError, match="chain"):
        journal.records(state_dir)


def test_a_second_record_of_a_request_is_noticed(state_dir: pathlib.Path) -> None:
    (segment,) = state_dir.glob("journal/w1/*.jsonl")
    segment.write_bytes(chained(START, call("a", 10, 5), call("a", 10, 5)))
    with pytest.raises(AssertionError, match="more than one record"):
        journal.records(state_dir)


def test_counters_are_summed_over_their_labels() -> None:
    assert exposition.totals(METRICS) == {"vllm:prompt_tokens_total": 17, "vllm:num_requests_running": 0}


def test_the_shape_of_metrics_has_types_and_label_names() -> None:
    assert exposition.shape(METRICS) == [
        "vllm:num_requests_running{}",
        "vllm:prompt_tokens_total counter",
        "vllm:prompt_tokens_total{engine,model_name}",
    ]
