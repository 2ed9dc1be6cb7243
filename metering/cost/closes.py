"""Closed hours and months where they are kept: beside the archive's journals, or in the state directory.

    Closes(objects).hours(period)  ─▶ manifests, the newest revision of each hour, in order
                   .rows(manifests) ─▶ their rows, streamed, in order
                   .commit(…)       ─▶ a revision; of two who make the same one, the second is told so
                   .month(month)    ─▶ provisional, reconciled or closed, and with which hours

What is put is never changed, save the look into a running hour (`now`), which the next look or the close replaces.
"""

import concurrent.futures
import contextlib
import hashlib
import pathlib
import re
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from metering.archive.manifest import NotAManifest
from metering.archive.objects import AlreadyThere, ArchiveError, Objects
from metering.cost import close_files, close_manifest
from metering.cost.charge_terms import ChargeTerms
from metering.cost.close_manifest import (
    CLOSE,
    LOOKS,
    MANIFEST,
    MONTHS,
    ROWS,
    HourRevision,
    Manifest,
    Month,
    MonthState,
    Reason,
    RowsObject,
    day_text,
    hour_text,
    parse_hour,
)
from metering.cost.close_row import CloseRow

M = TypeVar("M", Manifest, Month)

NOW = "now"
_MANIFEST_PATTERN = re.compile(rf"{CLOSE}([0-9T-]+)/(?:rev-([1-9][0-9]*)|{NOW})/{MANIFEST}")
_MONTH_FILE_PATTERN = re.compile(r"([0-9]{4})\.json")
_AT_ONCE = 16
"""Requests to a bucket: there is a manifest for each hour of a month."""
_FEW_HOURS = 48
"""Up to so many, each hour is listed by itself; beyond, all of them at once."""


class Outdone(Exception):
    """Somebody else has made this revision, or this step of the month, first; theirs counts."""


