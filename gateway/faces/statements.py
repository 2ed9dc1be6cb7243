"""Statements, as the command and the finance face give them out."""

import hashlib
from typing import NamedTuple

from metering.cost.amounts import total
from metering.cost.charge_terms import ChargeTerms
from metering.cost.close_manifest import month_hours
from metering.cost.closes import Closes
from metering.export.focus.table import moment
from metering.export.statement import gathering, statement_page


class Made(NamedTuple):
    """A statement as a file. period: «from/to»; rows: calls that it sums up; sha256: of the bytes, hex."""

    data: bytes
    file_name: str
    period: str
    rows: int
    sha256: str


def make(closes: Closes, *, tenant: str, month: str, terms: ChargeTerms, now_ns: int) -> Made | None:
    """A tenant's month; None: it has no row in it. terms: of a month that is open. now_ns: wall clock.

    Raises ValueError: that is no month; ArchiveError, CloseFileError, OSError.
    """
    hours = month_hours(month)
    found = gathering.gather(closes, tenant=tenant, month=month, terms=terms, created_ns=now_ns)
    if found is None:
        return None
    data = statement_page.page(found)
    return Made(
        data=data,
        file_name=f"statement-{month}-{tenant}.html",
        period=f"{moment(hours.start)}/{moment(hours.stop)}",
        rows=total(found.use).calls,
        sha256=hashlib.sha256(data).hexdigest(),
    )
