"""Audio through both drivers: forms go up as they came, answers come down as they are, each with its record."""

import contextlib
import gzip
import http.client
import json
import pathlib
import socket
from collections.abc import Iterator

import openai
import pytest

from backends.simulator.settings import Settings
from tests.support import simulator
from tests.support.audio import TYPE, form, sound
from tests.support.gateway import Gateway, eventually, running
from tests.support.rawbackend import Scripted, chunked, sized
from tests.support.stage import Endless, cut, opening

pytestmark = pytest.mark.integration

TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
SERVED = "m1"
"""What the server calls it."""
FILE = ("file", sound(0.2) + b"\r\n--a1b2\xff\x00\r\n--")
MODEL = ("model", b"whisper")
STREAM = ("stream", b"true")
ANSWER = b'{"text":"Hello.","usage":{"type":"duration","seconds":6}}'
BODY_BYTES_MAX = 1024 * 1024
CARD = {
    "family": "inf2", "prompt": "1.00", "cached_prompt": "1.00", "completion": "2.00", "date": "2026-11-01",
    "source": "test",
}  # fmt: skip


def event(choices: list[dict], **more: object) -> bytes:
    chunk = {"id": "t", "object": "transcription.chunk", "choices": choices} | more
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


HELLO = event([{"delta": {"content": "Hello"}}])
WINDOW_ENDS = event([{"delta": {"content": "."}, "finish_reason": "stop", "stop_reason": None}])
USAGE = event([], usage={"prompt_tokens": 604, "total_tokens": 610, "completion_tokens": 6})
DONE = b"data: [DONE]\n\n"
WINDOWS = (HELLO, WINDOW_ENDS, HELLO, WINDOW_ENDS)


class Fleet:
    """A gateway before a scripted backend that knows the model by another name."""

    def __init__(self, gateway: Gateway, backend: Scripted) -> None:
        self.gateway = gateway
        self.backend = backend

    def post(
        self, body: bytes, path: str = TRANSCRIPTIONS, content_type: str = TYPE, **headers: str
    ) -> http.client.HTTPResponse:
        return self.gateway.post(path, body, content_type=content_type, **headers)

    @contextlib.contextmanager
    def asking(self, body: bytes) -> Iterator[socket.socket]:
        """A connection that has sent this and leaves at the block's end."""
        head = f"POST {TRANSCRIPTIONS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {self.gateway.keys['acme']}\r\n"
        head += f"content-type: {TYPE}\r\ncontent-length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.gateway.port), timeout=10) as client:
            client.sendall(head.encode() + body)
            yield client

    def record(self, answer: http.client.HTTPResponse) -> dict:
        call_id = answer.headers["x-weighbridge-call-id"]
        records = self.gateway.lines
        return eventually(lambda: next((r for r in records("call") if r["call_id"] == call_id), None))


