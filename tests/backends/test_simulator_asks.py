"""Which requests are served, and as what; the captures show the words of refusals (test_simulator_matches_vllm.py)."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.simulator.answers import Choice, Heading, Usage
from backends.simulator.apis.chat import ChatBody
from backends.simulator.apis.completions import CompletionBody
from backends.simulator.apis.messages import CountTokensBody, MessagesBody
from backends.simulator.apis.pooling import ClassifyBody, EmbeddingsBody, PoolingBody, RerankBody, ScoreBody
from backends.simulator.apis.responses import ResponsesBody
from backends.simulator.apis.tokenizer import DetokenizeBody, TokenizeBody
from backends.simulator.asks import Ask, Body, Served
from backends.simulator.kept import KeptResponses
from backends.simulator.refusals import Refused, read
from backends.simulator.tokens import Vocabulary

SERVED = Served(model="m1", max_model_len=100, vocabulary=Vocabulary(), responses=KeptResponses(9))
HEADING = Heading(id="id-1", created=7, model="m1", key="00")
USER = {"role": "user", "content": "hi there"}
TOOL = {"name": "weigh", "parameters": {"type": "object", "properties": {"load": {"type": "integer"}}}}
OTHER = {"name": "seal", "parameters": {"type": "object"}}
ANTHROPIC = {"name": "weigh", "input_schema": TOOL["parameters"]}
OFFERED = [{"type": "function", "function": TOOL}, {"type": "function", "function": OTHER}]

LEAST: dict[type[Body], dict[str, object]] = {
    ChatBody: {"messages": [USER]},
    CompletionBody: {"prompt": "one two"},
    ResponsesBody: {"input": "hi there"},
    MessagesBody: {"model": "m1", "messages": [USER], "max_tokens": 5},
    CountTokensBody: {"model": "m1", "messages": [USER]},
    EmbeddingsBody: {"input": "one two"},
    PoolingBody: {"input": "one two"},
    ClassifyBody: {"input": "one two"},
    RerankBody: {"query": "one", "documents": ["two", "three four"]},
    ScoreBody: {"text_1": "one", "text_2": ["two", "three four"]},
    TokenizeBody: {"prompt": "one two"},
    DetokenizeBody: {"tokens": [1, 2]},
}
"""Fields without which there is no request."""


def ask(body_type: type[Body], max_model_len: int = 100, **fields: object) -> Ask:
    body = read(json.dumps(LEAST[body_type] | fields).encode(), body_type)
    return body.ask(msgspec.structs.replace(SERVED, max_model_len=max_model_len))


def refusal(body_type: type[Body], **fields: object) -> Refused:
    with pytest.raises(Refused) as caught:
        ask(body_type, **fields)
    return caught.value


def answer(body: Body, asked: Ask) -> dict:
    """The sized answer, with what the plans say."""
    plans = [asked.plan(prompt, number) for prompt in asked.prompts for number in range(asked.n)]
    choices = [
        Choice(texts=[next(plan.texts, "") for _ in range(plan.length)], finish_reason=plan.finish_reason)
        for plan in plans
    ]
    usage = Usage(prompt_tokens=1, completion_tokens=1)
    return json.loads(body.writer(HEADING, asked, SERVED).sized(choices, usage))


@pytest.mark.parametrize(("body_type", "least"), LEAST.items())
def test_the_least_that_may_be_asked_is_answered(body_type: type[Body], least: dict[str, object]) -> None:
    body = read(json.dumps(least).encode(), body_type)
    assert not body.streams
    assert answer(body, body.ask(SERVED))


def test_defaults_of_a_chat() -> None:
    prompt = ask(ChatBody).prompts[0]
    assert ask(ChatBody) == Ask(
        prompts=(prompt,), max_tokens=100 - len(prompt)
    )  # what the context has room for
    assert ask(CompletionBody).max_tokens == 16


@pytest.mark.parametrize("body_type", [ChatBody, CompletionBody])
def test_null_is_as_good_as_absent(body_type: type[Body]) -> None:
    names = (
        *("model", "n", "max_tokens", "min_tokens", "ignore_eos", "stream", "stream_options", "cache_salt"),
        *("stop", "logprobs", "structured_outputs"),
    )
    nulls = dict.fromkeys(names)
    assert ask(body_type, **nulls) == ask(body_type)
    assert ask(body_type, stream=True, stream_options={"include_usage": None}) == ask(body_type, stream=True)


@pytest.mark.parametrize(
    ("body_type", "fields", "tokens"),
    [
        (ChatBody, {"max_tokens": 7}, 7),
        (ChatBody, {"max_tokens": 7, "max_completion_tokens": 5}, 5),
        (ChatBody, {"max_tokens": 1_000}, 100 - 10),  # cut to the context's rest
        (ResponsesBody, {"max_output_tokens": 7}, 7),
        (ResponsesBody, {}, 100 - 10),
        (MessagesBody, {"max_tokens": 7}, 7),
    ],
)
def test_max_tokens(body_type: type[Body], fields: dict[str, int], tokens: int) -> None:
    assert ask(body_type, **fields).max_tokens == tokens


@pytest.mark.parametrize("body_type", [CompletionBody, EmbeddingsBody])
@pytest.mark.parametrize(
    ("prompt", "lengths"),
    [
        ("one two", [2]),
        (["one two", "three"], [2, 1]),
        ([5, 6, 7], [3]),
        ([[5, 6], [7]], [2, 1]),
        (["one", 7], [1, 1]),
        ("   ", [1]),
        (["a", " "], [1, 1]),
    ],
)
def test_prompts(body_type: type[Body], prompt: object, lengths: list[int]) -> None:
    field = "prompt" if body_type is CompletionBody else "input"
    assert [len(tokens) for tokens in ask(body_type, **{field: prompt}).prompts] == lengths


def test_message_forms_cost_the_same() -> None:
    parts = [{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}, {"type": "image_url"}]
    in_parts = [{"role": "user", "content": parts}]
    prompts = ask(ChatBody).prompts
    assert ask(ChatBody, messages=in_parts).prompts == prompts
    assert ask(MessagesBody, messages=in_parts).prompts == prompts
    assert ask(ResponsesBody, input=in_parts).prompts == prompts
    assert ask(ResponsesBody).prompts == prompts
    assert len(ask(ChatBody, messages=[{"role": "user"}]).prompts[0]) == 8


def test_a_system_prompt_is_a_message() -> None:
    system = [{"role": "system", "content": "be brief"}, USER]
    prompts = ask(ChatBody, messages=system).prompts
    assert ask(MessagesBody, system="be brief").prompts == prompts
    assert ask(MessagesBody, system=[{"type": "text", "text": "be brief"}]).prompts == prompts
    assert ask(ResponsesBody, instructions="be brief").prompts == prompts


def test_what_tools_said_is_a_part_of_the_prompt() -> None:
    result = {"type": "tool_result", "tool_use_id": "1", "content": "one two three"}
    said = [{"role": "user", "content": [result, {"type": "text", "text": "four"}]}]
    assert ask(MessagesBody, messages=said).prompts == ask(
        MessagesBody, messages=[{"role": "user", "content": "one two three four"}]
    ).prompts  # fmt: skip
    items = [
        {"type": "function_call", "name": "weigh", "arguments": "one"},
        {"type": "function_call_output", "output": "two"},
    ]
    as_messages = [{"role": "assistant", "content": "one"}, {"role": "tool", "content": "two"}]
    assert ask(ResponsesBody, input=items).prompts == ask(ChatBody, messages=as_messages).prompts


def test_what_only_reads_generates_nothing() -> None:
    for body_type in (EmbeddingsBody, PoolingBody, ClassifyBody, RerankBody, ScoreBody):
        assert ask(body_type).reads
    assert [len(prompt) for prompt in ask(RerankBody).prompts] == [1, 1, 2]
    assert [len(prompt) for prompt in ask(ScoreBody).prompts] == [1, 1, 2]
    for body_type in (CountTokensBody, TokenizeBody, DetokenizeBody):
        assert ask(body_type).prompts == ()


WEIGH, SEAL = '{"load": 1}', "{}"
CALLS: list[tuple[type[Body], dict[str, object], str | None]] = [
    # what is asked, the arguments of the call that the answer will be
    (ChatBody, {"tools": OFFERED}, None),
    (ChatBody, {"tools": OFFERED, "tool_choice": "auto"}, None),
    (ChatBody, {"tools": OFFERED, "tool_choice": "none"}, None),
    (ChatBody, {"tools": OFFERED, "tool_choice": "required"}, WEIGH),
    (ChatBody, {"tools": OFFERED, "tool_choice": {"type": "function", "function": {"name": "seal"}}}, SEAL),
    (ResponsesBody, {"tools": [TOOL | {"type": "function"}]}, None),
    (ResponsesBody, {"tools": [TOOL | {"type": "function"}], "tool_choice": "required"}, WEIGH),
    (ResponsesBody, {"tools": [TOOL | {"type": "function"}, OTHER | {"type": "function"}],
                     "tool_choice": {"type": "function", "name": "seal"}}, SEAL),
    (MessagesBody, {"tools": [ANTHROPIC]}, None),
    (MessagesBody, {"tools": [ANTHROPIC], "tool_choice": {"type": "any"}}, WEIGH),
    (MessagesBody, {"tools": [{"name": "seal"}], "tool_choice": {"type": "tool", "name": "seal"}}, SEAL),
    (MessagesBody, {"tools": [{"name": "seal"}], "tool_choice": {"type": "auto"}}, None),
]  # fmt: skip


@pytest.mark.parametrize(("body_type", "fields", "arguments"), CALLS)
def test_a_tool_is_called_where_it_must_be(
    body_type: type[Body], fields: dict[str, object], arguments: str | None
) -> None:
    assert ask(body_type, **fields).script == arguments


def test_a_required_call_is_of_a_tool_that_was_not_called_yet() -> None:
    def called(*names: str) -> list[dict[str, object]]:
        return [
            USER,
            {"role": "assistant", "tool_calls": [{"id": name, "function": {"name": name}} for name in names]},
        ]

    required = {"tools": OFFERED, "tool_choice": "required"}
    assert ask(ChatBody, messages=called("weigh"), **required).script == SEAL
    assert ask(ChatBody, messages=called("seal"), **required).script == WEIGH
    assert ask(ChatBody, messages=called("weigh", "seal"), **required).script == WEIGH
    use = [{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "weigh", "input": {}}]}]
    tools = [ANTHROPIC, {"name": "seal"}]
    assert ask(MessagesBody, messages=use, tools=tools, tool_choice={"type": "any"}).script == SEAL
    item = [{"type": "function_call", "name": "weigh", "arguments": "{}"}]
    flat = [TOOL | {"type": "function"}, OTHER | {"type": "function"}]
    assert ask(ResponsesBody, input=item, tools=flat, tool_choice="required").script == SEAL


SCHEMA = {"type": "object", "properties": {"load": {"enum": ["sand"]}}}


@pytest.mark.parametrize(
    ("body_type", "fields", "script"),
    [
        (ChatBody, {"response_format": {"type": "text"}}, None),
        (ChatBody, {"response_format": {"type": "json_object"}}, "{}"),
        (ChatBody, {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, '{"load": "sand"}'),
        (ChatBody, {"response_format": {"type": "json_schema"}}, None),
        (ChatBody, {"structured_outputs": {"json": SCHEMA}}, '{"load": "sand"}'),
        (CompletionBody, {"structured_outputs": {"json": json.dumps(SCHEMA)}}, '{"load": "sand"}'),
        (CompletionBody, {"structured_outputs": {"choice": ["sand", "salt"]}}, "sand"),
        (CompletionBody, {"structured_outputs": {"json_object": True}}, "{}"),
        (CompletionBody, {"structured_outputs": {"regex": ".*"}}, None),
        (ResponsesBody, {"text": {"format": {"type": "json_schema", "schema": SCHEMA}}}, '{"load": "sand"}'),
        (ResponsesBody, {"text": {"format": {"type": "json_object"}}}, "{}"),
        (ResponsesBody, {"text": {"verbosity": "low"}}, None),
    ],
)  # fmt: skip
def test_an_answer_that_must_be_json_is(
    body_type: type[Body], fields: dict[str, object], script: str | None
) -> None:
    assert ask(body_type, **fields).script == script


@pytest.mark.parametrize(("given", "stops"), [("a", ("a",)), (["a", "b"], ("a", "b")), ([], ()), (None, ())])
def test_stop_strings(given: object, stops: tuple[str, ...]) -> None:
    assert ask(ChatBody, stop=given).stops == stops
    assert ask(ResponsesBody, stop=given).stops == stops


@pytest.mark.parametrize(
    ("body_type", "fields", "status", "type_", "param"),
    [
        (ChatBody, {"model": "m2"}, 404, "NotFoundError", "model"),
        (ChatBody, {"messages": []}, 400, "BadRequestError", None),
        (ChatBody, {"messages": None}, 400, "Bad Request", "body.messages"),
        (ChatBody, {"messages": [{"content": "x"}]}, 400, "Bad Request", "body.messages.0.role"),
        (ChatBody, {"n": 0}, 400, "BadRequestError", None),
        (ChatBody, {"n": 20_000}, 400, "BadRequestError", None),
        (ChatBody, {"max_tokens": 0}, 400, "BadRequestError", "max_tokens"),
        (ChatBody, {"max_tokens": "many"}, 400, "Bad Request", "body.max_tokens"),
        (ChatBody, {"stream_options": {"include_usage": True}}, 400, "BadRequestError", "stream_options"),
        (ChatBody, {"max_model_len": 9}, 400, "BadRequestError", "input_tokens"),
        (ChatBody, {"max_model_len": 10}, 400, "BadRequestError", "max_tokens"),  # no room for an answer
        (ChatBody, {"stop": ["a", ""]}, 400, "BadRequestError", None),
        (ChatBody, {"tool_choice": "required"}, 400, "BadRequestError", "tool_choice"),
        (ChatBody, {"tool_choice": "sometimes"}, 400, "BadRequestError", "tool_choice"),
        (ChatBody, {"tool_choice": {"function": {"name": "x"}}}, 400, "BadRequestError", "tool_choice"),
        (ChatBody, {"tools": OFFERED, "tool_choice": {"type": "function"}}, 400, "BadRequestError", "tool_choice"),
        (ChatBody, {"structured_outputs": {"json": "{"}}, 400, "BadRequestError", "structured_outputs"),
        (CompletionBody, {"prompt": ""}, 400, "BadRequestError", "prompt"),
        (CompletionBody, {"prompt": None}, 400, "BadRequestError", "prompt"),
        (CompletionBody, {"prompt": []}, 400, "BadRequestError", "prompt"),
        (CompletionBody, {"prompt": [[]]}, 400, "BadRequestError", None),
        (CompletionBody, {"prompt": {"a": 1}}, 400, "Bad Request", "body.prompt"),
        (ResponsesBody, {"input": []}, 400, "BadRequestError", None),
        (ResponsesBody, {"max_output_tokens": 0}, 400, "BadRequestError", "max_output_tokens"),
        (ResponsesBody, {"background": True}, 400, "invalid_request_error", "background"),
        (MessagesBody, {"model": "m2"}, 404, "NotFoundError", "model"),
        (MessagesBody, {"max_tokens": None}, 400, "Bad Request", "body.max_tokens"),
        (MessagesBody, {"stop_sequences": [""]}, 400, "BadRequestError", None),
        (CountTokensBody, {"messages": []}, 400, "BadRequestError", None),
        (EmbeddingsBody, {"model": "m2"}, 404, "NotFoundError", None),
        (EmbeddingsBody, {"dimensions": 65}, 400, "BadRequestError", None),
        (EmbeddingsBody, {"encoding_format": "bytes"}, 400, "Bad Request", "body.encoding_format"),
        (EmbeddingsBody, {"input": "one " * 101}, 400, "BadRequestError", "input_tokens"),
        (PoolingBody, {"model": "m2"}, 404, "NotFoundError", None),
        (PoolingBody, {"dimensions": 8}, 400, "BadRequestError", "dimensions"),
        (PoolingBody, {"task": "token_embed"}, 400, "BadRequestError", "task"),
        (PoolingBody, {"encoding_format": "bytes"}, 400, "Bad Request", "body.encoding_format"),
        (PoolingBody, {"input": None}, 400, "Bad Request", "body.input"),
        (PoolingBody, {"input": None, "messages": []}, 400, "BadRequestError", None),
        (ClassifyBody, {"model": "m2"}, 404, "NotFoundError", None),
        (ClassifyBody, {"input": []}, 400, "BadRequestError", None),
        (ClassifyBody, {"input": "one " * 101}, 400, "BadRequestError", "input_tokens"),
        (ScoreBody, {"text_1": ["a", "b"], "text_2": ["c"]}, 400, "BadRequestError", None),
        (ScoreBody, {"text_1": "a", "text_2": []}, 400, "BadRequestError", None),
        (RerankBody, {"documents": []}, 400, "BadRequestError", None),
        (RerankBody, {"query": ""}, 400, "BadRequestError", None),
        (TokenizeBody, {"prompt": None}, 400, "Bad Request", "body.prompt"),
        (DetokenizeBody, {"model": "m2"}, 404, "NotFoundError", "model"),
    ],
)  # fmt: skip
def test_refused(
    body_type: type[Body], fields: dict[str, object], status: int, type_: str, param: str | None
) -> None:
    error = refusal(body_type, **fields)
    assert (error.status, error.type, error.param) == (status, type_, param)


def test_a_conversation_is_read_as_it_would_be_answered() -> None:
    for body_type in (EmbeddingsBody, PoolingBody, ClassifyBody):
        assert ask(body_type, input=None, messages=[USER]).prompts == ask(ChatBody).prompts


def test_a_chat_that_must_call_a_tool_does() -> None:
    body = read(
        json.dumps({"messages": [USER], "tools": OFFERED, "tool_choice": "required"}).encode(), ChatBody
    )
    (choice,) = answer(body, body.ask(SERVED))["choices"]
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "weigh", "arguments": WEIGH}


def test_errors_have_openais_shape() -> None:
    shown = json.loads(ChatBody.error(refusal(ChatBody, model="m2")))["error"]
    assert (shown["code"], shown["param"]) == (404, "model")


def test_errors_of_messages_have_anthropics_shape_unless_the_body_is_at_fault() -> None:
    shown = json.loads(MessagesBody.error(refusal(MessagesBody, model="m2")))
    assert (shown["type"], shown["error"].keys()) == ("error", {"type", "message"})
    shown = json.loads(MessagesBody.error(refusal(MessagesBody, max_tokens=None)))
    assert shown["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", "body.0"),
        (b'{"a":', "body.5"),
        (b"\xff", None),
        (b"[" * 100_000, None),
        (b'{"x":' + b"[" * 100_000, None),
        (b'{"n":"x",', "body.9"),  # the JSON is at fault before the value is
        (b'{"model":"\\ud800","messages":[]}', None),
        (b"[]", "body"),
        (b"3", "body"),
        (b'{"messages":[],"model":"\xff"}', None),
    ],
)
def test_a_body_that_is_no_request(body: bytes, param: str | None) -> None:
    with pytest.raises(Refused) as caught:
        read(body, ChatBody).ask(SERVED)
    assert (caught.value.status, caught.value.param) == (400, param)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for body_type in LEAST:
        try:
            read(body, body_type).ask(SERVED)
        except Refused as refused:
            assert refused.status in (400, 404)  # noqa: PT017


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(list(LEAST)), st.data())
def test_any_values_are_served_or_refused(body_type: type[Body], data: st.DataObject) -> None:
    """Whatever is served can also be answered."""
    names = st.sampled_from(body_type.__struct_fields__)
    changed = data.draw(st.dictionaries(names, json_values, max_size=4))
    body = json.dumps(LEAST[body_type] | changed).encode()
    try:
        read_body = read(body, body_type)
        served = read_body.ask(SERVED)
    except Refused as refused:
        assert refused.status in (400, 404)  # noqa: PT017
        return
    assert all(served.prompts)
    assert served.max_tokens >= 1
    if served.n * len(served.prompts) <= 20:
        answer(read_body, served)


@pytest.mark.parametrize(
    ("prompt", "echoed"), [("one two", ["one two"]), (["one", "two"], ["one", "two"]), ([5, 6], ["5 6"])]
)
def test_prompts_come_back_with_echo(prompt: object, echoed: list[str]) -> None:
    body = read(json.dumps({"prompt": prompt, "echo": True}).encode(), CompletionBody)
    texts = [choice["text"] for choice in answer(body, body.ask(SERVED))["choices"]]
    assert all(text.startswith(echo) and text != echo for text, echo in zip(texts, echoed, strict=True))


def test_what_is_asked_in_json_is_shown_in_the_response() -> None:
    text = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
    tools = [TOOL | {"type": "function"}]
    choice = {"type": "function", "name": "weigh"}
    body = read(
        json.dumps({"input": "x", "text": text, "tools": tools, "tool_choice": choice}).encode(),
        ResponsesBody,
    )
    shown = answer(body, body.ask(SERVED))
    assert (shown["tool_choice"], shown["text"]["format"]["schema"]) == (
        {"name": "weigh", "type": "function"},
        SCHEMA,
    )
    assert shown["output"][0]["arguments"] == WEIGH


def test_a_conversation_is_tokenized_as_a_chat_reads_it() -> None:
    body = read(json.dumps({"messages": [USER], "return_token_strs": True}).encode(), TokenizeBody)
    shown = answer(body, body.ask(SERVED))
    assert shown["token_strs"] == ask(ChatBody).prompts[0]
    assert shown["count"] == len(shown["tokens"]) == 10
    again = read(json.dumps({"tokens": shown["tokens"][4:6]}).encode(), DetokenizeBody)
    assert answer(again, again.ask(SERVED)) == {"prompt": "hi there"}


def test_a_body_names_the_fields_it_lacks() -> None:
    assert "2 validation errors" in refusal(TokenizeBody, prompt=None).message
    assert refusal(EmbeddingsBody, input=None).message.startswith("7 validation errors")
    assert refusal(ScoreBody, text_1=None, text_2=None).message.startswith("8 validation errors")
    assert refusal(EmbeddingsBody, input="").message == "The decoder prompt cannot be empty"
    assert refusal(EmbeddingsBody, input=[]).message == "You must pass at least one prompt"
