"""What the comparison with the real one (test_simulator_matches_vllm.py) cannot see: odd names, values, ends."""

import base64
import json
import math
import struct
from collections.abc import Iterable

import pytest

from backends.simulator import embeddings, logprobs
from backends.simulator.answers import Choice, Heading, Piece, StreamWriter, Usage, models_body, openai_error
from backends.simulator.apis.chat import ChatWriter, ToolWriter
from backends.simulator.apis.chunks import DONE
from backends.simulator.apis.completions import CompletionWriter
from backends.simulator.apis.messages import MessagesBody, MessageWriter
from backends.simulator.apis.pooling import ClassWriter, EmbeddingWriter, RerankWriter, scores
from backends.simulator.apis.responses import ResponsesBody, ResponseWriter
from backends.simulator.asks import Ask, Served, StreamOptions
from backends.simulator.forms import ToolCall
from backends.simulator.kept import KeptResponses
from backends.simulator.refusals import Refused, read
from backends.simulator.tokens import Vocabulary, tokenize

HEADING = Heading(id='chatcmpl-"é\\', created=7, model='m"ü', key="00")
USAGE = Usage(prompt_tokens=20, completion_tokens=3, cached_tokens=16)
ODD = 'say "é"\n'
CALL = ToolCall(name='we"igh', arguments='{"a": 1}', named=False)
FAILED = Refused(500, 'no "é"', "InternalServerError")


def options(*, usage: bool, continuous: bool = False) -> StreamOptions:
    return StreamOptions(include_usage=usage, continuous_usage_stats=continuous)


def chat(given: StreamOptions | None = None) -> ChatWriter:
    return ChatWriter(HEADING, given)


def completion(given: StreamOptions | None = None, echo: str = "") -> CompletionWriter:
    return CompletionWriter(HEADING, given, None, [echo])


def response(call: ToolCall | None = None, **fields: object) -> ResponseWriter:
    body = read(json.dumps({"input": "x"} | fields).encode(), ResponsesBody)
    shown = body._shown(HEADING, Ask(prompts=(), max_tokens=9))
    return ResponseWriter(HEADING, shown, call, keep=lambda _text, _body: None)


def piece(
    text: str, finish_reason: str | None = None, stop_reason: str | None = None, index: int = 0
) -> Piece:
    usage = Usage(prompt_tokens=20, completion_tokens=2)
    return Piece(index=index, text=text, finish_reason=finish_reason, stop_reason=stop_reason, usage=usage)


def choice(*texts: str, finish_reason: str = "stop") -> Choice:
    return Choice(texts=list(texts), finish_reason=finish_reason)


def data(events: Iterable[bytes]) -> list[dict]:
    """The JSON of each event; an event is whole, and named by its type if it has a name."""
    found = []
    for event in events:
        name, _, rest = event.rpartition(b"data: ")
        assert event.endswith(b"}\n\n")
        found.append(json.loads(rest))
        assert name in (b"", b"event: " + found[-1].get("type", "").encode() + b"\n")
    return found


def stream(writer: StreamWriter, *pieces: Piece) -> list[dict]:
    events = [*writer.begin([Usage(prompt_tokens=20, completion_tokens=0)])]
    for each in pieces:
        events += writer.token(each)
    return data(event for event in [*events, *writer.end(USAGE)] if event != DONE)


@pytest.mark.parametrize("writer", [chat(), completion(), MessageWriter(HEADING, None), response()])
def test_names_and_texts_are_quoted(writer: StreamWriter) -> None:
    sized = json.loads(writer.sized([choice("say ", '"é"\n')], USAGE))
    assert (sized["id"], sized["model"]) == (HEADING.id, HEADING.model)
    assert json.dumps(ODD) in json.dumps(sized)
    events = stream(writer, piece(ODD), piece("", "stop"))
    assert any(json.dumps(ODD) in json.dumps(event) for event in events)


