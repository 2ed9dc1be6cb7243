import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.simulator.asks import Ask, ChatBody, CompletionBody, Refused, ask, read

MODEL = "m1"
USER = {"role": "user", "content": "hi there"}


def chat(max_model_len: int = 100, **fields: object) -> Ask:
    body = json.dumps({"messages": [USER]} | fields).encode()
    return ask(read(body, ChatBody), MODEL, max_model_len)


def completion(max_model_len: int = 100, **fields: object) -> Ask:
    body = json.dumps({"prompt": "one two"} | fields).encode()
    return ask(read(body, CompletionBody), MODEL, max_model_len)


def refusal(asked: str, **fields: object) -> Refused:
    with pytest.raises(Refused) as caught:
        {"chat": chat, "completion": completion}[asked](**fields)
    return caught.value


def test_defaults() -> None:
    assert chat() == Ask(
        chat=True,
        prompts=(chat().prompts[0],),
        n=1,
        max_tokens=100 - len(chat().prompts[0]),  # what the context has room for
        min_tokens=0,
        ignore_eos=False,
        salt=None,
        stream=False,
        include_usage=False,
    )
    assert completion().max_tokens == 16


def test_null_is_as_good_as_absent() -> None:
    nulls = dict.fromkeys(
        ["model", "n", "max_tokens", "min_tokens", "ignore_eos", "stream", "stream_options", "cache_salt"]
    )
    assert chat(**nulls) == chat()
    assert chat(stream=True, stream_options={"include_usage": None}) == chat(stream=True)


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"max_tokens": 7}, 7),
        ({"max_tokens": 7, "max_completion_tokens": 5}, 5),
        ({"max_tokens": 1_000}, 100 - 10),  # cut to the context's rest
    ],
)
def test_max_tokens(fields: dict[str, int], tokens: int) -> None:
    assert chat(**fields).max_tokens == tokens


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
def test_prompts(prompt: object, lengths: list[int]) -> None:
    assert [len(tokens) for tokens in completion(prompt=prompt).prompts] == lengths


def test_message_forms_cost_the_same() -> None:
    parts = [{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}, {"type": "image_url"}]
    assert chat(messages=[{"role": "user", "content": parts}]).prompts == chat().prompts
    assert len(chat(messages=[{"role": "user"}]).prompts[0]) == 8


@pytest.mark.parametrize(
    ("asked", "fields", "status", "type_", "param"),
    [
        ("chat", {"model": "m2"}, 404, "NotFoundError", "model"),
        ("chat", {"messages": []}, 400, "BadRequestError", None),
        ("chat", {"messages": None}, 400, "Bad Request", "body.messages"),
        ("chat", {"messages": [{"content": "x"}]}, 400, "Bad Request", "body.messages.0.role"),
        ("chat", {"n": 0}, 400, "BadRequestError", None),
        ("chat", {"n": 20_000}, 400, "BadRequestError", None),
        ("chat", {"max_tokens": 0}, 400, "BadRequestError", "max_tokens"),
        ("chat", {"max_tokens": "many"}, 400, "Bad Request", "body.max_tokens"),
        ("chat", {"stream_options": {"include_usage": True}}, 400, "BadRequestError", "stream_options"),
        ("chat", {"max_model_len": 9}, 400, "BadRequestError", "input_tokens"),
        ("chat", {"max_model_len": 10}, 400, "BadRequestError", "max_tokens"),  # no room for an answer
        ("completion", {"prompt": ""}, 400, "BadRequestError", "prompt"),
        ("completion", {"prompt": None}, 400, "BadRequestError", "prompt"),
        ("completion", {"prompt": []}, 400, "BadRequestError", "prompt"),
        ("completion", {"prompt": [[]]}, 400, "BadRequestError", None),
        ("completion", {"prompt": {"a": 1}}, 400, "Bad Request", "body.prompt"),
    ],
)
def test_refused(asked: str, fields: dict, status: int, type_: str, param: str | None) -> None:
    error = refusal(asked, **fields)
    assert (error.status, error.type, error.param) == (status, type_, param)


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
        ask(read(body, ChatBody), MODEL, 100)
    assert (caught.value.status, caught.value.param) == (400, param)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for body_type in (ChatBody, CompletionBody):
        try:
            ask(read(body, body_type), MODEL, 100)
        except Refused as refused:
            assert refused.status in (400, 404)  # noqa: PT017


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
fields = st.sampled_from(
    ["messages", "prompt", "model", "n", "max_tokens", "stream", "stream_options", "cache_salt", "min_tokens"]
)


@given(st.dictionaries(fields, json_values, max_size=6))
def test_any_values_are_served_or_refused(body: dict) -> None:
    for body_type in (ChatBody, CompletionBody):
        try:
            served = ask(read(json.dumps(body).encode(), body_type), MODEL, 100)
        except Refused as refused:
            assert refused.status in (400, 404)  # noqa: PT017
        else:
            assert all(served.prompts)
            assert served.max_tokens >= 1
