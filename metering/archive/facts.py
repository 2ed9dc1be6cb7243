"""Facts: the calls of a sealed segment as Parquet, a row for each attempt, for who asks with SQL.

    segment ─▶ its lines, as far as they chain ─▶ `call` lines ─▶ duckdb ─▶ hidden directory ─▶ renamed

    <root>/day=2026-11-28/<writer>-<first seq, 16 digits>.parquet      day: of the calls' `finished_ns`, UTC
    <root>/hours/<writer>-<first seq, 16 digits>.jsonl                 `identity`, `registration`, `tick` lines, if any
    <root>/.making/<writer>-<first seq>/                               what a crash kept from being finished

A call without an attempt has one row. Exactly one row of each call is_serving: that of the attempt that served it,
else of its last attempt, else the only one. Call-wide amounts (tokens, cost, slot time, bytes) stand on that row alone
and are null on the others, so that they can be summed; `attempt_…` columns stand on each. All numbers are int64,
there are no floats; null is unknown. Columns: deploy/reference/journal.md.

duckdb is imported when the first file is made: it takes 0.1 s and much memory.

What bears on hours besides calls (who was on which instance, how far a journal tells all) stands in lines as they are:
a close needs them of days and weeks, and they are few among the calls.

A segment without calls has a file with no rows, in the day of its first line: so it is known to be done.
"""

import datetime
import itertools
import os
import pathlib
import re
import shutil
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from metering.files import sync_directory
from metering.journal import chain
from metering.journal.chain import Linked
from metering.journal.journal import Directory
from metering.units import NS_PER_HOUR

if TYPE_CHECKING:
    import duckdb

MAKING = ".making"
DAY_PREFIX = "day="
HOURS = "hours"
HOUR_KINDS = ("identity", "registration", "tick")
"""Kinds of lines that bear on hours besides the calls."""

_NS_PER_DAY = 24 * NS_PER_HOUR
_NAME_PATTERN = re.compile(r"(w[a-z2-7]{16}-[0-9]{16})\.parquet")
_MEMORY = "512MB"
_BUFFER_BYTES = 256 * 1024
_LINE_BYTES_MAX = 1 << 20  # records have 16 KiB at most

_USAGE = (
    "STRUCT(cached_prompt_tokens BIGINT, completion_tokens BIGINT, energy_uj BIGINT, other MAP(VARCHAR, BIGINT), "
    "prompt_tokens BIGINT, reasoning_tokens BIGINT, source VARCHAR)"
)
_ATTEMPT = (
    "STRUCT(backend VARCHAR, ended_ns BIGINT, error VARCHAR, first_event_ns BIGINT, instance_family VARCHAR, "
    f"outcome VARCHAR, reconnected BOOLEAN, slot_ns BIGINT, started_ns BIGINT, status BIGINT, usage {_USAGE})"
)
_TEXT, _INT, _FLAG = "VARCHAR", "BIGINT", "BOOLEAN"

CALL_COLUMNS = {
    "call_id": _TEXT, "seq": _INT, "request_id": _TEXT, "trace_id": _TEXT,
    "tenant": _TEXT, "project": _TEXT, "key_id": _TEXT, "tags": "MAP(VARCHAR, VARCHAR)", "end_user": _TEXT,
    "operation": _TEXT, "model": _TEXT, "model_requested": _TEXT, "adapter": _TEXT, "stream": _FLAG,
    "outcome": _TEXT, "status": _INT, "error_code": _TEXT, "tier": _INT, "spill_reason": _TEXT,
    "fallback_reason": _TEXT, "backend": _TEXT, "instance_family": _TEXT, "neuron_version": _TEXT,
    "identity_source": _TEXT, "identity_digest": _TEXT, "simulated": _FLAG, "warm_state": _TEXT,
    "received_ns": _INT, "admitted_ns": _INT, "dispatched_ns": _INT, "first_token_ns": _INT,
    "last_token_ns": _INT, "backend_ended_ns": _INT, "finished_ns": _INT, "ttft_ns": _INT, "tpot_ns": _INT,
    "slots": _INT, "rate_card": _TEXT, "unpriced_reason": _TEXT,
}  # fmt: skip
"""Fields of the record that stand on each row of its call as they are."""

