"""What a run found, for people (Markdown) and for programs (latest.json). Pure."""

from collections.abc import Mapping, Sequence

import msgspec

from tests.bench import figures as fig
from tests.bench.figures import Figures, Table
from tests.bench.ours import NAME as OURS
from tests.bench.scenarios import COMPARED, SCENARIOS

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
    promises: tuple[fig.Verdict, ...]
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

    def line(cells: Sequence[str]) -> str:
        first, *rest = (
            cell.ljust(width) if not index else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "| " + " | ".join([first, *rest]) + " |"

    rule = (
        "|"
        + "|".join("-" * (width + 1) + ("-" if not index else ":") for index, width in enumerate(widths))
        + "|"
    )
    return "\n".join([line(head), rule, *map(line, body)])


def bound(limit: float) -> str:
    """A bound on a ratio as people say it: ≤ 1.5 ×, or 30 × less."""
    return f"≤ {limit:g} ×" if limit >= 0.1 and limit not in (1 / 5,) else f"{1 / limit:.0f} × less"


def times(ratio: float) -> str:
    return f"{ratio:.2f} ×" if ratio >= 0.1 else f"{1 / ratio:.0f} × less"


def verdict(ratio: float, promised: fig.Bound) -> str:
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
    head = [
        "CPU µs, median",
        *(COMPARED_TITLES[name] for name in COMPARED if name in table),
        "spread %",
        "requests/s",
    ]
    body = []
    for target in _targets(table):
        cells = [
            f"{_figure(table, name, target, 'measured_us'):.2f}" if target in table[name] else "–"
            for name in COMPARED
            if name in table
        ]
        spreads = [table[name][target].spread for name in COMPARED if target in table.get(name, {})]
        speed = f"{table['json'][target].requests_per_s:,.0f}" if target in table.get("json", {}) else "–"
        body.append([target, *cells, f"{100 * max(spreads, default=0):.0f}", speed])
        if target == OURS and missing:
            totals = [
                f"{_figure(table, name, target, 'total_us'):.2f}" if target in table[name] else "–"
                for name in COMPARED
                if name in table
            ]
            body.append([f"{OURS} + missing", *totals, "", ""])
    not_built = ", ".join(f"{feature} {us:g}" for feature, us in missing.items())
    note = f"\n\nmissing_us: {sum(missing.values()):g} a request ({not_built})" if missing else ""
    return rows(head, body) + note if body else ""


def _ratios(ratios: Mapping[str, Mapping[str, float]], measured: Mapping[str, Mapping[str, float]]) -> str:
    body = []
    for peer, promised in fig.PROMISED.items():
        cells = [
            _cell(ratios[name][peer], measured[name][peer], promised[name])
            if peer in ratios.get(name, {})
            else "not measured"
            for name in COMPARED
        ]
        if any(cell != "not measured" for cell in cells):
            body.append([peer, *cells])
    return rows(["ours ÷ theirs, missing included", *(COMPARED_TITLES[name] for name in COMPARED)], body)


def _cell(ratio: float, measured: float, promised: fig.Bound) -> str:
    goal = f", goal {bound(promised.goal)}" if promised.goal is not None else ""
    return f"{times(ratio)} (measured {times(measured)}) {verdict(ratio, promised)}: must {bound(promised.must)}{goal}"


def _by_role(table: Table) -> str:
    body = []
    for name in COMPARED:
        if OURS in table.get(name, {}):
            ours = table[name][OURS]
            body.append(
                [
                    COMPARED_TITLES[name],
                    *(f"{ours.by_role.get(role, 0):.2f}" for role in ("worker", "store", "supervisor")),
                ]
            )
    return rows(["ours, µs by process", "worker", "store", "supervisor"], body)


def _latency(table: Table) -> str:
    hot, paced = table.get("hot", {}), table.get("paced", {})
    direct = hot.get("direct")
    body = []
    for target in _targets({name: table[name] for name in ("hot", "paced") if name in table}):
        added = ["–", "–"]
        if direct is not None and target in hot:
            added = [
                f"{hot[target].latency_p50_us - direct.latency_p50_us:.0f}",
                f"{hot[target].latency_p99_us - direct.latency_p99_us:.0f}",
            ]
        ttft = ["–", "–"]
        if target in paced:
            ttft = [f"{paced[target].ttft_p50_us / 1e3:.1f}", f"{paced[target].ttft_p99_us / 1e3:.1f}"]
        body.append([target, *added, *ttft])
    return rows(
        [
            "latency",
            "one hot connection: added p50 µs",
            "added p99 µs",
            "100 paced streams: TTFT p50 ms",
            "TTFT p99 ms",
        ],
        body,
    )


def _memory(table: Table, idle: Mapping[str, Mapping[str, Idle]]) -> str:
    body = []
    opened = table.get("open", {})
    for target, roles in idle.items():
        cells = [
            f"{sum(one.pss_kib for one in roles.values()) / 1024:.0f}",
            ", ".join(f"{role} {one.rss_kib / 1024:.0f}" for role, one in roles.items()),
        ]
        if target in opened:
            one = opened[target]
            grown = (one.pss_max_kib - one.pss_before_kib) / SCENARIOS["open"].connections
            cells += [f"{one.pss_max_kib / 1024:.0f}", f"{grown:.1f}"]
        else:
            cells += ["–", "–"]
        body.append([target, *cells])
    return rows(
        ["memory", "idle: PSS MiB", "RSS MiB by process", "1,000 open streams: PSS MiB", "KiB a stream"], body
    )


def _promises(promises: Sequence[fig.Verdict]) -> str:
    body = [
        [one.promise, f"{one.value:.2f}", f"≤ {one.bound:g}", "PASS" if one.kept else "FAIL"]
        for one in promises
    ]
    return rows(["other promises", "ours", "must", ""], body)


def _targets(table: Table) -> list[str]:
    """In the order of the first scenario that has them; without `direct`, which has no process."""
    return [
        name for name in dict.fromkeys(target for row in table.values() for target in row) if name != "direct"
    ]


def _figure(table: Table, scenario: str, target: str, field: str) -> float:
    return float(getattr(table[scenario][target], field))
