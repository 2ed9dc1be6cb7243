"""The stage of the field tests: one gateway before scripted backends, and what every test must leave behind.

Names follow the reports that the tests are made from: models `m1` (served by B1 alone) and `m1-pair` (by B1, and by
B2 when B1 has failed), requests R, RS and RSU, the standard stream, usage U(p, c). Imports nothing of the product.
"""

import asyncio
import collections
import contextlib
import dataclasses
import json
import pathlib
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

from tests.support import captures, processes
from tests.support.gateway import Gateway, eventually, running
from tests.support.opened import Opened
from tests.support.rawbackend import Answer, Asked, Scripted, chunked, sized

CHAT = "/v1/chat/completions"
R = {"model": "m1", "messages": [{"role": "user", "content": "hi"}]}
RS = R | {"stream": True}
RSU = RS | {"stream_options": {"include_usage": True}}
PAIR = {"model": "m1-pair"}
"""`R | PAIR`: the same to the model that two backends serve."""


def u(prompt: object, completion: object, **more: object) -> dict:
    """A usage object."""
    total = prompt + completion if type(prompt) is type(completion) is int else 15
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total} | more


def d(value: object) -> bytes:
    """An event with this JSON as its data."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(*choices: dict, **more: object) -> dict:
    """A chunk of a chat stream."""
    return {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m1",
        "choices": list(choices),
    } | more


def delta(**said: object) -> dict:
    """A choice that says something."""
    return {"index": 0, "delta": said, "finish_reason": None}


def content(text: str, **more: object) -> bytes:
    """A content chunk as an event."""
    return d(chunk(delta(content=text), **more))


ROLE = d(chunk(delta(role="assistant", content="")))
FINISH = d(chunk({"index": 0, "delta": {}, "finish_reason": "stop"}))
USAGE = d(chunk(usage=u(10, 5)))
DONE = b"data: [DONE]\n\n"
STANDARD = (ROLE, content("he"), content("llo"), FINISH, USAGE, DONE)
ANSWER = {
    "id": "c1", "object": "chat.completion", "created": 1, "model": "m1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
    "usage": u(10, 5),
}  # fmt: skip
SIZED = sized(json.dumps(ANSWER).encode())
PROMPT_PUSD, CACHED_PUSD, COMPLETION_PUSD = 1_000_000, 100_000, 2_000_000
U_10_5_PUSD = 20_000_000
"""The price of U(10,5) at the stage's rate card: 1 and 2 USD per 1M tokens, 0.10 for cached prompt tokens."""

CARD = {
    "prompt": "1.00", "cached_prompt": "0.10", "completion": "2.00",
    "date": "2026-11-01", "source": "of this test", "family": "inf2",
}  # fmt: skip
LATE_S = 0.9
"""What a busy machine may add to a moment: less than another of TIMEOUTS, which a wrong timer would add."""
TIMEOUTS = {"connect_s": 1.0, "first_event_s": 1.0, "between_events_s": 1.0, "sized_answer_s": 1.0}
SLOTS = 4


