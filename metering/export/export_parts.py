"""Rows of closed hours as exports have them: of which revision they are, and what that does to the books. Pure."""

import enum
from typing import NamedTuple

from metering.cost.close_manifest import Manifest, month_of
from metering.cost.close_row import CloseRow
from metering.units import NS_PER_HOUR


class Correction(enum.StrEnum):
    """What a row does to a charge of a month that was closed."""

    REVERSAL = "reversal"  # takes the charge back
    RESTATED = "restated"  # puts it anew


class Part(NamedTuple):
    """One revision of an hour. correction: None: it is a charge of its own month; else made_ns: when it was made."""

    manifest: Manifest
    correction: Correction | None = None
    made_ns: int = 0

    @property
    def sign(self) -> int:
        """Of its amounts."""
        return -1 if self.correction is Correction.REVERSAL else 1

    @property
    def billed_in(self) -> str:
        """The month that bills it."""
        return month_of(self.manifest.hour if self.correction is None else self.made_ns // NS_PER_HOUR)


class ExportRow(NamedTuple):
    """A row, and the revision that it is of. Amounts of the row count with the part's sign."""

    row: CloseRow
    part: Part
