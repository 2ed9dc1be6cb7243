"""A simulated vLLM server: its routes, and how to run it.

    POST  a path of APIS              GET  /v1/models /health /ping /version /metrics
    GET   /v1/responses/{id}          POST /v1/responses/{id}/cancel
    POST, DELETE /_sim/fault          GET, DELETE /_sim/log   (?since=N, ?raw=1)

Guide: deploy/reference/simulator.md. It imports nothing of the gateway or the metering: its log is what those
are judged by.
"""

import asyncio
import contextlib
import errno
import functools
import importlib.resources
import logging
import re
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping

import msgspec
import uvloop

from backends.simulator import answers, faults, profiles, refusals, uploads
from backends.simulator.answers import Heading
from backends.simulator.apis.audio import TranscriptionBody, TranslationBody
from backends.simulator.apis.chat import ChatBody
from backends.simulator.apis.completions import CompletionBody
from backends.simulator.apis.messages import CountTokensBody, MessagesBody
from backends.simulator.apis.pooling import ClassifyBody, EmbeddingsBody, PoolingBody, RerankBody, ScoreBody
from backends.simulator.apis.responses import ResponsesBody
from backends.simulator.apis.tokenizer import DetokenizeBody, TokenizeBody
from backends.simulator.asks import Ask, Body, Served
from backends.simulator.calls import Call, Context, SizedCall, StreamedCall
from backends.simulator.driver import Driver
from backends.simulator.engine import Engine
from backends.simulator.faults import Faults
from backends.simulator.http import Connection, Dates, Request
from backends.simulator.kept import Kept, KeptResponses
from backends.simulator.log import Entry, Log
from backends.simulator.metrics import Metrics
from backends.simulator.prefix_cache import PrefixCache
from backends.simulator.refusals import Refused
from backends.simulator.settings import Settings
from backends.simulator.tokens import Vocabulary

APIS: Mapping[str, type[Body]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/v1/responses": ResponsesBody,
    "/v1/messages": MessagesBody,
    "/v1/messages/count_tokens": CountTokensBody,
    "/v1/audio/transcriptions": TranscriptionBody,
    "/v1/audio/translations": TranslationBody,
    "/v1/embeddings": EmbeddingsBody,
    "/pooling": PoolingBody,
    "/classify": ClassifyBody,
    "/rerank": RerankBody,
    "/v1/rerank": RerankBody,
    "/v2/rerank": RerankBody,
    "/score": ScoreBody,
    "/v1/score": ScoreBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}

BACKLOG = 1_024
EXPOSITION = "text/plain; version=1.0.0; charset=utf-8"
JSON_LINES = "application/x-ndjson"

_RESPONSE = re.compile("/v1/responses/([^/]+)(/cancel)?")

_logger = logging.getLogger(__name__)

Route = Callable[[Request, Connection], None]


