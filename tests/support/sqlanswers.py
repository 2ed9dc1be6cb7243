"""What the questions of deploy/reference/sql.md must answer, summed in plain Python over the rows that were made."""

import collections
import datetime
import itertools
import pathlib
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import duckdb

from metering.cost.close_row import CloseRow
from tests.support.closed_fleet import Hour
from tests.support.journals import WRITER
from tests.support.lake import CALLS, Made

Rows = list[tuple[Any, ...]]
_EPOCH = datetime.datetime(1970, 1, 1)
_PUSD = Decimal("0.000000000001")


def expected(made: Made) -> dict[str, Rows]:
    """Title → rows, in any order."""
    rows = [row for hour in made.counting["2026-11"] for row in hour.rows]
    tenants = [row for row in rows if row.kind == "tenant"]
    return {
        "Is all of it there?": [],
        "Which state are the months in, and how many of their hours are closed?": [
            ("2026-10", "closed", len(made.counting["2026-10"]), 0),
            ("2026-11", "provisional", len(made.counting["2026-11"]), 0),
        ],
        "What came late?": [
            (text(hour.manifest.hour), 2, "late", "list", "cli:test", counts, state)
            for hour, counts, state in (
                (made.restated, 1, "closed"),
                *(
                    (hour, 2, "provisional")
                    for hour in made.counting["2026-11"]
                    if hour.manifest.revision == 2
                ),
            )
        ],
        "A tenant's month": _grouped(
            (row for row in tenants if row.tenant == "acme"),
            lambda row: (row.project, row.model, row.instance_family),
            ("calls", "tokens", "unpriced_calls", "estimated_pusd", "allocated_pusd", "charged"),
        ),
        "By cost centre": _grouped(
            tenants,
            lambda row: ((row.tags or {}).get("cost-center"), row.tenant),
            ("allocated_pusd", "calls"),
        ),
        "What 1M tokens cost": _per_token(
            row for row in rows if row.kind != "shared_cost" and row.instance_id is not None
        ),
        "What was not used, and why": [
            (*one, 0)
            for one in _grouped(
                (row for row in rows if row.kind != "tenant"),
                lambda row: (row.kind.value, row.pool),
                ("micro_hours", "allocated_pusd"),
            )
        ],
        "Against the bill": _against_the_bill(made.counting["2026-11"]),
        "A day's calls as the ledger has them": _calls(made.calls),
        "An exported month with its corrections": [
            *_exported("charge", rows, 1),
            *_exported("reversal", made.taken_back.rows, -1),
            *_exported("restated", made.restated.rows, 1),
        ],
    }


