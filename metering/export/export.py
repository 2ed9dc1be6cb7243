"""The ledger as CSV: one row for each hour, tenant, project, model and instance family.

The rows come from the store or straight from the journal. Once the store has all that the journal
holds, both give the same bytes: rows are sorted by the bytes of their key, amounts are integers, and
money is a decimal string with 12 places.
"""

import csv
from collections.abc import Callable, Iterable
from typing import NamedTuple, TextIO

from metering.journal.chain import Broken
from metering.ledger import ledger
from metering.ledger.folder import Directory
from metering.ledger.ledger import UNITS, Account
from metering.ledger.store import Store
from metering.periods import parse_moment
from metering.record import CallRecord, Stop
from metering.units import NS_PER_HOUR, usd_text

COLUMNS = (
    "period_start", "period_end", "tenant", "project", "model", "instance_family",
    "calls", "prompt_tokens", "cached_prompt_tokens", "completion_tokens", "estimated_usd", "unpriced_calls",
)  # fmt: skip


class Row(NamedTuple):
    """One line of the CSV. amounts: one for each of ledger.UNITS."""

    tenant: str
    account: Account
    amounts: tuple[int, ...]


def parse_period(start: str, end: str) -> range:
    """Hours since 1970 (UTC) from `start` up to, and without, `end`. Raises ValueError."""
    hours = range(parse_moment(start), parse_moment(end))
    if not hours:
        raise ValueError(f"the period ends at {end}, which is not after its start, {start}")
    return hours


async def rows_from_store(store: Store, hours: range) -> list[Row]:
    """Rows of these hours as the store has them.

    Raises StoreUnavailable, and ValueError if the store holds what is no balance.
    """
    totals: dict[tuple[str, Account], list[int]] = {}
    async for tenant, hour, fields in store.balances(hours):
        for field, value in fields.items():
            account, unit = ledger.field_parts(hour, field)
            if unit in UNITS:  # a later version may keep more
                amounts = totals.setdefault((tenant, account), [0] * len(UNITS))
                amounts[UNITS.index(unit)] = int(value)
    return _rows(totals)


def rows_from_journal(
    directories: Iterable[Directory], hours: range, on_broken: Callable[[Broken], None] = lambda _: None
) -> list[Row]:
    """Rows of these hours as the journals have them, shipped or not. Reads whole directories. Raises OSError.

    on_broken: told of each journal that was altered after it was closed; the rows lack what is behind that.
    """
    totals: dict[tuple[str, Account], list[int]] = {}
    for directory in directories:
        closed = directory.complete  # asked before it is read: a live one may get its `stop` meanwhile
        line, seq = None, 0
        for line, seq, leaf in directory.records():
            if isinstance(line, CallRecord) and line.finished_ns // NS_PER_HOUR in hours:
                posting = ledger.posting(line, seq, leaf)
                amounts = totals.setdefault((line.tenant, posting.account), [0] * len(UNITS))
                ledger.add(amounts, posting.amounts)
        if closed and not isinstance(line, Stop):
            on_broken(Broken(directory.writer, seq))
    return _rows(totals)


def export_csv(rows: Iterable[Row], out: TextIO) -> None:
    """Write rows as they come, under a header. Lines end with a newline alone."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for tenant, (hour, *key), amounts in rows:
        calls, prompt, cached_prompt, completion, cost_pusd, unpriced_calls = amounts
        usage = (calls, prompt, cached_prompt, completion)
        writer.writerow(
            (
                moment_text(hour),
                moment_text(hour + 1),
                tenant,
                *key,
                *usage,
                usd_text(cost_pusd),
                unpriced_calls,
            )
        )


def _rows(totals: dict[tuple[str, Account], list[int]]) -> list[Row]:
    rows = [Row(tenant, account, tuple(amounts)) for (tenant, account), amounts in totals.items()]
    # The order of code points is that of their UTF-8 bytes.
    rows.sort(key=lambda row: (row.account.hour, row.tenant, row.account))
    return rows


def moment_text(hour: int) -> str:
    """The beginning of an hour since 1970 (UTC), as the CSV has it."""
    text = ledger.hour_text(hour)
    return f"{text[:4]}-{text[4:6]}-{text[6:8]}T{text[8:]}:00:00Z"
