"""`weighbridge audit export`: lines of the journals in a file, with a manifest beside it.

The journal tells of each export, before it is there. The manifest comes last: an export without one is not whole.
"""

import contextlib
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from gateway.commands import outfile
from gateway.configuration.archives import all_journals
from gateway.configuration.config_load import Place
from metering.archive.archive import ArchivedDirectory
from metering.audit import endnotes
from metering.audit.line_export import MANIFEST_SUFFIX, LineExport, Manifest, Wanted
from metering.export.export import moment_text
from metering.journal import event_journal, events
from metering.journal.chain import Broken
from metering.journal.events import Happening
from metering.journal.readable import Readable


class Exported(NamedTuple):
    """What was written. broken: journals that it lacks something of."""

    lines: int
    manifest: pathlib.Path
    broken: list[Broken]


def write(
    place: Place,
    wanted: Wanted,
    out: pathlib.Path,
    vkeys: tuple[str, ...],
    tell: Callable[[Happening], None],
) -> Exported:
    """Write the lines and their manifest. place: of the journals; vkeys: those beside them.

    tell: what it raises leaves nothing written. Raises ArchiveError, OSError, naming the file.
    """
    found = list(all_journals(place.journals, place.journal))
    broken: list[Broken] = []
    export = LineExport(wanted, broken.append)
    period = moment_text(wanted.hours.start), moment_text(wanted.hours.stop)
    manifest_path = out.with_name(out.name + MANIFEST_SUFFIX)
    with outfile.whole(manifest_path) as manifest:
        with outfile.whole(out) as file:
            file.writelines(export.of(found))
            export.end(_end_notes(place, found))
            told = events.exported(
                actor=event_journal.user(), what="lines", period="/".join(period), rows=export.lines,
                sha256=export.sha256, to=str(out.absolute()), tenant=wanted.tenant,
            )  # fmt: skip
            outfile.settle(file)
            tell(told)
        told_of_it = Manifest(
            from_hour=period[0], kinds=export.kinds, lines=export.lines, sha256=export.sha256, tenant=wanted.tenant,
            to_hour=period[1], vkeys=vkeys, writers=export.writers,
        )  # fmt: skip
        manifest.write(msgspec.json.encode(told_of_it, order="sorted") + b"\n")
    return Exported(export.lines, manifest_path, broken)


def _end_notes(place: Place, found: list[Readable]) -> dict[str, str]:
    notes: dict[str, str] = {}
    for one in found:
        with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
            if not isinstance(one, ArchivedDirectory):
                notes[one.writer] = (place.journals / one.writer / endnotes.END_NOTE).read_text("utf-8")
                continue
            for kept in one.beside:
                if kept.path.endswith(f"/{endnotes.END_NOTE}"):
                    notes[one.writer] = one.fetch_beside(kept).decode()
    return notes