@pytest.mark.parametrize("make", [chat, completion])
def test_the_last_message_of_a_stream_has_the_fingerprint(make: type[ChatWriter]) -> None:
    without, with_usage = make(options(usage=False)), make(options(usage=True))
    *others, last = stream(without, piece("x"), piece("y", "stop"))
    assert last["system_fingerprint"] == HEADING.fingerprint
    assert not any("system_fingerprint" in event for event in others)
    *others, last = stream(with_usage, piece("x"), piece("y", "stop"))
    assert (last["system_fingerprint"], last["choices"]) == (HEADING.fingerprint, [])
    assert not any("system_fingerprint" in event for event in others)


@pytest.mark.parametrize("make", [chat, completion])
def test_usage(make: type[ChatWriter]) -> None:
    writer = make(options(usage=True))
    sized = json.loads(writer.sized([choice("", finish_reason="length")], USAGE))
    for usage in (sized["usage"], stream(writer, piece("x", "stop"))[-1]["usage"]):
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (20, 3, 23)
        assert usage["prompt_tokens_details"]["cached_tokens"] == 16


@pytest.mark.parametrize("make", [chat, completion])
def test_running_usage_is_of_the_choice_and_only_with_a_usage_event(make: type[ChatWriter]) -> None:
    *others, last = stream(make(options(usage=True, continuous=True)), piece("x"), piece("y", "stop"))
    assert all(event["usage"]["total_tokens"] in (20, 22) for event in others)
    assert last["usage"]["total_tokens"] == 23
    events = stream(make(options(usage=False, continuous=True)), piece("x"), piece("y", "stop"))
    assert not any("usage" in event for event in events)


def test_a_token_that_says_nothing_yet_is_an_event_of_completions_only() -> None:
    assert list(chat().token(piece(""))) == []
    assert len(data(completion().token(piece("")))) == 1
    assert list(response().token(piece(""))) == []
    assert list(MessageWriter(HEADING, None).token(piece(""))) == []


def test_a_stop_string_is_told() -> None:
    assert stream(chat(), piece("x", "stop", ' "s'))[-1]["choices"][0]["stop_reason"] == ' "s'
    assert stream(completion(), piece("x", "stop", ' "s'))[-1]["choices"][0]["stop_reason"] == ' "s'
    delta = stream(MessageWriter(HEADING, None), piece("x", "stop", ' "s'))[-2]["delta"]
    assert delta == {"stop_reason": "stop_sequence", "stop_sequence": ' "s'}


def test_an_echo_is_said_once_and_moves_offsets() -> None:
    writer = CompletionWriter(HEADING, None, 1, ["one "])
    first, second = data([*writer.token(piece("two")), *writer.token(piece(" three", "stop"))])
    assert [event["choices"][0]["text"] for event in (first, second)] == ["one two", " three"]
    assert [event["choices"][0]["logprobs"]["text_offset"] for event in (first, second)] == [[4], [7]]
    sized = json.loads(CompletionWriter(HEADING, None, 1, ["one "]).sized([choice("two", " three")], USAGE))
    assert sized["choices"][0]["text"] == "one two three"
    assert sized["choices"][0]["logprobs"]["text_offset"] == [4, 7]


@pytest.mark.parametrize(("named", "finish"), [(True, "stop"), (False, "tool_calls")])
def test_a_call_of_a_tool_ends_as_it_was_demanded(named: bool, finish: str) -> None:
    call = ToolCall(name=CALL.name, arguments=CALL.arguments, named=named)
    writer = ToolWriter(HEADING, None, call)
    sized = json.loads(writer.sized([choice('{"a"', ": 1}")], USAGE))["choices"][0]
    function = {"name": CALL.name, "arguments": CALL.arguments}
    assert (sized["message"]["tool_calls"][0]["function"], sized["finish_reason"]) == (function, finish)
    _role, name, *arguments, last = stream(writer, piece('{"a"'), piece(": 1}"), piece("", "stop"))
    assert name["choices"][0]["delta"]["tool_calls"][0]["function"] == {"name": CALL.name}
    said = [event["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"] for event in arguments]
    assert said == ['{"a"', ": 1}"]
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, finish)