SERVING_COLUMNS = {
    "queue_wait_ns": "queue_wait_ns", "slot_ns": "slot_ns", "body_bytes": "body_bytes",
    "response_bytes": "response_bytes", "usage_source": "usage.source",
    "prompt_tokens": "usage.prompt_tokens", "cached_prompt_tokens": "usage.cached_prompt_tokens",
    "completion_tokens": "usage.completion_tokens", "reasoning_tokens": "usage.reasoning_tokens",
    "other_usage": "usage.other", "energy_uj": "usage.energy_uj", "cost_pusd": "cost_pusd",
}  # fmt: skip
"""Amounts of the call, on its serving row alone: column → where the record has it."""

ATTEMPT_COLUMNS = {
    "attempt_backend": "backend", "attempt_instance_family": "instance_family", "attempt_outcome": "outcome",
    "attempt_status": "status", "attempt_error": "error", "attempt_reconnected": "reconnected",
    "attempt_started_ns": "started_ns", "attempt_first_event_ns": "first_event_ns",
    "attempt_ended_ns": "ended_ns", "attempt_slot_ns": "slot_ns", "attempt_usage_source": "usage.source",
    "attempt_prompt_tokens": "usage.prompt_tokens",
    "attempt_cached_prompt_tokens": "usage.cached_prompt_tokens",
    "attempt_completion_tokens": "usage.completion_tokens",
    "attempt_reasoning_tokens": "usage.reasoning_tokens",
}  # fmt: skip
"""Of the row's attempt: column → its field."""

_NESTED = {
    "queue_wait_ns": _INT, "slot_ns": _INT, "body_bytes": _INT, "response_bytes": _INT, "cost_pusd": _INT,
    "usage": _USAGE, "attempts": f"{_ATTEMPT}[]",
    "instances": "STRUCT(id VARCHAR, type VARCHAR, units BIGINT, units_total BIGINT)[]",
}  # fmt: skip

COLUMNS = (
    "writer", *CALL_COLUMNS, "instance_ids", "instance_types", "instance_units", "instance_units_total",
    "attempt", "attempts", "is_serving", *SERVING_COLUMNS, *ATTEMPT_COLUMNS,
)  # fmt: skip
"""Names of all columns, in order; `day` besides, which stands in the path."""


class FactsError(Exception):
    """duckdb can't make a file; the message says of what, and why."""


