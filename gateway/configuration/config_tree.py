"""The configuration before it has types: a tree of values, each knowing where it was written.

A file, the environment and flags all become `Node`s of one tree, the stronger laid over the weaker, so
that every mistake can name its line, its variable or its flag. Scalars follow YAML 1.2: `no` is a word,
2026-11-28 a string. The owner of PyYAML.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import yaml

VALUES_MAX = 100_000
"""More values than this is no configuration; aliases of aliases can multiply."""

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


def scalar(text: str) -> str | int | float | bool | None:
    """A plain YAML 1.2 scalar: null, bool, decimal number, or else a string."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.match(text):
        return int(text)
    if _FLOAT.match(text):
        return float(text)
    return text


def read_yaml(data: bytes, name: str) -> tuple[Node, list[Mistake]]:
    """The tree of a file and what is wrong with its form. name: how mistakes call the file.

    Raises ConfigErrors if it is no YAML, or not a mapping: then there is nothing to go on with.
    """
    try:
        document = yaml.compose(data.decode(), Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigErrors([Mistake(name, line, "", "is not UTF-8")]) from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigErrors([Mistake(name, line, "", f"is no YAML: {_in_words(error)}")]) from error
    except yaml.YAMLError as error:
        raise ConfigErrors([Mistake(name, 1, "", f"is no YAML: {str(error).splitlines()[0]}")]) from error
    except RecursionError as error:
        raise ConfigErrors([Mistake(name, 1, "", "is nested too deeply")]) from error
    if document is None:
        return Node(value={}, where=name, line=1), []
    reader = _Reader(name)
    root = reader.node(document, "")
    if not isinstance(root.value, dict):
        raise ConfigErrors([Mistake(name, root.line, "", "must be a mapping of keys, as in `listen: …`")])
    return root, reader.mistakes


def _in_words(error: yaml.MarkedYAMLError) -> str:
    """What is no YAML, and in what: a quote that is not closed is noticed many lines behind it."""
    problem = error.problem or "it cannot be read"
    if "'\\t'" in problem:
        return "a tab; indent with spaces"
    if error.context and error.context_mark and error.problem_mark:
        begins, found = error.context_mark.line + 1, error.problem_mark.line + 1
        if begins != found:
            problem += f" ({error.context} that begins on line {begins})"
    return problem


class _Reader:
    """Turns PyYAML's nodes into ours; duplicate keys, foreign tags and endless aliases become mistakes."""

    def __init__(self, name: str) -> None:
        self.mistakes: list[Mistake] = []
        self._name = name
        self._open: set[int] = set()
        self._count = 0

    def node(self, source: yaml.Node, path: str) -> Node:
        line = source.start_mark.line + 1
        self._count += 1
        if self._count > VALUES_MAX:
            raise ConfigErrors([Mistake(self._name, line, path, f"more than {VALUES_MAX} values")])
        if id(source) in self._open:
            raise ConfigErrors([Mistake(self._name, line, path, "an alias to a value that holds it")])
        if isinstance(source, yaml.ScalarNode):
            return self._scalar(source, path, line)
        self._open.add(id(source))
        try:
            if isinstance(source, yaml.SequenceNode):
                items = [self.node(item, f"{path}[{index}]") for index, item in enumerate(source.value)]
                return Node(value=items, where=self._name, line=line)
            assert isinstance(source, yaml.MappingNode)
            return self._mapping(source, path, line)
        finally:
            self._open.remove(id(source))

    def _scalar(self, source: yaml.ScalarNode, path: str, line: int) -> Node:
        text: str = source.value
        if not source.tag.startswith("tag:yaml.org,2002:"):
            self.mistakes.append(Mistake(self._name, line, path, f"the tag {source.tag} is not supported"))
        plain = source.style is None and not source.tag.endswith(":str")
        return Node(value=scalar(text) if plain else text, where=self._name, line=line, raw=text)

    def _mapping(self, source: yaml.MappingNode, path: str, line: int) -> Node:
        values: dict[str, Node] = {}
        for key, value in source.value:
            key_line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self.mistakes.append(Mistake(self._name, key_line, path, "a key must be a word"))
                continue
            here = joined(path, key.value)
            if key.tag == "tag:yaml.org,2002:merge":
                message = "merge keys are not supported; write the keys out"
                self.mistakes.append(Mistake(self._name, key_line, here, message))
            elif key.value in values:
                message = f"is given twice; first on line {values[key.value].line}"
                self.mistakes.append(Mistake(self._name, key_line, here, message))
            else:
                values[key.value] = self.node(value, here)
                # The key's line: the value of a section begins on the next one.
                values[key.value].line = key_line
        return Node(value=values, where=self._name, line=line)


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
