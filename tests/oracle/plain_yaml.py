"""As much of YAML as a written-out configuration needs: block mappings and lists, a scalar to a line.

A scalar without quotes stays text, numbers too: who reads prices wants their digits.
"""

import json
import re
from typing import Any

_ENTRY = re.compile(r"([a-z_][a-z0-9_-]*):(?: +(.*))?")

Line = tuple[int, str]
"""Indent and text. A list's dash is turned into a line of its own, so each entry has its indent."""


def read(text: str) -> Any:
    """The document. Raises ValueError at what is none of this subset."""
    lines: list[Line] = []
    for line in text.splitlines():
        content = line.lstrip(" ")
        indent = len(line) - len(content)
        while content.startswith("- "):
            lines.append((indent, "-"))
            content = content[2:]
            indent += 2
        if content and not content.startswith("#"):
            lines.append((indent, content))
    value, rest = _block(lines)
    if rest:
        raise ValueError(f"not understood: {rest[0][1]!r}")
    return value


def _block(lines: list[Line]) -> tuple[Any, list[Line]]:
    indent, first = lines[0]
    if first == "-":
        return _list(lines, indent)
    return _mapping(lines, indent) if _ENTRY.fullmatch(first) else (_scalar(first), lines[1:])


def _list(lines: list[Line], indent: int) -> tuple[list[Any], list[Line]]:
    items = []
    while lines and lines[0] == (indent, "-"):
        item, lines = _block(lines[1:])
        items.append(item)
    return items, lines


def _mapping(lines: list[Line], indent: int) -> tuple[dict[str, Any], list[Line]]:
    entries: dict[str, Any] = {}
    while lines and lines[0][0] == indent and (match := _ENTRY.fullmatch(lines[0][1])):
        lines = lines[1:]
        if match[2] is None:
            entries[match[1]], lines = _block(lines)
        else:
            entries[match[1]] = _scalar(match[2])
    return entries, lines


def _scalar(text: str) -> str:
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    return str(json.loads(text)) if text.startswith('"') else text