@dataclasses.dataclass(frozen=True)
class Reply:
    """An answer, whole. complete: its framing said so."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool

    @property
    def call_id(self) -> str:
        return self.headers["x-weighbridge-call-id"]

    @property
    def error(self) -> dict:
        """The error object of a JSON body."""
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)["error"]


class Lines:
    """The journal of a gateway that runs: each line is read once, so that looking often costs little."""

    def __init__(self, root: pathlib.Path) -> None:
        self._root = root
        self._offsets: dict[pathlib.Path, int] = {}
        self._by_kind: dict[str, list[dict]] = collections.defaultdict(list)

    def __getitem__(self, kind: str) -> list[dict]:
        """All lines of a kind, as of now."""
        for segment in sorted([*self._root.glob("*/[0-9]*.jsonl"), *self._root.glob("*/salvage.jsonl")]):
            with segment.open("rb") as file:
                file.seek(self._offsets.get(segment, 0))
                whole, newline, _torn = file.read().rpartition(b"\n")
            self._offsets[segment] = self._offsets.get(segment, 0) + len(whole) + len(newline)
            for line in whole.splitlines():
                found = json.loads(line)
                self._by_kind[found["kind"]].append(found)
        return self._by_kind[kind]


class Stage:
    """The gateway, B1 and B2, and what they have written down."""

    def __init__(self, gateway: Gateway, b1: Scripted, b2: Scripted) -> None:
        self.gateway = gateway
        self.b1, self.b2 = b1, b2
        self.lines = Lines(gateway.state_dir / "journal")

    def open(self, body: object, *, path: str = CHAT, tenant: str = "acme", **headers: str) -> Opened:
        """Send a request; the answer is the test's to read."""
        return Opened(self.gateway.port, self.gateway.keys[tenant], body, path=path, **headers)

    def post(self, body: object, *, path: str = CHAT, **headers: str) -> Reply:
        """Send a request and read the whole answer."""
        with self.open(body, path=path, **headers) as opened:
            opened.rest()
            return Reply(opened.status, opened.headers, opened.body, opened.complete)

    def record(self, call_id: str, *, within_s: float = 10.0) -> dict:
        """The one record of a call."""
        return self._only("call", "call_id", call_id, within_s)

    def record_of(self, request_id: str, *, within_s: float = 10.0) -> dict:
        """The record of a call whose answer's head never came."""
        return self._only("call", "request_id", request_id, within_s)

    def refused(self, request_id: str, *, within_s: float = 10.0) -> dict:
        """The line of a request that ended before it was admitted."""
        return self._only("refused", "request_id", request_id, within_s)

    def _only(self, kind: str, field: str, value: str, within_s: float) -> dict:
        (found,) = eventually(
            lambda: [line for line in self.lines[kind] if line[field] == value], within_s=within_s
        )
        return found

    def metrics(self) -> dict[str, float]:
        """All samples of the metrics page, by name and labels as they stand there."""
        status, page = self.gateway.get("/metrics", self.gateway.keys["acme"])
        assert status == 200
        return {
            name: float(value)
            for name, value in re.findall(r"^([^#\s]\S*) (\S+)$", page.decode(), re.MULTILINE)
        }

    def count(self, name: str, **labels: str) -> float:
        """The sum of a family's samples that have these labels."""
        return total(self.metrics(), name, **labels)

    def outcomes(self) -> dict[str, float]:
        """Calls so far by outcome."""
        metrics = self.metrics()
        names = ("completed", "client_gone", "backend_failed", "timed_out", "refused")
        return {name: total(metrics, "weighbridge_calls_total", outcome=name) for name in names}

    def in_flight(self, backend: str) -> float:
        """Attempts under way at a backend."""
        return self.count("weighbridge_in_flight", backend=backend)

    def rss_bytes(self) -> int:
        """Resident memory of the gateway's largest process: its worker."""
        return max(_rss_bytes(pid) for pid in processes.descendants(self.gateway.process.pid))

    def check(self) -> None:
        """What must hold after every test: nothing under way, one record a call, sums equal, no fault of ours."""
        metrics = eventually(self._at_rest, within_s=10.0)
        ended = collections.Counter(record["call_id"] for record in self.lines["call"])
        assert ended == collections.Counter(line["call_id"] for line in self.lines["admitted"])
        spent = sum(record["cost_pusd"] or 0 for record in self.lines["call"])
        assert round(total(metrics, "weighbridge_estimated_cost_usd_total") * 1e12) == spent
        faults = self.faults()
        assert not faults, faults

    def _at_rest(self) -> dict[str, float] | None:
        """The metrics, if nothing is under way and they count all lines: some are told up to a second later."""
        metrics = self.metrics()
        lines = len(self.lines["call"]) + sum(line["count"] for line in self.lines["refused"])
        if total(metrics, "weighbridge_in_flight") or total(metrics, "weighbridge_calls_total") != lines:
            return None
        return metrics

    def faults(self) -> list[str]:
        """Log lines that tell of a mistake of ours."""
        lines = self.gateway.log.read_text().splitlines()
        return [line for line in lines if not line.startswith("{") or json.loads(line)["level"] == "error"]


