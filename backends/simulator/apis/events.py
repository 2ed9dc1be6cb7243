"""Events that have a name, as responses and messages send them. Pure."""

from typing import Any

from backends.simulator.answers import dumps


def event(data: dict[str, Any]) -> bytes:
    """One event; its name is its `type`."""
    return f"event: {data['type']}\ndata: {dumps(data)}\n\n".encode()
