"""A file of facts with the columns that a close reads, from plain values."""

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import duckdb

COLUMNS = {
    "tenant": "VARCHAR", "project": "VARCHAR", "model": "VARCHAR", "operation": "VARCHAR",
    "tags": "MAP(VARCHAR, VARCHAR)", "backend": "VARCHAR", "instance_family": "VARCHAR", "simulated": "BOOLEAN",
    "finished_ns": "BIGINT", "is_serving": "BOOLEAN", "prompt_tokens": "BIGINT", "cached_prompt_tokens": "BIGINT",
    "completion_tokens": "BIGINT", "cost_pusd": "BIGINT", "attempt_backend": "VARCHAR",
    "attempt_started_ns": "BIGINT", "attempt_ended_ns": "BIGINT", "attempt_slot_ns": "BIGINT",
    "attempt_prompt_tokens": "BIGINT", "attempt_cached_prompt_tokens": "BIGINT",
    "attempt_completion_tokens": "BIGINT",
}  # fmt: skip


def write(rows: Iterable[Mapping[str, Any]], path: pathlib.Path) -> pathlib.Path:
    """What a row lacks is null."""
    lines = path.with_suffix(".ndjson")
    lines.write_text("".join(json.dumps(dict(row)) + "\n" for row in rows))
    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in COLUMNS.items())
    duckdb.sql(f"SELECT * FROM read_ndjson('{lines}', columns = {{{columns}}})").write_parquet(str(path))
    return path