@pytest.fixture(scope="module", params=["direct", "plain"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    backend = Scripted(sized(ANSWER))
    described = {
        "name": "a", "url": f"http://127.0.0.1:{backend.port}", "model": SERVED, "instance_type": "inf2.48xlarge",
        "slots": 8,
    }  # fmt: skip
    directory: pathlib.Path = tmp_path_factory.mktemp("audio")
    try:
        with running(
            directory,
            [described],
            model="whisper",
            aliases=(SERVED,),
            rate_cards=[CARD],
            env={"WEIGHBRIDGE_DRIVER": request.param},
            bounds={"body_bytes_max": BODY_BYTES_MAX},
        ) as gateway:
            yield Fleet(gateway, backend)
    finally:
        backend.stop()


@pytest.fixture
def fleet(made: Fleet) -> Fleet:
    made.backend.asked.clear()
    made.backend.script.clear()
    return made


def usage(prompt: int | None, completion: int | None, source: str, audio_s: int | None = None) -> dict:
    other = None if audio_s is None else {"audio_s": audio_s}
    return {
        "cached_prompt_tokens": None, "completion_tokens": completion, "energy_uj": None, "other": other,
        "prompt_tokens": prompt, "reasoning_tokens": None, "source": source,
    }  # fmt: skip


@pytest.mark.parametrize("path", [TRANSCRIPTIONS, TRANSLATIONS])
def test_a_form_goes_up_as_it_came_but_for_the_models_name(fleet: Fleet, path: str) -> None:
    more = (("language", b"de"), ("prompt", "Größe".encode()), ("temperature", b"0.2"))
    answer = fleet.post(form(FILE, *more, MODEL), path)
    assert (answer.status, answer.read()) == (200, ANSWER)
    (asked,) = fleet.backend.asked
    assert asked.path == path
    assert asked.headers["content-type"] == TYPE
    assert asked.body == form(FILE, *more, ("model", SERVED.encode()))
    record = fleet.record(answer)
    assert (record["operation"], record["outcome"], record["stream"]) == (
        path.rpartition("/")[2],
        "completed",
        False,
    )
    assert record["usage"] == usage(None, None, "reported", 6)
    # The card prices tokens, and nobody counted any.
    assert (record["cost_pusd"], record["unpriced_reason"]) == (None, "usage_unknown")


def test_a_form_that_needs_no_edit_goes_up_as_it_came(fleet: Fleet) -> None:
    body = form(("model", SERVED.encode()), FILE, STREAM, ("stream_include_usage", b"True"))
    fleet.backend.script.append(chunked(*WINDOWS, USAGE, DONE))
    answer = fleet.post(body, content_type='Multipart/Form-Data; boundary="a1b2c3"')
    assert answer.read() == b"".join(WINDOWS) + USAGE + DONE
    (asked,) = fleet.backend.asked
    assert asked.body == body
    assert asked.headers["content-type"] == 'Multipart/Form-Data; boundary="a1b2c3"'
    assert fleet.record(answer)["mended"] == []


def test_a_stream_tells_its_usage_and_who_did_not_ask_is_not_told(fleet: Fleet) -> None:
    fleet.backend.script.append(chunked(*WINDOWS, USAGE, DONE))
    answer = fleet.post(form(FILE, MODEL, STREAM, ("stream_include_usage", b"false")))
    assert answer.read() == b"".join(WINDOWS) + DONE
    (asked,) = fleet.backend.asked
    renamed = ("model", SERVED.encode())
    assert asked.body == form(FILE, renamed, STREAM, ("stream_include_usage", b"true"))
    record = fleet.record(answer)
    assert (record["outcome"], record["stream"], record["mended"]) == ("completed", True, ["usage_removed"])
    assert record["usage"] == usage(604, 6, "reported")
    assert record["cost_pusd"] == 604 * 1_000_000 + 6 * 2_000_000
    assert record["finish_reasons"] == ["stop"]
    assert record["ttft_ns"] is not None


def test_an_answer_may_be_text(fleet: Fleet) -> None:
    said = b"WEBVTT\n\n00:00.000 --> 00:01.000\nHello.\n"
    fleet.backend.script.append(sized(said, kind="text/vtt; charset=utf-8"))
    answer = fleet.post(form(FILE, MODEL, ("response_format", b"vtt")))
    assert (answer.status, answer.headers["content-type"]) == (200, "text/vtt; charset=utf-8")
    assert answer.read() == said
    assert fleet.record(answer)["usage"] == usage(None, 10, "estimated")


def test_a_packed_form_goes_up_unpacked(fleet: Fleet) -> None:
    answer = fleet.post(gzip.compress(form(FILE, MODEL)), content_encoding="gzip")
    assert answer.read() == ANSWER
    assert fleet.backend.asked[0].body == form(FILE, ("model", SERVED.encode()))
    assert "content-encoding" not in fleet.backend.asked[0].headers


def test_a_form_may_come_in_chunks_cut_anywhere(fleet: Fleet) -> None:
    body = form(FILE, MODEL, boundary=b"a1b2c3")
    connection = http.client.HTTPConnection("127.0.0.1", fleet.gateway.port, timeout=10)
    headers = {"authorization": f"Bearer {fleet.gateway.keys['acme']}", "content-type": TYPE}
    pieces = [body[at : at + 7] for at in range(0, len(body), 7)]
    with contextlib.closing(connection):
        connection.request("POST", TRANSCRIPTIONS, body=iter(pieces), headers=headers, encode_chunked=True)
        assert connection.getresponse().read() == ANSWER
    assert fleet.backend.asked[0].body == form(FILE, ("model", SERVED.encode()))


@pytest.mark.parametrize(
    ("body", "content_type", "status", "param", "words"),
    [
        (form(FILE), TYPE, 400, "model", "you must provide a model"),
        (form(MODEL, FILE, MODEL), TYPE, 400, "model", "model is given twice"),
        (form(MODEL, FILE), "multipart/form-data", 400, None, "content-type must name the boundary"),
        (form(MODEL, FILE), "multipart/form-data; boundary=other", 400, None, "does not begin with the boundary"),
        (form(MODEL, FILE)[:-13], TYPE, 400, None, "the part 'file', which begins at byte"),
        (b"", TYPE, 400, None, "the body is empty"),
        (b'{"model":"m1"}', "application/json", 415, None, "content-type must be multipart/form-data"),
        (form(MODEL, FILE, ("stream", b"maybe")), TYPE, 400, "stream", "stream must be true or false"),
        (form(("model", b"m2"), FILE), TYPE, 404, "model", "the model 'm2' does not exist here"),
        (form(MODEL, ("file", bytes(BODY_BYTES_MAX))), TYPE, 413, None, "larger than 1,048,576 bytes"),
    ],
)  # fmt: skip
def test_a_request_at_fault_is_told_so_and_nobody_is_asked(
    fleet: Fleet, body: bytes, content_type: str, status: int, param: str | None, words: str
) -> None:
    answer = fleet.post(body, content_type=content_type)
    error = json.loads(answer.read())["error"]
    assert (answer.status, error["param"], error["type"]) == (status, param, "invalid_request_error")
    assert words in error["message"]
    assert fleet.backend.asked == []
    request_id = answer.headers["x-request-id"]
    (line,) = eventually(lambda: [r for r in fleet.gateway.lines("refused") if r["request_id"] == request_id])
    assert (line["operation"], line["status"]) == ("transcriptions", status)
    assert "python_multipart" not in fleet.gateway.log.read_text()


def test_a_chunked_form_over_the_bound_is_refused(fleet: Fleet) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", fleet.gateway.port, timeout=10)
    headers = {"authorization": f"Bearer {fleet.gateway.keys['acme']}", "content-type": TYPE}
    pieces = iter([form(MODEL)[:-10], *[bytes(65_536)] * 16])
    with contextlib.closing(connection):
        connection.request("POST", TRANSCRIPTIONS, body=pieces, headers=headers, encode_chunked=True)
        assert connection.getresponse().status == 413
    assert fleet.backend.asked == []


def test_a_servers_own_refusal_passes(fleet: Fleet) -> None:
    refusal = {
        "error": {
            "message": "Invalid or unsupported audio file.",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        }
    }
    fleet.backend.script.append(sized(json.dumps(refusal).encode(), "400 Bad Request"))
    answer = fleet.post(form(MODEL, FILE))
    assert answer.status == 400
    assert json.loads(answer.read())["error"]["message"] == "Invalid or unsupported audio file."
    record = fleet.record(answer)
    assert (record["outcome"], record["status"], record["cost_pusd"]) == ("refused", 400, 0)


def test_a_stream_that_breaks_off_between_windows_ends_in_an_error(fleet: Fleet) -> None:
    """A window's finish is not the stream's: only its usage or [DONE] is."""
    for broken in (cut(opening(HELLO, WINDOW_ENDS)), chunked(HELLO, WINDOW_ENDS)):
        fleet.backend.script.append(broken)
        answer = fleet.post(form(MODEL, FILE, STREAM))
        *whole, last = [part for part in answer.read().split(b"\n\n") if part]
        assert whole == [HELLO[:-2], WINDOW_ENDS[:-2]]
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "backend_failed"
        record = fleet.record(answer)
        assert (record["outcome"], record["unpriced_reason"]) == ("backend_failed", "usage_unknown")
        assert record["usage"] == usage(None, 2, "counted")


def test_a_client_that_leaves_stops_the_server(fleet: Fleet) -> None:
    endless = Endless(opening(HELLO, WINDOW_ENDS), b"%x\r\n%b\r\n" % (len(HELLO), HELLO))
    fleet.backend.script.append(endless)
    before = len(fleet.gateway.lines("call"))
    with fleet.asking(form(MODEL, FILE, STREAM)) as client:
        heard = b""
        while b"stop_reason" not in heard:
            heard += client.recv(65_536)
    endless.wait_closed()
    records = eventually(lambda: fleet.gateway.lines("call")[before:])
    assert (records[0]["outcome"], records[0]["usage"]["source"]) == ("client_gone", "counted")
    assert records[0]["usage"]["prompt_tokens"] is None


def test_a_client_that_leaves_before_an_answer_is_billed_for_no_tokens(fleet: Fleet) -> None:
    endless = Endless(b"")
    fleet.backend.script.append(endless)
    before = len(fleet.gateway.lines("call"))
    with fleet.asking(form(MODEL, FILE)):
        assert endless.begun.wait(10)
    endless.wait_closed()
    (record,) = eventually(lambda: fleet.gateway.lines("call")[before:])
    assert (record["outcome"], record["usage"]) == ("client_gone", usage(None, None, "unknown"))
    assert (record["cost_pusd"], record["unpriced_reason"]) == (None, "usage_unknown")


def test_what_is_no_transcript_is_no_answer(fleet: Fleet) -> None:
    fleet.backend.script.append(sized(b'{"text":null}'))
    answer = fleet.post(form(MODEL, FILE))
    assert (answer.status, json.loads(answer.read())["error"]["code"]) == (502, "backend_failed")
    assert fleet.record(answer)["outcome"] == "backend_failed"


# -- the client that people have, and a server that is no script


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, simulator.Running]]:
    settings = Settings(instance_type="inf2.48xlarge", model=SERVED, time_scale=0.05)
    with simulator.running(settings) as backend:
        described = {
            "name": "sim", "url": backend.url, "model": SERVED, "instance_type": "inf2.48xlarge", "slots": 8,
        }  # fmt: skip
        with running(tmp_path_factory.mktemp("simulated"), [described], model="whisper") as gateway:
            yield gateway, backend