class Closes:
    """Every method raises ArchiveError; those that read rows close_files.CloseFileError, OSError too."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._files = close_files.Writer()

    def hours(self, period: range, *, running: bool = False) -> list[Manifest]:
        """The newest revision of each closed hour of a period, in order.

        running: with the looks into hours that are not closed (reason `now`, revision 0).
        """
        wanted = [(hour, n) for hour, n in sorted(self._newest(period).items()) if n or running]
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(lambda one: self._manifest(*one), wanted))

    def numbers(self, period: range) -> dict[int, int]:
        """Of each closed hour of a period the number of its newest revision; nothing is read."""
        return {hour: n for hour, n in self._newest(period).items() if n}

    def revisions(self, hour: int) -> list[Manifest]:
        """All revisions of an hour, in order."""
        return list(self.all_revisions(range(hour, hour + 1)))

    def all_revisions(self, period: range) -> Iterator[Manifest]:
        """All revisions of each closed hour of a period, in order."""
        for hour, revision in sorted(self._listed(period)):
            if revision:
                yield self._manifest(hour, revision)

    def revision(self, hour: int, number: int) -> Manifest:
        """One of them, by its number."""
        return self._manifest(hour, number)

    def of_month(self, month: Month) -> list[Manifest]:
        """The hours as they were when the month got this state, in order."""
        found = []
        for text, one in sorted(month.hours.items()):
            hour = parse_hour(text)
            if hour is None:
                raise ArchiveError(f"month {month.month} names {text!r}, which is no hour")
            path = _manifest_path(hour, one.revision)
            data = self._objects.get(path)
            if data is None or hashlib.sha256(data).hexdigest() != one.sha256:
                raise ArchiveError(f"{path} is not what month {month.month} was {month.state} with")
            found.append(_decoded(path, close_manifest.decode, data))
        return found

    def rows(self, manifests: Iterable[Manifest]) -> Iterator[CloseRow]:
        """Their rows in the order of the manifests; one hour's file is on disk at a time."""
        with tempfile.TemporaryDirectory(prefix="weighbridge-") as name:
            yield from close_files.read(self._fetched(manifests, pathlib.Path(name), keep=False))

    @contextlib.contextmanager
    def paths(self, manifests: Iterable[Manifest]) -> Iterator[list[pathlib.Path]]:
        """Their files in the order of the manifests, for as long as the block runs."""
        with tempfile.TemporaryDirectory(prefix="weighbridge-") as name:
            yield list(self._fetched(manifests, pathlib.Path(name), keep=True))

    def commit(self, manifest: Manifest, rows: Sequence[CloseRow]) -> Manifest:
        """Put a revision: its rows, then its manifest. manifest: its `rows` is made here.

        Rows that a crash left without a manifest are nobody's. Raises Outdone, CloseFileError, OSError.
        """
        hour = hour_text(manifest.hour)
        whole = self._put_rows(
            manifest, rows, f"{ROWS}day={day_text(manifest.hour)}/{hour}-rev-{manifest.revision}"
        )
        path = _manifest_path(manifest.hour, manifest.revision)
        try:
            self._objects.put_new(path, close_manifest.encode(whole))
        except AlreadyThere as error:
            raise Outdone(f"{path} was put by somebody else just now") from error
        self.forget_look(manifest.hour)
        return whole

    def look(self, manifest: Manifest, rows: Sequence[CloseRow]) -> Manifest:
        """Put a look into a running hour in the place of the last one. As `commit`."""
        assert manifest.reason is Reason.NOW
        self.forget_look(manifest.hour)
        hour = hour_text(manifest.hour)
        whole = self._put_rows(manifest, rows, f"{LOOKS}{hour}/{secrets.token_hex(4)}")
        try:
            self._objects.put_new(_manifest_path(manifest.hour, 0), close_manifest.encode(whole))
        except AlreadyThere as error:
            raise Outdone(f"somebody else looks into {hour_text(manifest.hour)} just now") from error
        return whole

    def forget_look(self, hour: int) -> None:
        """Delete the look into this hour, if there is one: its manifest first."""
        text = hour_text(hour)
        for prefix in (f"{CLOSE}{text}/{NOW}/", f"{LOOKS}{text}/"):
            for one in self._objects.list(prefix):
                self._objects.delete(one.path)

    def month(self, month: str) -> Month:
        """The newest state of a month, as in 2026-11."""
        states = self.states(month)
        return states[-1] if states else close_manifest.provisional(month)

    def months(self) -> list[str]:
        """Of which something was said, in order."""
        paths = (one.path.removeprefix(MONTHS) for one in self._objects.list(MONTHS))
        return sorted({path.partition("/")[0] for path in paths})

    def states(self, month: str) -> list[Month]:
        """All that was said of a month, in order."""
        prefix = f"{MONTHS}{month}/"
        found = []
        for one in self._objects.list(prefix):
            if _MONTH_FILE_PATTERN.fullmatch(one.path.removeprefix(prefix)):
                data = self._objects.get(one.path)
                assert data is not None
                found.append(_decoded(one.path, close_manifest.decode_month, data))
        return found

    def commit_month(
        self,
        month: str,
        state: MonthState,
        *,
        bills: tuple[str, ...],
        by: str,
        at_ns: int,
        terms: ChargeTerms | None = None,
    ) -> Month:
        """Give a month its next state, with the hours as they are now. terms: those that it is closed with.

        Raises Outdone, ValueError: it can't be.
        """
        before = self.month(month)
        if before.state is MonthState.CLOSED:
            raise ValueError(f"{month} is closed; what comes after that is a correction")
        hours = {}
        period = close_manifest.month_hours(month)
        for hour, revision in self.numbers(period).items():
            data = self._objects.get(_manifest_path(hour, revision))
            assert data is not None
            hours[hour_text(hour)] = HourRevision(revision=revision, sha256=hashlib.sha256(data).hexdigest())
        made = Month(
            at_ns=at_ns,
            bills=bills,
            by=by,
            hours=hours,
            month=month,
            number=before.number + 1,
            state=state,
            terms=None if terms is None else terms.during(period),
        )
        path = f"{MONTHS}{month}/{made.number:04d}.json"
        try:
            self._objects.put_new(path, close_manifest.encode(made))
        except AlreadyThere as error:
            raise Outdone(f"{path} was put by somebody else just now") from error
        return made

    def _newest(self, period: range) -> dict[int, int]:
        newest: dict[int, int] = {}
        for hour, revision in self._listed(period):
            newest[hour] = max(revision, newest.get(hour, 0))
        return newest

    def _listed(self, period: range) -> Iterator[tuple[int, int]]:
        """(hour, revision) of all manifests of a period; revision 0 is a look into a running hour."""
        prefixes = [f"{CLOSE}{hour_text(hour)}/" for hour in period] if len(period) <= _FEW_HOURS else [CLOSE]
        for prefix in prefixes:
            for one in self._objects.list(prefix):
                if match := _MANIFEST_PATTERN.fullmatch(one.path):
                    hour = parse_hour(match[1])
                    if hour is not None and hour in period:
                        yield hour, int(match[2] or 0)

    def _manifest(self, hour: int, revision: int) -> Manifest:
        path = _manifest_path(hour, revision)
        data = self._objects.get(path)
        if data is None:
            raise ArchiveError(f"{path} is gone")
        return _decoded(path, close_manifest.decode, data)

    def _fetched(
        self, manifests: Iterable[Manifest], root: pathlib.Path, *, keep: bool
    ) -> Iterator[pathlib.Path]:
        for number, manifest in enumerate(manifests):
            data = self._objects.get(manifest.rows.path)
            if data is None or hashlib.sha256(data).hexdigest() != manifest.rows.sha256:
                raise ArchiveError(f"{manifest.rows.path} is not what its manifest says, or is gone")
            path = root / f"{number:06d}-{hour_text(manifest.hour)}.parquet"
            path.write_bytes(data)
            yield path
            if not keep:
                path.unlink()

    def _put_rows(self, manifest: Manifest, rows: Sequence[CloseRow], stem: str) -> Manifest:
        """stem: what the file's path begins with; the rest says what is in it."""
        with tempfile.TemporaryDirectory(prefix="weighbridge-") as name:
            file = pathlib.Path(name, "rows.parquet")
            count = self._files.write(rows, file)
            data = file.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        path = f"{stem}-{digest[:12]}.parquet"
        with contextlib.suppress(AlreadyThere):  # it is the same one
            self._objects.put_new(path, data)
        made = RowsObject(bytes=len(data), count=count, path=path, sha256=digest)
        return msgspec.structs.replace(manifest, rows=made)


def _manifest_path(hour: int, revision: int) -> str:
    return f"{CLOSE}{hour_text(hour)}/{f'rev-{revision}' if revision else NOW}/{MANIFEST}"


def _decoded(path: str, decode: Callable[[bytes], M], data: bytes) -> M:
    try:
        return decode(data)
    except NotAManifest as error:
        raise ArchiveError(f"{path} is no manifest: {error}") from error
