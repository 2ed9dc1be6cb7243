"""The face for finance, /finance/v1: sums, rows, files, hours, months, prices, reports (gateway/faces/faces.py)."""

import contextlib
from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api import errors, openai_api
from gateway.api.auth import Principal
from gateway.configuration.config import Config
from gateway.directory.entrance import Entrance
from gateway.faces import faces, finance_questions, reader
from gateway.faces.answers import Sent
from gateway.faces.downloads import File
from gateway.faces.faces import Ask, Face, Line
from gateway.faces.finance_questions import Export, Question, Task
from gateway.faces.queries import Query
from gateway.faces.reader import Reader, ReadError
from metering.journal import events
from metering.journal.recorder import Recorder
from metering.journal.unwritten import Unwritable

PREFIX = "/finance/v1"
DOWNLOADS_AT_ONCE = 2
"""Files that one worker has made at a time: each has a process, which may hold 300 MB."""

QUESTIONS = Reader("gateway.faces.finance_reader", read_s=60, what="the closed hours")
DOWNLOADS = QUESTIONS._replace(read_s=900)
"""A year of a large fleet takes minutes to be written, and longer to be taken by a slow client."""


class FinanceApi:
    """What the face for finance needs of the worker."""

    def __init__(
        self, *, config: Config, entrance: Entrance, recorder: Callable[[], Recorder | Unwritable]
    ) -> None:
        """recorder: gives the one that takes lines now."""
        self.face = Face(name="finance", scope="finance", entrance=entrance, recorder=recorder)
        self._config = config
        self._questions = Line()
        self._downloads = Line(DOWNLOADS_AT_ONCE)

    def routes(self) -> list[Route]:
        """Of either port."""
        asks = {path: self._asking(question) for path, question in _QUESTIONS.items()}
        asks |= {
            "/exports/{form}": self._export,
            "/exports/{form}/manifest": self._manifest,
            "/statements/{tenant}": self._statement,
        }
        return [self.face.route(PREFIX + path, {"GET": ask}) for path, ask in asks.items()]

    def _asking(self, question: Callable[[Query], Question]) -> Ask:
        async def ask(request: Request, _principal: Principal) -> Response:
            async with self._questions:
                return await self._answered(request, QUESTIONS, question(request.query_params))

        return ask

    async def _manifest(self, request: Request, _principal: Principal) -> Response:
        async with self._downloads:  # it takes as long
            return await self._answered(request, DOWNLOADS, _export(request, is_manifest=True))

    async def _answered(self, request: Request, kind: Reader, question: Question) -> Response:
        """Raises GatewayError."""
        try:
            answer = await reader.read(kind, self._task(question))
        except (ReadError, OSError) as error:
            raise faces.fault(kind.what, error) from error
        return openai_api.listed(request, faces.checked(answer, errors.ArchiveUnreadable).content)

    async def _export(self, request: Request, principal: Principal) -> Response:
        return await self._download(request, principal, _export(request, is_manifest=False))

    async def _statement(self, request: Request, principal: Principal) -> Response:
        tenant = request.path_params["tenant"]
        asked = finance_questions.statement(tenant, request.query_params)
        return await self._download(request, principal, asked)

    async def _download(self, request: Request, principal: Principal, question: Question) -> Response:
        """Raises GatewayError."""
        task = self._task(question)

        async def tell(sent: Sent) -> None:
            told = events.exported(
                actor=principal.key_id,
                what=sent.what,
                period=sent.period,
                rows=sent.rows,
                sha256=sent.sha256,
                to=request.url.path,
                tenant=sent.tenant,
            )
            await self.face.tell(told)

        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self._downloads)
            try:
                reading = await stack.enter_async_context(reader.reading(DOWNLOADS, task))
            except (ReadError, OSError) as error:
                raise faces.fault(DOWNLOADS.what, error) from error
            faces.checked(reading.answer, errors.ArchiveUnreadable)
            return File(request, reading, stack.pop_all(), tell)

    def _task(self, question: Question) -> bytes:
        return msgspec.json.encode(Task(config=self._config, question=question))


def _export(request: Request, *, is_manifest: bool) -> Export:
    """Raises NotFound, InvalidRequest."""
    form = request.path_params["form"]
    return finance_questions.export(form, request.query_params, is_manifest=is_manifest)


_QUESTIONS: dict[str, Callable[[Query], Question]] = {
    "/summary": finance_questions.summary,
    "/rows": finance_questions.rows,
    "/hours": finance_questions.hours,
    "/months": finance_questions.months,
    "/prices": finance_questions.prices,
    "/waterfall": finance_questions.waterfall,
    "/report": finance_questions.report,
}
"""By path."""