@pytest.fixture(scope="module")
def client(simulated: tuple[Gateway, simulator.Running]) -> Iterator[openai.OpenAI]:
    gateway, _ = simulated
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key=gateway.keys["acme"], max_retries=0
    ) as made:
        yield made


def logged(simulated: tuple[Gateway, simulator.Running]) -> tuple[dict, dict]:
    """The last call as it was recorded, and as the server's log has it."""
    gateway, backend = simulated
    entry = backend.log()[-1]
    records = gateway.lines
    record = eventually(lambda: (r := records("call")[-1])["request_id"] == entry["request_id"] and r)
    return record, entry


def test_openai_python_transcribes(
    client: openai.OpenAI, simulated: tuple[Gateway, simulator.Running]
) -> None:
    heard = client.audio.transcriptions.create(file=("said.wav", sound(5.3)), model="whisper", language="en")
    assert len(heard.text.split()) > 5
    assert heard.usage is not None
    assert heard.usage.type == "duration"
    assert heard.usage.seconds == 6
    record, entry = logged(simulated)
    assert (record["operation"], record["usage"]["other"]) == ("transcriptions", {"audio_s": 6})
    assert (entry["model"], entry["outcome"]) == (SERVED, "completed")
    assert record["cost_pusd"] > 0  # by its slot time
    assert record["price_basis"]["kind"] == "derived"


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # an overload of that library
def test_openai_python_translates(
    client: openai.OpenAI, simulated: tuple[Gateway, simulator.Running]
) -> None:
    heard = client.audio.translations.create(
        file=("said.wav", sound(2)), model="whisper", response_format="verbose_json"
    )
    assert heard.duration == 2.0
    record, _ = logged(simulated)
    assert (record["operation"], record["usage"]["other"]) == ("translations", {"audio_s": 2})


def test_openai_python_streams(client: openai.OpenAI, simulated: tuple[Gateway, simulator.Running]) -> None:
    """vLLM's events are chat's, which that library does not know here: it gives their fields as they are."""
    events = list(
        client.audio.transcriptions.create(file=("said.wav", sound(4)), model="whisper", stream=True)
    )
    choices = [choice for event in events for choice in event.model_dump()["choices"]]
    assert len("".join(choice["delta"]["content"] for choice in choices).split()) > 5
    record, entry = logged(simulated)
    assert (record["stream"], record["mended"]) == (True, ["usage_removed"])
    counts = record["usage"]["prompt_tokens"], record["usage"]["completion_tokens"], record["usage"]["source"]
    assert counts == (entry["prompt_tokens"], entry["completion_tokens"], "reported")


def test_openai_python_is_told_what_is_wrong(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="Invalid or unsupported audio file"):
        client.audio.transcriptions.create(file=("said.wav", b"no sound"), model="whisper")
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.audio.transcriptions.create(file=("said.wav", sound(1)), model="m2")