class Maker:
    """Makes facts under one root. One at a time."""

    def __init__(self, root: pathlib.Path) -> None:
        """Raises OSError. What a crash left unfinished is removed, so that it is made again."""
        self.root = root
        self._made: set[str] = set()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._making = root / MAKING
        for name in unfinished(root):
            self.remove(name)
            shutil.rmtree(self._making / name)
        for path in root.glob(f"{DAY_PREFIX}*/*.parquet"):
            if match := _NAME_PATTERN.fullmatch(path.name):
                self._made.add(match[1])

    def missing(self, directory: Directory) -> list[int]:
        """First seqs of the segments that are sealed and have no facts yet; the salvage is one. Raises OSError."""
        found = [first for first, path in directory.segment_paths() if path.suffix == ".zst"]
        if (salvaged := directory.salvaged()) is not None:
            found.append(salvaged.first_seq)
        return [first for first in found if name(directory.writer, first) not in self._made]

    def make(self, directory: Directory, first_seq: int) -> int:
        """Make the facts of one segment, durably. Again is harmless. returns: how many calls they have.

        Raises OSError, FactsError.
        """
        import duckdb

        one = name(directory.writer, first_seq)
        making = self._making / one
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        calls, hours = making / "calls.ndjson", making / f"{one}.jsonl"
        count, at_ns = _write_lines(lines_of(directory, first_seq), calls, hours)
        try:
            self._write(directory.writer, calls, making / "days", _day(at_ns))
        except duckdb.Error as error:
            raise FactsError(f"no facts of {one}: {error}") from error
        if hours.stat().st_size:
            _put(hours, self.root / HOURS)
        for path in sorted((making / "days").glob("*/*.parquet")):
            _put(path, self.root / path.parent.name, f"{one}.parquet")
        sync_directory(self.root)
        shutil.rmtree(making)  # only now is it finished
        self._made.add(one)
        return count

    def files(self, writer: str, first_seq: int) -> list[pathlib.Path]:
        """The files of one segment, by day, and its lines of hours."""
        one = name(writer, first_seq)
        lines = self.root / HOURS / f"{one}.jsonl"
        days = sorted(self.root.glob(f"{DAY_PREFIX}*/{one}.parquet"))
        return [*days, lines] if days and lines.exists() else days

    def rows(self, path: pathlib.Path) -> int:
        """How many rows, or lines, a file has. Raises FactsError, OSError."""
        import duckdb

        if path.suffix == ".jsonl":
            return path.read_bytes().count(b"\n")
        query = "SELECT sum(num_rows)::BIGINT FROM parquet_file_metadata(?)"
        try:
            (found,) = self._duckdb().execute(query, [str(path)]).fetchall()
        except duckdb.Error as error:
            raise FactsError(f"{path} cannot be read: {error}") from error
        return int(found[0])

    def remove(self, one: str) -> None:
        """Delete the files of a segment, by its `name`, if there are any. Raises OSError."""
        for path in (*self.root.glob(f"{DAY_PREFIX}*/{one}.parquet"), self.root / HOURS / f"{one}.jsonl"):
            path.unlink(missing_ok=True)
        self._made.discard(one)

    def remove_all(self, writer: str) -> None:
        """Delete the files of all segments of a writer. Raises OSError."""
        for pattern in (f"{DAY_PREFIX}*/{writer}-*.parquet", f"{HOURS}/{writer}-*.jsonl"):
            for path in self.root.glob(pattern):
                path.unlink()
        self._made = {one for one in self._made if not one.startswith(f"{writer}-")}

    def _write(self, writer: str, calls: pathlib.Path, days: pathlib.Path, empty_day: str) -> None:
        """Put a file for each day of these calls under `days`. Most segments are of one day, and made in one go."""
        connection = self._duckdb()
        days.mkdir()
        whole = days.with_name("whole.parquet")
        rows = _rows(writer, calls)
        if not calls.stat().st_size:
            calls.write_bytes(b"{}\n")  # duckdb takes no empty file
            rows += " LIMIT 0"
        connection.execute(_copy(rows, whole))
        whole_day = f"finished_ns // {_NS_PER_DAY}"
        found = connection.execute(f"SELECT DISTINCT {whole_day} FROM {_quoted(whole)}").fetchall()
        for (day,) in found if len(found) > 1 else ():
            of_day = f"SELECT * FROM {_quoted(whole)} WHERE {whole_day} = {day}"
            connection.execute(_copy(of_day, _in_day(days, _day(day * _NS_PER_DAY))))
        if len(found) <= 1:
            whole.rename(_in_day(days, _day(found[0][0] * _NS_PER_DAY) if found else empty_day))

    def _duckdb(self) -> "duckdb.DuckDBPyConnection":
        import duckdb

        if self._connection is None:
            self._connection = duckdb.connect(
                config={
                    "threads": 1,  # the same rows give the same bytes, and workers come first
                    "memory_limit": _MEMORY,
                    "temp_directory": str(self._making),
                    "autoinstall_known_extensions": False,  # nothing is fetched
                    "autoload_known_extensions": False,
                }
            )
        return self._connection


def name(writer: str, first_seq: int) -> str:
    """What the files of a segment are called, without their suffix."""
    return f"{writer}-{first_seq:016d}"


def unfinished(root: pathlib.Path) -> set[str]:
    """Names of the segments whose facts are being made, or were when somebody died. Raises OSError."""
    try:
        return set(os.listdir(root / MAKING))
    except FileNotFoundError:
        return set()


