"""What a form asks for, and what goes up: the client's bytes but for the parts that are replaced."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.errors import InvalidRequest, WrongMediaType
from gateway.api.forms import FormAsk, read_form_ask, splice_form
from gateway.api.multipart import read_form
from gateway.api.operations import OPERATIONS
from tests.support.audio import BOUNDARY, TYPE, form, sound

OPERATION = OPERATIONS["/v1/audio/transcriptions"]
FILE = ("file", sound(0.01) + b"\r\n--a1b2\r\n--\xff\x00")
MODEL = ("model", b"whisper")


def read(*fields: tuple[str, bytes]) -> FormAsk:
    return read_form_ask(form(*fields), TYPE.encode(), OPERATION)


def fields_of(body: bytes) -> list[tuple[str, bytes]]:
    return [(part.name.decode(), body[part.start : part.end]) for part in read_form(body, BOUNDARY).parts]


@pytest.mark.parametrize(
    ("fields", "stream", "include_usage", "max_tokens", "keys"),
    [
        ((), False, False, None, ()),
        ((("language", b"de"), ("prompt", b"\xff"), ("stream[]", b"true")), False, False, None, ()),
        ((("stream", b"true"),), True, False, None, ()),
        ((("stream", b"True"), ("stream_include_usage", b"1")), True, True, None, ()),
        ((("stream_include_usage", b"on"), ("stream", b"YES")), True, True, None, ()),
        ((("stream", b"t"), ("stream_include_usage", b"f")), True, False, None, ()),
        (
            (("stream", b"false"), ("stream_include_usage", b"true")),
            False,
            False,
            None,
            (),
        ),  # the server refuses it
        ((("max_completion_tokens", b"12"),), False, False, 12, ()),
        ((("max_completion_tokens", b"12.0"),), False, False, 12, ()),
        ((("max_completion_tokens", b"0"),), False, False, 0, ()),
        ((("seed", b"1"), ("min_p", b""), ("top_p", b"1"), ("seed", b"2")), False, False, None, ("seed",)),
    ],
)
def test_what_is_asked_for(
    fields: tuple[tuple[str, bytes], ...],
    stream: bool,
    include_usage: bool,
    max_tokens: int | None,
    keys: tuple[str, ...],
) -> None:
    ask = read(*fields, FILE, MODEL)
    assert (ask.model, ask.stream, ask.include_usage) == ("whisper", stream, include_usage)
    assert (ask.max_tokens, ask.length) == (
        max_tokens,
        None if max_tokens is None else "max_completion_tokens",
    )
    assert (ask.keys, ask.n) == (keys, None)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ((FILE,), "model", "you must provide a model"),
        ((FILE, ("model", b"")), "model", "you must provide a model"),
        ((MODEL, FILE, MODEL), "model", "model is given twice"),
        ((MODEL, ("stream", b"true"), ("stream", b"true")), "stream", "stream is given twice"),
        ((MODEL, ("stream_include_usage", b"0"), ("stream_include_usage", b"")), "stream_include_usage", "given twice"),
        ((MODEL, ("stream", b"yess")), "stream", "stream must be true or false"),
        ((MODEL, ("stream", b"")), "stream", "stream must be true or false"),
        ((MODEL, ("stream", b"1"), ("stream_include_usage", b" 1")), "stream_include_usage", "must be true or false"),
        ((MODEL, ("max_completion_tokens", b"")), "max_completion_tokens", "must be an integer"),
        ((MODEL, ("max_completion_tokens", b"1.5")), "max_completion_tokens", "must be an integer"),
        ((MODEL, ("max_completion_tokens", "\u0661".encode())), "max_completion_tokens", "must be an integer"),
        ((MODEL, ("max_completion_tokens", b"-1")), "max_completion_tokens", "must be between"),
        ((MODEL, ("max_completion_tokens", b"9007199254740993")), "max_completion_tokens", "must be between"),
        ((("model", b"\xff"),), "model", "model is not valid UTF-8"),
        ((("model", b"x" * 257),), "model", "model must have at most 256 characters"),
        ((("model", b"x" * 5000),), "model", "model is too long"),
    ],
)  # fmt: skip
def test_what_is_refused_names_the_field(
    fields: tuple[tuple[str, bytes], ...], param: str, words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words) as raised:
        read(*fields)
    assert raised.value.param == param


def test_a_model_is_no_file() -> None:
    body = form(("model", b"m")).replace(b'name="model"', b'name="model"; filename="m"')
    with pytest.raises(InvalidRequest, match="model must be a text, not a file"):
        read_form_ask(body, TYPE.encode(), OPERATION)


def test_the_type_must_be_a_forms() -> None:
    with pytest.raises(WrongMediaType):
        read_form_ask(form(MODEL), b"application/json", OPERATION)


def test_a_body_that_needs_no_edit_is_the_clients_own() -> None:
    body = form(FILE, MODEL)
    ask = read_form_ask(body, TYPE.encode(), OPERATION)
    assert splice_form(body, ask, model=None, include_usage=False) is body


def test_a_usage_that_is_not_asked_for_becomes_the_first_field() -> None:
    body = b"\r\n" + form(FILE, MODEL, ("stream", b"true"))
    ask = read_form_ask(body, TYPE.encode(), OPERATION)
    up = splice_form(body, ask, model=None, include_usage=True)
    added = b'--a1b2c3\r\nContent-Disposition: form-data; name="stream_include_usage"\r\n\r\ntrue\r\n'
    assert up == b"\r\n" + added + body[2:]
    assert read_form_ask(up, TYPE.encode(), OPERATION).include_usage


VALUES = st.binary(max_size=12).filter(lambda value: b"\r\n--a1b2c3" not in value)
FIELDS = st.lists(st.tuples(st.sampled_from(["file", "prompt", "language", "x"]), VALUES), max_size=5)


@given(
    FIELDS,
    st.sampled_from([None, b"false", b"true"]),
    st.none() | st.text(min_size=1, max_size=20),
    st.data(),
)
def test_only_the_fields_that_are_replaced_differ(
    fields: list[tuple[str, bytes]], usage: bytes | None, model: str | None, data: st.DataObject
) -> None:
    """In any order of fields."""
    given = [*fields, MODEL, ("stream", b"true")]
    if usage is not None:
        given.append(("stream_include_usage", usage))
    given = data.draw(st.permutations(given))
    body = form(*given)
    ask = read_form_ask(body, TYPE.encode(), OPERATION)
    wanted = data.draw(st.booleans())
    up = splice_form(body, ask, model=model, include_usage=wanted)
    expected = [
        ("model", model.encode()) if name == "model" and model is not None
        else (name, b"true") if name == "stream_include_usage" and wanted
        else (name, value)
        for name, value in given
    ]  # fmt: skip
    if wanted and usage is None:
        expected.insert(0, ("stream_include_usage", b"true"))
    assert fields_of(up) == expected
    assert up == form(*expected)
