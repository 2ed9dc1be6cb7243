"""Where the content of calls lies on this disk, by tenant and hour.

    <state_dir>/content/<tenant>/2026-11-28T18-5f3a91c2d4e6b708.frames      0600; frames, one behind the other

A file is of one worker and one hour (UTC, of the moment of writing), and is never opened again. Once its hour is over
for FINAL_NS and nobody has written to it for as long, nothing is added any more: it may be archived.
"""

import datetime
import os
import pathlib
import re
from collections.abc import Iterator
from typing import NamedTuple

from metering.periods import instant_text, parse_moment
from metering.units import NS_PER_HOUR, NS_PER_S

DIRECTORY = "content"
TOKEN_BYTES = 8
FINAL_NS = 120 * NS_PER_S

_NAME_PATTERN = re.compile(r"(\d{4}-\d\d-\d\dT\d\d)-[0-9a-f]{16}\.frames")


class Shelved(NamedTuple):
    """A file of content, here or elsewhere."""

    tenant: str
    name: str

    @property
    def until_ns(self) -> int:
        """The end of its hour. Raises ValueError: there is no such hour."""
        return (parse_moment(f"{self.name[:13]}:00:00Z") + 1) * NS_PER_HOUR

    @property
    def below(self) -> str:
        """Its path below `content/`."""
        return f"{self.tenant}/{self.name}"


def file_name(hour: int, token: str) -> str:
    """The name of a file of this hour (since 1970, UTC). token: 16 hex digits of chance."""
    return f"{instant_text(hour * NS_PER_HOUR)[:13]}-{token}.frames"


def shelved(tenant: str, name: str) -> Shelved | None:
    """A file by its names, as a record or a listing has them; None: they are none, and no path."""
    match = _NAME_PATTERN.fullmatch(name)
    if match is None or "/" in tenant or tenant.startswith("."):
        return None
    try:
        datetime.datetime.strptime(match[1], "%Y-%m-%dT%H")
    except ValueError:
        return None
    return Shelved(tenant, name)


class Shelf:
    """The files of one state directory."""

    def __init__(self, state_dir: pathlib.Path) -> None:
        self.root = state_dir / DIRECTORY

    def path(self, one: Shelved) -> pathlib.Path:
        """Where it is, if it is here."""
        return self.root / one.tenant / one.name

    def files(self) -> Iterator[Shelved]:
        """All that are here, by tenant and hour. Raises OSError."""
        for tenant in _names(self.root):
            yield from self.of(tenant)

    def of(self, tenant: str) -> list[Shelved]:
        """Those of one tenant. Raises OSError."""
        found = (shelved(tenant, name) for name in _names(self.root / tenant))
        return [one for one in found if one is not None]

    def is_final(self, one: Shelved, now_ns: int) -> bool:
        """Is nothing added to it any more? now_ns: wall clock. Raises OSError."""
        touched_ns = self.path(one).stat().st_mtime_ns
        return max(one.until_ns, touched_ns) + FINAL_NS <= now_ns


def _names(directory: pathlib.Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
