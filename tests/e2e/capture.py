"""Records a model server's answers byte for byte, for tests that must know what a real one sends.

    python -m tests.e2e.capture DIRECTORY       renew the captures of the real vLLM

It is started three times: with a model that generates, and with the same one to embed and to classify. Each case goes
over a TCP connection of its own, as a kept-alive HTTP/1.1 request; what is stored are the bytes of the socket. Format:
tests/support/captures.py.
"""

import collections.abc
import dataclasses
import json
import pathlib
import socket
import sys
import time

from tests.e2e import cases, exposition
from tests.e2e.cases import CHAT, USAGE, USER, Case, Json
from tests.e2e.engine import CLASSIFYING, GENERATING, POOLING, engine
from tests.e2e.environment import MODEL, build, default
from tests.support import captures

ANSWER_S_MAX = 120


@dataclasses.dataclass(frozen=True)
class Suite:
    """Cases that are stored together, and the flags of the vLLM that answers them.

    directory: below the captures' own. counters: keep what is seen of `/metrics`, too.
    """

    directory: str
    flags: tuple[str, ...]
    cases: collections.abc.Callable[[str, int], list[Case]]
    counters: bool = False


SUITES = (
    Suite("", GENERATING, cases.openai_cases, counters=True),
    Suite(captures.APIS, GENERATING, cases.api_cases),
    Suite(captures.POOLING, POOLING, cases.pooling_cases),
    Suite(captures.CLASSIFYING, CLASSIFYING, cases.classifying_cases),
)


def capture(host: str, port: int, model: str, suite: Suite, root: pathlib.Path) -> None:
    """Make every exchange of the suite with the server at (host, port) and store it below `root`."""
    directory = root / suite.directory
    directory.mkdir(parents=True, exist_ok=True)
    index = []
    for case in suite.cases(model, max_model_len(host, port, model)):
        raw, response = exchange(host, port, case)
        stem = directory / case.name
        stem.with_suffix(".request.http").write_bytes(case.request())
        stem.with_suffix(".response.http").write_bytes(raw)
        if response.is_stream:
            stem.with_suffix(".sse").write_bytes(response.body)
        entry = {"name": case.name, "method": case.method, "path": case.path, "status": response.status}
        index.append(entry | {"stream": response.is_stream, "about": case.about})
    write_json(directory / "index.json", index)
    if suite.counters:
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
    for flags in (GENERATING, POOLING, CLASSIFYING):
        with engine(environment, environment.cache / "vllm.log", flags) as port:
            for suite in SUITES:
                if suite.flags == flags:
                    capture("127.0.0.1", port, MODEL, suite, pathlib.Path(directory))


if __name__ == "__main__":
    main(*sys.argv[1:])
