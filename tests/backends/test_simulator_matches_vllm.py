"""The simulator's answers have the keys, types, order, framing and heads of the real vLLM 0.32.0's.

The requests of the captures are sent to it as they were recorded.
"""

import collections.abc
import json
import re
import socket

import pytest

from backends.simulator.settings import Settings
from tests.support import captures, simulator

MODEL = "smollm2-135m"
MAX_MODEL_LEN = 2048
SETTINGS = Settings(instance_type="inf2.48xlarge", model=MODEL, max_model_len=MAX_MODEL_LEN, time_scale=0.001)

SAME = [
    "models", "version", "health", "ping", "models_head", "chat_get", "chat_options", "no_such_path",
    "chat", "chat_max_completion_tokens", "chat_n2", "chat_warm", "chat_cached", "chat_request_id",
    "chat_stream", "chat_stream_no_usage", "chat_stream_usage", "chat_stream_n2", "chat_stream_cached",
    "completions", "completions_n2", "completions_prompts",
    "completions_stream", "completions_stream_usage", "completions_stream_prompts", "completions_stream_unicode",
    "unknown_model", "unknown_model_stream", "completions_unknown_model", "broken_json", "empty_messages",
    "no_messages", "wrong_type", "stream_options_without_stream", "too_long", "too_long_stream",
    "too_long_max_tokens", "completions_too_long",
]  # fmt: skip
NOT_SIMULATED = {
    "chat_logprobs", "chat_stream_logprobs", "completions_logprobs", "completions_stream_logprobs",
    "chat_tool", "chat_stream_tool", "chat_tool_not_called",
    "chat_tool_named", "chat_stream_tool_named", "chat_json", "chat_stream_json",
    "chat_stop", "chat_stream_stop", "completions_echo",
    "chat_stream_continuous", "completions_stream_continuous",
}  # fmt: skip
SAME_WORDS = [
    "no_such_path", "chat_get", "version", "unknown_model", "unknown_model_stream", "completions_unknown_model",
    "broken_json", "empty_messages", "no_messages", "stream_options_without_stream", "too_long",
    "too_long_stream",
]  # fmt: skip
STREAMS = [name for name in SAME if captures.index()[name]["stream"]]


@pytest.fixture(scope="module")
def server() -> collections.abc.Iterator[simulator.Running]:
    with simulator.running(SETTINGS) as running:
        yield running


def replay(server: simulator.Running, name: str) -> tuple[captures.Exchange, captures.Response]:
    """A capture, and the simulator's answer to its request."""
    real = captures.load(name)
    method = captures.index()[name]["method"]
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(real.request)
        raw = b""
        while data := connection.recv(65_536):
            raw += data
            try:
                return real, captures.read_response(raw, method=method)
            except captures.Incomplete:
                continue
    raise AssertionError(f"closed after {len(raw)} bytes")


def test_every_capture_is_compared_or_left_out_by_name() -> None:
    assert {*SAME, *NOT_SIMULATED} == set(captures.index())
    assert set(SAME) >= set(SAME_WORDS)


@pytest.mark.parametrize("name", SAME)
def test_shape(server: simulator.Running, name: str) -> None:
    real, ours = replay(server, name)
    assert captures.response_shape(ours) == captures.response_shape(real.response)


@pytest.mark.parametrize("name", SAME)
def test_head(server: simulator.Running, name: str) -> None:
    real, ours = replay(server, name)
    mark = ("x-weighbridge-simulated", "1")
    assert mark in ours.headers
    unmarked = [header for header in ours.headers if header != mark]
    assert [name for name, _ in unmarked] == [name for name, _ in real.response.headers]
    varying = {"date", "content-length"}
    assert {k: v for k, v in unmarked if k not in varying} == {
        k: v for k, v in real.response.headers if k not in varying
    }


@pytest.mark.parametrize("name", SAME_WORDS)
def test_words(server: simulator.Running, name: str) -> None:
    real, ours = replay(server, name)
    assert ours.body == real.response.body


@pytest.mark.parametrize("name", STREAMS)
def test_framing(server: simulator.Running, name: str) -> None:
    """One chunk an event, and bytes alike but for ids, times, texts and counts."""
    real, ours = replay(server, name)
    assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") for chunk in ours.chunks)
    assert distinct(ours.chunks) == distinct(real.response.chunks)


def distinct(chunks: tuple[bytes, ...]) -> list[bytes]:
    patterns = [
        (rb'"(chatcmpl|cmpl)-[^"]+"', b'"ID"'),
        (rb'"(content|text)":"[^"]+"', b'"TEXT"'),
        (
            rb'"(content|text)":""(?=},"logprobs":null,"finish_reason":null,"token_ids"|,"logprobs")',
            b'"TEXT"',
        ),
        (rb"vllm-0\.32\.0-[0-9a-f]{8}", b"FINGERPRINT"),
        (rb'("finish_reason"):"(stop|length)"', rb'\1:"REASON"'),
        (rb":\d+", b":N"),
    ]
    seen: dict[bytes, None] = {}
    for chunk in chunks:
        for pattern, replacement in patterns:
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