def test_a_call_that_was_cut_says_so() -> None:
    *_, arguments, last = stream(ToolWriter(HEADING, None, CALL), piece('{"a"', "length"))
    assert arguments["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"] == '{"a"'
    assert last["choices"][0]["finish_reason"] == "length"
    message = json.loads(MessageWriter(HEADING, CALL).sized([choice('{"a"', finish_reason="length")], USAGE))
    assert (message["content"][0]["input"], message["stop_reason"]) == ({}, "max_tokens")


def test_a_message_counts_cached_tokens_apart_in_the_end() -> None:
    first, *_, delta, stop = stream(MessageWriter(HEADING, None), piece("x"), piece("", "stop"))
    assert first["message"]["usage"] == {"input_tokens": 20, "output_tokens": 0}
    assert (delta["usage"]["input_tokens"], delta["usage"]["cache_read_input_tokens"]) == (4, 16)
    assert stop == {"type": "message_stop"}


def test_the_use_of_a_tool_is_one_block() -> None:
    events = stream(MessageWriter(HEADING, CALL), piece('{"a"'), piece(": 1}"), piece("", "stop"))
    assert [event["type"] for event in events] == [
        *("message_start", "content_block_start", "content_block_delta", "content_block_delta"),
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    assert "".join(event["delta"]["partial_json"] for event in events[2:4]) == CALL.arguments


def test_a_message_with_nothing_said_has_no_block() -> None:
    events = stream(MessageWriter(HEADING, None), piece("", "stop"))
    assert [event["type"] for event in events] == ["message_start", "message_delta", "message_stop"]


def test_arguments_that_are_no_object_are_none() -> None:
    message = json.loads(MessageWriter(HEADING, CALL).sized([choice('"text"')], USAGE))
    assert message["content"][0]["input"] == {}


@pytest.mark.parametrize(
    ("finish_reason", "status", "details"),
    [("stop", "completed", None), ("length", "incomplete", {"reason": "max_output_tokens"})],
)
def test_a_response_that_was_cut_is_incomplete_in_an_event_called_completed(
    finish_reason: str, status: str, details: object
) -> None:
    last = stream(response(), piece("x"), piece("y", finish_reason))[-1]
    assert last["type"] == "response.completed"
    sized = json.loads(response().sized([choice("x", "y", finish_reason=finish_reason)], USAGE))
    for shown in (last["response"], sized):
        assert (shown["status"], shown["incomplete_details"]) == (status, details)
        assert shown["output"][0]["content"][0]["text"] == "xy"
        assert shown["usage"]["total_tokens"] == 23


def test_the_events_of_a_response_are_numbered() -> None:
    events = stream(response(CALL), piece("{"), piece("}"), piece("", "stop"))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_a_response_with_nothing_said_has_no_output() -> None:
    *_, last = events = stream(response(), piece("", "stop"))
    assert [event["type"] for event in events] == [
        "response.created", "response.in_progress", "response.completed",
    ]  # fmt: skip
    assert last["response"]["output"] == []


def test_a_response_shows_what_was_asked() -> None:
    tool, search = {"type": "function", "name": "a"}, {"type": "web_search", "x": 1}
    shown = json.loads(
        response(tools=[tool, search], text={"format": {"type": "text"}}).sized([choice("x")], USAGE)
    )
    assert [each["type"] for each in shown["tools"]] == ["function", "web_search"]
    assert shown["tools"][1] == search
    assert (shown["tool_choice"], shown["text"]) == ("auto", {"format": {"type": "text"}, "verbosity": None})
    assert json.loads(response(tool_choice="auto").sized([choice("x")], USAGE))["tool_choice"] == "none"


def test_a_failure_in_a_stream_is_said_as_each_api_can() -> None:
    error, done = chat().fail(FAILED)
    assert json.loads(error[6:]) == json.loads(openai_error(FAILED))
    assert done == DONE
    (said,) = data(MessageWriter(HEADING, None).fail(FAILED))
    assert said == {"type": "error", "error": {"type": "internal_error", "message": 'no "é"'}}
    assert response().fail(FAILED) is None


def test_embeddings_are_of_length_one_and_near_for_like_texts() -> None:
    one, like, unlike = (embeddings.embed(tokenize(text)) for text in ("a river", "the river", "lorry"))
    for vector in (one, like, unlike):
        assert math.isclose(sum(value * value for value in vector), 1, abs_tol=1e-6)
    assert embeddings.cosine(one, like) > embeddings.cosine(one, unlike)
    assert len(embeddings.embed(["x"], 8)) == 8


def test_base64_holds_the_floats() -> None:
    floats, packed = (
        json.loads(EmbeddingWriter(HEADING, [["a", "river"]], form, 64).sized([], USAGE))["data"][0][
            "embedding"
        ]
        for form in ("float", "base64")
    )
    assert list(struct.unpack("<64f", base64.b64decode(packed))) == floats


def test_a_class_is_the_likeliest() -> None:
    prompts = [tokenize(text) for text in ("a river", "lorry", "the road", "salt")]
    shown, raw = (
        json.loads(ClassWriter(HEADING, prompts, activated=activated).sized([], USAGE))["data"]
        for activated in (True, False)
    )
    assert {each["label"] for each in shown} == {"LABEL_0", "LABEL_1"}
    for each, logits in zip(shown, raw, strict=True):
        assert math.isclose(sum(each["probs"]), 1)
        assert math.isclose(
            math.log(each["probs"][0] / each["probs"][1]), logits["probs"][0] - logits["probs"][1]
        )
        assert max(each["probs"]) == each["probs"][int(each["label"][-1])]
        assert (each["label"], each["num_classes"]) == (logits["label"], 2)


@pytest.mark.parametrize(("top_n", "shown"), [(0, 3), (2, 2), (9, 3)])
def test_rerank_shows_the_best_first(top_n: int, shown: int) -> None:
    documents = ["lorry", "the river", "river"]
    prompts = [tokenize(text) for text in ("river", *documents)]
    results = json.loads(RerankWriter(HEADING, prompts, documents, top_n).sized([], USAGE))["results"]
    assert len(results) == shown
    assert [result["document"]["text"] for result in results[:2]] == ["river", "the river"]
    assert results[0]["index"] == 2
    assert math.isclose(results[0]["relevance_score"], 1, abs_tol=1e-6)


def test_scores_are_of_pairs_or_of_one_with_many() -> None:
    one, two = ["river"], ["lorry"]
    assert scores([one], [one, two]) == scores([one, one], [one, two])


def test_log_probabilities_fall_and_the_end_token_has_one() -> None:
    (entry,) = logprobs.of_chat([" axle"], 3)["content"]
    values = [each["logprob"] for each in entry["top_logprobs"]]
    assert values == sorted(values, reverse=True)
    assert values[0] == entry["logprob"] < 0
    assert len({each["token"] for each in entry["top_logprobs"]}) == 3
    assert logprobs.of_chat(["x"], 0)["content"][0]["top_logprobs"] == []
    assert logprobs.of_completion(["x", ""], 0, 0)["tokens"] == ["x", "<|eot_id|>"]


def test_a_token_can_be_read_back_by_its_number() -> None:
    vocabulary = Vocabulary(tokens_max=3)
    numbers = [vocabulary.number(token) for token in tokenize("Name rivers.")]
    assert vocabulary.text(numbers) == "Name rivers."
    assert vocabulary.text([-1]) == "<-1>"
    assert vocabulary.text([]) == ""
    vocabulary.number("more")
    assert vocabulary.text(numbers[:1]) == f"<{numbers[0]}>"  # forgotten


def test_other_bodies() -> None:
    assert json.loads(openai_error(FAILED))["error"]["message"] == 'no "é"'
    assert json.loads(models_body('m"ü', 2048, 7))["data"][0]["id"] == 'm"ü'
    message = MessagesBody(model='m"ü', messages=[], max_tokens=1)
    with pytest.raises(Refused):
        message.ask(Served(model='m"ü', max_model_len=9, vocabulary=Vocabulary(), responses=KeptResponses(9)))