def total(metrics: dict[str, float], name: str, **labels: str) -> float:
    """The sum of a family's samples that have these labels."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(
        value
        for sample, value in metrics.items()
        if sample.partition("{")[0] == name and all(one in sample for one in wanted)
    )


def _rss_bytes(pid: int) -> int:
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return 0
    found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


@contextlib.contextmanager
def staged(
    directory: pathlib.Path,
    *,
    slots: int = SLOTS,
    more_models: tuple[dict, ...] = (),
    more_backends: tuple[dict, ...] = (),
    key_files: tuple[str, str] | None = None,
    **more: object,
) -> Iterator[Stage]:
    """The stage, set. key_files: of the keys that B1 and B2 want. more: further keys of the configuration."""
    b1, b2 = Scripted(SIZED), Scripted(SIZED)
    backends = [
        backend("b1", b1.port, slots=slots, instance_type="inf2.48xlarge"),
        backend("b2", b2.port, slots=slots, instance_type="inf2.48xlarge"),
        *more_backends,
    ]
    for one, file in zip(backends, key_files or (), strict=False):
        one["key_file"] = file
    models = [model("m1", "b1"), model("m1-pair", "b1", "b2"), *more_models]
    config = {"attempts_max": 2, "timeouts": TIMEOUTS, "models": models} | more
    try:
        with running(directory, backends, **config) as gateway:
            yield Stage(gateway, b1, b2)
    finally:
        b1.stop()
        b2.stop()


def backend(name: str, port: int, **more: object) -> dict:
    """A backend's entry in the configuration."""
    return {"name": name, "url": f"http://127.0.0.1:{port}", "model": "m1", "slots": SLOTS} | more


def model(name: str, *backends: str) -> dict:
    """A model's entry: each backend is a tier, so that the order of attempts is known."""
    tiers = [{"backends": [one], "patience_s": 5.0} for one in backends]
    return {"name": name, "tiers": tiers, "rate_cards": [CARD]}


def billed(record: dict) -> tuple:
    """What was billed, by whose count, and how the call ended."""
    usage = record["usage"]
    counts = usage["prompt_tokens"], usage["completion_tokens"], usage["source"]
    return (*counts, record["cost_pusd"], record["outcome"])


REPORTED = (10, 5, "reported", U_10_5_PUSD, "completed")
"""`billed` of a call whose backend reported U(10,5)."""


# -- answers of a backend


def stream(*pieces: bytes) -> bytes:
    """A whole stream, a chunk for each piece."""
    return chunked(*pieces)


def opening(*pieces: bytes) -> bytes:
    """A stream that goes on: without the chunked terminator."""
    return chunked(*pieces).removesuffix(b"0\r\n\r\n")


def cut(raw: bytes, *, reset: bool = False) -> Answer:
    """Send these bytes and close the connection; with a reset, as a server that was killed."""

    async def answer(_asked: Asked, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()
        if reset:
            await asyncio.sleep(0.05)  # what was sent is read before the reset, which would overtake it
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        else:
            writer.close()

    return answer


def pieces(raw: Iterator[bytes] | list[bytes], *, every_s: float) -> Answer:
    """Send pieces one by one, so that each is a read of its own."""

    async def answer(_asked: Asked, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in raw:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(every_s)

    return answer


class Endless:
    """An answer without end: `first`, then `again` every so often, until the gateway hangs up.

    sent: how often `again` was sent. closed: set when the connection has ended, at `closed_s` (monotonic).
    connections: a name for each connection that it has answered on, in order.
    """

    def __init__(self, first: bytes, again: bytes = b"", *, every_s: float = 0.02, times: int = 3000) -> None:
        self.sent = 0
        self.begun = threading.Event()
        self.closed = threading.Event()
        self.closed_s = 0.0
        self._first, self._again, self._every_s, self._times = first, again, every_s, times

    async def __call__(
        self, _asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.begun.set()
        hung_up = asyncio.ensure_future(reader.read())
        writer.write(self._first)
        for _ in range(self._times if self._again else 0):
            if (await asyncio.wait([hung_up], timeout=self._every_s))[0]:
                break
            writer.write(self._again)
            self.sent += 1
        with contextlib.suppress(ConnectionError):
            await hung_up
        self.closed_s = time.monotonic()
        self.closed.set()

    def wait_closed(self, within_s: float = 10.0) -> float:
        """When it was closed; fails if it is not."""
        assert self.closed.wait(within_s), "the gateway still holds the connection"
        return self.closed_s


def framed(data: bytes) -> bytes:
    """One piece as a chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def on_request(answer: Callable[[Asked], bytes]) -> Answer:
    """An answer that depends on what was asked."""

    async def given(asked: Asked, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(asked))

    return given


def recorded(name: str) -> bytes:
    """The raw response of one of the recordings of a real server."""
    return (captures.VLLM / f"{name}.response.http").read_bytes()
