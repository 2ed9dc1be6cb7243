"""The OpenAI face: a request in, a call begun, or an error in OpenAI's shape.

The generating paths come from either driver, `visit` with the head and `begin` with the body; for the plain one
they are raw ASGI, reached before Starlette's routing (app.py). The rest are ordinary endpoints.
"""

import asyncio
import importlib.metadata
import itertools
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus

import msgspec
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.admission.admission import Admissions
from gateway.admission.salts import Salts
from gateway.api import bodies, errors, openapi, response_ids
from gateway.api.auth import Principal
from gateway.api.errors import GatewayError
from gateway.api.forms import FormAsk, read_form_ask
from gateway.api.operations import ALL_OPERATIONS, Operation
from gateway.api.wire import Ask, read_ask
from gateway.calls import plain, relay, routing
from gateway.calls.bounds import Patience
from gateway.calls.call import Call
from gateway.calls.events import Headers, header_lines, header_pairs
from gateway.calls.plain import PlainClient, read_body
from gateway.calls.queueing import TurnedAway
from gateway.calls.relay import Client, NewRelay, Relay, Services
from gateway.calls.routing import TOO_LONG
from gateway.calls.tally import facts_in_order
from gateway.calls.targets import ServedModel, Targets
from gateway.configuration.config import Bounds
from gateway.configuration.config import Scope as KeyScope
from gateway.directory.entrance import Entrance
from gateway.directory.sources import Origin, Origins
from metering import record
from metering.journal.refusals import Refusal
from metering.logs import log

logger = logging.getLogger("weighbridge.api")

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_JSON_LINE = b"content-type: application/json\r\n"
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


