"""What facts say of hours: slot time, work and busy time of each backend, calls and tokens of each payer.

    facts (Parquet) ─┬─▶ attempts by (hour, backend, piece, payer): slot time, tokens, calls, estimate
    pieces, ready  ──┴─▶ busy time by (hour, backend, piece): the union of its attempts, and how much of it was ready

An attempt has a slot for [attempt_ended_ns − attempt_slot_ns, attempt_ended_ns); that time is spread over hours, and
over pieces (a time in which a backend owned the same instances), by overlap. The amounts of a call stand once: in the
hour, and the piece of its serving backend, in which it finished. Where an attempt lies in one hour of one piece, which
nearly all do, it is summed as it is read; only the others are cut.

duckdb does it, within a bound of memory, and spills to disk beyond; it is imported when it is needed.
"""

import itertools
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from metering.archive.facts import FactsError
from metering.cost.hour_facts import Busy, HourOfFacts, Piece, Ready, Used
from metering.units import NS_PER_HOUR

if TYPE_CHECKING:
    import duckdb

THREADS = 2
MEMORY = "1GB"
_BATCH_ROWS = 4_096


class UsageReader:
    """Reads facts of some hours. A context manager: what it made is gone behind it."""

    def __init__(
        self,
        files: Sequence[pathlib.Path],
        hours: range,
        pieces: Iterable[Piece],
        ready: Iterable[Ready],
        spill: pathlib.Path,
    ) -> None:
        """files: facts, each segment once; those of other hours do no harm. spill: a directory for what is too much.

        pieces: where an hour of a backend has any, they cover it and do not overlap. Raises FactsError.
        """
        import duckdb

        self._connection = duckdb.connect(
            config={
                "threads": THREADS,
                "memory_limit": MEMORY,
                "temp_directory": str(spill),
                "preserve_insertion_order": False,
                "autoinstall_known_extensions": False,  # nothing is fetched
                "autoload_known_extensions": False,
            }
        )
        try:
            self._prepare(list(map(str, files)), hours, list(pieces), list(ready))
        except duckdb.Error as error:
            self._connection.close()
            raise FactsError(f"facts cannot be read: {error}") from error

    def __enter__(self) -> "UsageReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def by_hour(self) -> Iterator[HourOfFacts]:
        """Hours that facts say anything of, in order. Raises FactsError."""
        import duckdb

        try:
            busy = {
                hour: list(found) for hour, found in itertools.groupby(self._busy(), lambda one: one.hour)
            }
            for hour, found in itertools.groupby(self._used(), lambda one: one.hour):
                yield HourOfFacts(hour, list(found), busy.pop(hour, []))
        except duckdb.Error as error:
            raise FactsError(f"facts cannot be read: {error}") from error

    def _used(self) -> Iterator[Used]:
        cursor = self._connection.cursor().execute(
            f"SELECT {', '.join(Used._fields)} FROM used ORDER BY hour"
        )
        while batch := cursor.fetchmany(_BATCH_ROWS):
            yield from itertools.starmap(Used, batch)

    def _busy(self) -> Iterator[Busy]:
        cursor = self._connection.cursor().execute(
            f"SELECT {', '.join(Busy._fields)} FROM busy ORDER BY hour"
        )
        while batch := cursor.fetchmany(_BATCH_ROWS):
            yield from itertools.starmap(Busy, batch)

    def _prepare(self, files: list[str], hours: range, pieces: list[Piece], ready: list[Ready]) -> None:
        _fill(self._connection, "pieces", Piece, pieces)
        _fill(self._connection, "ready", Ready, ready)
        for statement in (_CUT, _UNEVEN, _facts(files, hours), _used(hours), *_busy(hours)):
            self._connection.execute(statement)


def _fill(
    connection: "duckdb.DuckDBPyConnection",
    table: str,
    kind: type[Piece] | type[Ready],
    rows: Sequence[Piece | Ready],
) -> None:
    """Make a table of these tuples. As one list for each column: row by row takes a hundred times as long."""
    columns = {name: "VARCHAR" if name == "backend" else "BIGINT" for name in kind._fields}
    parts = ", ".join(f"unnest(?::{sql}[]) AS {name}" for name, sql in columns.items())
    values = list(map(list, zip(*rows, strict=True))) if rows else [[] for _ in columns]
    connection.execute(f"CREATE TABLE {table} AS SELECT {parts}", values)


