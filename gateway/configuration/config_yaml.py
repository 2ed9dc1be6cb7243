"""A configuration file's YAML as a tree of values (config_tree.py). The owner of PyYAML.

A worker, which gets its configuration resolved, never loads this: it is 1 MiB.
"""

import yaml

from gateway.configuration.config_tree import ConfigErrors, Mistake, Node, joined, scalar

VALUES_MAX = 100_000
"""More values than this is no configuration; aliases of aliases can multiply."""


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