def lines_of(directory: Directory, first_seq: int) -> Iterator[Linked]:
    """The lines of one segment, or of the salvage, as far as they chain to its first one and count. Raises OSError."""
    salvaged = directory.salvaged()
    for segment in [*directory.segments(), *([salvaged] if salvaged else [])]:
        if segment.first_seq == first_seq:
            lines = chain.linked(segment.blocks, chain.before(segment))
            return lines if salvaged is None or segment is salvaged else _until(lines, salvaged.first_seq)
    return iter(())


def _until(lines: Iterator[Linked], end_seq: int) -> Iterator[Linked]:
    """What the salvage did not count is torn."""
    return itertools.takewhile(lambda line: line.link.seq != end_seq, lines)


def _write_lines(lines: Iterable[Linked], calls: pathlib.Path, hours: pathlib.Path) -> tuple[int, int]:
    """Put the `call` lines into one file and those of HOUR_KINDS into another.

    returns: how many calls; when the first line, of any kind, was made (0: none).
    """
    count, at_ns = 0, 0
    with open(calls, "wb", buffering=_BUFFER_BYTES) as calls_file, open(hours, "wb") as hours_file:
        put = calls_file.write
        for data, link, _ in lines:
            at_ns = at_ns or link.at_ns
            if (kind := link.kind) == "call":
                put(data)
                put(b"\n")
                count += 1
            elif kind in HOUR_KINDS:
                hours_file.write(data + b"\n")
    return count, at_ns


def _put(path: pathlib.Path, directory: pathlib.Path, as_name: str | None = None) -> None:
    """Move a file there, durably."""
    directory.mkdir(exist_ok=True)
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    path.rename(directory / (as_name or path.name))
    sync_directory(directory)


def _in_day(days: pathlib.Path, day: str) -> pathlib.Path:
    directory = days / f"{DAY_PREFIX}{day}"
    directory.mkdir()
    return directory / "of-day.parquet"


def _copy(rows: str, path: pathlib.Path) -> str:
    return f"COPY ({rows}) TO {_quoted(path)} (FORMAT parquet, COMPRESSION zstd)"


def _rows(writer: str, calls: pathlib.Path) -> str:
    """The query: a row for each attempt of the calls in this file."""
    served = "list_position(list_reverse(list_transform(attempts, lambda a: a.backend)), backend)"
    columns = ", ".join(f"{_name(key)}: {_quoted(kind)}" for key, kind in (CALL_COLUMNS | _NESTED).items())
    select = [
        f"{_quoted(writer)} AS writer",
        *map(_name, CALL_COLUMNS),
        *(
            f"list_transform(instances, lambda i: i.{field}) AS {column}"
            for column, field in (
                ("instance_ids", "id"),
                ("instance_types", "type"),
                ("instance_units", "units"),
                ("instance_units_total", "units_total"),
            )
        ),
        "CASE WHEN len(attempts) > 0 THEN n END AS attempt",
        "len(attempts) AS attempts",
        "n = serving AS is_serving",
        *(f"CASE WHEN n = serving THEN {field} END AS {column}" for column, field in SERVING_COLUMNS.items()),
        *(f"c.attempts[n].{field} AS {column}" for column, field in ATTEMPT_COLUMNS.items()),
    ]
    return f"""
        WITH c AS (
            SELECT *, CASE
                WHEN len(attempts) = 0 THEN 1
                ELSE len(attempts) + 1 - coalesce(nullif({served}, 0), 1)
            END AS serving
            FROM read_ndjson({_quoted(calls)}, columns = {{{columns}}}, maximum_object_size = {_LINE_BYTES_MAX})
        )
        SELECT {", ".join(select)} FROM c, unnest(generate_series(1, greatest(len(attempts), 1))) AS u(n)
    """


def _name(key: str) -> str:
    return f'"{key}"'


def _quoted(text: object) -> str:
    return "'" + str(text).replace("'", "''") + "'"


def day_directory(at_ns: int) -> str:
    """Below which the calls stand that finished at this moment."""
    return DAY_PREFIX + _day(at_ns)


def _day(at_ns: int) -> str:
    return (datetime.date(1970, 1, 1) + datetime.timedelta(days=at_ns // _NS_PER_DAY)).isoformat()
