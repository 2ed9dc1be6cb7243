"""The auditors' face, /audit/v1: calls, checkpoints, changes, keys, the last verification.

    key with the scope `auditor` ─▶ question ─▶ a process answers ─▶ `audit_read` is in the journal ─▶ the answer leaves

On the main port and on `ops.listen`, with a key on both. Each look is an event of the journal, with its status,
before anything is shown; a refused key is one too (gateway/sign_ins.py).
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway import audit_questions, audit_reader, errors, openai_api
from gateway.audit_peers import HOP
from gateway.audit_questions import Answer, Query, Question
from gateway.auth import Keys, Principal
from gateway.config import Config
from gateway.errors import GatewayError
from gateway.openai_api import credentials
from gateway.sign_ins import SignIns
from metering import events
from metering.logs import log
from metering.recorder import Recorder
from metering.unwritten import Unwritable

PREFIX = "/audit/v1"
WAITING_MAX = 16
"""Questions of one worker that wait while another is answered."""

Reader = Callable[[Question, Config], Awaitable[Answer]]

logger = logging.getLogger("weighbridge.audit")


class AuditApi:
    """What the auditors' face needs of the worker. read: has a question answered."""

    def __init__(
        self,
        *,
        config: Config,
        keys: Keys,
        recorder: Callable[[], Recorder | Unwritable],
        read: Reader = audit_reader.read,
    ) -> None:
        """recorder: gives the one that takes lines now."""
        self._config = config
        self._keys = keys
        self._recorder = recorder
        self._read = read
        self._sign_ins = SignIns()
        # Those of other gateways do not wait for ours: we may be waiting for one of theirs.
        self._lines = {is_hop: _Line() for is_hop in (False, True)}

    def routes(self) -> list[Route]:
        """Of either port."""
        return [
            Route(PREFIX + path, self._endpoint(by_method), methods=list(by_method))
            for path, by_method in _QUESTIONS.items()
        ]

    def tell_refused(self) -> None:
        """Called once a second, and at the end: put what was refused into the journal."""
        for happening in self._sign_ins.told():
            self._recorder().note(happening.line(time.time_ns))

    def _endpoint(
        self, by_method: Mapping[str, Callable[[Request], Question]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            auditor = self._auditor(request)
            if not self._recorder().has_room():
                raise openai_api.no_room()
            try:
                question = by_method["GET" if request.method == "HEAD" else request.method](request)
                content = await self._answer(question, self._lines[HOP in request.headers])
                response = openai_api.listed(request, content)
            except GatewayError as error:
                response = await openai_api.render(request, error)
            await self._told(auditor, request, response)
            return response

        return endpoint

    def _auditor(self, request: Request) -> Principal:
        """Who asks. Raises UnknownKey, ScopeMissing, which are told too."""
        principal = None
        try:
            principal = self._keys.principal(*credentials(request))
            principal.require("auditor")
        except GatewayError as error:
            self._sign_ins.refused("audit", int(error.status), principal.key_id if principal else None)
            raise
        return principal

    async def _answer(self, question: Question, line: "_Line") -> msgspec.Raw:
        """Raises GatewayError."""
        try:
            async with line:
                answer = await self._read(question, self._config)
        except (audit_reader.ReadError, OSError) as error:
            log(logger, logging.ERROR, "audit question not answered", error=str(error))
            raise errors.Fault("the journals could not be read") from error
        if answer.status == 404:
            raise errors.NotFound(answer.message)
        if answer.status != 200:
            raise errors.GatewayUnreachable(answer.message, retry_after_s=5)
        return answer.content

    async def _told(self, auditor: Principal, request: Request, response: Response) -> None:
        """Raises JournalFull: the look is in no journal, so there is nothing to be seen."""
        query = f"?{request.url.query}" if request.url.query else ""
        told = events.audit_read(
            actor=auditor.key_id,
            method=request.method,
            path=request.url.path + query,
            status=response.status_code,
            request_id=response.headers["x-request-id"],
        )
        try:
            await self._recorder().tell(told.line(time.time_ns))
        except OSError as error:
            raise errors.JournalFull("this look could not be recorded, so nothing is shown") from error


class _Line:
    """A line of questions: one is answered, WAITING_MAX may wait."""

    def __init__(self) -> None:
        self._answering = asyncio.Lock()
        self._length = 0

    async def __aenter__(self) -> None:
        """Raises Overloaded."""
        if self._length > WAITING_MAX:
            raise errors.Overloaded("too many questions wait for an answer; try again", retry_after_s=5)
        self._length += 1
        try:
            await self._answering.acquire()
        except asyncio.CancelledError:
            self._length -= 1
            raise

    async def __aexit__(self, *_: object) -> None:
        self._answering.release()
        self._length -= 1


def _of_a_call(
    read: Callable[[str, bool], Question],
) -> Callable[[Request], Question]:
    def question(request: Request) -> Question:
        audit_questions.nothing(request.query_params)
        return read(request.path_params["call_id"], HOP not in request.headers)

    return question


def _of_query(read: Callable[[Query], Question]) -> Callable[[Request], Question]:
    return lambda request: read(request.query_params)


def _of_nothing(question: Question) -> Callable[[Request], Question]:
    def read(query: Query) -> Question:
        audit_questions.nothing(query)
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
