"""What is asked of a gateway: request bodies, and how they are sent. Pure."""

import json
from typing import NamedTuple

JSON_REQUEST_BYTES = 568
EVENTS_BEYOND_TOKENS = 4
"""Of a stream, beside one event a token: the role chunk, the finish chunk, the usage chunk, [DONE]."""


class Scenario(NamedTuple):
    """One way of asking. It ends when `requests` were sent or `seconds` have passed.

    pace_ms: between the tokens of a stream; 0: as fast as they go. figure: what its figure is per.
    """

    name: str
    connections: int
    requests: int
    seconds: float
    streamed: bool
    tokens: int = 64
    pace_ms: int = 0

    @property
    def model(self) -> str:
        """The name by which the mock knows what to do (native/backend.c)."""
        return f"m-{self.tokens}-{self.pace_ms}"

    @property
    def events(self) -> int:
        """Events of one answer."""
        return self.tokens + EVENTS_BEYOND_TOKENS if self.streamed else 0

    @property
    def unit(self) -> str:
        return "event" if self.streamed else "request"


COMPARED = ("json", "paced", "unpaced")
"""Those whose CPU time is compared with the peers'."""

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        # Closed loop: what a core can do, and what one request costs then.
        Scenario("json", connections=16, requests=10**9, seconds=1.5, streamed=False),
        # One wake-up an event, pauses between, cold caches: the honest cost of a token at ordinary load.
        Scenario("paced", connections=100, requests=200, seconds=60, streamed=True, pace_ms=20),
        # A slow gateway reads several events at once: the ceiling.
        Scenario("unpaced", connections=16, requests=10**9, seconds=1.5, streamed=True),
        # One hot connection: what is added to an answer's time.
        Scenario("hot", connections=1, requests=10**9, seconds=1.2, streamed=False),
        # Memory: 1,000 streams that stand open for 11 s.
        Scenario("open", connections=1000, requests=1000, seconds=60, streamed=True, tokens=8, pace_ms=1000),
    )
}


FAILING_MODEL, CUT_MODEL = "m-64-0-1", "m-64-20-2"
"""The mock answers the first with a status 500, and closes streams of the second after half their tokens."""

MODELS = sorted({scenario.model for scenario in SCENARIOS.values()} | {FAILING_MODEL, CUT_MODEL})


def body(scenario: Scenario) -> bytes:
    """The request's body: one size for all that is not streamed."""
    question = "Explain why the sky is blue. " * 12
    request: dict[str, object] = {
        "model": scenario.model,
        "messages": [
            {"role": "system", "content": "You are a helpful assistant. Answer briefly and to the point."},
            {"role": "user", "content": question},
        ],
        "max_tokens": 256,
        "temperature": 0.7,
        "stream": scenario.streamed,
    }
    if scenario.streamed:
        request["stream_options"] = {"include_usage": True}
        return json.dumps(request).encode()
    padding = JSON_REQUEST_BYTES - len(json.dumps(request))
    request["messages"][1]["content"] = question + "." * padding  # type: ignore[index]
    return json.dumps(request).encode()
