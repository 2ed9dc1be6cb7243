"""Closed hours summed by what is asked for: tenant, cost centre, project, model, family, day and more.

    selection ─▶ the files of its revisions ─▶ one query of duckdb, sums by kind, dimensions and hour ─▶ days ─▶ sums

Each sum has its kind (metering/cost/close_row.py), so what was not used stands beside what tenants used and all of them
add up to what the instances cost. A revision that takes a charge back counts against it.
"""

import datetime
import pathlib
from collections.abc import Sequence
from typing import cast

from metering.cost.amounts import Amounts, PriceUsed, Summary
from metering.cost.close_files import CloseFileError, config, quoted
from metering.cost.close_manifest import BILL, LIST
from metering.cost.close_row import RowKind
from metering.cost.closes import Closes
from metering.export import zones
from metering.export.export_parts import Part

TAG = "tag:"
COST_CENTRE_TAGS = ("cost_center", "cost_centre", "cost-center", "cost-centre")
"""Tags that are taken for the cost centre: the first that a row has."""

_SOLE_POOL = "CASE WHEN min(r.pool) OVER w = max(r.pool) OVER w THEN min(r.pool) OVER w END"
"""Of an instance in an hour: what no backend owns of it is of the pool of those that do, if they have one only."""
_DIMENSIONS = {
    "tenant": "r.tenant",
    "project": "r.project",
    "model": "coalesce(r.model, r.pool)",
    "pool": f"coalesce(r.pool, CASE WHEN r.instance_id IS NOT NULL THEN {_SOLE_POOL} END)",
    "family": "r.instance_family",
    "instance_type": "r.instance_type",
    "operation": "r.operation",
    "region": "r.region",
    "backend": "r.backend",
    "cost_centre": f"coalesce({', '.join(f'r.tags[{quoted(tag)}]' for tag in COST_CENTRE_TAGS)})",
}
DAY = "day"
NAMES = (*_DIMENSIONS, DAY)
"""Names of dimensions; `tag:NAME` besides."""


_SUMS = {
    "unpriced_micro_hours": "CASE WHEN r.allocated_pusd IS NULL THEN r.micro_hours END",
    "unlisted_micro_hours": "CASE WHEN r.list_pusd IS NULL THEN r.micro_hours END",
}


def check(by: Sequence[str]) -> None:
    """Raises ValueError: there is no such dimension, or one is named twice."""
    for name in by:
        if name not in NAMES and (not name.startswith(TAG) or name == TAG):
            raise ValueError(f"there is no sum by {name!r}; there is {', '.join(NAMES)} and {TAG}NAME")
    if len(set(by)) < len(by):
        raise ValueError(f"a sum by {', '.join(by)} has a name twice")


def summarise(
    closes: Closes, parts: Sequence[Part], by: Sequence[str], where: datetime.tzinfo = datetime.UTC
) -> list[Summary]:
    """Sums of these revisions, by kind and key. where: whose days `day` means.

    Raises ValueError (as `check`), ArchiveError, CloseFileError, OSError.
    """
    check(by)
    if not parts:
        return []
    with closes.paths(part.manifest for part in parts) as paths:
        found = _rows(_signed(paths, parts), by)
    sums: dict[tuple[RowKind, tuple[str | None, ...]], Amounts] = {}
    for values in found:
        kind, hour, *rest = values
        key = [cast(str | None, value) for value in rest[: len(by)]]
        if DAY in by:
            key[by.index(DAY)] = zones.day_of(cast(int, hour), where).isoformat()
        amounts = Amounts(
            **dict(zip(Amounts.__struct_fields__, cast(list[int], rest[len(by) :]), strict=True))
        )
        one = RowKind(cast(str, kind)), tuple(key)
        sums[one] = sums.get(one, Amounts()) + amounts
    return [Summary(*one, amounts) for one, amounts in sorted(sums.items(), key=_order)]


