"""The OpenAI face where it is at fault itself: a client still gets an answer, and the journal a line."""

import asyncio
import json
from typing import Any

from gateway.api.auth import Keys, hash_of
from gateway.api.openai_api import OpenAIApi
from gateway.calls.bounds import LoopLag
from gateway.calls.relay import Services
from gateway.configuration.config import Bounds, Key, Tenant
from gateway.directory.attempts import Attempts
from gateway.directory.entrance import Entrance
from gateway.directory.sources import Sources
from metering.journal.refusals import Refusals
from metering.record import Refused


class Broken(dict):
    """Models that nobody can look up."""

    def get(self, *_: object) -> Any:
        raise RuntimeError("a mistake of ours")


class NoLimits:
    """Nobody is limited."""

    def lines(self, _principal: Any, _model: str) -> bytes:
        return b""


class Notes:
    """A recorder that keeps the lines it is given."""

    def __init__(self) -> None:
        self.lines: list[Any] = []

    def note(self, make: Any) -> None:
        self.lines.append(make(1, "0" * 64))


def test_a_fault_of_ours_before_admission_is_an_answer_and_a_line() -> None:
    notes, sent = Notes(), []
    services = Services(
        recorder=notes,
        refusals=Refusals(notes.note),
        seats=None,
        registry=None,
        clock=lambda: 0,
        open=set(),
        lag=LoopLag(interval_ns=1, lag_ns_max=1),
        exceeded=lambda _: None,
    )
    keys = Keys([Tenant(name="acme", keys=(Key(hash=hash_of("wb-k")),))])
    entrance = Entrance(keys, Attempts(1), Sources(()), lambda: 0)
    api = OpenAIApi(
        services=services, entrance=entrance, models=Broken(), targets=None, admissions=NoLimits(), salts=None,
        created_s=0, bounds=Bounds(),
    )  # fmt: skip
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "headers": [(b"authorization", b"Bearer wb-k"), (b"x-request-id", b"r-1")],
    }

    async def receive() -> dict:
        return {"type": "http.request", "body": b'{"model":"m"}', "more_body": False}

    async def send(message: dict) -> None:
        sent.append(message)

    asyncio.run(api.generate(scope, receive, send))
    head, body = sent
    assert (head["status"], dict(head["headers"])[b"x-request-id"]) == (500, b"r-1")
    assert json.loads(body["body"])["error"]["code"] == "internal_error"
    (line,) = notes.lines
    assert isinstance(line, Refused)
    assert (line.tenant, line.status, line.request_id) == ("acme", 500, "r-1")
