"""From a tree of values to one of the configuration's types, naming every mistake on the way. Pure.

msgspec decodes as well, and stops at the first mistake with no line. This walks the same types
(msgspec.inspect), so a limit is written once, beside its field.
"""

import difflib
import re
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from backends.model import HARDWARE_PATTERN, HOST_NAME_PATTERN, NAME_PATTERN
from gateway.configuration.config import KEY_HASH_PATTERN, PUBLIC_KEY_PATTERN
from gateway.configuration.config_tree import ConfigErrors, Mistake, Node, joined, scalar

T = TypeVar("T", bound=msgspec.Struct)

_CHARACTERS = "letters, digits, '.', '_' and '-', at most 63, a letter or digit first"
_PATTERNS = {
    NAME_PATTERN: f"a name: lower-case {_CHARACTERS}",
    HOST_NAME_PATTERN: "a host name: letters, digits, . and -",
    HARDWARE_PATTERN: f"an instance type or family: {_CHARACTERS}",
    PUBLIC_KEY_PATTERN: '"x25519:" and 32 bytes in base64, as `weighbridge audit keys content` prints it',
    KEY_HASH_PATTERN: '"sha256:" and 64 hex digits, as `weighbridge key new` prints it',
}
_PRICES = {"prompt", "cached_prompt", "completion", "per_request", "usd_per_hour"}


