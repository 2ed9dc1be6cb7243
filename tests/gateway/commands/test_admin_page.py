"""Tenants and keys on a terminal."""

import json

from gateway.commands import admin_page

TENANT = {
    "object": "tenant", "name": "acme", "source": "directory", "version": 3, "changed": "2026-11-28T14:00:00Z",
    "keys": 2, "projects": ["web", "batch"], "disabled": False, "tags": {"owner": "ann"}, "digests": False,
    "limits": {"requests_per_minute": 60, "tokens_per_minute": None, "budgets": []}, "share": 1, "hold": "expected",
    "model_limits": {},
}  # fmt: skip
KEY = {
    "object": "key", "id": "0a1b2c3d4e5f", "tenant": "acme", "state": "active", "source": "file", "version": None,
    "changed": None, "name": None, "scopes": ["inference", "operator"], "project": "web", "limits": {"budgets": []},
    "models": None, "endpoints": ["chat"], "networks": None, "expires": "2027-01-01", "disabled": False,
    "replaces": None,
}  # fmt: skip


def test_tables() -> None:
    assert admin_page.tenants([TENANT]).splitlines() == [
        "tenant  source     version  state   keys  projects",
        "acme    directory  3        active  2     web,batch",
    ]
    assert admin_page.keys([KEY]).splitlines()[1].split() == [
        "0a1b2c3d4e5f", "acme", "active", "file", "inference,operator", "2027-01-01",
    ]  # fmt: skip
    assert len(admin_page.keys([]).splitlines()) == 1
    assert "disabled" in admin_page.tenants([TENANT | {"disabled": True}])


def test_one_with_what_is_set() -> None:
    shown = admin_page.tenant(TENANT)
    assert 'limits: {"requests_per_minute": 60}\n' in shown
    assert 'tags: {"owner": "ann"}\nhold' not in shown
    assert "model_limits" not in shown
    shown = admin_page.key(KEY)
    assert 'endpoints: ["chat"]\nproject: web\n' in shown
    assert "limits" not in shown
    assert admin_page.key(KEY | {"key": "wb-x"}).startswith("key: wb-x\n")
    assert json.loads(admin_page.lines([KEY])) == KEY