class OpenAIApi:
    """What the OpenAI face needs of the worker.

    models: by id and by alias. admissions: whom calls that limits apply to ask; salts: what keeps tenants' prompts
    apart at the servers. created_s: when this worker started, in seconds since 1970.
    new_relay: what carries a call, whichever operation it is of.
    """

    def __init__(
        self,
        *,
        services: Services,
        entrance: Entrance,
        models: Mapping[str, ServedModel],
        targets: Targets,
        admissions: Admissions,
        salts: Salts,
        created_s: int,
        bounds: Bounds,
    ) -> None:
        self.body_bytes_max = bounds.body_bytes_max
        self.new_relay: NewRelay = Relay
        self._buffer_bytes_max = bounds.buffer_bytes_max
        self._patience = Patience.of(bounds)
        self._services = services
        self._entrance = entrance
        self._keys = entrance.keys
        self._models = models
        self._places = places_of(models.values())
        self._targets = targets
        self._admissions = admissions
        self._salts = salts
        self._created_s = created_s
        self._request_ids = map(f"req-{secrets.token_hex(6)}-{{}}".format, itertools.count(1))

    async def generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request to one of OPERATIONS under any server: the plain driver."""
        visit = self.visit(scope["path"], scope["headers"])
        await self.serve(visit, self.begin, scope["method"], origins_of(scope), receive, send)

    async def serve(
        self, visit: "Visit", begin: "Begin", method: str, origin: Origins, receive: Receive, send: Send
    ) -> None:
        """Serve a request by the plain driver. begin: makes a call of it, once its body has come."""
        client = PlainClient(self._buffer_bytes_max)
        try:
            self.authorize(visit, method, origin)
            body = await read_body(receive, bytes_max=self.body_bytes_max, patience=self._patience)
            if body is None:
                return
            if bodies.is_packed(visit.headers):
                body = await self._unpacked(body)
            relay = begin(visit, body, client)
        except Exception as error:  # noqa: BLE001  our own mistake must still be an answer and a line
            if isinstance(error, errors.UnknownKey):
                given = visit.headers.get(b"authorization"), visit.headers.get(b"x-api-key")
                error = self._entrance.failed(error, *given, origin)
            status, answer_headers, answer = self.refuse(error, visit)
            if isinstance(error, errors.TooSlow):
                answer_headers = [*answer_headers, (b"connection", b"close")]  # its rest is not waited for
            await plain.answer(send, status, answer_headers, answer)
            return
        await client.run(relay, receive, send)

    async def _unpacked(self, body: bytes) -> bytes:
        """A packed body as it was; a long one is unpacked in a thread. Raises InvalidRequest, BodyTooLarge."""
        unpacked = bodies.unpack_at_once(body, self.body_bytes_max)
        if unpacked is None:
            unpacked = await asyncio.to_thread(bodies.unpack, body, self.body_bytes_max)
        return unpacked

    def visit(self, path: str, headers: Sequence[tuple[bytes, bytes]]) -> "Visit":
        """A request to an operation, of which only the head is known. headers: names in lower case."""
        by_name = dict(headers)
        request_id = _given_id(by_name) or next(self._request_ids)
        return Visit(request_id=request_id, operation=ALL_OPERATIONS[path], headers=by_name)

    def visit_again(self, last: "Visit") -> "Visit | None":
        """A request whose head is that of one that was authorized, but for its content-length. None: look again."""
        headers = last.headers
        try:
            principal = self._keys.principal(headers.get(b"authorization"), headers.get(b"x-api-key"))
        except GatewayError:
            return None
        if principal is not last.principal:
            return None
        return Visit(
            request_id=next(self._request_ids),
            operation=last.operation,
            headers=headers,
            principal=principal,
        )

    def authorize(self, visit: "Visit", method: str, origin: Origins) -> None:
        """What can be refused without the body. origin: where it comes from. Raises GatewayError."""
        if method != visit.operation.method:
            raise errors.MethodNotAllowed(f"this path takes {visit.operation.method}")
        headers = visit.headers
        visit.principal = principal = self._keys.principal(
            headers.get(b"authorization"), headers.get(b"x-api-key")
        )
        self._entrance.check(principal, visit.operation.name, origin)
        principal.require("inference")
        check = bodies.check_form if visit.operation.form else bodies.check
        check(headers, self.body_bytes_max)

    def begin(self, visit: "Visit", body: bytes, client: Client) -> Relay:
        """Everything else before admission. returns: the call, not started yet. Raises GatewayError."""
        principal = visit.principal
        assert principal is not None
        services, operation = self._services, visit.operation
        if services.lag.too_late:
            raise behind()
        received_ns = services.clock()
        wall_offset_ns = time.time_ns() - received_ns
        ask: Ask | FormAsk
        if operation.form:
            ask = read_form_ask(body, visit.headers[b"content-type"], operation)
        else:
            ask = read_ask(body, operation)
        served = self._models.get(ask.model)
        if served is None or not principal.may_ask(served.id):
            raise errors.ModelNotFound(
                f"the model {errors.shown(ask.model)} does not exist here", param="model"
            )
        visit.model = served.id
        holder = self._holder(ask, principal.tenant, served) if operation.keeps else None
        plan = self._targets.plan(served, ask.max_tokens, received_ns)
        if holder is not None or not plan.able:
            plan = self._narrowed(plan, served, ask, holder, received_ns)
        if operation.answer.costs_tokens:
            away = services.seats.turns_away(
                principal.tenant, served.id, plan.line.able, served.limits.queue_ns
            )
            if away is not None:
                raise turned_away(away)
        if not services.recorder.has_room():
            raise no_room()
        trace_id = trace_id_of(visit.headers) if b"traceparent" in visit.headers else None
        limits = self._admissions.of(
            principal, served, operation, ask, body, plan, received_ns + wall_offset_ns
        )
        facts = facts_in_order(
            services.recorder.next_call_id(),  # call_id
            visit.request_id,  # request_id
            trace_id,  # trace_id
            principal.tenant,  # tenant
            principal.project,  # project
            principal.key_id,  # key_id
            principal.tags,  # tags
            operation,  # operation
            served.id,  # model
            ask.model,  # model_requested
            ask.stream,  # stream
            ask.include_usage,  # include_usage
            ask.keys,  # keys
            record.Params(max_tokens=ask.max_tokens, n=ask.n),  # params
            len(body),  # body_bytes
            received_ns,  # received_ns
            wall_offset_ns,  # wall_offset_ns
            msgspec.UNSET if limits is None else limits.expected,  # expected
        )
        request = relay.Request(
            path=operation.path,
            lines=lines_up(visit, traced=trace_id is not None, kind=b"" if operation.form else _JSON_LINE),
            body=body,
            ask=ask,
            salt=self._salts.of(principal.tenant, ask.salt) if operation.salted else None,
            bound=None if limits is None else limits.bound,
        )
        begun = self.new_relay(services, Call(facts, plan, served.limits), request, client)
        begun.limits = limits
        return begun

    def _holder(self, ask: Ask | FormAsk, tenant: str, served: ServedModel) -> str | None:
        """The backend that holds the response which is to be continued; None: there is none to continue.

        It may have been another model's, of the same server. Raises ResponseNotFound.
        """
        assert isinstance(ask, Ask)
        assert ask.keeping is not None
        previous = ask.keeping.previous
        if previous is None:
            return None
        place = response_ids.holder(previous, tenant=tenant, places=self._places)
        if place is None or (served.id, place[1]) not in self._places:
            raise errors.ResponseNotFound(previous, param="previous_response_id")
        return place[1]

    def _narrowed(
        self, plan: routing.Plan, served: ServedModel, ask: Ask | FormAsk, holder: str | None, now_ns: int
    ) -> routing.Plan:
        """A plan that somebody is able to carry out. holder: the one backend that can serve it; None: any.

        Raises GatewayError: there is nobody.
        """
        if holder is not None:
            plan = routing.only(plan, holder)
        if plan.able:
            return plan
        if plan.left_out and all(left.reason == TOO_LONG for left in plan.left_out):
            views = self._targets.views(served, now_ns)
            unable = {left.backend for left in plan.left_out}
            longest = max(view.target.max_model_len or 0 for view in views if view.target.name in unable)
            # In vLLM's words, by which client libraries know the case.
            raise errors.ContextTooLong(
                f"This model's maximum context length is {longest} tokens with the prompt; "
                f"{ask.length} is {ask.max_tokens}",
                param=ask.length,
            )
        raise nobody(plan)

    def refuse(self, error: Exception, visit: "Visit") -> tuple[int, Headers, bytes]:
        """A request that ends before its admission, as a `refused` line counts it. returns: status, headers, body."""
        shown = error if isinstance(error, GatewayError) else _fault(error, visit)
        principal = visit.principal
        refusal = Refusal(
            at_ns=time.time_ns(),
            error_code=shown.code,
            key_id=principal.key_id if principal else None,
            model=visit.model,
            operation=visit.operation.name,
            reason=type(shown).__name__,
            request_id=visit.request_id,
            status=int(shown.status),
            tenant=principal.tenant if principal else None,
        )
        self._services.refusals.refuse(refusal)
        status, headers, body = _error_answer(shown, visit)
        if principal is not None:
            headers = [*headers, *header_pairs(self._admissions.lines(principal, visit.model or ""))]
        return status, headers, body

    async def models(self, request: StarletteRequest) -> Response:
        """GET /v1/models: every model by its id; aliases are understood, not listed."""
        principal = entered(self._entrance, request, "inference")
        served = {model.id: model for model in self._models.values() if principal.may_ask(model.id)}
        cards = [self._card(model) for _, model in sorted(served.items())]
        return self._told(principal, "", listed(request, {"object": "list", "data": cards}))

    async def model(self, request: StarletteRequest) -> Response:
        """GET /v1/models/{id}."""
        principal = entered(self._entrance, request, "inference")
        name = request.path_params["model"]
        served = self._models.get(name)
        if served is None or not principal.may_ask(served.id):
            raise errors.ModelNotFound(f"the model {errors.shown(name)} does not exist here", param="model")
        return self._told(principal, served.id, listed(request, self._card(served)))

    async def description(self, request: StarletteRequest) -> Response:
        """GET /openapi.json."""
        entered(self._entrance, request, "inference")
        ids = sorted({model.id for model in self._models.values()})
        return listed(request, openapi.document(importlib.metadata.version("weighbridge"), ids))

    def _told(self, principal: Principal, model: str, response: Response) -> Response:
        """How limits stand is told on these answers too; they take nothing of them."""
        response.raw_headers.extend(header_pairs(self._admissions.lines(principal, model)))
        return response

    def _card(self, served: ServedModel) -> dict[str, object]:
        lengths = [view.target.max_model_len for view in self._targets.views(served, self._services.clock())]
        known = [length for length in lengths if length is not None]
        return {
            "id": served.id,
            "object": "model",
            "created": self._created_s,
            "owned_by": served.owner or "weighbridge",
            "max_model_len": max(known) if known else None,
        }


def behind() -> GatewayError:
    """What a client is told when the loop is late."""
    return errors.Overloaded("the gateway is behind with its work; try again", retry_after_s=1)


def turned_away(away: TurnedAway) -> GatewayError:
    """What a client is told whose call may not even wait."""
    if away.late:
        message = "too many calls of this model are before this one, which would wait too long; try again"
        return errors.NoTurn(message, retry_after_s=away.retry_after_s)
    return errors.QueueFull(
        "too many calls of this model are waiting; try again", retry_after_s=away.retry_after_s
    )


def no_room() -> GatewayError:
    """What a client is told when the journal takes no more calls."""
    return errors.JournalFull("the journal can take no further call", retry_after_s=30)


def nobody(plan: routing.Plan) -> GatewayError:
    """What a client is told when a plan has nobody able."""
    if plan.busy:
        return routing.turned_away(plan.busy, all_busy=len(plan.busy) == len(plan.left_out))
    return errors.NoBackend("no server of this model is ready; try again", retry_after_s=5)


def places_of(models: Iterable[ServedModel]) -> tuple[tuple[str, str], ...]:
    """Every pair of a model and a backend of its."""
    pairs = {(model.id, name) for model in models for tier in model.tiers for name in tier.backends}
    return tuple(sorted(pairs))


class Visit(msgspec.Struct, kw_only=True, gc=False):
    """What is known of a request so far.

    headers: names in lower case; of equal ones the last. Behind `visit_again` their content-length is an older one.
    """

    request_id: str
    operation: Operation
    headers: Mapping[bytes, bytes]
    principal: Principal | None = None
    model: str | None = None


Begin = Callable[[Visit, bytes, Client], Relay]
"""Makes a call, not started yet, of a request whose body has come. Raises GatewayError."""


def json_response(content: object, status: int = HTTPStatus.OK) -> Response:
    """A JSON answer of our own."""
    return Response(msgspec.json.encode(content), status_code=int(status), media_type="application/json")


def listed(request: StarletteRequest, content: object) -> Response:
    """A JSON answer of an ordinary endpoint."""
    response = json_response(content)
    response.headers["x-request-id"] = request_id_of(request)
    return response


async def render(request: StarletteRequest, error: Exception) -> Response:
    """A GatewayError of an ordinary endpoint, in OpenAI's shape."""
    assert isinstance(error, GatewayError)
    headers = {"x-request-id": request_id_of(request)}
    headers |= {name.decode(): value.decode() for name, value in error.retry_headers}
    if isinstance(error, errors.UnknownKey):
        headers["www-authenticate"] = "Bearer"
    return Response(
        errors.error_body(error),
        status_code=int(error.status),
        headers=headers,
        media_type="application/json",
    )


