"""Field reports on access: each route has its scope, and nothing beside it opens what it closes."""

import contextlib
import http.client
import json
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest

from gateway.api import openapi
from gateway.api.auth import Keys
from gateway.api.operations import OPERATIONS
from gateway.api.usage import UsageApi
from gateway.configuration.config import Config
from gateway.directory.entrance import Entrance
from gateway.faces.admin_api import AdminApi
from gateway.faces.audit_api import AuditApi
from gateway.faces.finance_api import FinanceApi
from gateway.processes import app
from tests.support.gateway import Gateway, running
from tests.support.ports import free_port
from tests.support.rawbackend import Scripted
from tests.support.stage import SIZED

pytestmark = pytest.mark.integration

OPEN = None
ACCESS: dict[str, str | None] = dict.fromkeys(OPERATIONS, "inference") | {
    "/v1/models": "inference",
    "/v1/models/": "inference",
    "/v1/models/{model}": "inference",
    "/v1/responses/{response_id}": "inference",
    "/v1/responses/{response_id}/cancel": "inference",
    "/v1/usage": "inference",
    "/openapi.json": "inference",
    "/healthz": OPEN,
    "/readyz": OPEN,
    "/version": OPEN,
    "/metrics": "operator",  # open on ops.listen, which is looked at by itself below
    "/audit/v1/calls/{call_id}": "auditor",
    "/audit/v1/calls/{call_id}/proof": "auditor",
    "/audit/v1/checkpoints": "auditor",
    "/audit/v1/changes": "auditor",
    "/audit/v1/keys": "auditor",
    "/audit/v1/verify": "auditor",
    "/finance/v1/summary": "finance",
    "/finance/v1/rows": "finance",
    "/finance/v1/exports/{form}": "finance",
    "/finance/v1/exports/{form}/manifest": "finance",
    "/finance/v1/hours": "finance",
    "/finance/v1/months": "finance",
    "/finance/v1/prices": "finance",
    "/finance/v1/waterfall": "finance",
    "/finance/v1/report": "finance",
    "/finance/v1/statements/{tenant}": "finance",
    "/admin/v1/tenants": "operator",
    "/admin/v1/tenants/{name}": "operator",
    "/admin/v1/tenants/{name}/disable": "operator",
    "/admin/v1/tenants/{name}/enable": "operator",
    "/admin/v1/keys": "operator",
    "/admin/v1/keys/{key_id}": "operator",
    "/admin/v1/keys/{key_id}/disable": "operator",
    "/admin/v1/keys/{key_id}/enable": "operator",
    "/admin/v1/keys/{key_id}/rotate": "operator",
    "/admin/v1/keys/{key_id}/revoke": "operator",
    "/admin/v1/openapi.json": "operator",
}
"""Whose key opens each route. A route that is not here has no declared access."""
POSTED = {*OPERATIONS, "/v1/responses/{response_id}/cancel"} | {
    path for path in ACCESS if path.startswith("/admin/") and path.count("/") == 5
}
SCOPES = {name: [name] for name in ("inference", "operator", "finance", "auditor")}
BARRED = {401, 403, 404, 405}
ASK = {"model": "m1", "messages": [{"role": "user", "content": "hi"}], "input": "x", "prompt": "x"}


def route_table() -> set[str]:
    """The paths of all routes of both ports, as the worker makes them."""
    tree = {
        "tenants": [{"name": "acme"}],
        "models": [{"name": "m1", "tiers": [{"backends": ["b1"]}]}],
        "backends": [{"name": "b1", "url": "http://127.0.0.1:1", "model": "m"}],
    }
    config = msgspec.convert(tree, Config)
    absent = cast(Any, None)
    main, ops = app.App(), app.App()
    entrance = Entrance.of(config, Keys(config.tenants), lambda: 0)
    app._open_faces(config, entrance, absent, absent, absent, absent, lambda: None, tuple, main, ops)
    audit = AuditApi(config=config, entrance=entrance, recorder=absent)
    finance = FinanceApi(config=config, entrance=entrance, recorder=absent)
    admin = AdminApi(entrance=entrance, recorder=absent, compiled=absent, copy=absent, changer=absent)
    usage = UsageApi(entrance=entrance, models=(), limiter=absent, ledger=absent)
    routes = [*usage.routes(), *main.router.routes, *ops.router.routes]
    routes += [*audit.routes(), *finance.routes(), *admin.routes()]
    return {cast(Any, route).path.replace(":path}", "}") for route in routes} | OPERATIONS.keys()


