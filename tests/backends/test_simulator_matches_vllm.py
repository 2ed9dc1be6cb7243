"""The simulator's answers have the keys, types, order, framing and heads of the real vLLM 0.32.0's.

The requests of the captures are sent to it as they were recorded.
"""

import collections.abc
import json
import pathlib
import re
import socket

import pytest

from backends.simulator.settings import Settings
from tests.support import captures, simulator

MODEL = "smollm2-135m"
MAX_MODEL_LEN = 2048
SETTINGS = Settings(instance_type="inf2.48xlarge", model=MODEL, max_model_len=MAX_MODEL_LEN, time_scale=0.001)

OPENAI, APIS, POOLING, CLASSIFYING = captures.SUITES.values()
ALL = [(each, name) for each in captures.SUITES.values() for name in captures.index(each)]

NOT_SIMULATED = {
    (APIS, "responses_missing"): "answers are not kept, and no path asks for one",
    (APIS, "no_embeddings"): "one server generates and embeds",
    (APIS, "no_rerank"): "one server generates and embeds",
    (POOLING, "no_chat"): "one server generates and embeds",
    (POOLING, "no_classify"): "one server embeds and classifies",
    (CLASSIFYING, "no_embeddings"): "one server embeds and classifies",
    (CLASSIFYING, "no_score"): "one server embeds and classifies",
    (POOLING, "embeddings_bytes"): "binary answers are refused",
    (POOLING, "pooling_bytes"): "binary answers are refused",
    (POOLING, "embeddings_dimensions"): "dimensions can be chosen",
    (POOLING, "embeddings_too_long"): "the prompt has a token more in the real one, and fits here",
    (POOLING, "pooling_too_long"): "the prompt has a token more in the real one, and fits here",
    (CLASSIFYING, "classify_too_long"): "the prompt has a token more in the real one, and fits here",
}
LENGTH_DIFFERS = {
    (OPENAI, "chat_stream_json"): "the simulator's JSON came to its end",
    (APIS, "responses_turns"): "the real answer came to its end",
    (APIS, "responses_json"): "the simulator's JSON came to its end",
}
WORDS_DIFFER = {
    (OPENAI, "wrong_type"): "of the framework's parser",
    (OPENAI, "completions_too_long"): "the prompt has a token more in the real one",
    (APIS, "responses_no_input"): "the real one counts a field that it has added",
    (APIS, "responses_wrong_type"): "of the framework's parser",
    (APIS, "detokenize_wrong_type"): "of the framework's parser",
    (CLASSIFYING, "classify_wrong_type"): "of the framework's parser",
}
STOPPED = [each for each in ALL if each[1].endswith("_stop")]
"""The real answers met " River"; the simulator's have other words."""

SAME = [each for each in ALL if each not in NOT_SIMULATED]
SAME_SHAPE = [each for each in SAME if each not in LENGTH_DIFFERS]
REFUSED = [each for each in SAME if captures.index(each[0])[each[1]]["status"] >= 400]
STREAMS = [each for each in SAME_SHAPE if captures.index(each[0])[each[1]]["stream"]]


def case(value: object) -> str | None:
    return value.name if isinstance(value, pathlib.Path) else None


@pytest.fixture(scope="module")
def server() -> collections.abc.Iterator[simulator.Running]:
    with simulator.running(SETTINGS) as running:
        yield running


def replay(
    server: simulator.Running, name: str, directory: pathlib.Path = OPENAI
) -> tuple[captures.Exchange, captures.Response]:
    """A capture, and the simulator's answer to its request."""
    real = captures.load(name, directory)
    request = real.request
    if (directory, name) in STOPPED:
        request = met(server, request)
    return real, exchange(server, request, captures.index(directory)[name]["method"])


def exchange(server: simulator.Running, request: bytes, method: str = "POST") -> captures.Response:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(request)
        raw = b""
        while data := connection.recv(65_536):
            raw += data
            try:
                return captures.read_response(raw, method=method)
            except captures.Incomplete:
                continue
    raise AssertionError(f"closed after {len(raw)} bytes")


def with_fields(request: bytes, **fields: object) -> bytes:
    """The request with some fields changed; None takes one out."""
    head, _, body = request.partition(b"\r\n\r\n")
    changed = {key: value for key, value in (json.loads(body) | fields).items() if value is not None}
    body = json.dumps(changed).encode()
    return re.sub(rb"content-length: \d+", b"content-length: %d" % len(body), head) + b"\r\n\r\n" + body


def met(server: simulator.Running, request: bytes) -> bytes:
    """The request with a stop string that the simulator's answer to it has."""
    name = "stop_sequences" if b"stop_sequences" in request else "stop"
    plain = exchange(server, with_fields(request, stream=None, stream_options=None, **{name: None}))
    said = re.search(rb'"(?:content|text)":"([^"]+)"', plain.body)
    assert said is not None
    return with_fields(request, **{name: [" " + said[1].decode().split()[2]]})