def _fault(error: Exception, visit: Visit) -> errors.Fault:
    log(logger, logging.ERROR, "fault before a call", request_id=visit.request_id, error=repr(error))
    return errors.Fault("internal error")


def _error_answer(error: GatewayError, visit: Visit) -> tuple[int, Headers, bytes]:
    body = errors.error_body(error, visit.operation.errors)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", visit.request_id.encode()),
    ]
    if (name := visit.operation.id_header) is not None:
        headers.append((name, visit.request_id.encode()))
    headers += error.retry_headers
    if isinstance(error, errors.MethodNotAllowed):
        headers.append((b"allow", visit.operation.method.encode()))
    if isinstance(error, errors.UnknownKey):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, errors.EncodingUnknown):
        headers.append((b"accept-encoding", b"gzip"))  # RFC 9110 §15.5.16
    return int(error.status), headers, body


def credentials(request: StarletteRequest) -> tuple[bytes | None, bytes | None]:
    """The headers that may hold a key, as they came: `Authorization` and `x-api-key`."""
    headers = dict(request.scope["headers"])
    return headers.get(b"authorization"), headers.get(b"x-api-key")


def origins_of(scope: Scope) -> Origins:
    """Where a request comes from, should somebody want to know."""
    return lambda: Origin(scope["client"][0] if scope.get("client") else None, scope["headers"])


