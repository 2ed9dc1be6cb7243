"""`weighbridge export` of closed hours: FOCUS, CSV, JSON lines, Parquet, each with a manifest beside it.

what was asked ─▶ closed hours of the archive or state directory ─▶ made aside ─▶ told in the journal ─▶ put
"""

import hashlib
import importlib.metadata
import pathlib
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from gateway.commands.commands import EXIT_USAGE, CommandError
from gateway.commands.export_places import ExportPlace, place_of
from gateway.configuration import pricing_config
from gateway.configuration.archives import objects_of
from gateway.configuration.config_load import Place
from metering.archive.objects import ArchiveError
from metering.cost.charge_terms import Charged, ChargeTerms
from metering.cost.close_files import CloseFileError
from metering.cost.close_manifest import month_hours, month_of
from metering.cost.closes import Closes
from metering.export import export_manifest, export_parquet, selection, zones
from metering.export.export_manifest import ExportManifest, Made, TermsUsed
from metering.export.export_parquet import ParquetError
from metering.export.exports import Format, Options, Stream
from metering.export.focus import table
from metering.export.focus.columns import Version
from metering.export.focus.table import moment
from metering.export.selection import Selection
from metering.journal import event_journal, events
from metering.journal.events import Happening
from metering.periods import instant_text

FOCUS = (Format.FOCUS_SPLIT, Format.FOCUS_CHARGEBACK)
_SUFFIX = {Format.JSON: ".jsonl", Format.PARQUET: ""}
_PARQUET_SUFFIX = ".parquet"
WHAT: dict[Format, events.Exported] = {
    Format.FOCUS_SPLIT: "focus-split",
    Format.FOCUS_CHARGEBACK: "focus-chargeback",
    Format.CSV: "csv-allocated",
    Format.JSON: "json",
    Format.PARQUET: "parquet",
}
"""As the journal calls them."""


class Asked(NamedTuple):
    """What is to be exported, and where to. zone: whose days; out: as export_places.place_of.

    charged: how tenants are to be charged; None: as the month keeps it, or the configuration says.
    """

    form: Format
    hours: range
    zone: str
    out: str | None
    options: Options
    omit_unpriced: bool
    running: bool
    charged: Charged | None = None


def options(form: Format, version: str | None, chargeback: str | None, place: Place) -> Options:
    """How FOCUS is to be made of months that are open. chargeback: None: as the configuration says.

    Raises ValueError: it can't be.
    """
    known = None if version is None else Version(version)
    if form in FOCUS:
        table.header(known, is_split=form is Format.FOCUS_SPLIT)
    terms = pricing_config.terms(place.models, chargeback or place.chargeback, place.exports)
    return Options(terms=terms, version=known)


def kept(asked: Asked, found: Selection) -> Asked:
    """The same by the terms that closed months have kept. Raises ValueError: it was asked for other ones."""
    if asked.form not in FOCUS:
        return asked
    own = {month: one.terms for month, one in found.closed.items() if one.terms is not None}
    for month in found.months:
        if asked.charged is not None and month in own and own[month].chargeback is not asked.charged:
            raise ValueError(
                f"{month} was closed with chargeback {own[month].chargeback}, and its file never changes: "
                "leave the chargeback out, or export the other months alone"
            )
    return asked._replace(options=msgspec.structs.replace(asked.options, own=own))


def write(
    place: Place, asked: Asked, tell: Callable[[Happening], None], say: Callable[[str], None]
) -> ExportManifest:
    """Make the export and put it, once the journal has been told of it. say: told what it lacks.

    tell: what it raises leaves nothing written. Raises CommandError, OSError.
    """
    try:
        is_directory = asked.form is Format.PARQUET
        target = place_of(asked.out, file_name(asked), place.journal, is_directory=is_directory)
        if is_directory and not target.takes_directories:
            raise CommandError("Parquet is a directory of files: name it with --out", EXIT_USAGE)
        closes = Closes(objects_of(pathlib.Path(place.state_dir), place.journal))
        found = selection.select(closes, asked.hours, running=asked.running)
        try:
            asked = kept(asked, found)
        except ValueError as error:
            raise CommandError(str(error), EXIT_USAGE) from error
        _check(asked, found, say)
        return _write(closes, asked, found, target, tell)
    except (ArchiveError, CloseFileError, ParquetError) as error:
        raise CommandError(str(error)) from error


def file_name(asked: Asked) -> str:
    """What a file is called that nobody has named: format and period; the hour only where it is not midnight."""
    start, end = (moment(hour)[:13].removesuffix("T00") for hour in (asked.hours.start, asked.hours.stop))
    return f"{asked.form.value}-{start}--{end}{_SUFFIX.get(asked.form, '.csv')}"


def lacks_prices(asked: Asked, found: Selection) -> bool:
    """Is it a FOCUS file, and money of it unknown that it was not said to leave out?"""
    return bool(found.unpriced) and asked.form in FOCUS and not asked.omit_unpriced