_CUT = "CREATE TABLE cut AS SELECT backend, hour FROM pieces GROUP BY ALL HAVING count(*) > 1"
"""Hours of backends whose attempts have to be cut: the instances were other ones for a part of it."""

_UNEVEN = f"""
    CREATE TABLE uneven AS
    SELECT backend, hour FROM pieces
    LEFT JOIN (SELECT backend, hour, sum(to_ns - from_ns) AS ready_ns FROM ready GROUP BY ALL) USING (backend, hour)
    GROUP BY ALL HAVING count(*) > 1 OR coalesce(max(ready_ns), 0) < {NS_PER_HOUR}
"""
"""Hours of backends whose busy time has to be compared with pieces and with the time that it was ready."""

_KEYS = ("backend", "served", "tenant", "project", "model", "operation", "tags", "family", "simulated")
_TOKENS = ("prompt_tokens", "cached_prompt_tokens", "completion_tokens")
_WORK = tuple(f"work_{tokens}" for tokens in _TOKENS)
_AMOUNTS = (*_WORK, "calls", *_TOKENS, "estimated_pusd", "unpriced_calls")
_SUMS = ", ".join(f"sum({name})::BIGINT AS {name}" for name in ("slot_ns", *_AMOUNTS))


def _facts(files: Sequence[str], hours: range) -> str:
    """A row for each attempt, or call without one, that has to do with these hours. at_ns: when its amounts count."""
    quoted = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    work = ", ".join(
        f"coalesce(CASE WHEN is_serving THEN {tokens} ELSE attempt_{tokens} END, 0) AS work_{tokens}"
        for tokens in _TOKENS
    )
    amounts = ", ".join(f"coalesce({tokens}, 0) AS {tokens}" for tokens in _TOKENS)
    columns = f"""
        attempt_backend AS backend, is_serving AND f.backend IS NOT NULL AS served,
        tenant, project, model, operation, tags, instance_family AS family, coalesce(simulated, false) AS simulated,
        coalesce(attempt_ended_ns - attempt_slot_ns, finished_ns) AS start_ns,
        coalesce(attempt_ended_ns, finished_ns) AS end_ns,
        CASE WHEN is_serving THEN finished_ns ELSE attempt_ended_ns END AS at_ns,
        {work}, is_serving::BIGINT AS calls, {amounts}, coalesce(cost_pusd, 0) AS estimated_pusd,
        (is_serving AND cost_pusd IS NULL)::BIGINT AS unpriced_calls
    """
    if not files:
        return f"CREATE VIEW facts AS SELECT {columns} FROM ({_NONE}) f"
    return f"""
        CREATE VIEW facts AS SELECT {columns} FROM read_parquet([{quoted}], hive_partitioning = false) f
        WHERE finished_ns >= {hours.start * NS_PER_HOUR}
            AND coalesce(attempt_started_ns, finished_ns) < {hours.stop * NS_PER_HOUR}
    """


_NONE = "SELECT {} LIMIT 0".format(
    ", ".join(
        f"NULL::{kind} AS {name}"
        for name, kind in (
            dict.fromkeys(("attempt_backend", "backend", "instance_family", *_KEYS[2:6]), "VARCHAR")
            | {"tags": "MAP(VARCHAR, VARCHAR)", "is_serving": "BOOLEAN", "simulated": "BOOLEAN"}
            | dict.fromkeys((*_TOKENS, *(f"attempt_{tokens}" for tokens in _TOKENS)), "BIGINT")
            | dict.fromkeys(("attempt_ended_ns", "attempt_slot_ns", "finished_ns", "cost_pusd"), "BIGINT")
        ).items()
    )
)
"""No facts at all."""


def _hour(ns: str) -> str:
    return f"({ns}) // {NS_PER_HOUR}"


_LAST_NS = "greatest(end_ns - 1, start_ns)"
_IN_ONE = f"{_hour('start_ns')} = {_hour('at_ns')} AND {_hour(_LAST_NS)} = {_hour('at_ns')}"
_HOURS = (
    f"range(least({_hour('start_ns')}, {_hour('at_ns')}), greatest({_hour(_LAST_NS)}, {_hour('at_ns')}) + 1)"
)


