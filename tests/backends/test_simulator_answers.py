"""What the comparison with the real one (test_simulator_matches_vllm.py) cannot see: odd names and values."""

import json

import pytest

from backends.simulator.answers import (
    ChatWriter,
    Choice,
    CompletionWriter,
    Heading,
    Usage,
    error_body,
    models_body,
)

HEADING = Heading(id='chatcmpl-"é\\', created=7, model='m"ü')
USAGE = Usage(prompt_tokens=20, completion_tokens=3, cached_tokens=16)
WRITERS = [ChatWriter, CompletionWriter]


def data(event: bytes) -> dict:
    assert event.startswith(b"data: ")
    assert event.endswith(b"}\n\n")
    return json.loads(event[6:])


@pytest.mark.parametrize("writer_type", WRITERS)
def test_names_are_quoted(writer_type: type[ChatWriter] | type[CompletionWriter]) -> None:
    writer = writer_type(HEADING, include_usage=False)
    sized = json.loads(writer.sized([Choice(text='say "é"\n', finish_reason="stop")], USAGE))
    event = data(writer.event(0, 'say "é"\n', None))
    for shown in (sized, event):
        assert (shown["id"], shown["created"], shown["model"]) == (HEADING.id, 7, HEADING.model)
    choice = event["choices"][0]
    assert choice.get("text", choice.get("delta", {}).get("content")) == 'say "é"\n'


@pytest.mark.parametrize("writer_type", WRITERS)
def test_the_last_message_of_a_stream_has_the_fingerprint(
    writer_type: type[ChatWriter] | type[CompletionWriter],
) -> None:
    without, with_usage = (writer_type(HEADING, include_usage=asked) for asked in (False, True))
    assert "system_fingerprint" not in data(without.event(0, "x", None))
    assert data(without.event(0, "x", "stop"))["system_fingerprint"] == HEADING.fingerprint
    assert "system_fingerprint" not in data(with_usage.event(0, "x", "stop"))
    usage_event = data(with_usage.usage_event(USAGE))
    assert usage_event["system_fingerprint"] == HEADING.fingerprint
    assert usage_event["choices"] == []


@pytest.mark.parametrize("writer_type", WRITERS)
def test_usage(writer_type: type[ChatWriter] | type[CompletionWriter]) -> None:
    writer = writer_type(HEADING, include_usage=True)
    sized = json.loads(writer.sized([Choice(text="", finish_reason="length")] * 2, USAGE))
    assert [choice["index"] for choice in sized["choices"]] == [0, 1]
    for usage in (sized["usage"], data(writer.usage_event(USAGE))["usage"]):
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (20, 3, 23)
        assert usage["prompt_tokens_details"]["cached_tokens"] == 16


def test_only_a_chat_has_an_opening() -> None:
    assert data(ChatWriter(HEADING, include_usage=False).opening(1))["choices"][0]["index"] == 1
    assert CompletionWriter(HEADING, include_usage=False).opening(1) == b""


def test_other_bodies() -> None:
    assert json.loads(error_body(404, 'no "é"', "NotFoundError", "model"))["error"]["message"] == 'no "é"'
    assert json.loads(models_body('m"ü', 2048, 7))["data"][0]["id"] == 'm"ü'
