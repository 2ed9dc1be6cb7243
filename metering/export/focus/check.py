"""The check of a FOCUS file: every rule of row_rules and file_rules, row after row. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from metering.export.focus.columns import Version
from metering.export.focus.file_rules import Across, header_findings
from metering.export.focus.record import Finding, NumberedRow, Record
from metering.export.focus.row_rules import RULES


def check(
    header: Sequence[str], rows: Iterable[NumberedRow], version: Version | None = None
) -> Iterator[Finding]:
    """What is wrong with a file, in the order of its lines; what concerns several comes last.

    version: to check by; None: the one that its columns show.
    """
    yield from header_findings(header, version)
    if len(set(header)) != len(header):
        return  # no cell could be told from its neighbour
    across = Across()
    for line, cells in rows:
        if len(cells) != len(header):
            says = f"it has {len(cells)} cells, the header {len(header)}"
            yield Finding(line, None, "cells", "", says)
            continue
        row = Record(line, header, cells)
        for name, rule in RULES.items():
            for column, says in rule(row):
                yield Finding(line, column, name, row.text(column or "") or "", says)
        yield from across.take(row)
    yield from across.end()
