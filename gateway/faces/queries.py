"""What the query of a request says, and what is told of it when it makes no sense. Pure.

Every function raises InvalidRequest, which names the parameter.
"""

import re
from collections.abc import Mapping

from gateway.api.errors import InvalidRequest, shown

TEXT_MAX = 128
"""Characters of an id or a name in a question."""

Query = Mapping[str, str]


def known(query: Query, *names: str) -> None:
    """There is no parameter but these."""
    for name in query:
        if name not in names:
            takes = f"this path takes {', '.join(names)}" if names else "this path takes none"
            raise InvalidRequest(f"there is no parameter {shown(name)}; {takes}", param=name[:TEXT_MAX])


def text(query: Query, name: str) -> str | None:
    """A name or an id; None: there is none."""
    value = query.get(name)
    if value is not None and (not value or len(value) > TEXT_MAX or not value.isprintable()):
        raise InvalidRequest(f"{name} must be 1 to {TEXT_MAX} printable characters", param=name)
    return value


def needed(query: Query, name: str) -> str:
    """The same of what must be there."""
    value = text(query, name)
    if value is None:
        raise InvalidRequest(f"{name} is needed here", param=name)
    return value


def number(query: Query, name: str, default: int, highest: int) -> int:
    """From 1 to `highest`."""
    value = query.get(name, str(default))
    if not re.fullmatch(r"[0-9]{1,9}", value, re.ASCII) or not 1 <= int(value) <= highest:
        raise InvalidRequest(f"{name} must be 1 to {highest}", param=name)
    return int(value)


def choice(query: Query, name: str, *choices: str) -> str | None:
    """One of these; None: it is not there."""
    value = query.get(name)
    if value is not None and value not in choices:
        raise InvalidRequest(f"{name} must be {' or '.join(choices)}, not {shown(value)}", param=name)
    return value
