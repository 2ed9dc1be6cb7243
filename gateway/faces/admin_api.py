"""The admin face, /admin/v1: tenants and keys, for operators (gateway/faces/faces.py).

    key with the scope ─▶ the change is in the journal ─▶ it counts ─▶ so is that it was asked for ─▶ the answer

What stands in the configuration file is shown, and changed there. A key is shown once, to who had it made.
"""

import importlib.metadata
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api import bodies, errors, openai_api, openapi, openapi_admin
from gateway.api.auth import Principal, hash_of, key_id
from gateway.api.new_keys import new_key
from gateway.directory import edits, shown
from gateway.directory.changer import Changer
from gateway.directory.directory import Directory
from gateway.directory.edits import Edit
from gateway.directory.entrance import Entrance
from gateway.faces import admin_questions, queries
from gateway.faces.admin_questions import BODY_BYTES_MAX, LIMIT_DEFAULT, LIMIT_MAX
from gateway.faces.faces import Ask, Face
from metering.journal.recorder import Recorder
from metering.journal.unwritten import Unwritable
from metering.ledger.directory import Copy

PREFIX = openapi_admin.PREFIX


class AdminApi:
    """What the admin face needs of the worker. compiled, copy: what there is; changer: makes changes."""

    def __init__(
        self,
        *,
        entrance: Entrance,
        recorder: Callable[[], Recorder | Unwritable],
        compiled: Directory,
        copy: Copy,
        changer: Changer,
    ) -> None:
        self.face = Face(name="admin", scope="operator", entrance=entrance, recorder=recorder)
        self._compiled = compiled
        self._copy = copy
        self._changer = changer

    def routes(self) -> list[Route]:
        """Of either port."""
        asks: dict[str, dict[str, Ask]] = {
            "/tenants": {"GET": self._tenants, "POST": self._create_tenant},
            "/tenants/{name}": {"GET": self._tenant, "PATCH": self._set_tenant},
            "/tenants/{name}/disable": {"POST": self._switch_tenant(True)},
            "/tenants/{name}/enable": {"POST": self._switch_tenant(False)},
            "/keys": {"GET": self._keys, "POST": self._create_key},
            "/keys/{key_id}": {"GET": self._key, "PATCH": self._set_key},
            "/keys/{key_id}/disable": {"POST": self._switch_key(True)},
            "/keys/{key_id}/enable": {"POST": self._switch_key(False)},
            "/keys/{key_id}/rotate": {"POST": self._rotate_key},
            "/keys/{key_id}/revoke": {"POST": self._revoke_key},
            "/openapi.json": {"GET": self._description},
        }
        return [
            self.face.route(PREFIX + path, {method: self._checked(ask) for method, ask in by_method.items()})
            for path, by_method in asks.items()
        ]

    def _checked(self, ask: Ask) -> Ask:
        """To be asked of this machine by its own names only, where it listens for itself; of what is newest."""

        async def checked(request: Request, principal: Principal) -> Response:
            server = request.scope.get("server")
            if not admin_questions.is_of_this_machine(request.headers.get("host"), server and server[0]):
                message = "this address is not for a page of that name: use localhost or an address"
                raise errors.HostNotAllowed(message)
            if request.method != "POST":
                await self._changer.newest()
            return await ask(request, principal)

        return checked

    # -- what there is

    async def _tenants(self, request: Request, _principal: Principal) -> Response:
        after, limit = _page(request)
        names = [name for name in self._compiled.names() if name > after]
        data = [self._shown_tenant(name) for name in names[:limit]]
        return _listed(request, data, names[limit - 1] if len(names) > limit else None)

    async def _tenant(self, request: Request, _principal: Principal) -> Response:
        queries.known(request.query_params)
        return _answer(request, self._shown_tenant(request.path_params["name"]))

    async def _keys(self, request: Request, _principal: Principal) -> Response:
        after, limit = _page(request, "tenant")
        tenant = queries.text(request.query_params, "tenant")
        found = [one for one in self._compiled.known_keys(tenant) if one[0] > after]
        data = [self._shown_key(identity) for identity, _ in found[:limit]]
        return _listed(request, data, found[limit - 1][0] if len(found) > limit else None)

    async def _key(self, request: Request, _principal: Principal) -> Response:
        queries.known(request.query_params)
        return _answer(request, self._shown_key(request.path_params["key_id"]))

    async def _description(self, request: Request, _principal: Principal) -> Response:
        queries.known(request.query_params)
        return openai_api.listed(request, openapi.admin_document(importlib.metadata.version("weighbridge")))

    def _shown_tenant(self, name: str) -> dict[str, Any]:
        found = self._compiled.tenant(name)
        if found is None:
            raise errors.NotFound(f"there is no tenant {errors.shown(name)}")
        return shown.tenant(found, self._compiled, self._copy.get("tenant", name))

    def _shown_key(self, identity: str) -> shown.ShownKey:
        known = self._compiled.known_key(identity)
        if known is None:
            raise errors.NotFound(f"there is no key {errors.shown(identity)}")
        return shown.key(identity, known, self._compiled, self._copy, time.time_ns())

    # -- what is changed

    async def _create_tenant(self, request: Request, principal: Principal) -> Response:
        body = admin_questions.body(await _read(request))
        (made,) = await self._changed(request, principal, "create", edits.create_tenant(body))
        return _answer(request, self._shown_tenant(made), HTTPStatus.CREATED)

    async def _set_tenant(self, request: Request, principal: Principal) -> Response:
        body = admin_questions.body(await _read(request))
        edit = edits.set_tenant(request.path_params["name"], body, _version(request))
        (name,) = await self._changed(request, principal, "set", edit)
        return _answer(request, self._shown_tenant(name))

    def _switch_tenant(self, off: bool) -> Ask:
        async def switch(request: Request, principal: Principal) -> Response:
            admin_questions.nothing(admin_questions.body(await _read(request)))
            edit = edits.set_tenant(request.path_params["name"], {"disabled": off}, _version(request))
            (name,) = await self._changed(request, principal, "disable" if off else "enable", edit)
            return _answer(request, self._shown_tenant(name))

        return switch

    async def _create_key(self, request: Request, principal: Principal) -> Response:
        key = new_key()
        body = admin_questions.body(await _read(request))
        (made,) = await self._changed(request, principal, "create", edits.create_key(body, hash_of(key)))
        return self._made(request, made, key)

    async def _set_key(self, request: Request, principal: Principal) -> Response:
        body = admin_questions.body(await _read(request))
        edit = edits.set_key(request.path_params["key_id"], body, _version(request))
        (identity,) = await self._changed(request, principal, "set", edit)
        return _answer(request, self._shown_key(identity))

    def _switch_key(self, off: bool) -> Ask:
        async def switch(request: Request, principal: Principal) -> Response:
            admin_questions.nothing(admin_questions.body(await _read(request)))
            edit = edits.set_key(request.path_params["key_id"], {"disabled": off}, _version(request))
            (identity,) = await self._changed(request, principal, "disable" if off else "enable", edit)
            return _answer(request, self._shown_key(identity))

        return switch

    async def _rotate_key(self, request: Request, principal: Principal) -> Response:
        key = new_key()
        overlap_s = admin_questions.overlap_s(admin_questions.body(await _read(request)))
        edit = edits.rotate_key(request.path_params["key_id"], hash_of(key), overlap_s, _version(request))
        await self._changed(request, principal, "rotate", edit)
        return self._made(request, key_id(hash_of(key)), key)

    async def _revoke_key(self, request: Request, principal: Principal) -> Response:
        admin_questions.nothing(admin_questions.body(await _read(request)))
        edit = edits.revoke_key(request.path_params["key_id"], _version(request))
        (identity,) = await self._changed(request, principal, "revoke", edit)
        return _answer(request, self._shown_key(identity))

    async def _changed(self, request: Request, principal: Principal, change: str, edit: Edit) -> list[str]:
        """Have it made; the names of the entries that it is about. Raises GatewayError."""
        queries.known(request.query_params)
        request_id = openai_api.request_id_of(request)
        made = await self._changer.change(edit, actor=principal.key_id, change=change, request_id=request_id)
        return [entry.name for entry in made]

    def _made(self, request: Request, identity: str, key: str) -> Response:
        """The one answer that has a key in it."""
        found = msgspec.structs.replace(self._shown_key(identity), key=key)
        return _answer(request, found, HTTPStatus.CREATED)


async def _read(request: Request) -> bytes:
    """The body, bounded. Raises BodyTooLarge."""
    parts: list[bytes] = []
    total = 0
    async for part in request.stream():
        total += len(part)
        if total > BODY_BYTES_MAX:
            raise bodies.too_large(BODY_BYTES_MAX)
        parts.append(part)
    return b"".join(parts)


def _version(request: Request) -> int | None:
    return admin_questions.version(request.headers.get("if-match"))


def _page(request: Request, *more: str) -> tuple[str, int]:
    queries.known(request.query_params, "cursor", "limit", *more)
    after = queries.text(request.query_params, "cursor") or ""
    return after, queries.number(request.query_params, "limit", LIMIT_DEFAULT, LIMIT_MAX)


def _listed(request: Request, data: list[Any], following: str | None) -> Response:
    return openai_api.listed(request, {"object": "list", "data": data, "next": following})


def _answer(request: Request, content: Any, status: HTTPStatus = HTTPStatus.OK) -> Response:
    response = openai_api.listed(request, content)
    response.status_code = status
    response.headers["cache-control"] = "no-store"
    version = content["version"] if isinstance(content, dict) else content.version
    if version is not None:
        response.headers["etag"] = f'"{version}"'
    return response
