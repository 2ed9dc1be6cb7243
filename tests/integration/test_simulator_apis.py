"""The simulator's other APIs over real sockets: SDKs read them, faults befall them, the log has them."""

import collections.abc
import dataclasses
import json

import openai
import pytest

from backends.simulator.settings import Settings
from tests.support import simulator
from tests.support.simwire import USER, answer, connection, is_whole, last_entry, read_to_end, wire

pytestmark = pytest.mark.integration

MODEL = "llama-3.1-8b"
FAST = Settings(instance_type="inf2.48xlarge", model=MODEL, time_scale=0.01)
TOOL = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}
CHAT_TOOL = {"type": "function", "function": {key: value for key, value in TOOL.items() if key != "type"}}
MESSAGE = {"model": MODEL, "messages": [USER], "max_tokens": 9}


@dataclasses.dataclass(frozen=True)
class Api:
    """path, least body; generated: completion tokens that it leads to."""

    path: str
    body: dict[str, object]
    generated: int = 0
    reads: bool = True


APIS = [
    Api("/v1/responses", {"input": "Name three rivers.", "max_output_tokens": 9}, generated=9),
    Api("/v1/messages", MESSAGE, generated=9),
    Api("/v1/messages/count_tokens", {"model": MODEL, "messages": [USER]}, reads=False),
    Api("/v1/embeddings", {"input": ["Name three", "rivers"]}),
    Api("/v1/rerank", {"query": "rivers", "documents": ["the Rhine", "a lorry"]}),
    Api("/v1/score", {"text_1": "rivers", "text_2": "the Rhine"}),
    Api("/pooling", {"input": ["Name three", "rivers"]}),
    Api("/classify", {"input": ["Name three", "rivers"]}),
    Api("/tokenize", {"prompt": "Name three rivers."}, reads=False),
    Api("/detokenize", {"tokens": [7]}, reads=False),
]
STREAMING = [api for api in APIS if api.generated]


def named(api: object) -> str | None:
    return api.path if isinstance(api, Api) else None


def request(api: Api, **fields: object) -> bytes:
    return wire(api.path, json.dumps(api.body | fields).encode(), "connection: close\r\n")


@pytest.fixture(scope="module")
def server() -> collections.abc.Iterator[simulator.Running]:
    with simulator.running(FAST) as running:
        yield running


@pytest.fixture
def client(server: simulator.Running) -> collections.abc.Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


class TestTheOpenAiSdk:
    def test_a_response(self, client: openai.OpenAI, server: simulator.Running) -> None:
        reply = client.responses.create(model=MODEL, input="Name three rivers.", max_output_tokens=5)
        assert (reply.status, len(reply.output_text.split())) == ("incomplete", 5)
        assert reply.usage is not None
        entry = last_entry(server)
        assert reply.usage.output_tokens == entry["completion_tokens"] == 5
        assert reply.usage.input_tokens == entry["prompt_tokens"]

    def test_a_streamed_response(self, client: openai.OpenAI) -> None:
        sized = client.responses.create(model=MODEL, input="Name three rivers.")
        with client.responses.stream(model=MODEL, input="Name three rivers.") as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
            reply = stream.get_final_response()
        assert "".join(deltas) == reply.output_text == sized.output_text
        assert reply.usage == sized.usage

    def test_calls_of_a_tool(self, client: openai.OpenAI) -> None:
        arguments = {"city": "Oslo", "days": 1}
        item = client.responses.create(model=MODEL, input="x", tools=[TOOL], tool_choice="required").output[0]
        assert (item.type, item.name, json.loads(item.arguments)) == ("function_call", "weather", arguments)
        with client.chat.completions.stream(
            model=MODEL, messages=[USER], tools=[CHAT_TOOL], tool_choice="required"
        ) as stream:
            choice = stream.get_final_completion().choices[0]
        assert choice.finish_reason == "tool_calls"
        assert json.loads(choice.message.tool_calls[0].function.arguments) == arguments

    def test_embeddings_are_the_same_in_either_encoding(self, client: openai.OpenAI) -> None:
        texts = ["a river", "a lorry"]
        floats = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
        packed = client.embeddings.create(model=MODEL, input=texts)  # base64, which the SDK reads
        assert [each.embedding for each in floats.data] == [each.embedding for each in packed.data]
        assert floats.usage.prompt_tokens == 4

    def test_a_text_for_a_schema(self, client: openai.OpenAI) -> None:
        format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": TOOL["parameters"]}}
        reply = client.chat.completions.create(model=MODEL, messages=[USER], response_format=format_)
        assert json.loads(reply.choices[0].message.content or "") == {"city": "Oslo", "days": 1}


