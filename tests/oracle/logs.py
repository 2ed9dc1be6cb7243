"""Logs of clients and backends that are written event by event, a JSON line each, read as they grow.

A client's line is `[request id, field, value]`: a field of its entry (tests/support/streamload.py) is this from now on.
A backend's line is an entry by itself: `outcome` is `open` when it has read the request, then `completed` with the
counts that it told, or `failed`.
"""

import json
import pathlib
from typing import Any

from tests.oracle.join import Entry


class Tail:
    """The lines of a file, each read once."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._offset = 0

    def more(self) -> list[Any]:
        """What has come since."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        return [json.loads(line) for line in data[:whole].splitlines()]


class Clients:
    """What each client sent and read so far: request id → its entry."""

    def __init__(self, path: pathlib.Path) -> None:
        self.entries: dict[str, Entry] = {}
        self._tail = Tail(path)

    def update(self) -> None:
        for request_id, field, value in self._tail.more():
            self.entries.setdefault(request_id, {})[field] = value


class Backends:
    """What backends saw so far, line by line."""

    def __init__(self, path: pathlib.Path) -> None:
        self.entries: list[Entry] = []
        self._tail = Tail(path)

    def update(self) -> None:
        self.entries += self._tail.more()