def prices_used(closes: Closes, parts: Sequence[Part]) -> list[PriceUsed]:
    """By instance type, the price of most hours first; of a correction what it changes.

    Raises ArchiveError, CloseFileError, OSError.
    """
    import duckdb

    if not parts:
        return []
    names = "instance_type, uusd_per_hour, purchase_option, region, price_source, price_date, simulated"
    with closes.paths(part.manifest for part in parts) as paths:
        query = f"""
            WITH {_signed(paths, parts)}
            SELECT {names}, sum(r.sign * micro_hours) AS hours FROM r
            WHERE instance_type IS NOT NULL AND micro_hours > 0
            GROUP BY ALL HAVING hours <> 0 ORDER BY instance_type, hours DESC, uusd_per_hour, price_source, price_date
        """
        try:
            with duckdb.connect(config=config()) as connection:
                return [PriceUsed(*values) for values in connection.execute(query).fetchall()]
        except duckdb.Error as error:
            raise CloseFileError(f"the prices of closed hours cannot be read: {error}") from error


def bases_used(closes: Closes, parts: Sequence[Part]) -> dict[tuple[str | None, str], set[str]]:
    """By (pool, instance type), what priced its hours: `list`, `bill`. An instance that is not on the bill of its hour
    has its list price, and so has simulated hardware.

    Raises ArchiveError, CloseFileError, OSError.
    """
    import duckdb

    if not parts:
        return {}
    found: dict[tuple[str | None, str], set[str]] = {}
    with closes.paths(part.manifest for part in parts) as paths:
        of_file = {str(path): part.manifest for path, part in zip(paths, parts, strict=True)}
        query = f"""
            WITH {_signed(paths, parts)}
            SELECT DISTINCT file, pool, instance_type, instance_id, simulated FROM r
            WHERE instance_type IS NOT NULL AND instance_id IS NOT NULL AND micro_hours > 0
        """
        try:
            with duckdb.connect(config=config()) as connection:
                rows = connection.execute(query).fetchall()
        except duckdb.Error as error:
            raise CloseFileError(f"the instances of closed hours cannot be read: {error}") from error
    for file, pool, instance_type, instance, simulated in rows:
        manifest = of_file[file]
        billed = manifest.basis.startswith(BILL) and instance not in manifest.unbilled and not simulated
        found.setdefault((pool, instance_type), set()).add("bill" if billed else LIST)
    return found


def _order(item: tuple[tuple[RowKind, tuple[str | None, ...]], Amounts]) -> tuple[object, ...]:
    (kind, key), _ = item
    return tuple((value is not None, value or "") for value in key), kind is not RowKind.TENANT, kind.value


def _signed(paths: Sequence[pathlib.Path], parts: Sequence[Part]) -> str:
    """The table `r` of all rows of these revisions; `sign` is -1 in those that are taken back."""
    files = ", ".join(map(quoted, paths))
    signs = ", ".join(f"({quoted(path)}, {part.sign})" for path, part in zip(paths, parts, strict=True))
    return f"""s(file, sign) AS (VALUES {signs}),
        r AS (SELECT f.*, s.sign FROM read_parquet([{files}], filename = 'file') AS f JOIN s ON s.file = f.file)"""


def _rows(signed: str, by: Sequence[str]) -> list[tuple[object, ...]]:
    import duckdb

    dimensions = [_dimension(name) for name in by]
    amounts = [f"r.sign * coalesce({_SUMS.get(name, f'r.{name}')}, 0)" for name in Amounts.__struct_fields__]
    hour = "r.hour" if DAY in by else "0"
    columns = [*dimensions, *amounts]
    inner = ", ".join(f"{column} AS c{n}" for n, column in enumerate(columns))
    groups = "".join(f", c{n}" for n in range(len(dimensions)))
    sums = "".join(f", sum(c{n})" for n in range(len(dimensions), len(columns)))
    query = f"""
        WITH {signed},
        c AS (SELECT r.kind, {hour} AS hour, {inner} FROM r WINDOW w AS (PARTITION BY r.file, r.instance_id))
        SELECT kind, hour{groups}{sums} FROM c GROUP BY kind, hour{groups}
    """
    try:
        with duckdb.connect(config=config()) as connection:
            return connection.execute(query).fetchall()
    except duckdb.Error as error:
        raise CloseFileError(f"closed hours cannot be summed: {error}") from error


def _dimension(name: str) -> str:
    if name == DAY:
        return "NULL::VARCHAR"  # made of the hour, by its zone
    return _DIMENSIONS.get(name) or f"r.tags[{quoted(name.removeprefix(TAG))}]"
