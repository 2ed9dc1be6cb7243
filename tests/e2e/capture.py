"""Records a model server's answers byte for byte, for tests that must know what a real one sends.

    python -m tests.e2e.capture DIRECTORY       renew the captures of the real vLLM

Each case goes over a TCP connection of its own, as a kept-alive HTTP/1.1 request; what is stored are
the bytes of the socket. Format: tests/support/captures.py.
"""

import dataclasses
import json
import pathlib
import socket
import sys
import time
import typing

from tests.e2e import exposition
from tests.e2e.engine import engine
from tests.e2e.environment import MODEL, build, default
from tests.support import captures

ANSWER_S_MAX = 120
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
GENERATES = (CHAT, COMPLETIONS)

Json = dict[str, typing.Any]

USER: Json = {"role": "user", "content": "Name three rivers."}
SYSTEM: Json = {"role": "system", "content": "You weigh what passes and write the ticket. " * 20}
WEATHER: Json = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
ASK_WEATHER: Json = {
    "messages": [{"role": "user", "content": "What is the weather in Rome?"}],
    "tools": [WEATHER],
}
CALL_WEATHER: Json = ASK_WEATHER | {"tool_choice": "required", "max_tokens": 60}
USAGE: Json = {"stream": True, "stream_options": {"include_usage": True}}
CONTINUOUS: Json = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@dataclasses.dataclass(frozen=True)
class Case:
    """One request. body: a JSON object, or raw bytes where the point is that they are not one."""

    name: str
    path: str
    about: str
    body: Json | bytes | None = None
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()

    def request(self) -> bytes:
        body = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        lines = [f"{self.method} {self.path} HTTP/1.1", "host: model-server", "accept: application/json"]
        if self.body is None:
            body = b""
        else:
            lines += ["content-type: application/json", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join([*lines, "", ""]).encode() + body


def cases(model: str, max_model_len: int) -> list[Case]:
    """All cases; the prompts that are too long are so for `max_model_len` tokens."""

    def chat(name: str, about: str, **fields: typing.Any) -> Case:
        common = {"model": model, "messages": [USER], "temperature": 0, "max_tokens": 12}
        return Case(name, CHAT, about, common | fields)

    def completion(name: str, about: str, **fields: typing.Any) -> Case:
        common = {"model": model, "prompt": "The longest river is", "temperature": 0, "max_tokens": 12}
        return Case(name, COMPLETIONS, about, common | fields)

    too_long = "word " * max_model_len
    long_chat: Json = {"messages": [{"role": "user", "content": too_long}]}
    two_prompts: Json = {"prompt": ["One river is", "Two rivers are"]}
    not_asked: Json = {"stream": True, "stream_options": {"include_usage": False}}
    cached = {"messages": [SYSTEM, USER]}
    request_id = (("x-request-id", "ticket-1"),)
    return [
        Case("models", "/v1/models", "what is served", method="GET"),
        Case("version", "/version", "the server's version", method="GET"),
        Case("health", "/health", "empty when well", method="GET"),
        Case("ping", "/ping", "the same by another name", method="GET"),
        Case("models_head", "/v1/models", "HEAD is not allowed", method="HEAD"),
        Case("chat_get", CHAT, "GET is not allowed", method="GET"),
        Case("chat_options", CHAT, "OPTIONS is not allowed", method="OPTIONS"),
        Case("no_such_path", "/v1/no-such-path", "404 of the framework, not of the API", method="GET"),
        chat("chat", "a sized answer, cut by max_tokens"),
        chat("chat_max_completion_tokens", "the newer name wins", max_completion_tokens=5),
        chat("chat_stop", "ended by a stop string", stop=[" River"]),
        chat("chat_n2", "two choices", n=2, temperature=0.7, seed=7),
        chat("chat_logprobs", "with logprobs", logprobs=True, top_logprobs=2, max_tokens=3),
        chat("chat_tool", "a tool call", **CALL_WEATHER),
        chat("chat_tool_not_called", "tools offered, and an answer in words", **ASK_WEATHER),
        chat("chat_warm", "a long prompt, first time", **cached),
        chat("chat_cached", "the same again: part of the prompt was cached", **cached),
        dataclasses.replace(chat("chat_request_id", "the client's id"), headers=request_id),
        chat("chat_stream", "no usage asked for", stream=True),
        chat("chat_stream_no_usage", "include_usage false", **not_asked),
        chat("chat_stream_usage", "usage event at the end", **USAGE),
        chat("chat_stream_continuous", "running usage in each event", **CONTINUOUS),
        chat("chat_stream_stop", "ended by a stop string", **USAGE, stop=[" River"]),
        chat("chat_stream_n2", "two choices, interleaved", **USAGE, n=2, temperature=0.7, seed=7),
        chat("chat_stream_logprobs", "with logprobs", **USAGE, logprobs=True, top_logprobs=2, max_tokens=3),
        chat("chat_stream_tool", "a tool call", **USAGE, **CALL_WEATHER),
        chat("chat_stream_cached", "part of the prompt was cached", **USAGE, **cached),
        completion("completions", "a sized answer"),
        completion("completions_n2", "two choices", n=2, temperature=0.7, seed=7),
        completion("completions_prompts", "two prompts in one call", **two_prompts),
        completion("completions_echo", "the prompt comes back", echo=True),
        completion("completions_logprobs", "with logprobs", logprobs=2, max_tokens=3),
        completion("completions_stream", "no usage asked for", stream=True),
        completion("completions_stream_usage", "usage event at the end", **USAGE),
        completion("completions_stream_continuous", "running usage in each event", **CONTINUOUS),
        completion("completions_stream_unicode", "a character of several tokens: events with an empty text",
                   **USAGE, prompt="🚛 🚛 🚛 🚛 🚛 🚛 🚛"),
        completion("completions_stream_prompts", "two prompts", **USAGE, **two_prompts),
        completion("completions_stream_logprobs", "with logprobs", **USAGE, logprobs=2, max_tokens=3),
        chat("unknown_model", "404", model="no-such-model"),
        chat("unknown_model_stream", "404, and no stream", model="no-such-model", **USAGE),
        completion("completions_unknown_model", "404", model="no-such-model"),
        Case("broken_json", CHAT, "400", b'{"model": "' + model.encode() + b'", "messages": ['),
        chat("empty_messages", "an empty list", messages=[]),
        Case("no_messages", CHAT, "a required field is missing", {"model": model}),
        chat("wrong_type", "a field of the wrong type", max_tokens="many"),
        chat("stream_options_without_stream", "400", stream_options={"include_usage": True}),
        chat("too_long", "the prompt alone is over the context length", **long_chat),
        chat("too_long_stream", "the same, as a stream", **long_chat, **USAGE),
        chat("too_long_max_tokens", "with max_tokens it is: they are cut", max_tokens=max_model_len),
        completion("completions_too_long", "the prompt alone is over the context length", prompt=too_long),
    ]  # fmt: skip


def capture(host: str, port: int, model: str, directory: pathlib.Path) -> None:
    """Make every case's exchange with the server at (host, port) and store it in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    index = []
    for case in cases(model, max_model_len(host, port, model)):
        raw, response = exchange(host, port, case)
        stem = directory / case.name
        stem.with_suffix(".request.http").write_bytes(case.request())
        stem.with_suffix(".response.http").write_bytes(raw)
        if response.is_stream:
            stem.with_suffix(".sse").write_bytes(response.body)
        entry = {"name": case.name, "method": case.method, "path": case.path, "status": response.status}
        index.append(entry | {"stream": response.is_stream, "about": case.about})
    write_json(directory / "index.json", index)
    (directory / "metrics.txt").write_text("\n".join(exposition.shape(metrics(host, port))) + "\n")
    write_json(directory / "aborted.json", abort(host, port, model))


def exchange(host: str, port: int, case: Case) -> tuple[bytes, captures.Response]:
    """Send a case's request; return the response's bytes, and what they say."""
    with socket.create_connection((host, port), timeout=ANSWER_S_MAX) as connection:
        connection.sendall(case.request())
        raw = b""
        while data := connection.recv(65_536):
            raw += data
            try:
                return raw, captures.read_response(raw, method=case.method)
            except captures.Incomplete:
                continue
    raise ConnectionError(f"{case.name}: the server closed after {len(raw)} bytes")


def max_model_len(host: str, port: int, model: str) -> int:
    _, response = exchange(host, port, Case("models", "/v1/models", "", method="GET"))
    (served,) = (entry for entry in json.loads(response.body)["data"] if entry["id"] == model)
    return int(served["max_model_len"])


def metrics(host: str, port: int) -> str:
    _, response = exchange(host, port, Case("metrics", "/metrics", "", method="GET"))
    return response.body.decode()


def abort(host: str, port: int, model: str) -> Json:
    """Leave a stream after its 5th event; say what the server's counters made of it."""
    before = exposition.totals(metrics(host, port))
    case = Case(
        "aborted",
        CHAT,
        "",
        {"model": model, "messages": [USER], "max_tokens": 1_000, "ignore_eos": True} | USAGE,
    )
    with socket.create_connection((host, port), timeout=ANSWER_S_MAX) as connection:
        connection.sendall(case.request())
        raw = b""
        while raw.count(b"data: ") < 5:
            raw += connection.recv(65_536)
    after = settled(host, port)
    counted = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total")
    return {
        "events_read": raw.count(b"data: "),
        "counters": {name: after[name] - before[name] for name in counted},
    }


def settled(host: str, port: int) -> dict[str, float]:
    """Counters once the server runs nothing and they stand still."""
    deadline = time.monotonic() + ANSWER_S_MAX
    previous: dict[str, float] = {}
    while time.monotonic() < deadline:
        now = exposition.totals(metrics(host, port))
        if now == previous and now["vllm:num_requests_running"] == now["vllm:num_requests_waiting"] == 0:
            return now
        previous = now
        time.sleep(0.2)
    raise TimeoutError(f"the server is still busy after {ANSWER_S_MAX} s")


def write_json(path: pathlib.Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def main(directory: str) -> None:
    environment = default()
    build(environment)
    target = pathlib.Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    with engine(environment, environment.cache / "vllm.log") as port:
        capture("127.0.0.1", port, MODEL, target)


if __name__ == "__main__":
    main(*sys.argv[1:])
