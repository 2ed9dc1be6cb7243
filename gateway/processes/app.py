"""The composition root of a worker: everything is opened here, in order, and closed in reverse.

journal ─▶ page, shipper (folds) ─▶ recorder ─▶ upstreams, registry ─▶ seats ─▶ the faces
"""

import asyncio
import contextlib
import functools
import logging
import pathlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from backends.registry import Entry, Registry
from backends.upstream import Upstream
from gateway.admission import salt_key
from gateway.admission.admission import Admissions
from gateway.admission.salts import Salts
from gateway.api import errors, openai_api, paths
from gateway.api.cors import CorsPolicy
from gateway.api.kept import KeptResponses
from gateway.api.openai_api import OpenAIApi
from gateway.api.operations import CANCEL, OPERATIONS, RETRIEVE
from gateway.api.usage import UsageApi
from gateway.calls import digested, plain
from gateway.calls.bounds import LoopLag
from gateway.calls.call import Limits
from gateway.calls.direct import Door
from gateway.calls.queueing import Seats
from gateway.calls.relay import Relay, Services
from gateway.calls.targets import ServedModel, Targets, Tier
from gateway.configuration import config as cfg
from gateway.configuration.config import Config
from gateway.configuration.config_load import backend_keys
from gateway.configuration.limits_config import threshold
from gateway.directory.directory import Directory
from gateway.directory.entrance import Entrance
from gateway.faces.audit_api import AuditApi
from gateway.faces.finance_api import FinanceApi
from gateway.faces.ops import Ops
from gateway.processes import rounds
from gateway.processes.access import Access
from gateway.processes.books import PAGES, Books
from gateway.processes.captures import Captures
from gateway.processes.pooling import SWEEP_S as POOLING_SWEEP_S
from gateway.processes.pooling import Pooling
from gateway.processes.registrations import Registrations
from gateway.processes.standing import Standing
from metering.journal.digests import TenantKeys
from metering.journal.refusals import Refusals
from metering.ledger.store import Store
from metering.limits.limiter import Limiter
from metering.logs import log
from metering.units import NS_PER_MS, NS_PER_S

FIRST_PROBES_S = 1.0
"""How long a worker waits to learn which backends are ready before it takes calls."""

