"""The simulator's forms and transcripts: read by splitting, worded as vLLM words them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.simulator import refusals
from backends.simulator.answers import Choice, Heading, Piece, StreamWriter, Usage
from backends.simulator.apis.audio import TranscriptionBody, TranslationBody
from backends.simulator.asks import Served
from backends.simulator.kept import KeptResponses
from backends.simulator.refusals import Refused
from backends.simulator.tokens import Vocabulary
from backends.simulator.uploads import read_form
from tests.support.audio import BOUNDARY, TYPE, form, sound

SERVED = Served(model="m1", max_model_len=448, vocabulary=Vocabulary(), responses=KeptResponses(9))
HEADING = Heading(id="transcribe-1", created=1, model="m1", key="0" * 16)
USED = Usage(prompt_tokens=204, completion_tokens=2)
SAID = Choice(texts=["a", " b"], finish_reason="stop")


def asked(body_type: type[TranscriptionBody | TranslationBody] = TranscriptionBody, **fields: Any) -> Any:
    return refusals.take({"file": sound(2), "model": "m1"} | fields, body_type)


@given(st.lists(st.binary(max_size=20).filter(lambda value: b"\r\n--" + BOUNDARY not in value), max_size=4))
def test_fields_come_out_as_they_went_in(values: list[bytes]) -> None:
    fields = [(f"file-{index}", value) for index, value in enumerate(values)]
    body = form(("file", b"\r\n--"), *fields)
    expected = {name: value.decode("utf-8", "replace") for name, value in fields}
    assert read_form(body, TYPE) == {"file": b"\r\n--"} | expected


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (form(("a", b"1")), "multipart/form-data"),
        (form(("a", b"1"))[:-6], TYPE),
        (b"", TYPE),
        (form(("a", b"1")).replace(b"; name", b"; game"), TYPE),
        (form(("a", b"1")).replace(b"\r\n\r\n", b"\r\n"), TYPE),
    ],
)
def test_a_broken_form_is_refused(body: bytes, content_type: str) -> None:
    with pytest.raises(Refused):
        read_form(body, content_type)


def test_what_is_asked_for() -> None:
    ask = asked(prompt="two words", stream="true", stream_include_usage="true").ask(SERVED)
    assert (len(ask.prompts[0]), ask.max_tokens, ask.stream) == (4 + 2 + 200, 6, True)
    assert asked(max_completion_tokens="2").ask(SERVED).max_tokens == 2
    assert asked(file=sound(0)).ask(SERVED).max_tokens == 1
    assert asked(file=b"ID3" + bytes(15_997)).seconds() == 1.0
    assert asked(file=b"\0\0\0\x20ftypM4A " + bytes(15_988)).seconds() == 1.0


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"model": "m2"}, 404, "does not exist"),
        ({"file": None}, 400, "Field required"),
        ({"file": b"said"}, 400, "Invalid or unsupported audio file"),
        ({"file": b"RIFF....WAVE"}, 400, "Invalid or unsupported audio file"),
        ({"response_format": "srt"}, 400, "Currently only support response_format"),
        ({"stream": "true", "response_format": "verbose_json"}, 400, "doesn't support streaming"),
        ({"stream_include_usage": "true"}, 400, "Stream options can only be defined"),
        ({"max_completion_tokens": "0"}, 400, "max_completion_tokens must be at least 1"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], status: int, words: str) -> None:
    with pytest.raises(Refused, match=words) as raised:
        asked(**fields).ask(SERVED)
    assert raised.value.status == status


def test_a_field_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(Refused, match=r"body\.stream"):
        asked(stream="perhaps")


def written(body: Any) -> Any:
    return body.writer(HEADING, body.ask(SERVED), SERVED)


def test_sized_answers() -> None:
    assert written(asked()).sized([SAID], USED) == b'{"text":"a b","usage":{"type":"duration","seconds":2}}'
    assert written(asked(TranslationBody)).sized([SAID], USED) == b'{"text":"a b"}'
    verbose = json.loads(written(asked(response_format="verbose_json", language="de")).sized([SAID], USED))
    assert list(verbose) == ["duration", "language", "text", "segments", "words"]
    assert (verbose["duration"], verbose["language"], verbose["segments"][0]["text"]) == (2.0, "de", "a b")


def test_a_stream() -> None:
    def piece(text: str, reason: str | None = None) -> Piece:
        return Piece(index=0, text=text, finish_reason=reason, stop_reason=None, usage=USED)

    writer = written(asked(TranslationBody, stream="true", stream_include_usage="true"))
    assert isinstance(writer, StreamWriter)
    events = [*writer.begin([USED]), *writer.token(piece("a")), *writer.token(piece("")),
              *writer.token(piece("", "stop")), *writer.end(USED)]  # fmt: skip
    head = b'data: {"id":"transcribe-1","object":"translation.chunk","created":1,"model":"m1","choices":'
    assert events == [
        head + b'[{"delta":{"content":"a"}}]}\n\n',
        head + b'[{"delta":{"content":""},"finish_reason":"stop","stop_reason":null}]}\n\n',
        head + b'[],"usage":{"prompt_tokens":204,"total_tokens":206,"completion_tokens":2}}\n\n',
        b"data: [DONE]\n\n",
    ]
    plain = written(asked(TranslationBody, stream="true"))
    assert list(plain.end(USED)) == [b"data: [DONE]\n\n"]
