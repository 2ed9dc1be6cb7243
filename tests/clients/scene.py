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

MODELS = {"m1": 0.05, "slow": 3.0}
"""Models by name, each with one simulated server of its own; the factor on that server's times."""

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
    """Of an OpenAI answer or chunk, or an Anthropic answer or event."""
    if part.get("type") == "content_block_delta":
        return part["delta"].get("text", "")
    if part.get("type") == "message":
        return "".join(block.get("text", "") for block in part["content"])
    texts = (choice.get("message") or choice.get("delta") or {} for choice in part.get("choices", ()))
    return "".join(text.get("content") or "" for text in texts)