logger = logging.getLogger("weighbridge.worker")


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the workers this is, and whom it tells what.

    ready: called with the writer id when calls can be taken; behind: a ledger mark fell behind what the
    store had acknowledged; on_behind: takes what is to be called when another worker's mark has; dead: the
    journal cannot be written, the process must end. stopping: set once the process is to end.
    mirror_fd: where journal lines are copied to; None: nowhere.
    """

    index: int
    workers: int
    config: Config
    redis_url: str
    ready: Callable[[str], None]
    behind: Callable[[], None]
    on_behind: Callable[[Callable[[], None]], None]
    dead: Callable[[], None]
    stopping: asyncio.Event
    mirror_fd: int | None = None


class App(Starlette):
    """Starlette with the generating paths before its middleware and routing: they are raw ASGI."""

    hot: ASGIApp | None = None

    cors: CorsPolicy | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if self.cors is not None:
                headers = dict(scope["headers"])
                answer = self.cors.preflight(scope["method"], headers)
                if answer is not None:
                    await plain.answer(send, *answer)
                    return
                origin = headers.get(b"origin")
                if origin is not None or scope["method"] != "POST":  # no cache keeps the answer to a POST
                    send = plain.adding(send, self.cors.headers(origin))
            if self.hot is not None and scope["path"] in OPERATIONS:
                await self.hot(scope, receive, send)
                return
        await super().__call__(scope, receive, send)


def create_apps(worker: Worker, door: Door, ops_door: Door) -> tuple[App, App]:
    """The app of the main port, whose lifespan is the worker's, and that of `ops.listen`.

    door, ops_door: what the connections of each share.
    """
    main, ops = App(exception_handlers=HANDLERS), App(exception_handlers=HANDLERS)
    if worker.config.cors.origins:
        main.cors = CorsPolicy(worker.config.cors)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            await _open(worker, (door, ops_door), main, ops, stack)
            yield

    main.router.lifespan_context = lifespan
    main.router.redirect_slashes = ops.router.redirect_slashes = (
        False  # a client would lose its body on the way
    )
    return main, ops


async def _open(
    worker: Worker, doors: tuple[Door, Door], main: App, ops_app: App, stack: contextlib.AsyncExitStack
) -> None:
    config = worker.config
    door, _ = doors
    limiter = Limiter(
        worker.redis_url,
        loop=asyncio.get_running_loop(),
        refuse_unpriced=config.budget.unpriced == "refuse",
        on_passed=lambda passed: books.recorder.note(threshold(passed).line(time.time_ns)),
    )
    stack.push_async_callback(limiter.close)
    captures = Captures(config, asyncio.get_running_loop(), lambda outcome: books.captured(outcome))
    books = Books(
        config,
        worker.index,
        worker.redis_url,
        behind=worker.behind,
        limiter=limiter,
        mirror_fd=worker.mirror_fd,
        sync_before=captures.sync,
    )
    stack.push_async_callback(books.close)
    stack.push_async_callback(captures.close)
    failed = asyncio.Event()
    await books.open(failed.set)
    worker.on_behind(books.compare)
    seats = Seats(
        {backend.name: backend.slots for backend in config.backends},
        calls_max=config.bounds.queue_calls_max,
        clock=time.monotonic_ns,
    )
    pooling = Pooling(
        config,
        worker.redis_url,
        books.recorder.writer,
        index=worker.index,
        workers=worker.workers,
        seats=seats,
    )
    stack.push_async_callback(pooling.close)
    entries = _open_backends(config, stack)
    standing = Standing(config, books)
    registry = Registry(entries, standing.changed)
    targets = Targets(registry, seats)
    standing.targets = targets
    for entry in entries:
        standing.changed(entry)
    services = Services(
        recorder=books.recorder,
        refusals=Refusals(lambda make: books.recorder.note(make)),
        seats=seats,
        registry=registry,
        clock=time.monotonic_ns,
        open=set(),
        lag=LoopLag(interval_ns=_ns(rounds.SWEEP_S), lag_ns_max=config.bounds.loop_lag_ms_max * NS_PER_MS),
        exceeded=books.exceeded,
    )
    stack.callback(services.refusals.tell)
    stack.push_async_callback(rounds.stop_calls, services)

    def gauges() -> None:
        if (held := books.held) is None:
            return
        shown = held.page.gauges
        for entry in entries:
            shown.in_flight(entry.backend.name, seats.taken(entry.backend.name))
        shown.ledger_lag(held.shipper.lag())
        shown.journal(full=held.recorder.full, slow=held.recorder.slow)
        shown.client_connections(len(door.connections))
        shown.loop_lag(services.lag.worst_ns)
        shown.limits_unchecked(limiter.is_away)
        held.page.publish()

    def warnings() -> Sequence[str]:
        found = list(books.held.shipper.warnings()) if books.held is not None else []
        return found + limiter.warnings() + list(pooling.warnings()) + access.warnings()

    def opened() -> None:
        services.recorder = books.recorder
        for entry in entries:
            standing.write_down(entry)

    access = Access(config, worker.index, worker.redis_url, lambda: books.recorder)
    await access.open(stack)
    admissions = Admissions(limiter)
    salts = Salts(salt_key.load(pathlib.Path(config.state_dir)))
    access.follow(limiter, seats, admissions, salts)
    await limiter.opened()
    audit = AuditApi(config=config, entrance=access.entrance, recorder=lambda: books.recorder)
    finance = FinanceApi(config=config, entrance=access.entrance, recorder=lambda: books.recorder)
    for face in (audit, finance, access.admin):
        stack.callback(face.face.tell_refused)
        for app in (main, ops_app):
            app.router.routes += face.routes()

    def tell_sign_ins() -> None:
        for happening in access.entrance.sign_ins.told():
            books.recorder.note(happening.line(time.time_ns))

    stack.callback(tell_sign_ins)
    ledger = await stack.enter_async_context(Store(worker.redis_url))
    models = [model.name for model in config.models]
    usage = UsageApi(entrance=access.entrance, models=models, limiter=limiter, ledger=ledger)
    main.router.routes += usage.routes()
    door.api = _open_faces(
        config, access.entrance, services, targets, admissions, salts, gauges, warnings, main, ops_app
    )
    tenant_keys = _open_keeping(config, access.directory, captures, door.api)
    for one in doors:
        one.exceeded = books.exceeded
    await pooling.open()
    await _probe_all(registry, stack)
    if worker.index == 0:  # the others would say the same
        standing.registrations = Registrations(config, standing.catalog, entries, lambda: books.recorder)
        standing.register()
    for forever in (
        rounds.every(rounds.SWEEP_S, functools.partial(rounds.sweep, services, entries)),
        rounds.every(POOLING_SWEEP_S, pooling.sweep),
        rounds.every(rounds.SLOW_SWEEP_S, functools.partial(rounds.sweep_clients, services, doors)),
        rounds.every(rounds.SLOW_SWEEP_S, gauges),
        rounds.every(rounds.SLOW_SWEEP_S, services.refusals.tell),
        rounds.every(rounds.SLOW_SWEEP_S, books.look),
        rounds.every(rounds.SLOW_SWEEP_S, functools.partial(standing.take_up_prices, entries)),
        rounds.every(rounds.SLOW_SWEEP_S, standing.register),
        rounds.every(rounds.SLOW_SWEEP_S, audit.face.tell_refused),
        rounds.every(rounds.SLOW_SWEEP_S, finance.face.tell_refused),
        rounds.every(rounds.SLOW_SWEEP_S, access.admin.face.tell_refused),
        rounds.every(rounds.SLOW_SWEEP_S, tell_sign_ins),
        rounds.every(rounds.SLOW_SWEEP_S, tenant_keys.refresh),
        rounds.every(rounds.SLOW_SWEEP_S, captures.look),
        rounds.drain(worker.stopping, services, config.drain_s),
        rounds.keep_open(books, failed, opened, worker.dead, worker.ready),
        *(registry.watch(entry) for entry in entries),
    ):
        stack.push_async_callback(rounds.cancel, asyncio.create_task(forever))
    if books.is_written:
        worker.ready(books.recorder.writer)


def _open_backends(config: Config, stack: contextlib.AsyncExitStack) -> list[Entry]:
    loop, keys = asyncio.get_running_loop(), backend_keys(config)
    entries = []
    for backend in config.backends:
        upstream = Upstream(
            backend,
            key=keys.get(backend.name),
            loop=loop,
            head_bytes_max=config.bounds.backend_head_bytes_max,
            idle_max=config.bounds.backend_idle_max,
            idle_s_max=config.bounds.backend_idle_s,
        )
        stack.push_async_callback(upstream.close)
        entries.append(Entry(backend, upstream))
    return entries


def _open_keeping(config: Config, directory: Directory, captures: Captures, api: OpenAIApi) -> TenantKeys:
    """What is kept of calls beside their records: digests, of the tenants that want them now and of those that will,
    and content, of tenants of the configuration alone. returns: the keys of digests."""
    tenant_keys = TenantKeys(pathlib.Path(config.state_dir), cfg.with_digests(config))
    tenant_keys.refresh()

    def changed(names: Collection[str]) -> None:
        for name in names:
            tenant = directory.tenant(name)
            tenant_keys.want(name, is_wanted=tenant is not None and tenant.digests)
        api.new_relay = captures.maker(digested.maker(tenant_keys) if tenant_keys.wanted else Relay)

    directory.on_change.append(changed)
    changed(directory.names())
    return tenant_keys


def _open_faces(
    config: Config,
    entrance: Entrance,
    services: Services,
    targets: Targets,
    admissions: Admissions,
    salts: Salts,
    gauges: Callable[[], None],
    warnings: Callable[[], Sequence[str]],
    main: App,
    ops_app: App,
) -> OpenAIApi:
    models = {model.name: _served(model, config) for model in config.models}
    names = models | {alias: models[model.name] for model in config.models for alias in model.aliases}
    api = OpenAIApi(
        services=services,
        entrance=entrance,
        models=names,
        targets=targets,
        admissions=admissions,
        salts=salts,
        created_s=int(time.time()),
        bounds=config.bounds,
    )
    operators = Ops(
        services=services,
        models=tuple(models.values()),
        pages_dir=pathlib.Path(config.state_dir) / PAGES,
        before_scrape=gauges,
        warnings=warnings,
    )
    main.router.routes += [
        *operators.routes(entrance),
        Route("/v1/models", api.models, methods=["GET"]),
        Route("/v1/models/", api.models, methods=["GET"]),  # else it would ask for the model with no name
        Route("/v1/models/{model:path}", api.model, methods=["GET"]),
        Route("/openapi.json", api.description, methods=["GET"]),
        Route(RETRIEVE.path, KeptResponses(api, services, targets, models, RETRIEVE), methods=["GET"]),
        Route(CANCEL.path, KeptResponses(api, services, targets, models, CANCEL), methods=["POST"]),
    ]
    ops_app.router.routes += operators.routes(None)
    main.hot = api.generate
    return api


async def _probe_all(registry: Registry, stack: contextlib.AsyncExitStack) -> None:
    """Ask all backends once. Calls that waited while this worker was being restarted must not be refused because
    it knows of none; a backend that does not answer is not waited for."""
    probes = [asyncio.create_task(registry.probe(entry)) for entry in registry.entries.values()]
    for probe in probes:
        stack.push_async_callback(rounds.cancel, probe)
    await asyncio.wait(probes, timeout=FIRST_PROBES_S)


def _served(model: cfg.Model, config: Config) -> ServedModel:
    limits = Limits(
        connect_ns=_ns(config.timeouts.connect_s),
        first_event_ns=_ns(config.timeouts.first_event_s),
        sized_answer_ns=_ns(config.timeouts.sized_answer_s),
        between_events_ns=_ns(config.timeouts.between_events_s),
        total_ns=_ns(config.timeouts.total_s),
        queue_ns=_ns(config.bounds.queue_wait_s),
        keepalive_ns=_ns(config.keepalive_s),
        attempts_max=config.attempts_max,
        patience_ns=tuple(_ns(tier.patience_s) for tier in model.tiers),
        event_bytes_max=config.bounds.event_bytes_max,
        answer_bytes_max=config.bounds.answer_bytes_max,
    )
    tiers = tuple(Tier(backends=tier.backends) for tier in model.tiers)
    return ServedModel(id=model.name, owner=model.owner, tiers=tiers, limits=limits)


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own 404 and 405, in OpenAI's shape."""
    assert isinstance(error, HTTPException)
    allowed: list[str] = []
    if error.status_code == 405:
        allowed = sorted((error.headers or {}).get("Allow", "another method").split(", "))
        shown: errors.GatewayError = errors.MethodNotAllowed(f"this path takes {', '.join(allowed)}")
    elif error.status_code == 404:
        shown = _nothing_at(request.scope["path"], request.app)
    else:
        shown = errors.InvalidRequest(str(error.detail))
    response = await openai_api.render(request, shown)
    response.headers.update(error.headers or {})
    if allowed:
        response.headers["allow"] = ", ".join(allowed)
    return response


def _nothing_at(path: str, app: App) -> errors.NotFound:
    """The 404 of a path that `app` does not serve, with what it may have meant."""

    def is_served(other: str) -> bool:
        if app.hot is not None and other in OPERATIONS:
            return True
        return any(isinstance(route, Route) and route.path_regex.match(other) for route in app.router.routes)

    found = paths.meant(path, is_served)
    hint = f"if {found} is meant, check the base URL" if found else "/openapi.json lists what there is"
    return errors.NotFound(f"there is nothing at {errors.shown(path)}; {hint}")


async def _fault(request: Request, error: Exception) -> Response:
    log(logger, logging.ERROR, "fault in a page", path=request.url.path, error=repr(error))
    return await openai_api.render(request, errors.Fault("internal error"))


HANDLERS: dict[type[Exception] | int, Callable[[Request, Exception], Awaitable[Response]]] = {
    errors.GatewayError: openai_api.render,
    HTTPException: _http_error,
    Exception: _fault,
}
