"""The configuration before it has types: a tree of values, each knowing where it was written.

A file, the environment and flags all become `Node`s of one tree, the stronger laid over the weaker, so
that every mistake can name its line, its variable or its flag. Scalars follow YAML 1.2: `no` is a word,
2026-11-28 a string.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

_INT = re.compile(r"[-+]?[0-9]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_WORDS: dict[str, bool | None] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip


class Mistake(msgspec.Struct, frozen=True, order=True):
    """One thing wrong with the configuration. where: "file", a variable or a flag; line: 0 if it has none."""

    where: str
    line: int
    path: str
    message: str

    def __str__(self) -> str:
        place = f"{self.where}:{self.line}" if self.line else self.where
        return f"{place}: {self.path}: {self.message}" if self.path else f"{place}: {self.message}"


class ConfigErrors(ValueError):
    """The configuration cannot be used; `mistakes` has all that is wrong with it, by place."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        assert mistakes
        self.mistakes = sorted(mistakes)
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


class Node(msgspec.Struct, kw_only=True):
    """A value and its place.

    value: a scalar, a dict of nodes by key, or a list of nodes. raw: a scalar as it was written.
    text: it came without a type (a variable): to be read as the type that its key has.
    """

    value: Any
    where: str
    line: int = 0
    raw: str = ""
    text: bool = False


_DEPTH_MAX = 8
"""No setting lies deeper; what does is wrong, however deep it goes."""


def tree(value: Any, where: str, depth: int = 0) -> Node:
    """Values as JSON or msgspec has them, all from one place."""
    if depth < _DEPTH_MAX and isinstance(value, dict):
        value = {key: tree(item, where, depth + 1) for key, item in value.items()}
    elif depth < _DEPTH_MAX and isinstance(value, list | tuple):
        value = [tree(item, where, depth + 1) for item in value]
    return Node(value=value, where=where)


def scalar(text: str) -> str | int | float | bool | None:
    """A plain YAML 1.2 scalar: null, bool, decimal number, or else a string."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.match(text):
        return int(text)
    if _FLOAT.match(text):
        return float(text)
    return text


def joined(path: str, key: str) -> str:
    """The path of a key below `path`."""
    return f"{path}.{key}" if path else key


def lay(root: Node, steps: Sequence[str], node: Node) -> None:
    """Put `node` at the path `steps` (keys, and indexes of lists) over what is there; make what is missing.

    Raises ConfigErrors if a step leads into a scalar, or past the end of a list.
    """
    here, path = root, ""
    for depth, step in enumerate(steps):
        last = depth == len(steps) - 1
        following = node if last else Node(value=_room_for(steps[depth + 1]), where=node.where)
        if here.value is None:
            here.value = _room_for(step)
        if isinstance(here.value, list):
            path = f"{path}[{step}]"
            _lay_item(here.value, step, following, path=path, last=last)
            here = here.value[int(step)]
        elif isinstance(here.value, dict):
            path = joined(path, step)
            if last or step not in here.value:
                here.value[step] = following
            here = here.value[step]
        else:
            raise ConfigErrors([Mistake(node.where, 0, path, "has no keys below it")])


def _room_for(step: str) -> dict[str, Node] | list[Node]:
    return [] if step.isdecimal() else {}


def _lay_item(items: list[Node], step: str, node: Node, *, path: str, last: bool) -> None:
    if not step.isdecimal() or int(step) > len(items):
        message = f"is a list of {len(items)}; its items are numbered from 0, the next one is {len(items)}"
        raise ConfigErrors([Mistake(node.where, 0, path, message)])
    if int(step) == len(items):
        items.append(node)
    elif last:
        items[int(step)] = node


def grown(value: Any, where: str) -> Node:
    """A plain value as a tree, all of it written at `where`."""
    if isinstance(value, dict):
        value = {key: grown(item, where) for key, item in value.items()}
    elif isinstance(value, list | tuple):
        value = [grown(item, where) for item in value]
    return Node(value=value, where=where)
