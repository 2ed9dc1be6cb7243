"""What a run found, for people (Markdown) and for programs (latest.json). Pure."""

from collections.abc import Mapping, Sequence

import msgspec

from tests.bench.figures import PROMISED, Bound, Figures, Table, Verdict, stream_kib
from tests.bench.samples import DIRECT, OURS
from tests.bench.scenarios import COMPARED

NOT_MEASURED = "not measured"
TIMES_LESS_MUST = 0.2
"""Promises of so small a ratio are told the other way round."""

Ratios = Mapping[str, Mapping[str, float]]
"""scenario → peer → ours ÷ theirs."""

COMPARED_TITLES = {
    "json": "per request, JSON",
    "paced": "per event, 100 streams at 20 ms",
    "unpaced": "per event, as fast as it goes",
}


class Idle(msgspec.Struct, frozen=True):
    """Memory of one kind of process of a target, before any load, in KiB."""

    rss_kib: int
    pss_kib: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run. versions: of what was measured; left_out: what was not, with the reason.

    missing_us: µs that were added to each request of ours; missing: the same by feature.
    ratios: scenario → peer → ours ÷ theirs, missing_us included; ratios_measured: without it.
    """

    date: str
    machine: dict[str, str]
    versions: dict[str, str]
    left_out: dict[str, str]
    repetitions: int
    missing_us: float
    missing: dict[str, float]
    ratios: dict[str, dict[str, float]]
    ratios_measured: dict[str, dict[str, float]]
    medians: dict[str, dict[str, Figures]]
    idle: dict[str, dict[str, Idle]]
    promises: tuple[Verdict, ...]
    records: int
    requests: int
    faults: tuple[str, ...] = ()


def markdown(result: Result) -> str:
    """All of it, as tables."""
    parts = [
        _heading(result),
        _cost(result.medians, result.missing),
        _ratios(result.ratios, result.ratios_measured),
        _by_role(result.medians),
        _latency(result.medians),
        _memory(result.medians, result.idle),
        _promises(result.promises),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def rows(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table, its columns aligned; nothing if it would be empty."""
    if not body:
        return ""
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]

    lines = [_line(head, widths), _rule(widths), *(_line(cells, widths) for cells in body)]
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """The first column is words, the others are figures, at the right."""
    padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
    return "| " + " | ".join([cells[0].ljust(widths[0]), *padded[1:]]) + " |"


def _rule(widths: Sequence[int]) -> str:
    first, *rest = ("-" * width for width in widths)
    return f"|-{first}-|" + "".join(f"-{dashes}:|" for dashes in rest)


def times(ratio: float, *, less: bool = False) -> str:
    """A ratio as people say it: 1.5 ×; or, where it is about being `less`, 30 × less."""
    return f"{1 / ratio:.3g} × less" if less else f"{ratio:.3g} ×"


def verdict(ratio: float, promised: Bound) -> str:
    """FAIL, PASS, or PASS and the goal too."""
    if ratio > promised.must:
        return "FAIL"
    return "goal" if promised.goal is not None and ratio <= promised.goal else "PASS"


def _heading(result: Result) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    lines = [
        f"{result.date}; {', '.join(result.machine.values())}; {result.repetitions} repetitions.",
        f"{versions}. {result.requests} requests to ours, {result.records} records in its journal.",
    ]
    lines += [f"Not measured: {name} ({reason})." for name, reason in result.left_out.items()]
    lines += [f"DOES NOT COUNT: {fault}" for fault in result.faults]
    return "\n".join(lines)


def _cost(table: Table, missing: Mapping[str, float]) -> str:
    compared = [name for name in COMPARED if name in table]
    head = ["CPU µs, median", *(COMPARED_TITLES[name] for name in compared), "spread %", "requests/s"]
    body = []
    for target in _targets(table, compared):
        found = [table[name].get(target) for name in compared]
        spread = max(one.spread for one in found if one is not None)
        json = table.get("json", {}).get(target)
        speed = f"{json.requests_per_s:,.0f}" if json else "–"
        body.append(
            [
                target,
                *(f"{one.measured_us:.2f}" if one else "–" for one in found),
                f"{100 * spread:.0f}",
                speed,
            ]
        )
        if target == OURS and missing:
            body.append(
                [f"{OURS} + missing", *(f"{one.total_us:.2f}" if one else "–" for one in found), "", ""]
            )
    if not body:
        return ""
    not_built = ", ".join(f"{feature} {us:g}" for feature, us in missing.items())
    note = f"\n\nmissing_us: {sum(missing.values()):g} a request ({not_built})" if missing else ""
    return rows(head, body) + note


