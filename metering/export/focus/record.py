"""A row of a FOCUS file as it is checked: its cells by column, read once. Pure."""

import datetime
import decimal
import functools
from collections.abc import Sequence
from typing import NamedTuple

from metering.export.focus import allocated_details, values
from metering.export.focus.allocated_details import Details, NotDetails
from metering.export.focus.columns import COLUMNS, CORRECTION, Kind

NumberedRow = tuple[int, Sequence[str | None]]
"""A line of a file and its cells, None for null."""


class Finding(NamedTuple):
    """What is wrong, and where. line: as the file counts them, the header's is 1; column: None: of the whole row."""

    line: int
    column: str | None
    rule: str
    value: str
    says: str


class Record:
    """One row. A cell is None where it is null; a column that the file lacks is null in each row, and `has` tells."""

    def __init__(self, line: int, header: Sequence[str], cells: Sequence[str | None]) -> None:
        """cells: one for each of the header's names.

        filled: the cells that are not null, by column; known: those of FOCUS's columns.
        """
        assert len(header) == len(cells)
        self.line = line
        self._cells = dict(zip(header, cells, strict=True))
        self.filled = [(name, text) for name, text in self._cells.items() if text is not None]
        self.known = [(COLUMNS[name], text) for name, text in self.filled if name in COLUMNS]
        self._numbers = {
            column.name: values.number(text) for column, text in self.known if column.kind is Kind.DECIMAL
        }
        self._moments = {
            column.name: values.moment(text) for column, text in self.known if column.kind is Kind.MOMENT
        }

    def has(self, *columns: str) -> bool:
        """Does the file have all of these columns?"""
        return all(column in self._cells for column in columns)

    def text(self, column: str) -> str | None:
        """A cell as it stands."""
        return self._cells.get(column)

    def number(self, column: str) -> decimal.Decimal | None:
        """None too: what stands there is no number; rule `number` tells of that."""
        return self._numbers.get(column)

    def moment(self, column: str) -> datetime.datetime | None:
        """None too: what stands there is no moment; rule `moment` tells of that."""
        return self._moments.get(column)

    @functools.cached_property
    def details(self) -> Details | NotDetails | None:
        """AllocatedMethodDetails, or why it is none; None: it is null."""
        text = self.text("AllocatedMethodDetails")
        try:
            return None if text is None else allocated_details.read(text)
        except NotDetails as error:
            return error

    @property
    def is_correction(self) -> bool:
        """Does it correct a charge of a period that was invoiced?"""
        return self.text("ChargeClass") == CORRECTION

    @property
    def is_priced(self) -> bool:
        """Is it a charge that must have prices, quantities and a SKU?"""
        return self.text("ChargeCategory") in ("Usage", "Purchase") and not self.is_correction