def entered(entrance: Entrance, request: StarletteRequest, scope: KeyScope) -> Principal:
    """Who asks an ordinary endpoint that needs this scope. Raises UnknownKey, TooManyAttempts, ScopeMissing and those
    of a key's guard, and has it told."""
    origin = origins_of(request.scope)
    principal = None
    try:
        principal = entrance.known(*credentials(request), origin)
        entrance.check(principal, None, origin)
        principal.require(scope)
    except GatewayError as error:
        entrance.sign_ins.refused("api", int(error.status), principal.key_id if principal else None)
        raise
    return principal


def _given_id(headers: Mapping[bytes, bytes]) -> str | None:
    """The client's own request id, if it is a plain one."""
    given = headers.get(b"x-request-id")
    return given.decode() if given is not None and _REQUEST_ID.fullmatch(given) else None


def request_id_of(request: StarletteRequest) -> str:
    """The client's, or a new one."""
    return _given_id(dict(request.scope["headers"])) or f"req-{secrets.token_hex(12)}"


def trace_id_of(headers: Mapping[bytes, bytes]) -> str | None:
    given = headers.get(b"traceparent")
    match = _TRACEPARENT.fullmatch(given) if given is not None else None
    return match[1].decode() if match else None


def lines_up(visit: Visit, *, traced: bool, kind: bytes = b"") -> bytes:
    """The allow-list of what a backend sees, as it goes on the wire; never the client's key or cookies.

    kind: the line that says what the body is, if the client's own does not go up.
    """
    headers = visit.headers
    lines = f"x-request-id: {visit.request_id}\r\n".encode() + kind
    if traced:
        lines += b"traceparent: %b\r\n" % headers[b"traceparent"]
    if names := visit.operation.headers:
        given = [(name, headers[name]) for name in names if name in headers]
        assert not any(b"\n" in value for _, value in given)
        lines += header_lines(given)
    return lines
