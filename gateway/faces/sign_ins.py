"""Refused sign-ins at the faces that are not for calls, gathered by the second. Pure.

Somebody who tries keys must not fill the journal: of each (face, status, key) a second has one line, with a count,
and beyond NAMED_MAX keys those with a known id are counted together.
"""

from metering.journal import events
from metering.journal.events import Face, Happening

NAMED_MAX = 64


class SignIns:
    """What was refused since the last `told`."""

    def __init__(self) -> None:
        self._counts: dict[tuple[Face, int, str | None], int] = {}

    def refused(self, face: Face, status: int, key_id: str | None) -> None:
        """A request was refused. key_id: None: the key is not known, or there was none."""
        key = face, status, key_id
        if key not in self._counts and len(self._counts) >= NAMED_MAX:
            key = face, status, None
        self._counts[key] = self._counts.get(key, 0) + 1

    def told(self) -> list[Happening]:
        """What is to be told of them, in the order of their first; then they are forgotten."""
        counts, self._counts = self._counts, {}
        return [
            events.sign_in_refused(actor=key_id, face=face, status=status, count=count)
            for (face, status, key_id), count in counts.items()
        ]
