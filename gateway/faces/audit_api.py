"""The auditors' face, /audit/v1: calls, checkpoints, changes, keys, the last verification (gateway/faces/faces.py)."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api import errors, openai_api
from gateway.api.auth import Principal
from gateway.configuration.config import Config
from gateway.directory.entrance import Entrance
from gateway.faces import audit_questions, audit_reader, faces, queries
from gateway.faces.answers import Answer
from gateway.faces.audit_peers import HOP
from gateway.faces.audit_questions import Question
from gateway.faces.faces import Ask, Face, Line
from gateway.faces.queries import Query
from gateway.faces.reader import ReadError
from metering.journal.recorder import Recorder
from metering.journal.unwritten import Unwritable

PREFIX = "/audit/v1"

Reader = Callable[[Question, Config], Awaitable[Answer]]


class AuditApi:
    """What the auditors' face needs of the worker. read: has a question answered."""

    def __init__(
        self,
        *,
        config: Config,
        entrance: Entrance,
        recorder: Callable[[], Recorder | Unwritable],
        read: Reader = audit_reader.read,
    ) -> None:
        """recorder: gives the one that takes lines now."""
        self.face = Face(name="audit", scope="auditor", entrance=entrance, recorder=recorder)
        self._config = config
        self._read = read
        # Those of other gateways do not wait for ours: we may be waiting for one of theirs.
        self._lines = {is_hop: Line() for is_hop in (False, True)}

    def routes(self) -> list[Route]:
        """Of either port."""
        return [
            self.face.route(
                PREFIX + path, {method: self._asking(question) for method, question in by_method.items()}
            )
            for path, by_method in _QUESTIONS.items()
        ]

    def _asking(self, read: Callable[[Request], Question]) -> Ask:
        async def ask(request: Request, _principal: Principal) -> Response:
            answer = await self._answer(read(request), self._lines[HOP in request.headers])
            return openai_api.listed(request, faces.checked(answer, errors.GatewayUnreachable).content)

        return ask

    async def _answer(self, question: Question, line: Line) -> Answer:
        """Raises GatewayError."""
        try:
            async with line:
                return await self._read(question, self._config)
        except (ReadError, OSError) as error:
            raise faces.fault("the journals", error) from error


def _of_a_call(
    read: Callable[[str, bool], Question],
) -> Callable[[Request], Question]:
    def question(request: Request) -> Question:
        queries.known(request.query_params)
        return read(request.path_params["call_id"], HOP not in request.headers)

    return question


def _of_query(read: Callable[[Query], Question]) -> Callable[[Request], Question]:
    return lambda request: read(request.query_params)


def _of_nothing(question: Question) -> Callable[[Request], Question]:
    def read(query: Query) -> Question:
        queries.known(query)
        return question

    return _of_query(read)


_QUESTIONS: dict[str, dict[str, Callable[[Request], Question]]] = {
    "/calls/{call_id}": {"GET": _of_a_call(audit_questions.call)},
    "/calls/{call_id}/proof": {"GET": _of_a_call(audit_questions.proof)},
    "/checkpoints": {"GET": _of_query(audit_questions.checkpoints)},
    "/changes": {"GET": _of_query(audit_questions.changes)},
    "/keys": {"GET": _of_nothing(audit_questions.Keys())},
    "/verify": {
        "GET": _of_nothing(audit_questions.Verification()),
        "POST": _of_nothing(audit_questions.NewVerification()),
    },
}
"""By path and method."""
