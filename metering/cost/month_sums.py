"""A month of closed hours, summed for what metering/cost/month_report.py says of it."""

from collections.abc import Sequence

from metering.cost import month_report, summaries
from metering.cost.amounts import Summary
from metering.cost.close_manifest import month_hours, month_of
from metering.cost.closes import Closes
from metering.cost.month_report import Line, Waterfall
from metering.export import selection
from metering.export.export_parts import Part
from metering.export.selection import Selection


def waterfalls(closes: Closes, parts: Sequence[Part]) -> list[Waterfall]:
    """One for each pool. Raises ArchiveError, CloseFileError, OSError."""
    charges = [part.manifest for part in parts if part.correction is None]
    return month_report.waterfalls(summaries.summarise(closes, parts, ["pool"]), charges)


def tenant_lines(closes: Closes, found: Selection, tenant: str) -> list[Line]:
    """A tenant's month beside the one before; none: it has nothing in either. found: of the month. Raises as above."""
    before = selection.select(closes, month_hours(month_of(found.period.start - 1)))
    return month_report.tenant_lines(
        *(_of_tenant(closes, parts, tenant) for parts in (found.parts, before.parts))
    )


def _of_tenant(closes: Closes, parts: Sequence[Part], tenant: str) -> list[Summary]:
    """Its sums by model and family."""
    sums = summaries.summarise(closes, parts, ["tenant", "model", "family"])
    return [one._replace(key=one.key[1:]) for one in sums if one.key[0] == tenant]
