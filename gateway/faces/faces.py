"""What the faces have in common that are looked into with a scope of their own: /audit/v1 and /finance/v1.

    key with the scope ─▶ question ─▶ a process answers (reader.py) ─▶ the look is in the journal ─▶ the answer

On the main port and on `ops.listen`, with a key on both. Each look is an event of the journal, with its status,
before anything is shown; a refused key is one too (gateway/faces/sign_ins.py).
"""

import abc
import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api import errors, openai_api
from gateway.api.auth import Principal
from gateway.api.errors import GatewayError
from gateway.api.openai_api import credentials, origins_of
from gateway.configuration.config import Scope
from gateway.directory.entrance import Entrance
from gateway.faces.answers import Answer
from gateway.faces.reader import ReadError
from gateway.faces.sign_ins import SignIns
from metering.journal import events
from metering.journal.events import Happening
from metering.journal.recorder import Recorder
from metering.journal.unwritten import Unwritable
from metering.logs import log

WAITING_MAX = 16
"""Questions of one worker that wait while others are answered."""

Ask = Callable[[Request, Principal], Awaitable[Response]]
"""Has a request of somebody answered. Raises GatewayError."""

_LOOKS = {"audit": events.audit_read, "finance": events.finance_read, "admin": events.administered}

logger = logging.getLogger("weighbridge.faces")


class Face:
    """One of them. name: in the journal; scope: that a key needs."""

    def __init__(
        self,
        *,
        name: events.Face,
        scope: Scope,
        entrance: Entrance,
        recorder: Callable[[], Recorder | Unwritable],
    ) -> None:
        """recorder: gives the one that takes lines now."""
        self._name = name
        self._scope = scope
        self._entrance = entrance
        self._recorder = recorder
        self._sign_ins = SignIns()

    def route(self, path: str, by_method: Mapping[str, Ask]) -> Route:
        """A path of it. by_method: what answers; HEAD is as GET."""

        async def endpoint(request: Request) -> Response:
            principal = self.principal(request)
            if not self._recorder().has_room():
                raise openai_api.no_room()
            try:
                ask = by_method["GET" if request.method == "HEAD" else request.method]
                response = await ask(request, principal)
            except GatewayError as error:
                response = await openai_api.render(request, error)
            try:
                await self.look_told(principal, request, response)
            except BaseException:
                if isinstance(response, Held):
                    await response.let_go()
                raise
            return response

        return Route(path, endpoint, methods=list(by_method))

    def principal(self, request: Request) -> Principal:
        """Who asks. Raises GatewayError, as a sign-in that was refused, which is told too."""
        principal, origin = None, origins_of(request.scope)
        try:
            principal = self._entrance.known(*credentials(request), origin)
            self._entrance.check(principal, None, origin)
            principal.require(self._scope)
        except GatewayError as error:
            self._sign_ins.refused(self._name, int(error.status), principal.key_id if principal else None)
            raise
        return principal

    async def look_told(self, principal: Principal, request: Request, response: Response) -> None:
        """Raises JournalFull: the look is in no journal, so there is nothing to be seen."""
        query = f"?{request.url.query}" if request.url.query else ""
        told = _LOOKS[self._name]
        await self.tell(
            told(
                actor=principal.key_id,
                method=request.method,
                path=request.url.path + query,
                status=response.status_code,
                request_id=response.headers["x-request-id"],
            )
        )

    async def tell(self, happening: Happening) -> None:
        """Returns once it is in the journal. Raises JournalFull."""
        try:
            await self._recorder().tell(happening.line(time.time_ns))
        except OSError as error:
            raise errors.JournalFull("this look could not be recorded, so nothing is shown") from error

    def tell_refused(self) -> None:
        """Called once a second, and at the end: put what was refused into the journal."""
        for happening in self._sign_ins.told():
            self._recorder().note(happening.line(time.time_ns))


class Held(Response, abc.ABC):
    """An answer that holds something until it has left."""

    @abc.abstractmethod
    async def let_go(self) -> None:
        """It will not leave."""


class Line:
    """A line of questions: so many are answered at a time, WAITING_MAX may wait."""

    def __init__(self, width: int = 1) -> None:
        self._width = width
        self._answering = asyncio.Semaphore(width)
        self._length = 0

    async def __aenter__(self) -> None:
        """Raises Overloaded."""
        if self._length >= self._width + WAITING_MAX:
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


def checked(answer: Answer, unavailable: type[GatewayError]) -> Answer:
    """An answer that has something to show. unavailable: what a 503 is. Raises GatewayError for all others."""
    match answer.status:
        case HTTPStatus.OK:
            return answer
        case HTTPStatus.BAD_REQUEST:
            raise errors.InvalidRequest(answer.message, param=answer.param)
        case HTTPStatus.NOT_FOUND:
            raise errors.NotFound(answer.message, param=answer.param)
    raise unavailable(answer.message, retry_after_s=5)


def fault(what: str, error: ReadError | OSError) -> errors.Fault:
    """A question that was not answered, for which the log has the reason. what: could not be read."""
    log(logger, logging.ERROR, "question not answered", what=what, error=str(error))
    return errors.Fault(f"{what} could not be read")
