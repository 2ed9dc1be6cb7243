"""The auditors' face where something fails: what is not recorded is not shown."""

import asyncio
import json
from typing import Any, cast

import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import Response

from gateway.api import errors
from gateway.api.auth import Keys as ApiKeys
from gateway.api.auth import hash_of
from gateway.configuration.config import Config
from gateway.directory.entrance import Entrance
from gateway.faces.answers import Answer
from gateway.faces.audit_api import AuditApi
from gateway.faces.audit_questions import Keys, Question
from gateway.faces.faces import WAITING_MAX
from gateway.faces.reader import ReadError
from metering.record import Event

KEY = "wb-auditor"
CONFIG = msgspec.convert(
    {
        "tenants": [{"name": "acme", "keys": [{"hash": hash_of(KEY), "scopes": ["auditor"]}]}],
        "models": [{"name": "m1", "tiers": [{"backends": ["b1"]}]}],
        "backends": [{"name": "b1", "url": "http://127.0.0.1:1", "model": "m"}],
    },
    Config,
)
FOUND = Answer(status=200, content=msgspec.Raw(b'{"object":"list","data":[]}'))


class Recorder:
    """A journal that takes lines, or does not."""

    def __init__(self, *, room: bool = True, error: OSError | None = None) -> None:
        self.lines: list[Event] = []
        self._room = room
        self._error = error

    def has_room(self) -> bool:
        return self._room

    def note(self, make: Any) -> None:
        self.lines.append(make(1, ""))

    async def tell(self, make: Any) -> None:
        if self._error is not None:
            raise self._error
        self.lines.append(make(1, ""))


class Asked:
    """Answers questions as it is told to, and counts them."""

    def __init__(self, answer: Answer | Exception = FOUND, gate: asyncio.Event | None = None) -> None:
        self.questions: list[Question] = []
        self._answer = answer
        self._gate = gate

    async def __call__(self, question: Question, _config: Config) -> Answer:
        self.questions.append(question)
        if self._gate is not None:
            await self._gate.wait()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def face(recorder: Recorder, asked: Asked) -> AuditApi:
    journal = cast(Any, recorder)
    entrance = Entrance.of(CONFIG, ApiKeys(CONFIG.tenants), lambda: 0)
    return AuditApi(config=CONFIG, entrance=entrance, recorder=lambda: journal, read=asked)


async def look(api: AuditApi, key: str = KEY, path: str = "/audit/v1/keys") -> Response:
    (route,) = [route for route in api.routes() if route.path == path]
    headers = [(b"authorization", b"Bearer " + key.encode()), (b"x-request-id", b"req-1")]
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": headers}
    scope |= {"server": ("h", 80), "scheme": "http"}
    return cast(Response, await route.endpoint(Request(scope)))


def test_an_answer_leaves_behind_its_event() -> None:
    recorder, asked = Recorder(), Asked()
    answer = asyncio.run(look(face(recorder, asked)))
    assert (answer.status_code, answer.body) == (200, bytes(FOUND.content))
    assert asked.questions == [Keys()]
    (told,) = recorder.lines
    assert told.data == {"method": "GET", "path": "/audit/v1/keys", "request_id": "req-1", "status": "200"}


def test_with_a_full_journal_nothing_is_even_read() -> None:
    recorder, asked = Recorder(room=False), Asked()
    with pytest.raises(errors.JournalFull):
        asyncio.run(look(face(recorder, asked)))
    assert asked.questions == []


def test_what_cannot_be_recorded_is_not_shown() -> None:
    with pytest.raises(errors.JournalFull, match="nothing is shown"):
        asyncio.run(look(face(Recorder(error=OSError("gone")), Asked())))


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        (ReadError("late"), 500, "internal_error"),
        (OSError("no process"), 500, "internal_error"),
        (Answer(status=404, message="it is not here"), 404, None),
        (Answer(status=503, message="cannot be asked"), 503, "gateway_unreachable"),
    ],
)
def test_a_look_that_shows_nothing_is_told_too(
    answer: Answer | Exception, status: int, code: str | None
) -> None:
    recorder = Recorder()
    shown = asyncio.run(look(face(recorder, Asked(answer))))
    assert shown.status_code == status
    assert json.loads(shown.body)["error"]["code"] == code
    assert [line.data["status"] for line in recorder.lines] == [str(status)]


def test_questions_wait_for_each_other_and_not_too_many_of_them() -> None:
    async def many() -> list[int]:
        gate = asyncio.Event()
        asked = Asked(gate=gate)
        api = face(Recorder(), asked)
        left = asyncio.create_task(look(api))
        looks = [asyncio.create_task(look(api)) for _ in range(WAITING_MAX - 1)]
        gone = asyncio.create_task(look(api))
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(asked.questions) == 1  # the others wait
        gone.cancel()  # it was the last that might wait, and leaves its place to another
        left.cancel()
        await asyncio.wait([gone, left])
        looks += [asyncio.create_task(look(api)) for _ in range(3)]
        for _ in range(5):
            await asyncio.sleep(0)
        gate.set()
        return sorted([(await one).status_code for one in looks])

    assert asyncio.run(many()) == [200] * (WAITING_MAX + 1) + [503]


def test_a_refused_key_is_told_at_the_next_round() -> None:
    async def refused() -> Recorder:
        recorder = Recorder()
        api = face(recorder, Asked())
        for _ in range(3):
            with pytest.raises(errors.UnknownKey):
                await look(api, key="wb-wrong")
        assert recorder.lines == []
        api.face.tell_refused()
        return recorder

    (told,) = asyncio.run(refused()).lines
    assert (told.topic, told.actor, told.data["count"]) == ("sign_in_refused", None, "3")