class Simulator:
    """One server's state and routes. Make it on a running loop."""

    def __init__(self, settings: Settings, profile: profiles.Profile) -> None:
        self.profile = profile
        self.slots = settings.slots or profile.full
        self._served = Served(
            model=settings.model,
            max_model_len=settings.max_model_len or profile.max_model_len,
            vocabulary=Vocabulary(),
            responses=KeptResponses(settings.responses_max),
        )
        self._metrics = Metrics(settings.model)
        cache = PrefixCache(settings.cache_blocks_max)
        self._engine = Engine(profile.scaled(settings.time_scale), self.slots, cache, self._metrics)
        self.driver = Driver(self._engine)
        self._faults = Faults()
        self._log = Log(settings.log_entries_max, settings.log_raw_bytes_max)
        self._routes: dict[str, dict[str, Route]] = {
            **{path: {"POST": self._answer} for path in APIS},
            "/v1/models": {"GET": self._models},
            "/health": {"GET": self._well},
            "/ping": {"GET": self._well, "POST": self._well},
            "/version": {"GET": self._version},
            "/metrics": {"GET": self._show_metrics},
            "/_sim/fault": {"POST": self._add_fault, "DELETE": self._clear_faults},
            "/_sim/log": {"GET": self._show_log, "DELETE": self._clear_log},
        }

    def handle(self, request: Request, connection: Connection) -> None:
        methods = self._routes.get(request.path) or self._kept_routes(request.path)
        if methods is None:
            connection.respond(404, b'{"detail":"Not Found"}')
        elif (route := methods.get(request.method)) is None:
            connection.respond(
                405, b'{"detail":"Method Not Allowed"}', extra=(f"allow: {', '.join(methods)}",)
            )
        else:
            route(request, connection)

    def _kept_routes(self, path: str) -> dict[str, Route] | None:
        """Of one response that is kept."""
        match = _RESPONSE.fullmatch(path)
        if match is None:
            return None
        response_id, cancel = match.groups()
        kept = self._served.responses
        take = kept.get if cancel is None else kept.cancel
        return {"GET" if cancel is None else "POST": functools.partial(self._show_kept, take, response_id)}

    def _show_kept(
        self, take: Callable[[str], Kept], response_id: str, request: Request, connection: Connection
    ) -> None:
        recording = self._log.open(
            time.time_ns(), request.headers.get("x-request-id"), request.path, request.body
        )
        entry, outcome = recording.entry, "completed"
        try:
            shown, entry.status, entry.prompt_tokens = take(response_id).body, 200, 0
        except Refused as refused:
            shown, entry.status, outcome = answers.openai_error(refused), refused.status, "refused"
        recording.sent(shown)
        connection.respond(entry.status, shown)
        self._log.close(recording, outcome, time.time_ns())

    def _answer(self, request: Request, connection: Connection) -> None:
        request_id = request.headers.get("x-request-id")
        recording = self._log.open(time.time_ns(), request_id, request.path, request.body)
        body_type = APIS[request.path]
        try:
            body, ask = self._read(request, body_type, recording.entry)
        except Refused as refused:
            shown = body_type.error(refused)
            recording.entry.status = refused.status
            recording.sent(shown)
            connection.respond(refused.status, shown)
            self._log.close(recording, "refused", time.time_ns())
            return
        key = secrets.token_hex(8)
        heading = Heading(
            id=body.given_id or body.id_prefix + (request_id if request_id and body.id_of_request else key),
            created=int(time.time()),
            model=self._served.model,
            key=key,
        )
        context = Context(
            ask=ask,
            body=body,
            connection=connection,
            driver=self.driver,
            fault=self._faults.next(),
            log=self._log,
            recording=recording,
            writer=body.writer(heading, ask, self._served),
        )
        call: Call = StreamedCall(context) if ask.stream else SizedCall(context)
        call.begin()

    def _read(self, request: Request, body_type: type[Body], entry: Entry) -> tuple[Body, Ask]:
        content_type = request.headers.get("content-type", "")
        wanted = "multipart/form-data" if body_type.is_form else "application/json"
        if content_type.partition(";")[0].strip().lower() != wanted:
            message = f"1 validation error:\n  Unsupported Media Type: Only '{wanted}' is allowed"
            raise Refused(400, message, refusals.INVALID)
        if body_type.is_form:
            body = refusals.take(uploads.read_form(request.body, content_type), body_type)
        else:
            body = refusals.read(request.body, body_type)
        entry.model, entry.stream = body.model, body.streams
        return body, body.ask(self._served)

    def _models(self, _request: Request, connection: Connection) -> None:
        connection.respond(
            200, answers.models_body(self._served.model, self._served.max_model_len, int(time.time()))
        )

    def _well(self, _request: Request, connection: Connection) -> None:
        connection.respond(200, content_type=None)

    def _version(self, _request: Request, connection: Connection) -> None:
        connection.respond(200, b'{"version":"%b"}' % answers.VERSION.encode())

    def _show_metrics(self, _request: Request, connection: Connection) -> None:
        page = self._metrics.page(
            running=self._engine.running,
            waiting=self._engine.waiting,
            cache_used=self._engine.cache_used(self._served.max_model_len),
        )
        connection.respond(200, page.encode(), EXPOSITION)

    def _add_fault(self, request: Request, connection: Connection) -> None:
        try:
            fault = msgspec.json.decode(request.body, type=faults.Fault)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            connection.respond(400, answers.openai_error(Refused(400, str(error), refusals.INVALID)))
            return
        self._faults.add(fault)
        connection.respond(200, msgspec.json.encode(fault))

    def _clear_faults(self, _request: Request, connection: Connection) -> None:
        self._faults.clear()
        connection.respond(204, content_type=None)

    def _show_log(self, request: Request, connection: Connection) -> None:
        since = request.query.get("since", "1")
        if not since.isdecimal():
            refused = Refused(400, "since is a number", refusals.INVALID, "since")
            connection.respond(400, answers.openai_error(refused))
            return
        lines = self._log.dump(since=int(since), raw=request.query.get("raw") == "1")
        connection.respond(200, b"".join(lines), JSON_LINES)

    def _clear_log(self, _request: Request, connection: Connection) -> None:
        self._log.clear()
        connection.respond(204, content_type=None)


def profile_of(settings: Settings) -> profiles.Profile:
    """The timing of a server with these settings, before `time_scale`."""
    table = importlib.resources.files("backends").joinpath("data/neuron_benchmarks.csv").read_text()
    return profiles.choose(profiles.read_runs(table), settings.instance_type, settings.model, settings.slots)


async def serve(
    settings: Settings,
    *,
    host: str = "127.0.0.1",
    port: int,
    ready: Callable[[int], None] | None = None,
) -> None:
    """Serve until cancelled. port 0: a free one; `ready` is told which. Raises OSError if it can't listen."""
    profile = profile_of(settings)
    if profile.basis is profiles.Basis.ASSUMED:
        _logger.warning(
            "timing: assumed, no measured row for %s on %s", settings.model, settings.instance_type
        )
    loop = asyncio.get_running_loop()
    simulator = Simulator(settings, profile)
    connections: set[Connection] = set()
    dates = Dates()
    listener = await loop.create_server(
        lambda: Connection(simulator.handle, dates, connections), host, port, backlog=BACKLOG
    )
    try:
        if ready is not None:
            ready(listener.sockets[0].getsockname()[1])
        await asyncio.Event().wait()
    finally:
        listener.close()
        simulator.driver.stop()
        for connection in tuple(connections):
            connection.close()


def first_line(settings: Settings, host: str, port: int) -> str:
    """What it says of itself before anything else."""
    profile = profile_of(settings)
    slots = settings.slots or profile.full
    source = "" if profile.basis is profiles.Basis.ASSUMED else f", {profile.source}"
    return (
        f"simulated: {settings.instance_type} serving {settings.model} with {slots} slots "
        f"at http://{host}:{port}; timing: {profile.basis}{source}"
    )


def run(settings: Settings, port: int, host: str = "127.0.0.1") -> int:
    """Serve until SIGINT or SIGTERM. returns: the exit code; 3 if the port is taken, with one line on stderr."""

    def ready(bound_port: int) -> None:
        sys.stdout.write(first_line(settings, host, bound_port) + "\n")
        sys.stdout.flush()

    async def until_signal() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await serve(settings, host=host, port=port, ready=ready)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(until_signal())
    except OSError as error:
        reason = "is taken" if error.errno == errno.EADDRINUSE else f"can't be used: {error.strerror}"
        sys.stderr.write(f"weighbridge: port {port} {reason}\n")
        return 3
    return 0