def test_exceptions_are_captures() -> None:
    assert {*NOT_SIMULATED, *LENGTH_DIFFERS, *WORDS_DIFFER} <= set(ALL)


@pytest.mark.parametrize(("directory", "name"), SAME_SHAPE, ids=case)
def test_shape(server: simulator.Running, directory: pathlib.Path, name: str) -> None:
    real, ours = replay(server, name, directory)
    assert shape(ours) == shape(real.response)


def shape(response: captures.Response) -> list[str]:
    """With one name for the tokens that are keys in a completion's log probabilities."""
    lines = captures.response_shape(response)
    tokens = re.compile(r"(top_logprobs\[\])\.[^.:]+: float")
    if not any(map(tokens.search, lines)):
        return lines
    return list(dict.fromkeys(tokens.sub(r"\1.TOKEN: float", line) for line in lines))


@pytest.mark.parametrize(("directory", "name"), SAME, ids=case)
def test_head(server: simulator.Running, directory: pathlib.Path, name: str) -> None:
    real, ours = replay(server, name, directory)
    mark = ("x-weighbridge-simulated", "1")
    assert mark in ours.headers
    unmarked = [header for header in ours.headers if header != mark]
    assert [name for name, _ in unmarked] == [name for name, _ in real.response.headers]
    varying = {"date", "content-length"}
    assert {k: v for k, v in unmarked if k not in varying} == {
        k: v for k, v in real.response.headers if k not in varying
    }


@pytest.mark.parametrize(("directory", "name"), REFUSED, ids=case)
def test_words_of_a_refusal(server: simulator.Running, directory: pathlib.Path, name: str) -> None:
    """And every exception is one."""
    real, ours = replay(server, name, directory)
    assert ours.status == real.response.status
    assert (ours.body == real.response.body) == ((directory, name) not in WORDS_DIFFER)


@pytest.mark.parametrize(("directory", "name"), STREAMS, ids=case)
def test_framing(server: simulator.Running, directory: pathlib.Path, name: str) -> None:
    """One chunk an event, and bytes alike but for ids, times, texts and counts."""
    real, ours = replay(server, name, directory)
    assert all(chunk.startswith((b"data: ", b"event: ")) and chunk.endswith(b"\n\n") for chunk in ours.chunks)
    assert distinct(ours.chunks) == distinct(real.response.chunks)


PATTERNS = [
    (rb'"(chatcmpl|cmpl|resp|msg|fc)[-_][^"]+"', b'"ID"'),
    (rb'"logprobs":{.*?}(?=,"finish_reason")', b'"logprobs":LOGPROBS'),
    (rb'"(content|text|delta|arguments|partial_json)":"(?:[^"\\]|\\.)+"', rb'"\1":"TEXT"'),
    (rb'"text":""(?=,"logprobs":null,"finish_reason":null)', b'"text":"TEXT"'),
    (rb"vllm-0\.32\.0-[0-9a-f]{8}", b"FINGERPRINT"),
    (rb'("stop(?:_reason|_sequence)"):" [^"]+"', rb'\1:"STOP"'),
    (rb":\d+\b", b":N"),
]


def distinct(chunks: tuple[bytes, ...]) -> list[bytes]:
    seen: dict[bytes, None] = {}
    for chunk in chunks:
        for pattern, replacement in PATTERNS:
            chunk = re.sub(pattern, replacement, chunk)
        seen[chunk] = None
    return list(seen)


def test_the_finish_reason_of_an_answer_that_is_cut_is_the_real_ones(server: simulator.Running) -> None:
    real, ours = replay(server, "chat")
    assert finish_reasons(ours) == finish_reasons(real.response) == ["length"]
    assert usage(ours)["completion_tokens"] == usage(real.response)["completion_tokens"] == 12


def test_a_prompt_seen_before_is_cached(server: simulator.Running) -> None:
    replay(server, "chat_warm")
    _, ours = replay(server, "chat_cached")
    cached = usage(ours)["prompt_tokens_details"]["cached_tokens"]
    assert 0 < cached < usage(ours)["prompt_tokens"]
    assert cached % 16 == 0


def test_metrics_are_a_part_of_the_real_ones(server: simulator.Running) -> None:
    """Families and label names of `/metrics` against the list in the capture."""
    real = set((captures.VLLM / "metrics.txt").read_text().splitlines())
    lines = server.get("/metrics").splitlines()
    types = {" ".join(line.split()[2:]) for line in lines if line.startswith("# TYPE")}
    samples = {
        line.partition("{")[0] + "{" + ",".join(sorted(re.findall(r'(\w+)="', line))) + "}"
        for line in lines
        if not line.startswith("#")
    }
    assert types <= real
    assert samples <= real


def finish_reasons(response: captures.Response) -> list[str]:
    return [choice["finish_reason"] for choice in json.loads(response.body)["choices"]]


def usage(response: captures.Response) -> dict:
    return json.loads(response.body)["usage"]
