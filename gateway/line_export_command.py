"""`weighbridge audit export`: lines of the journals in a file, with a manifest beside it.

The journal tells of each export, before it is there. The manifest comes last: an export without one is not whole.
"""

import contextlib
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from gateway import outfile
from metering import endnotes, event_journal, events
from metering.chain import Broken
from metering.events import Happening
from metering.export import moment_text
from metering.journal import Directory, directories
from metering.line_export import MANIFEST_SUFFIX, LineExport, Manifest, Wanted


class Exported(NamedTuple):
    """What was written. broken: journals that it lacks something of."""

    lines: int
    manifest: pathlib.Path
    broken: list[Broken]


def write(
    journals: pathlib.Path,
    wanted: Wanted,
    out: pathlib.Path,
    vkeys: tuple[str, ...],
    tell: Callable[[Happening], None],
) -> Exported:
    """Write the lines and their manifest. journals: <state_dir>/journal; vkeys: those beside it.

    tell: what it raises leaves nothing written. Raises OSError, naming the file.
    """
    found = directories(journals)
    broken: list[Broken] = []
    export = LineExport(wanted, broken.append)
    period = moment_text(wanted.hours.start), moment_text(wanted.hours.stop)
    manifest_path = out.with_name(out.name + MANIFEST_SUFFIX)
    with outfile.whole(manifest_path) as manifest:
        with outfile.whole(out) as file:
            file.writelines(export.of(found))
            export.end(_end_notes(found))
            told = events.exported(
                actor=event_journal.user(), what="lines", period="/".join(period), rows=export.lines,
                sha256=export.sha256, to=str(out.absolute()), tenant=wanted.tenant,
            )  # fmt: skip
            tell(told)
        told_of_it = Manifest(
            from_hour=period[0], kinds=export.kinds, lines=export.lines, sha256=export.sha256, tenant=wanted.tenant,
            to_hour=period[1], vkeys=vkeys, writers=export.writers,
        )  # fmt: skip
        manifest.write(msgspec.json.encode(told_of_it, order="sorted") + b"\n")
    return Exported(export.lines, manifest_path, broken)


def _end_notes(found: list[Directory]) -> dict[str, str]:
    notes = {}
    for directory in found:
        with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
            notes[directory.writer] = (directory.path / endnotes.END_NOTE).read_text("utf-8")
    return notes
