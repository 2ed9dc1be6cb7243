"""A row of a FOCUS file as it is checked: its cells by column, read once. Pure."""

import datetime
import decimal
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from metering.focus import values
from metering.focus.columns import COLUMNS, CORRECTION, Kind

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
        """cells: one for each of the header's names."""
        assert len(header) == len(cells)
        self.line = line
        self._cells = dict(zip(header, cells, strict=True))
        self._numbers = {
            name: values.number(text)
            for name, text in self._cells.items()
            if text is not None and name in COLUMNS and COLUMNS[name].kind is Kind.DECIMAL
        }

    def has(self, *columns: str) -> bool:
        """Does the file have all of these columns?"""
        return all(column in self._cells for column in columns)

    def text(self, column: str) -> str | None:
        """A cell as it stands."""
        return self._cells.get(column)

    def filled(self) -> Iterable[tuple[str, str]]:
        """The cells that are not null, by column."""
        return ((name, text) for name, text in self._cells.items() if text is not None)

    def number(self, column: str) -> decimal.Decimal | None:
        """None too: what stands there is no number; rule `number` tells of that."""
        return self._numbers.get(column)

    def moment(self, column: str) -> datetime.datetime | None:
        """None too: what stands there is no moment; rule `moment` tells of that."""
        text = self.text(column)
        return None if text is None else values.moment(text)

    @property
    def is_correction(self) -> bool:
        """Does it correct a charge of a period that was invoiced?"""
        return self.text("ChargeClass") == CORRECTION

    @property
    def is_priced(self) -> bool:
        """Is it a charge that must have prices, quantities and a SKU?"""
        return self.text("ChargeCategory") in ("Usage", "Purchase") and not self.is_correction
