"""Exports of closed hours as a stream of bytes, with what their manifests say gathered in passing. Pure.

    selection ─▶ rows ─▶ split │ chargeback │ as they are ─▶ cells ─▶ CSV │ JSON lines ─▶ pieces of bytes

Nothing but the rows of one instance-hour is in memory. CSV is RFC 4180, but for its line ends, which are a newline
alone; UTF-8, a header first. The same closed hours give the same bytes.
"""

import csv
import enum
import hashlib
import io
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from metering.cost.charge_terms import ChargeTerms
from metering.cost.close_manifest import month_of
from metering.export import allocated_rows, cells
from metering.export.export_parts import ExportRow, Part
from metering.export.focus import chargeback, split, table
from metering.export.focus.charge import Charge
from metering.export.focus.columns import Version

_PIECE_CHARACTERS = 1 << 16


class Format(enum.StrEnum):
    """What an export of closed hours looks like."""

    FOCUS_SPLIT = "focus-split"
    FOCUS_CHARGEBACK = "focus-chargeback"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How FOCUS files are made. version None: for 1.4 and tools that know 1.2 alone.

    own: the terms that closed months have kept, by month; terms: of all that have none.
    """

    own: Mapping[str, ChargeTerms] = {}
    terms: ChargeTerms = ChargeTerms()
    version: Version | None = None

    def charged_by(self, part: Part) -> ChargeTerms:
        """How its rows are charged: a correction as its month was, whose charge it takes back."""
        of_hour = self.own.get(month_of(part.manifest.hour))
        return of_hour or self.billed_by(part.billed_in)

    def billed_by(self, month: str) -> ChargeTerms:
        """Who bills what is billed in this month: its own charges, and corrections of months before."""
        return self.own.get(month, self.terms)


class Stream:
    """An export that is written by its rows: FOCUS, CSV, JSON. Its counts are whole once all pieces were taken.

    sums: of its costs, by column, in USD.
    """

    def __init__(self, form: Format, rows: Iterable[ExportRow], options: Options) -> None:
        """Raises ValueError: options that do not go together."""
        self.rows = 0
        self.bytes = 0
        self._sha256 = hashlib.sha256()
        self._sums: dict[str, int] = {}
        match form:
            case Format.FOCUS_SPLIT | Format.FOCUS_CHARGEBACK:
                is_split = form is Format.FOCUS_SPLIT
                columns = table.header(options.version, is_split=is_split)
                made = split.charges(rows) if is_split else _chargeback(rows, options)
                self.columns: Sequence[str] = columns
                self._pieces = _csv(columns, self._of_charges(made, columns, options))
            case Format.CSV:
                self.columns = allocated_rows.COLUMNS
                self._pieces = _csv(self.columns, map(allocated_rows.csv_cells, self._of_rows(rows)))
            case Format.JSON:
                self.columns = allocated_rows.COLUMNS
                self._pieces = _joined(map(allocated_rows.json_line, self._of_rows(rows)))
            case Format.PARQUET:
                raise ValueError("Parquet is not written row by row")

    @property
    def sha256(self) -> str:
        """Of all that was given out so far, hex."""
        return self._sha256.hexdigest()

    @property
    def sums(self) -> dict[str, str]:
        """Of the rows that were given out so far."""
        return {name: cells.usd_of_atto(ausd) for name, ausd in self._sums.items()}

    def __iter__(self) -> Iterator[bytes]:
        """The file in pieces. Raises what reading its rows raises."""
        for piece in self._pieces:
            self._sha256.update(piece)
            self.bytes += len(piece)
            yield piece

    def _of_charges(
        self, charges: Iterable[Charge], columns: tuple[str, ...], options: Options
    ) -> Iterator[list[str | None]]:
        self._sums = dict.fromkeys(("BilledCost", "ContractedCost", "EffectiveCost", "ListCost"), 0)
        issuers: dict[str, table.Issuer] = {}
        for charge in charges:
            self.rows += 1
            if (issuer := issuers.get(charge.billed_in)) is None:
                by = options.billed_by(charge.billed_in)
                issuer = issuers[charge.billed_in] = table.Issuer(by.account, by.issuer)
            for name in ("BilledCost", "EffectiveCost"):
                self._sums[name] += charge.cost_ausd
            for name in ("ContractedCost", "ListCost"):
                self._sums[name] += charge.list_ausd
            yield table.row(charge, columns, issuer)

    def _of_rows(self, rows: Iterable[ExportRow]) -> Iterator[ExportRow]:
        names = {field: f"{field.removesuffix('pusd')}usd" for field in allocated_rows.SUMS}
        self._sums = dict.fromkeys(names.values(), 0)
        for one in rows:
            self.rows += 1
            for field, name in names.items():
                self._sums[name] += one.part.sign * (getattr(one.row, field) or 0) * 1_000_000
            yield one


def _chargeback(rows: Iterable[ExportRow], options: Options) -> Iterator[Charge]:
    for part, of_part in itertools.groupby(rows, key=lambda one: one.part):
        terms = options.charged_by(part)
        yield from chargeback.charges(of_part, terms.chargeback, chargeback.cards_in_force(terms.cards))


def _csv(header: Sequence[str], rows: Iterable[Sequence[str | None]]) -> Iterator[bytes]:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow(row)
        if text.tell() > _PIECE_CHARACTERS:
            yield text.getvalue().encode()
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode()


def _joined(lines: Iterable[bytes]) -> Iterator[bytes]:
    piece: list[bytes] = []
    size = 0
    for line in lines:
        piece.append(line)
        size += len(line)
        if size > _PIECE_CHARACTERS:
            yield b"".join(piece)
            piece, size = [], 0
    yield b"".join(piece)