def _check(asked: Asked, found: Selection, say: Callable[[str], None]) -> None:
    if lacks_prices(asked, found):
        raise CommandError(
            f"no price is known of {', '.join(found.unpriced)}, so what its hours cost is not: give it one "
            "(weighbridge prices import, or prices in the file) and close again, or leave its hours out with "
            "--omit-unpriced"
        )
    if found.not_closed:
        spans = export_manifest.spans(found.not_closed)
        more = f", and {len(spans) - 1} more spans" if len(spans) > 1 else ""
        hours = "1 hour" if len(found.not_closed) == 1 else f"{len(found.not_closed)} hours"
        say(f"{hours} of this period not closed, and not in it: {spans[0]}{more}")
    if asked.form in FOCUS:
        for month in (month for month in found.months if _is_without_terms(found, month)):
            say(
                f"{month} was closed before months kept how they are charged: the configuration of today counts"
            )


def _is_without_terms(found: Selection, month: str) -> bool:
    return month in found.closed and found.closed[month].terms is None


def _write(
    closes: Closes, asked: Asked, found: Selection, target: ExportPlace, tell: Callable[[Happening], None]
) -> ExportManifest:
    with target.scratch() as scratch:
        path = scratch / "made"
        columns, made = make(closes, asked, found, path, pathlib.PurePath(target.text).name)
        manifest = manifest_of(asked, found, columns, made)
        target.settle(path)
        tell(
            events.exported(
                actor=event_journal.user(),
                what=WHAT[asked.form],
                period=f"{manifest.from_hour}/{manifest.to_hour}",
                rows=made.rows,
                sha256=made.sha256,
                to=target.text,
            )
        )
        target.put(path)
    target.put_manifest(export_manifest.encode(manifest))
    return manifest


def make(
    closes: Closes, asked: Asked, found: Selection, path: pathlib.Path, name: str
) -> tuple[Iterable[str], Made]:
    """Make the file, or the directory, at `path`; name: what it will be called. returns: its columns too.

    Raises ArchiveError, CloseFileError, ParquetError, OSError.
    """
    if asked.form is Format.PARQUET:
        with closes.paths(part.manifest for part in found.parts) as paths:
            written = export_parquet.write_rows(found.parts, paths, zones.zone(asked.zone), path)
        made = Made(
            bytes=written.bytes, files=written.files, name=name, rows=written.rows, sha256=written.sha256,
            sums=written.sums,
        )  # fmt: skip
        return export_parquet.ROW_COLUMNS, made
    stream = Stream(asked.form, selection.rows(closes, found.parts), asked.options)
    with open(path, "wb") as file:
        file.writelines(stream)
    size, digest = stream.bytes, stream.sha256
    if asked.form in FOCUS and name.endswith(_PARQUET_SUFFIX):
        text = path.rename(path.with_name("text"))
        export_parquet.from_focus_csv(text, path)
        size, digest = path.stat().st_size, _sha256(path)
    made = Made(bytes=size, name=name, rows=stream.rows, sha256=digest, sums=stream.sums)
    return stream.columns, made


def manifest_of(asked: Asked, found: Selection, columns: Iterable[str], made: Made) -> ExportManifest:
    """What stands beside the export."""
    manifests = [part.manifest for part in found.parts]
    different = export_manifest.different
    missing = different(writer for one in manifests for writer in one.missing)
    columns = tuple(columns)
    version = asked.options.version
    return ExportManifest(
        columns=columns,
        complete=not (found.not_closed or found.unpriced or missing or asked.running),
        created=instant_text(time.time_ns()),
        file=made,
        focus_version=(version.value if version else "1.4") if asked.form in FOCUS else None,
        format=asked.form.value,
        from_hour=moment(asked.hours.start),
        generator=f"weighbridge {importlib.metadata.version('weighbridge')}",
        hours=export_manifest.hours_in(found.parts),
        journals=export_manifest.journals_seen(found.parts),
        methods=different(one.method for one in manifests),
        missing=missing,
        months={month: state.value for month, state in found.months.items()},
        not_closed=export_manifest.spans(found.not_closed),
        prices=different(one.prices for one in manifests),
        schema_sha256=export_manifest.schema_sha256(columns),
        sharing=different(one.sharing for one in manifests),
        terms=_terms_used(asked, found),
        time_zone=asked.zone,
        to_hour=moment(asked.hours.stop),
        unpriced=found.unpriced,
    )


def _terms_used(asked: Asked, found: Selection) -> dict[str, TermsUsed]:
    """Of each month that the file has charges of, or bills in; none of what is no FOCUS."""
    options, used = asked.options, dict[str, ChargeTerms]()
    for part in found.parts if asked.form in FOCUS else ():
        used[part.billed_in] = options.billed_by(part.billed_in)
        used.setdefault(month_of(part.manifest.hour), options.charged_by(part))
    is_chargeback = asked.form is Format.FOCUS_CHARGEBACK
    return {
        month: TermsUsed(
            account=terms.account,
            cards=tuple(card.id for card in terms.during(month_hours(month)).cards) if is_chargeback else (),
            chargeback=terms.chargeback if is_chargeback else None,
            issuer=terms.issuer,
            kept=terms is not options.terms,
        )
        for month, terms in sorted(used.items())
    }


def _sha256(path: pathlib.Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
