"""The other APIs of the real vLLM through the gateway: the same bytes, and the tokens that its own counters counted.

One gateway before the model that generates, and one each before the same model made to embed and to classify.
"""

import collections.abc
import contextlib
import dataclasses
import json
import pathlib

import pytest

from tests.e2e import capture, cases, environment, journal
from tests.e2e.cases import DETOKENIZE, TOKENIZE, Case
from tests.e2e.engine import CLASSIFYING, MAX_MODEL_LEN, POOLING, SLOTS, engine
from tests.e2e.environment import MODEL
from tests.e2e.gateway import gateway
from tests.e2e.journal import Tokens
from tests.oracle.journal import Line
from tests.support.captures import Response
from tests.support.tap import Passed, Tap

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1_800)]

Finding = collections.abc.Callable[[str], None]
HOST = "127.0.0.1"
ANTHROPIC = (cases.MESSAGES, cases.COUNT_TOKENS)
NO_TOKENS = (cases.COUNT_TOKENS, TOKENIZE, DETOKENIZE)


@dataclasses.dataclass(frozen=True)
class Held:
    """What was seen by all sides. counted: by vLLM, of all calls together."""

    cases: dict[str, Case]
    answers: dict[str, Response]
    back: dict[str, Passed]
    records: dict[str, Line]
    counted: Tokens


@pytest.fixture(scope="module")
def generating(engine_port: int, tmp_path_factory: pytest.TempPathFactory) -> Held:
    return hold(engine_port, tmp_path_factory.mktemp("apis"), cases.api_cases(MODEL, MAX_MODEL_LEN))


@pytest.fixture(scope="module")
def pooling(engine_port: int, tmp_path_factory: pytest.TempPathFactory) -> Held:
    """engine_port: the other engine is up by then, so that the two do not start at once."""
    assert engine_port
    directory = tmp_path_factory.mktemp("pooling")
    with engine(environment.default(), directory / "vllm.log", POOLING) as port:
        return hold(port, directory, cases.pooling_cases(MODEL, MAX_MODEL_LEN))


@pytest.fixture(scope="module")
def classifying(engine_port: int, tmp_path_factory: pytest.TempPathFactory) -> Held:
    assert engine_port
    directory = tmp_path_factory.mktemp("classifying")
    with engine(environment.default(), directory / "vllm.log", CLASSIFYING) as port:
        return hold(port, directory, cases.classifying_cases(MODEL, MAX_MODEL_LEN))


@pytest.fixture(params=["generating", "pooling", "classifying"])
def held(request: pytest.FixtureRequest) -> Held:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Held)
    return found


def hold(engine_port: int, directory: pathlib.Path, every: list[Case]) -> Held:
    """Make each POST of `every` through a gateway of its own, one by one."""
    asked = {case.name: case for case in every if case.method == "POST"}
    with contextlib.ExitStack() as stack:
        back = stack.enter_context(contextlib.closing(Tap(HOST, engine_port)))
        flags = ("--instance-type", "g6e.xlarge", "--slots", str(SLOTS))
        served = stack.enter_context(gateway(back.port, directory, *flags))
        before = counters(engine_port)
        answers = {}
        for name, case in asked.items():
            headers = (("authorization", f"Bearer {served.key}"), ("x-request-id", name))
            _, answers[name] = capture.exchange(HOST, served.port, dataclasses.replace(case, headers=headers))
        counted = counters(engine_port) - before
        records = journal.records(served.state_dir)
        passed = {request_id: each for each in back.passed() if (request_id := each.header("x-request-id"))}
        return Held(asked, answers, passed, records, counted)


def counters(engine_port: int) -> Tokens:
    totals = capture.settled(HOST, engine_port)
    return Tokens(int(totals["vllm:prompt_tokens_total"]), int(totals["vllm:generation_tokens_total"]))


def served(held: Held) -> dict[str, Response]:
    return {name: answer for name, answer in held.answers.items() if answer.status == 200}


def test_the_answers_bytes_are_the_engines(held: Held, finding: Finding) -> None:
    compared = 0
    for name, answer in served(held).items():
        theirs = held.back[name].response
        assert theirs is not None, name
        assert (answer.body, answer.content_type) == (theirs.body, theirs.content_type), name
        compared += len(answer.body)
    finding(f"other APIs: bytes of {len(served(held))} answers compared: {compared}, all equal")


def test_the_difference_to_the_engines_own_counters_is_zero(held: Held, finding: Finding) -> None:
    ours = journal.tokens(held.records[name] for name in served(held))
    finding(f"other APIs: tokens in the records: {ours}; counted by vLLM: {held.counted}")
    assert held.counted - ours == Tokens(0, 0)


def test_every_answer_has_one_record_that_says_so(held: Held) -> None:
    for name in served(held):
        call = held.records[name]
        assert (call["outcome"], call["status"]) == ("completed", 200), name
        assert call["usage"]["source"] == "reported", name
        if held.cases[name].path in NO_TOKENS:
            assert call["usage"]["prompt_tokens"] == call["usage"]["completion_tokens"] == 0


def test_a_request_at_fault_is_told_so_in_the_apis_own_shape(held: Held) -> None:
    for name, answer in held.answers.items():
        if answer.status == 200:
            continue
        told = json.loads(answer.body)
        assert 400 <= answer.status < 500, name
        assert told["error"]["message"], name
        if held.cases[name].path in ANTHROPIC:
            assert told["type"] == "error", name
        assert held.records.get(name, {"outcome": "refused"})["outcome"] == "refused", name


def test_cached_prompt_tokens_are_recorded(generating: Held) -> None:
    for name in ("responses_cached", "responses_stream_cached", "messages_cached", "messages_stream_cached"):
        usage = generating.records[name]["usage"]
        assert 0 < usage["cached_prompt_tokens"] < usage["prompt_tokens"]
