"""One session at a gateway before the real vLLM: what is done, and what all sides saw of it.

        openai SDK ──▶ tap ──▶ weighbridge serve ──▶ tap ──▶ vLLM
                    `front`                       `back`

The counters of vLLM are read at the borders of three parts, with nothing running:
calls that end, calls with more than one choice, and calls that the client leaves.
"""

import collections.abc
import concurrent.futures
import contextlib
import dataclasses
import pathlib
import subprocess
import time

from tests.e2e import capture, cases, journal
from tests.e2e.cases import CHAT, COMPLETIONS, GENERATES, USAGE, USER, Case
from tests.e2e.client import Answer, Application
from tests.e2e.engine import MAX_MODEL_LEN, SLOTS
from tests.e2e.environment import MODEL
from tests.e2e.gateway import Gateway, gateway
from tests.e2e.journal import Tokens
from tests.oracle.journal import Line
from tests.support import captures
from tests.support.tap import Passed, Tap

HOST = "127.0.0.1"
RECORD_S_MAX = 10
CROWD = 4
"""Rounds of calls made SLOTS at a time, beside the cases made one by one."""

LONG = {"model": MODEL, "max_tokens": 1_500, "ignore_eos": True}
LEFT = {
    "left-chat-stream": Case("", CHAT, "", LONG | USAGE | {"messages": [USER]}),
    "left-completions-stream": Case("", COMPLETIONS, "", LONG | {"prompt": "A river", "stream": True}),
    "left-chat-sized": Case("", CHAT, "", LONG | {"messages": [USER]}),
}
LEFT_AFTER_EVENTS = 4
LEFT_AFTER_S = 1.0


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the session: cases and answers by request id, and what vLLM counted in it."""

    cases: dict[str, Case]
    answers: dict[str, Answer]
    unsealed: list[str]
    counted: Tokens


@dataclasses.dataclass(frozen=True)
class Session:
    """All that was seen."""

    models: list[str]
    ended: Part
    many_choices: Part
    left: Part
    records: dict[str, Line]
    front: dict[str, Passed]
    back: dict[str, Passed]
    exported: subprocess.CompletedProcess[str]


def hold(engine_port: int, directory: pathlib.Path) -> Session:
    """Hold the session with the vLLM at `engine_port`; files go to `directory`."""
    with contextlib.ExitStack() as stack:
        back = stack.enter_context(contextlib.closing(Tap(HOST, engine_port)))
        flags = ("--instance-type", "g6e.xlarge", "--slots", str(SLOTS))
        served = stack.enter_context(gateway(back.port, directory, *flags))
        front = stack.enter_context(contextlib.closing(Tap(HOST, served.port)))
        application = stack.enter_context(Application(front.port, served.key))
        desk = Desk(engine_port, served, front, application)
        models = application.models()
        ended = desk.ended()
        many_choices = desk.many_choices()
        left = desk.left()
        exported = served.weighbridge("export", "--from", "2000-01-01", "--to", "2100-01-01")
        records = journal.records(served.state_dir)
        return Session(
            models, ended, many_choices, left, records, by_request_id(front), by_request_id(back), exported
        )


@dataclasses.dataclass(frozen=True)
class Desk:
    """Where the calls are made, one part after the other."""

    engine_port: int
    gateway: Gateway
    front: Tap
    application: Application

    def ended(self) -> Part:
        """Every case with one choice, one by one; then a crowd of them at once."""
        cases = {f"one-{case.name}": case for case in all_cases() if not has_many_choices(case)}
        crowd = [case for case in cases.values() if is_answered(case)]
        crowd_cases = {f"crowd-{n}-{crowd[n].name}": crowd[n] for n in range(CROWD * SLOTS) if n < len(crowd)}
        return self._part(cases, crowd_cases)

    def many_choices(self) -> Part:
        cases = {f"many-{case.name}": case for case in all_cases() if has_many_choices(case)}
        return self._part(cases, {})

    def left(self) -> Part:
        """Calls that the client leaves: in a stream, and before a sized answer."""
        with self._counting() as counted:
            for request_id, case in LEFT.items():
                if request_id.endswith("stream"):
                    self.application.abandon_stream(case, request_id, LEFT_AFTER_EVENTS)
                else:
                    self.application.abandon_sized(case, request_id, LEFT_AFTER_S)
            self._wait_for_records(LEFT)
        return Part(LEFT, {}, [], counted())

    def _part(self, one_by_one: dict[str, Case], at_once: dict[str, Case]) -> Part:
        unsealed: list[str] = []

        def make(request_id: str, case: Case) -> Answer:
            answer = self._make(request_id, case)
            if answer.status == 200 and request_id not in journal.records(self.gateway.state_dir):
                unsealed.append(request_id)
            return answer

        with self._counting() as counted:
            answers = {request_id: make(request_id, case) for request_id, case in one_by_one.items()}
            with concurrent.futures.ThreadPoolExecutor(SLOTS) as pool:
                for answer in pool.map(make, at_once.keys(), at_once.values()):
                    answers[answer.request_id] = answer
        return Part(one_by_one | at_once, answers, unsealed, counted())

    def _make(self, request_id: str, case: Case) -> Answer:
        """By the SDK where it can say it; it refuses to send what is not a request."""
        if isinstance(case.body, dict) and ("messages" in case.body or "prompt" in case.body):
            return self.application.call(case, request_id)
        headers = (("authorization", f"Bearer {self.gateway.key}"), ("x-request-id", request_id))
        _, response = capture.exchange(HOST, self.front.port, dataclasses.replace(case, headers=headers))
        return Answer(request_id, response.status)

    @contextlib.contextmanager
    def _counting(self) -> collections.abc.Iterator[collections.abc.Callable[[], Tokens]]:
        """Yields what vLLM counted within the block; to be asked after it."""
        before = self._counters()
        after: list[Tokens] = []
        yield lambda: after[0] - before
        after.append(self._counters())

    def _counters(self) -> Tokens:
        totals = capture.settled(HOST, self.engine_port)
        return Tokens(int(totals["vllm:prompt_tokens_total"]), int(totals["vllm:generation_tokens_total"]))

    def _wait_for_records(self, request_ids: collections.abc.Iterable[str]) -> None:
        deadline = time.monotonic() + RECORD_S_MAX
        while missing := set(request_ids) - journal.records(self.gateway.state_dir).keys():
            assert time.monotonic() < deadline, f"no record of {missing} within {RECORD_S_MAX} s"
            time.sleep(0.05)


def all_cases() -> list[Case]:
    """The captured cases that ask for tokens, rightly or not."""
    every = cases.openai_cases(MODEL, MAX_MODEL_LEN)
    return [case for case in every if case.path in GENERATES and case.method == "POST"]


def has_many_choices(case: Case) -> bool:
    return isinstance(case.body, dict) and case.body.get("n", 1) > 1


def is_answered(case: Case) -> bool:
    return bool(captures.index()[case.name]["status"] == 200)


def by_request_id(tap: Tap) -> dict[str, Passed]:
    found = {}
    for passed in tap.passed():
        if request_id := passed.header("x-request-id"):
            assert request_id not in found, f"{request_id} was sent twice"
            found[request_id] = passed
    return found
