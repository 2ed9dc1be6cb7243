"""Gauges of processes that are no writers: a small file beside the metrics pages, whole at each look.

    <state_dir>/pages/<name>.gauges      {"gauges":[{"labels":[…],"name":"…","value":…},…]}

A scrape shows them beside the workers' families (metering/pages/metrics.py). They stay when their process has
gone: whoever looks at one tells its age by a timestamp among them.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from metering import files
from metering.pages.pages import PageError

SUFFIX = ".gauges"


class Definition(NamedTuple):
    """What all series of one name have in common. labels: sorted."""

    labels: tuple[str, ...]
    help: str


DIFFERENCE = "weighbridge_control_difference"
TIMESTAMP = "weighbridge_control_timestamp_seconds"
UNMETERED = "weighbridge_backend_unmetered_tokens"
FAILING = "weighbridge_duty_failing"
CLOSE_BEHIND = "weighbridge_close_hours_behind"
CLOSE_TIMESTAMP = "weighbridge_close_timestamp_seconds"
GAUGES: Mapping[str, Definition] = {
    CLOSE_BEHIND: Definition((), "Hours that should have been closed and are not."),
    CLOSE_TIMESTAMP: Definition((), "When it was last seen which hours can be closed."),
    DIFFERENCE: Definition(("pair", "unit"), "How far two figures that should be one are apart, at one cut."),
    TIMESTAMP: Definition((), "When journal, ledger, metrics and export were last compared."),
    FAILING: Definition(("duty",), "Tasks of the extra process that failed when they were last tried."),
    UNMETERED: Definition(("backend",), "Tokens that a backend made and no record has."),
}


class Gauge(msgspec.Struct, frozen=True, kw_only=True):
    """One series of GAUGES. labels: a value for each of its labels, in their order."""

    labels: tuple[str, ...] = ()
    name: str
    value: float


class _Board(msgspec.Struct, frozen=True):
    gauges: tuple[Gauge, ...]


def show(pages_dir: pathlib.Path, name: str, gauges: Sequence[Gauge]) -> None:
    """Replace what the process of this name shows. Raises OSError."""
    assert all(len(gauge.labels) == len(GAUGES[gauge.name].labels) for gauge in gauges)
    pages_dir.mkdir(parents=True, exist_ok=True)
    path = pages_dir / f"{name}{SUFFIX}"
    part = files.part_of(path)
    try:
        part.write_bytes(msgspec.json.encode(_Board(tuple(gauges))))
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


def read(pages_dir: pathlib.Path) -> list[Gauge]:
    """All gauges of all boards, by name and labels. Raises PageError if one cannot be read.

    Those whose names are not known here are left out: a process of another version wrote them.
    """
    found: list[Gauge] = []
    for path in pages_dir.glob(f"*{SUFFIX}"):
        try:
            gauges = msgspec.json.decode(path.read_bytes(), type=_Board).gauges
        except msgspec.MsgspecError as error:
            raise PageError(f"{path.name}: {error}") from None
        found += [gauge for gauge in gauges if gauge.name in GAUGES]
    return sorted(found, key=lambda gauge: (gauge.name, gauge.labels))
