"""Responses that a server keeps: to ask for one again, and to cancel it.

A call like any other, with its record, that goes to the one backend which holds the response and to no other. It takes
no seat and costs no tokens: those of the response were counted when it was made. Which backend that is, and whether
the response is this tenant's, is in its id (response_ids.py).
"""

import functools
import time
from collections.abc import Mapping
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from gateway.api import errors, response_ids
from gateway.api.openai_api import (
    OpenAIApi,
    Visit,
    behind,
    lines_up,
    no_room,
    nobody,
    origins_of,
    places_of,
    trace_id_of,
)
from gateway.api.operations import Operation
from gateway.calls import relay, routing
from gateway.calls.call import Call
from gateway.calls.relay import Client, Relay, Services
from gateway.calls.tally import Facts
from gateway.calls.targets import ServedModel, Targets
from metering import record

_TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})
"""How a query says so, as vLLM reads it."""

_NO_BODY = b"content-length: 0\r\n"


class KeptResponses:
    """One of the two operations, as an ASGI application. models: by id."""

    def __init__(
        self,
        api: OpenAIApi,
        services: Services,
        targets: Targets,
        models: Mapping[str, ServedModel],
        operation: Operation,
    ) -> None:
        self._api = api
        self._services = services
        self._targets = targets
        self._models = models
        self._operation = operation
        self._places = places_of(models.values())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = self._api.visit(self._operation.path, scope["headers"])
        begin = functools.partial(self._begin, scope["path_params"]["response_id"], scope["query_string"])
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        await self._api.serve(visit, begin, method, origins_of(scope), receive, send)

    def _begin(self, response_id: str, query: bytes, visit: Visit, _body: bytes, client: Client) -> Relay:
        """A call of it; of a body nothing is wanted. Raises GatewayError."""
        principal, operation, services = visit.principal, self._operation, self._services
        assert principal is not None
        if services.lag.too_late:
            raise behind()
        _check_query(query)
        place = response_ids.holder(response_id, tenant=principal.tenant, places=self._places)
        if place is None or not principal.may_ask(place[0]):
            raise errors.ResponseNotFound(response_id, param="response_id")
        model, backend = place
        served = self._models[model]
        visit.model = served.id
        received_ns = services.clock()
        plan = routing.only(self._targets.plan(served, None, received_ns), backend)
        if not plan.able:
            raise nobody(plan)
        if not services.recorder.has_room():
            raise no_room()
        trace_id = trace_id_of(visit.headers)
        facts = Facts(
            call_id=services.recorder.next_call_id(),
            request_id=visit.request_id,
            trace_id=trace_id,
            tenant=principal.tenant,
            project=principal.project,
            key_id=principal.key_id,
            tags=principal.tags,
            operation=operation,
            model=served.id,
            model_requested=served.id,
            stream=False,
            include_usage=False,
            keys=(),
            params=record.Params(),
            body_bytes=0,
            received_ns=received_ns,
            wall_offset_ns=time.time_ns() - received_ns,
        )
        up = lines_up(visit, traced=trace_id is not None)
        request = relay.Request(
            method=operation.method,
            path=operation.path.replace("{response_id}", response_id),
            lines=up if operation.method == "GET" else up + _NO_BODY,
            body=b"",
            ask=None,
        )
        return self._api.new_relay(services, Call(facts, plan, served.limits), request, client)


def _check_query(query: bytes) -> None:
    """Raises InvalidRequest. vLLM streams background responses only, and breaks off where it is asked for another."""
    given = parse_qs(query.decode("latin-1"))
    if given.get("stream", [""])[-1].lower() in _TRUE:
        raise errors.InvalidRequest(
            "a response that is kept cannot be streamed again; ask for it without stream", param="stream"
        )