def test_br_115_every_route_has_its_declared_access() -> None:
    assert route_table() == ACCESS.keys()
    described = openapi.document("1", ["m1"])["paths"]
    assert described.keys() == ACCESS.keys() - {"/v1/models/"}
    for path, methods in described.items():
        for method in ("get", "post", "patch"):
            if method in methods:
                assert (methods[method].get("security") == []) is (ACCESS[path] is OPEN), path


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    b1 = Scripted(SIZED)
    backend = {"name": "b1", "url": f"http://127.0.0.1:{b1.port}", "model": "m1", "slots": 4}
    with (
        contextlib.ExitStack() as stack,
        running(
            tmp_path_factory.mktemp("access"), [backend], tenants=tuple(SCOPES), scopes=SCOPES,
            ops={"listen": f"127.0.0.1:{free_port()}"}, auth={"failures_per_minute": 1_000_000},
        ) as one,
    ):  # fmt: skip
        stack.callback(b1.stop)
        yield one


def ask(
    front: Gateway, method: str, path: str, key: str | None, *, port: int | None = None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port or front.port, timeout=10)
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    with contextlib.closing(connection):
        connection.request(method, path, json.dumps(ASK) if method == "POST" else None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def shown(path: str) -> str:
    """The route with something in its places."""
    named = {"{model}": "m1", "{response_id}": "resp_1", "{call_id}": "waaaaaaaaaaaaaaaa-1", "{form}": "csv"}
    named |= {"{name}": "nobody", "{key_id}": "0123456789ab", "{tenant}": "acme"}
    for place, name in named.items():
        path = path.replace(place, name)
    return path


def method_of(path: str) -> str:
    return "POST" if path in POSTED else "GET"


CLOSED = sorted(path for path, scope in ACCESS.items() if scope is not OPEN)


@pytest.mark.parametrize("path", CLOSED)
def test_br_115_no_key_and_no_other_key_opens_it(front: Gateway, path: str) -> None:
    method = method_of(path)
    assert ask(front, method, shown(path), None)[0] == 401
    assert ask(front, method, shown(path), "wb-wrong")[0] == 401
    for scope, key in front.keys.items():
        status, body = ask(front, method, shown(path), key)
        if scope == ACCESS[path]:
            assert status not in (401, 403)
        else:
            assert status == 403
            assert json.loads(body).keys() <= {"error", "type"}


def beside(path: str) -> Iterator[str]:
    """Other spellings of a path."""
    yield path + "/"
    yield "/" + path
    yield path.replace("/", "//")
    yield path.upper()
    yield path.replace("/", "%2f").replace("%2f", "/", 1)
    yield path.replace("/", "/./")
    yield "/healthz/.." + path
    yield path + "%00"


@pytest.mark.parametrize("path", CLOSED)
def test_br_115_no_other_spelling_and_no_other_method_opens_it(front: Gateway, path: str) -> None:
    other_scopes = [scope for scope in SCOPES if scope != ACCESS[path]]
    for key in (None, front.keys[other_scopes[0]]):
        for spelling in beside(shown(path)):
            status, body = ask(front, method_of(path), spelling, key)
            assert status in BARRED, spelling
            assert b"error" in body
        for method in ("HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"):
            assert ask(front, method, shown(path), key)[0] in BARRED, method


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/admin/v1", "/finance/v1", "/console", "/debug"])
def test_br_115_what_is_not_there_is_not_there_for_anybody(front: Gateway, path: str) -> None:
    for key in (None, *front.keys.values()):
        assert ask(front, "GET", path, key)[0] == 404


def test_br_115_the_port_for_operations_opens_metrics_and_nothing_else(front: Gateway) -> None:
    config = json.loads(front.config_file.read_text())
    port = int(config["ops"]["listen"].rpartition(":")[2])
    for path, scope in ACCESS.items():
        status, _ = ask(front, method_of(path), shown(path), None, port=port)
        if path == "/metrics" or scope is OPEN:
            assert status == 200
        else:
            assert status == (401 if scope in ("auditor", "finance", "operator") else 404), path
