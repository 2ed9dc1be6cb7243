"""The operators' face: alive, ready and why not, metrics, version.

On the main port /metrics needs a key with the scope `operator`; on `ops.listen` it is open.
"""

import asyncio
import importlib.metadata
import pathlib
import time
from collections.abc import Callable, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from backends.health import State
from gateway.api.openai_api import entered, json_response
from gateway.calls.relay import Services
from gateway.calls.targets import ServedModel
from gateway.directory.entrance import Entrance
from metering.pages import metrics
from metering.pages.pages import PageError


class BackendStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One backend as /readyz shows it. held_s: seconds for which it gets no calls, since it said that it is busy."""

    name: str
    state: State
    reason: str
    held_s: int | None


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /readyz. reasons: why calls cannot be served, or not be recorded.

    warnings: what somebody should see to, though calls are served and recorded.
    """

    ready: bool
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    models: dict[str, bool]
    backends: tuple[BackendStatus, ...]


class Ops:
    """What the operators' face needs of the worker."""

    def __init__(
        self,
        *,
        services: Services,
        models: tuple[ServedModel, ...],
        pages_dir: pathlib.Path,
        before_scrape: Callable[[], None],
        warnings: Callable[[], Sequence[str]],
    ) -> None:
        self._warnings = warnings
        self._services = services
        self._models = models
        self._pages_dir = pages_dir
        self._before_scrape = before_scrape

    def routes(self, entrance: Entrance | None) -> list[Route]:
        """entrance: who may read /metrics; None: everybody, on a port of its own."""

        async def metrics_page(request: Request) -> Response:
            if entrance is not None:
                entered(entrance, request, "operator")
            return await self._metrics(request)

        return [
            Route("/healthz", self._healthz, methods=["GET", "HEAD"]),
            Route("/readyz", self._readyz, methods=["GET", "HEAD"]),
            Route("/version", self._version, methods=["GET", "HEAD"]),
            Route("/metrics", metrics_page, methods=["GET", "HEAD"]),
        ]

    async def _healthz(self, _request: Request) -> Response:
        """The process answers; nothing more."""
        return PlainTextResponse("ok\n")

    async def _readyz(self, _request: Request) -> Response:
        """200 if at least one model can be served and recorded, else 503, with the reasons."""
        found = self.readiness()
        return json_response(found, status=200 if found.ready else 503)

    def readiness(self) -> Readiness:
        """Which models can be served now, and what stands in the way of the others."""
        entries, recorder = self._services.registry.entries, self._services.recorder
        now_ns = time.monotonic_ns()
        models = {
            model.id: any(
                entries[name].health.state is State.READY for tier in model.tiers for name in tier.backends
            )
            for model in self._models
        }
        reasons = [f"model {name}: no backend is ready" for name, able in models.items() if not able]
        recordable = recorder.has_room()
        if recorder.dead is not None:  # calls may go on, as `journal.on_error` says
            reasons.append("the journal cannot be written")
        elif not recordable:
            reasons.append("the journal is full")
        return Readiness(
            ready=any(models.values()) and recordable,
            reasons=tuple(reasons),
            warnings=tuple(self._warnings()),
            models=models,
            backends=tuple(
                BackendStatus(
                    name=name,
                    state=entry.health.state,
                    reason=entry.health.words,
                    held_s=entry.held_s(now_ns),
                )
                for name, entry in entries.items()
            ),
        )

    async def _version(self, _request: Request) -> Response:
        return json_response({"version": importlib.metadata.version("weighbridge")})

    async def _metrics(self, request: Request) -> Response:
        """The sum of all workers' pages, whichever is asked; 503 if one can't be read.

        In a thread: a page may have to be read again, and 1,000 series are 10 ms of text.
        """
        self._before_scrape()
        accept = request.headers.get("accept", "")
        try:
            found = await asyncio.to_thread(metrics.scrape, self._pages_dir)
        except PageError as error:
            return PlainTextResponse(f"{error}\n", status_code=503)
        text, kind = await asyncio.to_thread(metrics.render, found, accept)
        return Response(text, headers={"content-type": kind})
