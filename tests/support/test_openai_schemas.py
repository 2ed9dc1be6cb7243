"""The judge of answers sees what is wrong, and only that."""

import copy
import json

import pytest

from tests.support import captures
from tests.support.openai_schemas import Violation, violations

CHAT = "CreateChatCompletionResponse"
EVENT = "ResponseStreamEvent"


@pytest.fixture(scope="module")
def chat() -> dict:
    """An answer without a flaw: a recorded one less what vLLM adds."""
    answer = json.loads(captures.load("chat_tool").response.body)
    for choice in answer["choices"]:
        choice["message"] = {
            name: value for name, value in choice["message"].items() if value is not None or name == "refusal"
        } | {"content": None}
    answer["usage"] = {name: value for name, value in answer["usage"].items() if value is not None}
    return answer


def test_a_good_answer_has_no_violation(chat: dict) -> None:
    assert violations(CHAT, chat) == set()


@pytest.mark.parametrize("field", ["id", "object", "created", "model", "choices"])
def test_each_required_field_is_missed(chat: dict, field: str) -> None:
    assert violations(CHAT, {name: value for name, value in chat.items() if name != field}) == {
        Violation(CHAT, field, "missing")
    }


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        ("created", "soon", "string"),
        ("id", None, "null"),
        ("object", "chat.completion.chunk", "chat.completion.chunk"),
        ("choices", {}, "object"),
        ("usage", [], "array"),
        ("model", 1.5, "number"),
        ("system_fingerprint", True, "boolean"),
    ],
)
def test_wrong_values_are_named(chat: dict, field: str, value: object, found: str) -> None:
    assert violations(CHAT, chat | {field: value}) == {Violation(CHAT, field, found)}


def test_the_member_of_a_union_that_was_meant_is_judged(chat: dict) -> None:
    broken = copy.deepcopy(chat)
    del broken["choices"][0]["message"]["tool_calls"][0]["function"]["name"]
    assert violations(CHAT, broken) == {
        Violation(CHAT, "choices[].message.tool_calls[].function.name", "missing")
    }


def test_an_event_of_no_known_type_is_one_violation() -> None:
    assert violations(EVENT, {"type": "response.surprise"}) == {Violation(EVENT, "", "object")}


def test_an_event_is_judged_by_its_type() -> None:
    event = {"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "content_index": 0,
             "delta": "hi", "sequence_number": 1}  # fmt: skip
    assert violations(EVENT, event) == {Violation(EVENT, "logprobs", "missing")}
    assert violations(EVENT, event | {"logprobs": []}) == set()
