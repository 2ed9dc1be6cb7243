"""Settings on a command line: `share=3`, `tags.owner=ann`, `limits.requests_per_minute=60`, `expires=null`.

What reads as JSON is that, all else is text. A dot goes into a setting that is an object, and leaves the rest of it;
a second one goes into the limits of a model or a project: `model_limits.llama-3.1-8b.concurrency=4`.
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gateway.configuration.config import LimitSet

_TEXTS = frozenset({"name", "project", "expires", "tags"})
"""Settings that are texts, though one may look like a number: a cost centre, a year."""
_LIMITS_BY_NAME = frozenset({"model_limits", "project_limits"})
_LIMITS = frozenset(LimitSet.__struct_fields__)


class Setting(NamedTuple):
    """One of them. path: one to three names."""

    path: tuple[str, ...]
    value: Any


def add_to(command: argparse.ArgumentParser, *, least: str = "*") -> None:
    """The arguments. least: how many there must be, as argparse says it."""
    command.add_argument(
        "settings",
        metavar="SETTING",
        type=setting,
        nargs=least,
        help="name=value, as a configuration names them: share=3, limits.requests_per_minute=60, "
        "'projects=[\"web\"]', tags.owner=ann, hold=null (the default again)",
    )


def setting(text: str) -> Setting:
    """The type of an argument. Raises ArgumentTypeError."""
    name, equals, value = text.partition("=")
    path = _path(name)
    if not equals or not all(path):
        raise argparse.ArgumentTypeError(f"{text!r} is no setting: write name=value, as in share=3")
    return Setting(path, _value(path, value))


def laid(before: Mapping[str, Any], given: Iterable[Setting]) -> dict[str, Any]:
    """What is to be sent. before: as the settings are now, of which objects that are gone into are taken."""
    body: dict[str, Any] = {}
    for (name, *inner), value in given:
        body[name] = _put(body.get(name, before.get(name)), inner, value)
    return body


def _path(name: str) -> tuple[str, ...]:
    first, dot, rest = name.partition(".")
    if not dot:
        return (first,)
    of, _, limit = rest.rpartition(".")
    # Names have dots in them, and limits do not.
    return (first, of, limit) if first in _LIMITS_BY_NAME and of and limit in _LIMITS else (first, rest)


def _value(path: tuple[str, ...], text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return text if path[0] in _TEXTS and isinstance(value, int | float) else value


def _put(before: Any, path: Sequence[str], value: Any) -> Any:
    """`value` at `path` of a setting, which is left as it is besides; null takes away what is there."""
    if not path:
        return value
    name, *inner = path
    after = dict(before) if isinstance(before, dict) else {}
    after[name] = _put(after.get(name), inner, value)
    if after[name] is None:
        del after[name]
    return after