class Shape:
    """Reads a tree as a type. Mistakes gather; a place already at fault is not reported twice.

    a_list: what a list is, for whoever wrote something else.
    """

    def __init__(self, a_list: str = "a list, an item a line, each with `- ` before it") -> None:
        self._a_list = a_list
        self.mistakes: list[Mistake] = []
        self._places: dict[str, Node] = {}
        self._faulty: set[str] = set()
        self._broken: set[str] = set()  # of the wrong form: what is below them is made up

    def read(self, node: Node, type_: type[T]) -> T:
        """`node` as a `type_`. Where something is wrong its default stands, or an empty value."""
        shape = inspect.type_info(type_)
        assert isinstance(shape, inspect.StructType)
        self._places[""] = node
        found = self._struct(node, shape, "")
        assert isinstance(found, type_)
        return found

    def report(self, path: str, message: str) -> None:
        """Name a mistake at `path`, or at what holds it if it is not in the tree (a default)."""
        if path in self._faulty or self._within_broken(path):
            return
        self._faulty.add(path)
        place = path
        while place not in self._places:
            place = _parent(place)
        node = self._places[place]
        self.mistakes.append(Mistake(node.where, node.line, path, message))

    def raise_mistakes(self) -> None:
        """Raises ConfigErrors if there were any."""
        if self.mistakes:
            raise ConfigErrors(self.mistakes)

    def _within_broken(self, path: str) -> bool:
        while path not in self._broken and path:
            path = _parent(path)
        return bool(path)

    def _break(self, path: str, message: str) -> None:
        self.report(path, message)
        self._broken.add(path)

    def _value(self, node: Node, type_: inspect.Type, path: str) -> Any:
        self._places.setdefault(path, node)
        match type_:
            case inspect.UnionType():
                return None if node.value is None else self._value(node, _given(type_), path)
            case inspect.StructType():
                return self._struct(node, type_, path)
            case inspect.VarTupleType():
                return self._items(node, type_, path)
            case inspect.DictType():
                return self._pairs(node, type_, path)
            case _:
                return self._leaf(node, type_, path)

    def _struct(self, node: Node, type_: inspect.StructType, path: str) -> Any:
        keys = [field.name for field in type_.fields]
        if not isinstance(node.value, dict):
            self._break(path, f"must be a section with keys of {', '.join(keys)}")
            return _empty(type_)
        for key, value in node.value.items():
            if key not in keys:
                here = joined(path, key)
                self._places[here] = value
                self.report(here, "is no key here" + did_you_mean(key, keys))
        return type_.cls(**{field.name: self._field(node, field, path) for field in type_.fields})

    def _field(self, node: Node, field: inspect.Field, path: str) -> Any:
        here = joined(path, field.name)
        given = node.value.get(field.name)
        if given is None:
            if field.required:
                self.report(here, "is missing")
            return _default(field)
        # A section whose keys are all commented out is null: as if it were not there.
        if given.value is None and not field.required:
            return _default(field)
        return self._value(given, field.type, here)

    def _items(self, node: Node, type_: inspect.VarTupleType, path: str) -> tuple[Any, ...]:
        if not isinstance(node.value, list):
            self._break(path, f"must be {self._a_list}")
            return ()
        if len(node.value) < (type_.min_length or 0):
            self.report(path, "must have at least one item")
        items = enumerate(node.value)
        return tuple(self._value(item, type_.item_type, f"{path}[{index}]") for index, item in items)

    def _pairs(self, node: Node, type_: inspect.DictType, path: str) -> dict[str, Any]:
        if not isinstance(node.value, dict):
            self._break(path, "must be a section of names and values")
            return {}
        if type_.max_length is not None and len(node.value) > type_.max_length:
            self.report(path, f"must have at most {type_.max_length} names")
        for key, value in node.value.items():
            self._leaf(Node(value=key, where=value.where, line=value.line), type_.key_type, joined(path, key))
        return {
            key: self._value(item, type_.value_type, joined(path, key)) for key, item in node.value.items()
        }

    def _leaf(self, node: Node, type_: inspect.Type, path: str) -> Any:
        self._places.setdefault(path, node)
        value = node.value
        if node.text and not isinstance(type_, inspect.StrType | inspect.LiteralType):
            value = scalar(value)
        if isinstance(type_, inspect.FloatType) and type(value) is int:
            value = float(value)
        if wrong := _wrong(value, type_):
            if _key(path) in _PRICES and type(value) in (int, float):
                wrong = (
                    f'is a price: write it in quotes, "{node.raw or value}"; a bare number would be rounded'
                )
            elif isinstance(type_, inspect.StrType) and type(value) in (int, float, bool):
                wrong += f'; put it in quotes: "{node.raw or value}"'
            self.report(path, wrong)
            return _empty(type_)
        return value


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """ "; did you mean …?" if one of `words` is near to `word`, else nothing."""
    near = difflib.get_close_matches(word, list(words), n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""


def _wrong(value: Any, type_: inspect.Type) -> str | None:
    """Why a scalar does not fit its type; None if it does."""
    match type_:
        case inspect.StrType():
            if type(value) is not str:
                return "must be a string"
            if type_.min_length and not value:
                return "is empty"
            if type_.max_length is not None and len(value) > type_.max_length:
                return f"must have at most {type_.max_length} characters"
            if not value.isprintable():
                return "must have no control characters"
            if type_.pattern is not None and not re.search(type_.pattern, value):
                return f"must be {_PATTERNS[type_.pattern]}"
        case inspect.LiteralType():
            if value not in type_.values:
                options = [str(option) for option in type_.values]
                return f"must be one of {', '.join(options)}{did_you_mean(str(value), options)}"
        case inspect.BoolType():
            if type(value) is not bool:
                return "must be true or false"
        case inspect.IntType():
            if type(value) is not int:
                return "must be a whole number"
            return _outside(value, type_)
        case _:
            assert isinstance(type_, inspect.FloatType), type_
            if type(value) is not float:
                return "must be a number"
            return _outside(value, type_)
    return None


def _outside(value: float, type_: inspect.IntType | inspect.FloatType) -> str | None:
    if type_.ge is not None and value < type_.ge:
        return f"must be at least {type_.ge}"
    if type_.gt is not None and value <= type_.gt:
        return f"must be above {type_.gt}"
    if type_.le is not None and value > type_.le:
        return f"must be at most {type_.le}"
    return None


def _given(type_: inspect.UnionType) -> inspect.Type:
    (given,) = (kind for kind in type_.types if not isinstance(kind, inspect.NoneType))
    return given


def _default(field: inspect.Field) -> Any:
    if field.required:
        return _empty(field.type)
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def _empty(type_: inspect.Type) -> Any:
    """What stands where a mistake is, so that the checks that span fields can go on."""
    match type_:
        case inspect.StructType():
            return type_.cls(**{field.name: _default(field) for field in type_.fields})
        case inspect.VarTupleType():
            return ()
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.BoolType():
            return False
        case _:
            return ""


def _parent(path: str) -> str:
    return path[: max(path.rfind("."), path.rfind("["), 0)]


def _key(path: str) -> str:
    return path[path.rfind(".") + 1 :]