def _ratios(ratios: Ratios, measured: Ratios) -> str:
    body = []
    for peer, promised in PROMISED.items():
        cells = [
            _cell(ratios[name][peer], measured[name][peer], promised[name])
            if peer in ratios.get(name, {})
            else NOT_MEASURED
            for name in COMPARED
        ]
        if set(cells) != {NOT_MEASURED}:
            body.append([peer, *cells])
    return rows(["ours ÷ theirs, missing included", *(COMPARED_TITLES[name] for name in COMPARED)], body)


def _cell(ratio: float, measured: float, promised: Bound) -> str:
    less = promised.must <= TIMES_LESS_MUST
    goal = f", goal {times(promised.goal)}" if promised.goal is not None else ""
    found = f"{times(ratio, less=less)} (measured {times(measured, less=less)})"
    return f"{found} {verdict(ratio, promised)}: must {times(promised.must, less=less)}{goal}"


def _by_role(table: Table) -> str:
    body = []
    for name in COMPARED:
        if OURS in table.get(name, {}):
            ours = table[name][OURS]
            body.append(
                [
                    COMPARED_TITLES[name],
                    *(
                        f"{ours.by_role.get(role, 0):.2f}"
                        for role in ("worker", "store", "supervisor", "clerk")
                    ),
                ]
            )
    return rows(["ours, µs by process", "worker", "store", "supervisor", "clerk"], body)


def _latency(table: Table) -> str:
    head = [
        "latency", "one hot connection: added p50 µs", "added p99 µs",
        "100 paced streams: TTFT p50 ms", "TTFT p99 ms",
    ]  # fmt: skip
    body = []
    for target in _targets(table, ("hot", "paced")):
        hot, direct = (table.get("hot", {}).get(name) for name in (target, DIRECT))
        paced = table.get("paced", {}).get(target)
        added = ["–", "–"]
        if hot and direct:
            p50, p99 = hot.latency_p50_us - direct.latency_p50_us, hot.latency_p99_us - direct.latency_p99_us
            added = [f"{p50:.0f}", f"{p99:.0f}"]
        ttft = [f"{paced.ttft_p50_us / 1e3:.1f}", f"{paced.ttft_p99_us / 1e3:.1f}"] if paced else ["–", "–"]
        body.append([target, *added, *ttft])
    return rows(head, body)


def _memory(table: Table, idle: Mapping[str, Mapping[str, Idle]]) -> str:
    head = ["memory", "idle: PSS MiB", "RSS MiB by process", "1,000 open streams: PSS MiB", "KiB a stream"]
    body = []
    for target, roles in idle.items():
        pss_mib = sum(one.pss_kib for one in roles.values()) / 1024
        by_role = ", ".join(f"{role} {one.rss_kib / 1024:.0f}" for role, one in roles.items())
        opened = table.get("open", {}).get(target)
        streams = [f"{opened.pss_max_kib / 1024:.0f}", f"{stream_kib(opened):.1f}"] if opened else ["–", "–"]
        body.append([target, f"{pss_mib:.0f}", by_role, *streams])
    return rows(head, body)


def _promises(promises: Sequence[Verdict]) -> str:
    body = [
        [one.promise, f"{one.value:.2f}", f"≤ {one.bound:g}", "PASS" if one.kept else "FAIL"]
        for one in promises
    ]
    return rows(["other promises", "ours", "must", ""], body)


def _targets(table: Table, scenarios: Sequence[str]) -> list[str]:
    """Who was measured in one of these; without `direct`, which has no process."""
    named = dict.fromkeys(target for name in scenarios for target in table.get(name, {}))
    return [target for target in named if target != DIRECT]