def _used(hours: range) -> str:
    keys = ", ".join(f"f.{name}" for name in _KEYS)
    counted = ", ".join(f"CASE WHEN here THEN {name} ELSE 0 END AS {name}" for name in _AMOUNTS)
    is_cut = f"(f.backend, {_hour('at_ns')}) IN (SELECT (backend, hour) FROM cut)"
    return f"""
        CREATE TABLE used AS
        SELECT hour, piece, {", ".join(_KEYS)}, {_SUMS} FROM (
            SELECT {_hour("at_ns")} AS hour, 0 AS piece, {keys}, end_ns - start_ns AS slot_ns, {", ".join(_AMOUNTS)}
            FROM facts f WHERE {_IN_ONE} AND NOT coalesce({is_cut}, false)
            UNION ALL
            SELECT h, piece, {", ".join(_KEYS)}, slot_ns, {counted} FROM (
                SELECT *, greatest(0, least(end_ns, to_ns) - greatest(start_ns, from_ns)) AS slot_ns,
                    at_ns >= from_ns AND at_ns < to_ns AS here
                FROM (
                    SELECT f.*, coalesce(p.number, 0) AS piece,
                        coalesce(p.from_ns, h * {NS_PER_HOUR}) AS from_ns,
                        coalesce(p.to_ns, (h + 1) * {NS_PER_HOUR}) AS to_ns
                    FROM (SELECT *, unnest({_HOURS}) AS h FROM facts f
                          WHERE NOT ({_IN_ONE}) OR coalesce({is_cut}, false)) f
                    LEFT JOIN pieces p ON p.backend = f.backend AND p.hour = h
                )
            ) WHERE slot_ns > 0 OR here
        )
        WHERE hour >= {hours.start} AND hour < {hours.stop} GROUP BY ALL
    """


def _busy(hours: range) -> Iterator[str]:
    """The busy time of backends: of those hours that are even as one sum, of the others by piece and readiness."""
    is_uneven = "(backend, hour) IN (SELECT (backend, hour) FROM uneven)"
    yield f"""
        CREATE VIEW spans AS
        SELECT backend, {_hour("start_ns")} AS hour, start_ns, end_ns FROM facts
        WHERE backend IS NOT NULL AND end_ns > start_ns AND {_hour("start_ns")} = {_hour("end_ns - 1")}
            AND {_hour("start_ns")} >= {hours.start} AND {_hour("start_ns")} < {hours.stop}
        UNION ALL
        SELECT backend, h AS hour, greatest(start_ns, h * {NS_PER_HOUR}), least(end_ns, (h + 1) * {NS_PER_HOUR})
        FROM (
            SELECT *, unnest(range({_hour("start_ns")}, {_hour("end_ns - 1")} + 1)) AS h FROM facts
            WHERE backend IS NOT NULL AND end_ns > start_ns AND {_hour("start_ns")} <> {_hour("end_ns - 1")}
        )
        WHERE h >= {hours.start} AND h < {hours.stop}
    """
    new = """
        SELECT backend, hour, greatest(start_ns, coalesce(before_ns, start_ns)) AS from_ns, end_ns AS to_ns FROM (
            SELECT *, max(end_ns) OVER (
                PARTITION BY backend, hour ORDER BY start_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS before_ns FROM spans WHERE {}
        ) WHERE end_ns > from_ns
    """
    yield f"""
        CREATE TABLE busy AS
        SELECT hour, backend, 0::BIGINT AS piece, sum(to_ns - from_ns)::BIGINT AS busy_ns, busy_ns AS ready_ns
        FROM ({new.format(f"NOT {is_uneven}")}) GROUP BY ALL
    """
    yield f"CREATE TABLE islands AS {new.format(is_uneven)}"
    yield """
        INSERT INTO busy
        SELECT hour, backend, number, sum(within.to_ns - within.from_ns)::BIGINT, coalesce(sum(ready_ns), 0)::BIGINT
        FROM (
            SELECT hour, backend, number, greatest(i.from_ns, p.from_ns) AS from_ns, least(i.to_ns, p.to_ns) AS to_ns
            FROM islands i JOIN pieces p USING (backend, hour) WHERE i.from_ns < p.to_ns AND p.from_ns < i.to_ns
        ) within
        LEFT JOIN LATERAL (
            SELECT sum(least(r.to_ns, within.to_ns) - greatest(r.from_ns, within.from_ns)) AS ready_ns FROM ready r
            WHERE r.backend = within.backend AND r.hour = within.hour
                AND r.from_ns < within.to_ns AND within.from_ns < r.to_ns
        ) ON true
        GROUP BY ALL
    """
