"""What client libraries are tested against: a gateway before two simulated servers, and the evidence afterwards.

The evidence is read from files and sockets by code that imports nothing of the product: the gateway's journal, its
metrics, and the simulator's own log. All three know a call by the `x-request-id` that the client sent.
"""

import base64
import dataclasses
import json
import re

from tests.support.gateway import Gateway, eventually
from tests.support.simulator import Running

KEEPALIVE_S = 1
MODELS = {"m1": 0.05, "slow": 3.0}
"""Models by name, each with one simulated server of its own; the factor on that server's times."""

LIMITED: dict[str, dict] = {
    "line": {"requests_per_minute": 1},
    "paced": {"requests_per_minute": 20},
    "spent": {"budgets": [{"usd": "0.000000000001", "per": "month"}]},
}
"""Limits of tenants beside the one that has none: one a minute; one each 3 s, once a minute's
are used up; one call and no more."""

_IN_FLIGHT = re.compile(r'^weighbridge_in_flight\{backend="([^"]*)"\} (\S+)$', re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Scene:
    """The gateway and the simulators behind it, by the names of their models."""

    gateway: Gateway
    simulators: dict[str, Running]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}/v1"

    def calls(self, request_id: str) -> list[dict]:
        """The records of a request's calls, in the order of their ends: several where a client tried again."""
        return [line for line in self.gateway.lines("call") if line["request_id"] == request_id]

    def call(self, request_id: str) -> dict:
        """The one record of a request. Waits for it: a client may see the end of an abort before the gateway."""
        (record,) = eventually(lambda: self.calls(request_id))
        return record

    def refused(self, request_id: str) -> dict:
        """The one `refused` line of a request."""

        def lines() -> list[dict]:
            return [line for line in self.gateway.lines("refused") if line["request_id"] == request_id]

        (line,) = eventually(lines)
        return line

    def served(self, request_id: str) -> list[dict]:
        """What the simulators logged of a request, with the bytes they sent."""
        found = []
        for simulator in self.simulators.values():
            found += [entry for entry in simulator.log(raw=True) if entry["request_id"] == request_id]
        return found

    def closed(self, request_id: str) -> dict:
        """The simulator's entry of a request whose client left, once it has seen that."""
        return eventually(lambda: [entry for entry in self.served(request_id) if entry["outcome"] != "open"])[
            0
        ]

    def use_up(self, tenant: str) -> None:
        """Call until the tenant's limit is reached, and will be for a while."""
        ask = {"model": "m1", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}

        def is_refused() -> bool:
            answer = self.gateway.post("/v1/chat/completions", ask, tenant=tenant)
            answer.read()
            assert answer.status in (200, 429)
            return answer.status == 429 and int(answer.headers["retry-after-ms"]) > 2_000

        eventually(is_refused, within_s=60.0, every_s=0.15)  # of many refusals a second most share a line

    def all_refused(self, request_id: str) -> list[dict]:
        """The `refused` lines of a request: several where a client tried again."""
        return [line for line in self.gateway.lines("refused") if line["request_id"] == request_id]

    def in_flight(self) -> dict[str, float]:
        """Slots taken, by backend, as the gateway's metrics say."""
        status, page = self.gateway.get("/metrics", self.gateway.keys["acme"])
        assert status == 200
        return {backend: float(value) for backend, value in _IN_FLIGHT.findall(page.decode())}


def answer_text(entry: dict) -> str:
    """The text of an answer in the bytes that a simulator sent, whichever API it was asked by."""
    body = base64.b64decode(entry["raw"])
    if not entry["stream"]:
        return _text(json.loads(body))
    lines = (line.removeprefix(b"data: ") for line in body.splitlines() if line.startswith(b"data: "))
    return "".join(_text(json.loads(line)) for line in lines if line != b"[DONE]")


def _text(part: dict) -> str:
    """Of an answer, or of an event of a stream: Anthropic's, of OpenAI's responses, or of its other APIs."""
    match part:
        case {"type": "content_block_delta", "delta": delta}:
            return delta.get("text", "")
        case {"type": "response.output_text.delta", "delta": str(text)}:
            return text
        case {"type": "message", "content": blocks}:
            return "".join(block.get("text", "") for block in blocks)
        case {"object": "response", "output": items}:
            return "".join(block["text"] for item in items for block in item.get("content", ()))
        case {"choices": choices}:
            return "".join(_text_of_choice(choice) for choice in choices)
    return ""


def _text_of_choice(choice: dict) -> str:
    if "text" in choice:
        return choice["text"]
    return (choice.get("message") or choice["delta"]).get("content") or ""
