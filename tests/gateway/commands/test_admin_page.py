"""Tenants and keys on a terminal, and settings as they are typed."""

import argparse
import json

import pytest

from gateway.commands import admin_page, settings

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


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("share=3", ("share",), 3),
        ("name=web", ("name",), "web"),
        ("expires=null", ("expires",), None),
        ("tags.owner=ann", ("tags", "owner"), "ann"),
        ("tags.a.b=1", ("tags", "a.b"), 1),
        ('models=["m1"]', ("models",), ["m1"]),
        ("note=a=b", ("note",), "a=b"),
        ("name=", ("name",), ""),
    ],
)
def test_a_setting(text: str, path: tuple[str, ...], value: object) -> None:
    assert settings.setting(text) == (path, value)


@pytest.mark.parametrize("text", ["share", "=3", ".a=3", "a.=3"])
def test_what_is_no_setting(text: str) -> None:
    with pytest.raises(ValueError):
        settings.setting(text)


def test_settings_are_laid_over_what_there_is() -> None:
    before = {"tags": {"a": "1", "b": "2"}, "share": 1, "limits": None}
    given = [
        settings.setting(text) for text in ("tags.a=x", "tags.b=null", "share=2", "limits.concurrency=3")
    ]
    assert settings.laid(before, given) == {"tags": {"a": "x"}, "share": 2, "limits": {"concurrency": 3}}
    assert settings.laid({}, [settings.setting("tags.a=null")]) == {"tags": {}}


def test_they_are_arguments() -> None:
    parser = argparse.ArgumentParser()
    settings.add_to(parser, least="+")
    assert parser.parse_args(["a=1", "b.c=x"]).settings == [(("a",), 1), (("b", "c"), "x")]
