"""Rows of closed hours for CSV and JSON: one column table, two ways to write a value. Pure.

Money is a decimal string in USD with 12 places, hours have 6, seconds 9; counts are integers. A row that takes a charge
back (`correction`) has its amounts negative, so that everything can be summed. Columns: deploy/reference/commands.md.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from metering.cost.close_row import CloseRow
from metering.export import cells
from metering.export.export_parts import ExportRow
from metering.export.focus.table import moment

Value = str | int | bool | dict[str, str] | None

_ENCODER = msgspec.json.Encoder(order="sorted")


class Column(NamedTuple):
    """A column. get: its value, amounts without their sign; write: an amount as text; is_word: somebody chose the text.

    An amount has `write`, or is a count; all else is a word or a fact.
    """

    name: str
    get: Callable[[CloseRow], Value]
    is_word: bool = False
    write: Callable[[int], str] | None = None
    is_count: bool = False


def _word(name: str) -> Column:
    return Column(name, lambda row: getattr(row, name), is_word=True)


def _amount(name: str, field: str, write: Callable[[int], str]) -> Column:
    return Column(name, lambda row: getattr(row, field), write=write)


def _count(name: str) -> Column:
    return Column(name, lambda row: getattr(row, name), is_count=True)


_COLUMNS = (
    Column("period_start", lambda row: moment(row.hour)),
    Column("period_end", lambda row: moment(row.hour + 1)),
    Column("kind", lambda row: row.kind.value),
    *map(_word, ("tenant", "project", "model", "operation")),
    Column("tags", lambda row: row.tags),
    *map(
        _word,
        (
            "pool", "backend", "instance_id", "instance_type", "instance_family", "account", "region", "az",
            "purchase_option",
        ),
    ),
    Column("simulated", lambda row: row.simulated),
    _amount("hours", "micro_hours", cells.millionths),
    _amount("shared_hours", "shared_micro_hours", cells.millionths),
    Column("usd_per_hour", lambda row: None if row.uusd_per_hour is None else cells.millionths(row.uusd_per_hour)),
    *map(_word, ("price_source", "price_date")),
    _amount("list_usd", "list_pusd", cells.usd),
    _amount("allocated_usd", "allocated_pusd", cells.usd),
    _amount("shared_usd", "shared_pusd", cells.usd),
    *map(_count, ("calls", "prompt_tokens", "cached_prompt_tokens", "completion_tokens")),
    _amount("slot_seconds", "slot_ns", cells.seconds),
    _count("work_units"),
    _amount("estimated_usd", "estimated_pusd", cells.usd),
    _count("unpriced_calls"),
    _word("method"),
)  # fmt: skip
COLUMNS = (*(column.name for column in _COLUMNS), "revision", "correction")
_WORDS = frozenset(column.name for column in _COLUMNS if column.is_word)
SUMS = ("list_pusd", "allocated_pusd", "shared_pusd", "estimated_pusd")
"""Fields of a row whose sums a manifest gives."""


def values(one: ExportRow) -> list[Value]:
    """A row, for JSON: a value for each column."""
    part = one.part
    found = [_signed(column, column.get(one.row), part.sign) for column in _COLUMNS]
    return [*found, part.manifest.revision, part.correction and part.correction.value]


def json_line(one: ExportRow) -> bytes:
    """A row as an object on a line of its own."""
    return msgspec.json.encode(dict(zip(COLUMNS, values(one), strict=True))) + b"\n"


def csv_cells(one: ExportRow) -> list[str]:
    """A row, for CSV; null is empty."""
    return [_text(value, name in _WORDS) for name, value in zip(COLUMNS, values(one), strict=True)]


def _signed(column: Column, value: Value, sign: int) -> Value:
    if column.write is not None and isinstance(value, int):
        return column.write(sign * value)
    if column.is_count:
        assert isinstance(value, int)
        return sign * value
    return value


def _text(value: Value, is_word: bool) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case dict():
            return _ENCODER.encode(value).decode() if value else ""
        case str() if is_word:
            return cells.guarded(value)
        case _:
            return str(value)
