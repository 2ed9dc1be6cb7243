"""Journals as an auditor reads them: from the files, by the published format, with a chain check of its own."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

from tests.oracle import files
from tests.oracle.faults import Fault, Kind

Line = dict[str, Any]

ZEROS = "0" * 64
SALVAGE = "salvage.jsonl"

NEEDED = {
    "start": {"pid", "writer"},
    "admitted": {"call_id", "model", "request_id", "tenant"},
    "call": {"call_id", "cost_pusd", "finished_ns", "model", "outcome", "request_id", "tenant", "usage"},
}
"""Without one of these a line does not say what its kind says."""


@dataclasses.dataclass
class Writer:
    """One writer's directory. leaves: of each line; closed: it ends with a `stop`."""

    name: str
    lines: list[Line] = dataclasses.field(default_factory=list)
    leaves: list[str] = dataclasses.field(default_factory=list)
    faults: list[Fault] = dataclasses.field(default_factory=list)

    @property
    def closed(self) -> bool:
        return bool(self.lines) and self.lines[-1]["kind"] == "stop"

    def of(self, kind: str) -> list[Line]:
        return [line for line in self.lines if line["kind"] == kind]

    def fault(self, what: str) -> None:
        self.faults.append(Fault(Kind.CHAIN, f"{self.name} line {len(self.lines) + 1}", what))


def read(root: pathlib.Path) -> list[Writer]:
    """All writers' directories under `root`, by name."""
    return [read_one(path) for path in directories(root)]


def directories(root: pathlib.Path) -> list[pathlib.Path]:
    """Those that count: a hidden one was never finished."""
    return sorted(path for path in root.iterdir() if not path.name.startswith("."))


def leaf_of(line: bytes) -> str:
    """RFC 6962, section 2.1: SHA-256 of a zero byte and the line without its newline."""
    return hashlib.sha256(b"\0" + line).hexdigest()


def encode(line: Line) -> bytes:
    """A line's canonical bytes, without its newline."""
    return json.dumps(line, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def calls(writers: Iterable[Writer]) -> Iterator[Line]:
    """All call records."""
    return (line for writer in writers for line in writer.of("call"))


def read_one(path: pathlib.Path) -> Writer:
    """A writer's directory, live or closed."""
    writer = Writer(path.name)
    torn = good = b""  # good: of the last segment that has a line, the lines
    salvage = path / SALVAGE
    for segment in files.segments(path):
        data = files.read(segment)
        if segment == salvage:
            continue
        if torn or int(segment.name[:16]) != len(writer.lines) + 1:
            torn += data
        else:
            torn = take(writer, data)
            good = data[: len(data) - len(torn)] or good
    if salvage.exists():
        if b"\n" in torn and _is_refuted(writer, salvage.read_bytes()):
            del writer.lines[-1], writer.leaves[-1]
            torn = good[good.rfind(b"\n", 0, -1) + 1 :] + torn
        if rest := take(writer, salvage.read_bytes()):
            writer.fault(f"{len(rest)} bytes of the salvage do not continue the chain")
        _check_salvage(writer, torn.rstrip(b"\0"))
    elif b"\n" in torn:
        writer.fault("a whole line does not continue the chain")
    if writer.lines and (writer.lines[0]["kind"], writer.lines[0].get("writer")) != ("start", path.name):
        writer.fault("the first line is no `start` of this writer")
    return writer


def take(writer: Writer, data: bytes) -> bytes:
    """Read more lines of a writer as long as they continue the chain; what is left is returned."""
    while (end := data.find(b"\n")) >= 0:
        raw = data[:end]
        line = _line(raw)
        before = writer.leaves[-1] if writer.leaves else ZEROS
        if line is None or (line.get("seq"), line.get("prev")) != (len(writer.lines) + 1, before):
            return data
        if encode(line) != raw:
            writer.fault("not canonical")
        writer.lines.append(line)
        writer.leaves.append(leaf_of(raw))
        data = data[end + 1 :]
    return data


def _is_refuted(writer: Writer, salvage: bytes) -> bool:
    """Did the salvage not take the last line for one, behind which a whole one does not continue it?

    A line is proven by the one behind it. One that was altered may still read as JSON, and not as its kind.
    """
    first = _line(salvage.partition(b"\n")[0])
    return bool(writer.lines) and first is not None and first.get("seq") == len(writer.lines)


def _line(raw: bytes) -> Line | None:
    try:
        line = json.loads(raw, parse_float=_no_float)
    except ValueError:
        return None
    if not isinstance(line, dict) or not line.keys() >= NEEDED.get(line.get("kind", ""), set()):
        return None
    return line


def _no_float(text: str) -> float:
    raise ValueError(f"a float: {text}")


def _check_salvage(writer: Writer, torn: bytes) -> None:
    stop = writer.lines[-1] if writer.lines else {}
    lost = sum(line["outcome"] == "lost" for line in writer.of("call"))
    digest = "sha256:" + hashlib.sha256(torn).hexdigest() if torn else None
    says = [stop.get(name) for name in ("kind", "reason", "lost", "torn_bytes", "torn_digest")]
    if says != ["stop", "salvaged", lost, len(torn), digest]:
        writer.fault(f"the salvage ends with {says}, but {lost} calls are lost and {len(torn)} bytes torn")