def the_call(made: Made, found: Rows) -> None:
    """Of the question for a call: its attempts, and its amounts on one of them."""
    used = made.calls[CALLS // 2]
    assert len(found) == used["attempts"]
    (serving,) = [row for row in found if row[11]]
    assert serving[0] == f"{WRITER}-{CALLS // 2}"
    assert serving[1] == used["tenant"]
    assert serving[14:17] == (used["prompt_tokens"], used["completion_tokens"], used["cost_pusd"])


def bill(made: Made, path: pathlib.Path) -> None:
    """A CUR 2.0 of November as Parquet: what the closed hours cost, and a cent more for the first instance-hour."""
    lines = []
    for n, ((instance, hour), pusd) in enumerate(sorted(_instance_hours(made.counting["2026-11"]).items())):
        at = _EPOCH + datetime.timedelta(hours=hour)
        cost = Decimal(pusd + (10**10 if n == 0 else 0)) * _PUSD
        kind, unblended, plan, reserved = (
            ("Usage", cost, None, None),
            ("SavingsPlanCoveredUsage", Decimal(9), cost, None),
            ("DiscountedUsage", Decimal(0), None, cost),
        )[n % 3]
        lines.append((instance, at, kind, "RunInstances:0010", unblended, plan, reserved))
    lines.append((None, _EPOCH, "Tax", None, Decimal(3), None, None))
    lines.append(("vol-1", _EPOCH, "Usage", "CreateVolume-Gp3", Decimal(3), None, None))
    with duckdb.connect() as connection:
        connection.execute(
            "CREATE TABLE cur (line_item_resource_id VARCHAR, line_item_usage_start_date TIMESTAMP,"
            " line_item_line_item_type VARCHAR, line_item_operation VARCHAR,"
            " line_item_unblended_cost DECIMAL(38, 12), savings_plan_savings_plan_effective_cost DECIMAL(38, 12),"
            " reservation_effective_cost DECIMAL(38, 12))"
        )
        connection.executemany("INSERT INTO cur VALUES (?, ?, ?, ?, ?, ?, ?)", lines)
        connection.execute(f"COPY cur TO '{path}' (FORMAT parquet)")


def check(title: str, made: Made, found: Iterable[Sequence[Any]]) -> None:
    """Raises AssertionError. Order does not matter; doubles may differ in the last places."""
    rows = [tuple(map(_plain, row)) for row in found]
    if title == "A call by its id":
        return the_call(made, rows)
    wanted = expected(made)[title]
    rows.sort(key=_order)
    wanted.sort(key=_order)
    wrong = [pair for pair in itertools.zip_longest(rows, wanted) if pair[0] != pair[1]]
    assert not wrong, f"{title}: {wrong[:3]}"
    return None


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    return value


def _order(row: Sequence[Any]) -> tuple[str, ...]:
    return tuple(f"{value:.12f}" if isinstance(value, Decimal) else str(value) for value in row)


def text(hour: int) -> str:
    """As the page has an hour."""
    return (_EPOCH + datetime.timedelta(hours=hour)).strftime("%Y-%m-%dT%H")


def _value(row: CloseRow, name: str) -> int:
    match name:
        case "tokens":
            return row.prompt_tokens + row.completion_tokens
        case "charged":
            return (row.allocated_pusd or 0) + (row.shared_pusd or 0)
    return getattr(row, name) or 0


def _grouped(
    rows: Iterable[CloseRow], key: Callable[[CloseRow], tuple[Any, ...]], names: Sequence[str]
) -> Rows:
    sums: dict[tuple[Any, ...], list[int]] = {}
    for row in rows:
        of_key = sums.setdefault(key(row), [0] * len(names))
        for n, name in enumerate(names):
            of_key[n] += _value(row, name)
    is_money = [name.endswith("pusd") or name == "charged" for name in names]
    return [
        (*one, *(Decimal(v) * _PUSD if money else v for v, money in zip(values, is_money, strict=True)))
        for one, values in sums.items()
    ]


def _per_token(rows: Iterable[CloseRow]) -> Rows:
    sums: dict[tuple[Any, ...], list[int]] = collections.defaultdict(lambda: [0, 0, 0])
    for row in rows:
        one = sums[row.pool, row.instance_type]
        one[0] += row.prompt_tokens + row.completion_tokens
        one[1] += (row.allocated_pusd or 0) if row.kind == "tenant" else 0
        one[2] += row.allocated_pusd or 0
    return [
        (*key, tokens, *(_rate(pusd, tokens, has) for pusd, has in ((used, tokens), (whole, 1))))
        for key, (tokens, used, whole) in sums.items()
    ]


def _rate(pusd: int, tokens: int, has: int) -> float | None:
    return round(float(Fraction(pusd, 10**6 * tokens)), 6) if tokens and has else None


def _instance_hours(hours: Iterable[Hour]) -> dict[tuple[str, int], int]:
    sums: dict[tuple[str, int], int] = collections.defaultdict(int)
    for hour in hours:
        for row in hour.rows:
            if row.instance_id is not None:
                sums[row.instance_id, row.hour] += row.allocated_pusd or 0
    return sums


def _against_the_bill(hours: Iterable[Hour]) -> Rows:
    (instance, hour), pusd = min(_instance_hours(hours).items())
    return [(instance, text(hour).replace("T", " "), Decimal(pusd + 10**10) * _PUSD, Decimal(pusd) * _PUSD)]


def _calls(calls: Iterable[dict[str, Any]]) -> Rows:
    sums: dict[str, list[Any]] = {}
    for one in calls:
        of_tenant = sums.setdefault(one["tenant"], [0, 0, 0, 0, 0])
        values = (
            1,
            one["prompt_tokens"],
            one["completion_tokens"],
            one["cost_pusd"] or 0,
            one["cost_pusd"] is None,
        )
        for n, value in enumerate(values):
            of_tenant[n] += int(value)
    return [
        (tenant, "llama", "inf2", calls_, prompt, completion, Decimal(pusd) * _PUSD, unpriced)
        for tenant, (calls_, prompt, completion, pusd, unpriced) in sums.items()
    ]


def _exported(what: str, rows: Iterable[CloseRow], sign: int) -> Rows:
    sums: dict[str | None, list[int]] = collections.defaultdict(lambda: [0, 0])
    for row in rows:
        sums[row.tenant][0] += sign * (row.allocated_pusd or 0)
        sums[row.tenant][1] += 1
    return [(what, tenant, Decimal(pusd) * _PUSD, count) for tenant, (pusd, count) in sums.items()]
