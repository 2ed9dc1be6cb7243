"""Responses that a simulated server keeps: continued as vLLM continues them, told as it tells them, bounded."""

import json

import pytest

from backends.simulator.answers import Choice, Heading, Usage
from backends.simulator.apis.responses import ResponsesBody
from backends.simulator.asks import Served
from backends.simulator.kept import Kept, KeptResponses
from backends.simulator.refusals import Refused
from backends.simulator.tokens import Vocabulary

USAGE = Usage(prompt_tokens=3, completion_tokens=2)


def served(responses_max: int = 9) -> Served:
    return Served(
        model="m1", max_model_len=100, vocabulary=Vocabulary(), responses=KeptResponses(responses_max)
    )


def answered(body: ResponsesBody, model: Served, response_id: str, text: str = "said it") -> bytes:
    """The body of the answer to `body`."""
    heading = Heading(id=response_id, created=1, model="m1", key="k")
    choice = Choice(texts=[text], finish_reason="stop")
    return body.writer(heading, body.ask(model), model).sized([choice], USAGE)


def test_it_is_shown_as_it_was_answered() -> None:
    model = served()
    body = answered(ResponsesBody(input="hi"), model, "resp_1")
    assert model.responses.get("resp_1").body == body
    assert json.loads(body)["id"] == "resp_1"


@pytest.mark.parametrize("store", [False, None])
def test_it_is_kept_only_if_it_may_be(store: bool | None) -> None:
    model = served()
    answered(ResponsesBody(input="hi", store=store), model, "resp_1")
    with pytest.raises(Refused):
        model.responses.get("resp_1")


def test_a_conversation_goes_on_without_its_earlier_instructions() -> None:
    model = served()
    answered(ResponsesBody(input="one", instructions="be brief"), model, "resp_1", "two")
    body = ResponsesBody(input="three", instructions="be long", previous_response_id="resp_1")
    answered(body, model, "resp_2", "four")
    assert model.responses.get("resp_2").said == (
        ("system", "be long"), ("user", "one"), ("assistant", "two"), ("user", "three"), ("assistant", "four"),
    )  # fmt: skip


@pytest.mark.parametrize("take", ["get", "cancel"])
def test_what_is_not_kept(take: str) -> None:
    with pytest.raises(Refused) as caught:
        getattr(KeptResponses(9), take)("resp_x")
    refused = caught.value
    assert (refused.status, refused.message, refused.type, refused.param) == (
        404, "Response with id 'resp_x' not found.", "invalid_request_error", "response_id",
    )  # fmt: skip


def test_nothing_whole_can_be_cancelled() -> None:
    kept = KeptResponses(9)
    kept.keep("resp_1", Kept(b"{}", ()))
    with pytest.raises(Refused, match="Cannot cancel a synchronous response") as caught:
        kept.cancel("resp_1")
    assert (caught.value.status, caught.value.param) == (400, "response_id")


@pytest.mark.parametrize("responses_max", [0, 1, 3])
def test_the_oldest_go_first(responses_max: int) -> None:
    kept = KeptResponses(responses_max)
    for number in range(5):
        kept.keep(f"resp_{number}", Kept(b"%d" % number, ()))
    for number in range(5):
        if number < 5 - responses_max:
            with pytest.raises(Refused):
                kept.get(f"resp_{number}")
        else:
            assert kept.get(f"resp_{number}").body == b"%d" % number
