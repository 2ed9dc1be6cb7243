"""Settings on a command line: `share=3`, `tags.owner=ann`, `limits.requests_per_minute=60`, `expires=null`.

What reads as JSON is that, all else is text. A dot goes into a setting that is an object, and leaves the rest of it.
"""

import argparse
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """One of them. path: one or two names."""

    path: tuple[str, ...]
    value: Any


def add_to(command: argparse.ArgumentParser, *, least: str = "*") -> None:
    """The arguments. least: how many there must be, as argparse says it."""
    command.add_argument(
        "settings",
        metavar="SETTING",
        type=setting,
        nargs=least,
        help="name=value, as a configuration names them",
    )


def setting(text: str) -> Setting:
    """The type of an argument. Raises ValueError."""
    name, equals, value = text.partition("=")
    path = tuple(name.split(".", 1))
    if not equals or not all(path):
        raise ValueError
    try:
        return Setting(path, json.loads(value))
    except ValueError:
        return Setting(path, value)


def laid(before: Mapping[str, Any], given: Iterable[Setting]) -> dict[str, Any]:
    """What is to be sent. before: as the settings are now, of which objects that are gone into are taken."""
    body: dict[str, Any] = {}
    for (name, *inner), value in given:
        if not inner:
            body[name] = value
            continue
        whole = body.get(name, before.get(name))
        body[name] = {**(whole if isinstance(whole, dict) else {}), inner[0]: value}
        if value is None:
            del body[name][inner[0]]
    return body
