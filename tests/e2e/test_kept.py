"""Responses that the real vLLM keeps: named by the gateway, had again, continued, and counted once."""

import collections.abc
import contextlib
import dataclasses
import json

import pytest

from tests.e2e import capture, environment, journal
from tests.e2e.cases import RESPONSES, Case, Json
from tests.e2e.engine import KEEPING, SLOTS, engine
from tests.e2e.environment import MODEL
from tests.e2e.gateway import Gateway, gateway
from tests.e2e.journal import Tokens
from tests.support.captures import Response
from tests.support.sse import parse

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1_800)]

HOST = "127.0.0.1"
ASK: Json = {"model": MODEL, "input": "Name three rivers.", "temperature": 0, "max_output_tokens": 12}


@dataclasses.dataclass(frozen=True)
class Conversation:
    """A gateway before the engine that keeps responses."""

    served: Gateway
    engine_port: int

    def ask(self, name: str, path: str = RESPONSES, body: Json | None = None) -> Response:
        headers = (("authorization", f"Bearer {self.served.key}"), ("x-request-id", name))
        method = "GET" if body is None and not path.endswith("/cancel") else "POST"
        _, answer = capture.exchange(
            HOST, self.served.port, Case(name, path, name, body, method=method, headers=headers)
        )
        return answer

    def counted(self) -> Tokens:
        totals = capture.settled(HOST, self.engine_port)
        return Tokens(int(totals["vllm:prompt_tokens_total"]), int(totals["vllm:generation_tokens_total"]))


@pytest.fixture(scope="module")
def talk(
    engine_port: int, tmp_path_factory: pytest.TempPathFactory
) -> collections.abc.Iterator[Conversation]:
    """engine_port: the other engine is up by then, so that the two do not start at once."""
    assert engine_port
    directory = tmp_path_factory.mktemp("kept")
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(engine(environment.default(), directory / "vllm.log", more=KEEPING))
        flags = ("--instance-type", "g6e.xlarge", "--slots", str(SLOTS))
        yield Conversation(stack.enter_context(gateway(port, directory, *flags)), port)


def response_of(answer: Response) -> Json:
    """The response in an answer, which may be a stream."""
    assert answer.status == 200, answer.body
    found = parse(answer.body)[-1].json["response"] if answer.is_stream else json.loads(answer.body)
    return dict(found)


def error_of(answer: Response) -> tuple[int, str]:
    return answer.status, json.loads(answer.body)["error"]["message"]


def test_what_was_made_is_had_again_and_continued(talk: Conversation) -> None:
    before = talk.counted()
    first = talk.ask("first", body=ASK)
    again = talk.ask("again", f"{RESPONSES}/{response_of(first)['id']}")
    assert (again.status, again.body) == (200, first.body)

    streamed = response_of(talk.ask("streamed", body=ASK | {"stream": True}))
    assert response_of(talk.ask("streamed-again", f"{RESPONSES}/{streamed['id']}"))["id"] == streamed["id"]

    longer = {"input": "And the longest?", "previous_response_id": streamed["id"]}
    second = response_of(talk.ask("second", body=ASK | longer))
    assert second["previous_response_id"] == streamed["id"]
    assert second["usage"]["input_tokens"] > streamed["usage"]["input_tokens"]

    records = journal.records(talk.served.state_dir)
    assert journal.tokens(records.values()) == talk.counted() - before
    assert [records[name]["operation"] for name in ("first", "again")] == ["responses", "responses.retrieve"]
    assert journal.tokens([records["again"], records["streamed-again"]]) == Tokens(0, 0)


def test_what_cannot_be_is_told_so(talk: Conversation) -> None:
    made = response_of(talk.ask("made", body=ASK))["id"]
    assert error_of(talk.ask("cancel", f"{RESPONSES}/{made}/cancel")) == (
        400,
        "Cannot cancel a synchronous response.",
    )
    passing = response_of(talk.ask("passing", body=ASK | {"store": False}))["id"]
    unknown = f"Response with id '{passing}' not found."
    assert error_of(talk.ask("gone", f"{RESPONSES}/{passing}")) == (404, unknown)
    assert error_of(talk.ask("lost", body=ASK | {"previous_response_id": passing})) == (404, unknown)
    assert talk.ask("background", body=ASK | {"background": True}).status == 400
