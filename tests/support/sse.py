"""A strict reader of server-sent events, as browsers have it. Imports nothing of the product: it is a judge of it.

WHATWG HTML §9.2.6: lines end in LF, CR or CRLF; a blank line dispatches what has data; an event that the
stream's end leaves without its blank line is dropped.
"""

import json
import re
from typing import Any, NamedTuple

_LINE_END = re.compile(r"\r\n|\n|\r")


class Event(NamedTuple):
    """A dispatched event."""

    data: str
    type: str = "message"

    @property
    def done(self) -> bool:
        return self.data == "[DONE]"

    @property
    def json(self) -> Any:
        return json.loads(self.data)


def parse(stream: bytes) -> list[Event]:
    """All events that a client dispatches. Raises UnicodeDecodeError: a stream of ours is UTF-8."""
    *lines, _unended = _LINE_END.split(stream.decode().removeprefix("\ufeff"))
    events, data, type_ = [], [], ""
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                events.append(Event("\n".join(data), type_ or "message"))
            data, type_ = [], ""
        elif name == "data":
            data.append(value)
        elif name == "event":
            type_ = value
    return events


def chunks(stream: bytes) -> list[Any]:
    """The JSON of each event but [DONE]. Raises ValueError where an event's data is no JSON."""
    return [event.json for event in parse(stream) if not event.done]


def text(stream: bytes) -> str:
    """What the first choice says, all content joined."""
    objects = [chunk for chunk in chunks(stream) if isinstance(chunk, dict)]
    choices = [choice for chunk in objects for choice in chunk.get("choices") or []]
    return "".join((choice.get("delta") or {}).get("content") or "" for choice in choices)