class TestLog:
    @pytest.mark.parametrize("api", APIS, ids=named)
    def test_each_call_is_in_it(self, server: simulator.Running, api: Api) -> None:
        before = {name: server.value(name) for name in COUNTERS}
        with connection(server) as sock:
            sock.sendall(request(api))
            assert answer(sock).status == 200
        entry = last_entry(server)
        assert (entry["path"], entry["outcome"], entry["stream"]) == (api.path, "completed", False)
        assert (entry["prompt_tokens"] > 0) == api.reads
        assert entry["completion_tokens"] == entry["completion_tokens_sent"] == api.generated
        grown = [server.value(name) - before[name] for name in COUNTERS]
        assert grown == [entry["prompt_tokens"], entry["completion_tokens"]]

    @pytest.mark.parametrize("api", STREAMING, ids=named)
    def test_a_stream_counts_its_events(self, server: simulator.Running, api: Api) -> None:
        with connection(server) as sock:
            sock.sendall(request(api, stream=True))
            got = answer(sock)
        entry = last_entry(server)
        assert entry["events"] == got.body.count(b"event: ") > api.generated
        assert (entry["completion_tokens_sent"], entry["bytes_sent"]) == (api.generated, len(got.body))


COUNTERS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")


class TestFaults:
    @pytest.mark.parametrize("api", APIS, ids=named)
    @pytest.mark.parametrize(
        ("kind", "mark"),
        [
            ("die", b""),
            ("error_500", b"HTTP/1.1 500"),
            ("garbage", b"\x89\x00\xfe<html>"),
            ("busy_503", b"HTTP/1.1 503"),
        ],
    )
    def test_they_befall_every_api(self, server: simulator.Running, api: Api, kind: str, mark: bytes) -> None:
        server.arm(kind)
        with connection(server) as sock:
            sock.sendall(request(api))
            raw = read_to_end(sock)
        assert last_entry(server)["outcome"] == f"faulted:{kind}"
        assert mark in raw
        assert bool(raw) == bool(mark)
        if kind in ("error_500", "busy_503"):
            error = json.loads(raw.partition(b"\r\n\r\n")[2])
            assert ("type" in error) == api.path.startswith("/v1/messages")  # Anthropic's shape
        assert server.value("vllm:num_requests_running") == 0

    @pytest.mark.parametrize("api", APIS, ids=named)
    def test_half_an_answer_is_half(self, server: simulator.Running, api: Api) -> None:
        server.arm("die", after_events=1)
        with connection(server) as sock:
            sock.sendall(request(api))
            raw = read_to_end(sock)
        assert raw.startswith(b"HTTP/1.1 200")
        assert not is_whole(raw)

    @pytest.mark.parametrize("api", APIS, ids=named)
    def test_a_slow_head_is_whole(self, server: simulator.Running, api: Api) -> None:
        server.arm("slow_head", delay_ms=1)
        with connection(server) as sock:
            sock.sendall(request(api))
            assert answer(sock).status == 200
        assert last_entry(server)["fault"] == "slow_head"

    @pytest.mark.parametrize("after", [0, 1, 3, 5])
    def test_a_response_breaks_off_where_it_cannot_say_why(
        self, server: simulator.Running, after: int
    ) -> None:
        raw = self.streamed(server, APIS[0], after)
        assert raw.count(b"event: ") == after
        assert not is_whole(raw)

    @pytest.mark.parametrize("after", [0, 1, 3, 5])
    def test_a_message_says_it_in_an_event(self, server: simulator.Running, after: int) -> None:
        raw = self.streamed(server, APIS[1], after)
        assert raw.count(b"event: ") == after + 1
        assert b"event: error\ndata: " in raw
        assert b"message_stop" not in raw
        assert is_whole(raw)

    def streamed(self, server: simulator.Running, api: Api, after: int) -> bytes:
        server.arm("error_500", after_events=after)
        with connection(server) as sock:
            sock.sendall(request(api, stream=True))
            raw = read_to_end(sock)
        assert last_entry(server)["outcome"] == "faulted:error_500"
        return raw


def test_a_response_begins_before_its_first_token(server: simulator.Running) -> None:
    """As vLLM's does: with two events while the prompt is still read."""
    slow = Settings(instance_type="inf2.48xlarge", model=MODEL, time_scale=500)
    with simulator.running(slow) as running, connection(running) as sock:
        sock.sendall(request(STREAMING[0], stream=True))
        raw = b""
        while raw.count(b"event: ") < 2:
            raw += sock.recv(65_536)
        entry = last_entry(running, open_too=True)
        assert (entry["events"], entry["completion_tokens"]) == (2, 0)
