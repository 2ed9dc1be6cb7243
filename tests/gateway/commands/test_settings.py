"""Settings as they are written on a command line, and what is sent of them."""

import argparse
from typing import Any

import pytest

from gateway.commands.settings import add_to, laid, setting


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("share=3", ("share",), 3),
        ("hold=worst", ("hold",), "worst"),
        ("hold=null", ("hold",), None),
        ('projects=["web"]', ("projects",), ["web"]),
        ("tags.cost_center=1001", ("tags", "cost_center"), "1001"),  # a text, though it looks like a number
        ("tags.a.b=true", ("tags", "a.b"), "true"),
        ("tags.owner=null", ("tags", "owner"), None),
        ('tags={"a": "b"}', ("tags",), {"a": "b"}),
        ("name=2027", ("name",), "2027"),
        ("expires=2027-01-01", ("expires",), "2027-01-01"),
        ("name=a=b", ("name",), "a=b"),
        ("name=", ("name",), ""),
        ("limits.requests_per_minute=60", ("limits", "requests_per_minute"), 60),
        ("model_limits.llama-3.1-8b.concurrency=4", ("model_limits", "llama-3.1-8b", "concurrency"), 4),
        ("model_limits.llama-3.1-8b=null", ("model_limits", "llama-3.1-8b"), None),
        ("project_limits.web.budgets=[]", ("project_limits", "web", "budgets"), []),
        ("project_limits.concurrency=4", ("project_limits", "concurrency"), 4),
    ],
)
def test_a_setting_is_read(text: str, path: tuple[str, ...], value: object) -> None:
    assert setting(text) == (path, value)


@pytest.mark.parametrize("text", ["", "share", "=3", "tags.=x", ".a=x", "a.=3"])
def test_what_is_no_setting_is_told_so(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write name=value"):
        setting(text)


BEFORE: dict[str, Any] = {
    "share": 1,
    "tags": {"a": "b", "c": "d"},
    "limits": {"requests_per_minute": 5, "concurrency": None},
    "model_limits": {"m1": {"concurrency": 1, "tokens_per_minute": 2}},
}


@pytest.mark.parametrize(
    ("given", "body"),
    [
        (["share=2"], {"share": 2}),
        (["share=null"], {"share": None}),
        (["tags.a=x", "tags.e=f"], {"tags": {"a": "x", "c": "d", "e": "f"}}),
        (["tags.a=null"], {"tags": {"c": "d"}}),
        (["tags.z=null"], {"tags": {"a": "b", "c": "d"}}),
        (["limits.concurrency=2"], {"limits": {"requests_per_minute": 5, "concurrency": 2}}),
        (["model_limits.m1.concurrency=3"], {"model_limits": {"m1": {"concurrency": 3, "tokens_per_minute": 2}}}),
        (
            ["model_limits.m2.concurrency=3", "model_limits.m1=null"],
            {"model_limits": {"m2": {"concurrency": 3}}},
        ),
        (["project_limits.web.concurrency=3"], {"project_limits": {"web": {"concurrency": 3}}}),
    ],
)  # fmt: skip
def test_a_dot_leaves_the_rest_as_it_is(given: list[str], body: dict[str, Any]) -> None:
    assert laid(BEFORE, map(setting, given)) == body


def test_they_are_arguments() -> None:
    parser = argparse.ArgumentParser()
    add_to(parser, least="+")
    assert parser.parse_args(["a=1", "b.c=x"]).settings == [(("a",), 1), (("b", "c"), "x")]
