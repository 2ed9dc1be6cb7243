"""Paid minutes, minute by minute: what `registration` lines say, from the words of deploy/reference/cost.md.

A line is a plain dict: writer, seq, at, instance, backend, state, source, billed, launched, terminated; times are
minutes since 1970. A writer's lines are in the order of time here.
"""

import datetime
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

Line = Mapping[str, Any]

WEEKS: dict[str, Callable[[datetime.datetime], bool]] = {
    "always": lambda _: True,
    "mon-fri 07:00-19:00": lambda at: at.weekday() < 5 and 7 <= at.hour < 19,
    "sat,sun 22:00-06:00": lambda at: (
        (at.weekday() in (5, 6) and at.hour >= 22) or (at.weekday() in (6, 0) and at.hour < 6)
    ),
}
HELD = {"agent": 60, "config": 7 * 24 * 60}


class Minute(NamedTuple):
    """backends: that own their units; ready: that can serve."""

    paid: bool
    backends: frozenset[str]
    ready: frozenset[str]


def minutes(lines: Iterable[Line], last: Mapping[str, int], period: range) -> dict[tuple[str, int], Minute]:
    """(instance, minute) → what it was, where it was paid for."""
    lines = sorted(lines, key=lambda line: (line["at"], line["writer"], line["seq"]))
    found = {}
    for instance in {line["instance"] for line in lines}:
        own = [line for line in lines if line["instance"] == instance and line["state"] != "gone"]
        all_own = [line for line in lines if line["instance"] == instance]
        if not own:
            continue
        horizon = range(own[0]["at"], max(period.stop, own[-1]["at"]) + 1)
        in_force = {at: _in_force(all_own, last, at) for at in horizon}
        runs = _runs(own, in_force, horizon)
        for at in period:
            paid = any(run["from"] <= at < run["to"] for run in runs) and _scheduled(own, at)
            early = {
                line["backend"]
                for run in runs
                for line in own
                if 0 <= line["at"] - run["first"] <= 1 and run["begin"] <= at < line["at"]
            }
            now = in_force.get(at, [])
            owners = frozenset(line["backend"] for line in now)
            ready = frozenset(line["backend"] for line in now if line["state"] in ("ready", "draining"))
            if paid:
                found[instance, at] = Minute(paid, owners | early, ready)
    return found


def _in_force(lines: list[Line], last: Mapping[str, int], at: int) -> list[Line]:
    """The words that hold at this minute; those that say `gone` are left out."""
    found = []
    for backend in {line["backend"] for line in lines}:
        about = [line for line in lines if line["backend"] == backend]
        found += [line for line in _heard(about, last, at) if line["state"] != "gone"]
    return found


def _heard(about: list[Line], last: Mapping[str, int], at: int) -> list[Line]:
    living, ended = [], []
    for writer in {line["writer"] for line in about}:
        own = [line for line in about if line["writer"] == writer]
        end = max(last.get(writer, 0), max(line["at"] for line in own))
        said = [line for line in own if line["at"] <= at]
        if said and at < end:
            living.append(max(said, key=lambda line: line["seq"]))
        elif at >= end:
            ended.append((end, writer, max(own, key=lambda line: line["seq"])))
    if living or not ended:
        return living
    end, writer, final = max(ended, key=lambda one: one[:2])
    anew = any(line["writer"] != writer and end < line["at"] <= at for line in about)
    return [final] if at < end + HELD[final["source"]] and not anew else []


def _runs(own: list[Line], in_force: Mapping[int, list[Line]], horizon: range) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []
    for line in own:
        run = runs[-1] if runs else None
        if run is None or _end(run, in_force, horizon) < line["at"] or _anew(run, line):
            runs.append({"first": line["at"], "launched": None, "terminated": None, "lines": []})
        runs[-1]["lines"].append(line)
        for what in ("launched", "terminated"):
            if line[what] is not None:
                runs[-1][what] = line[what]
    for run in runs:
        ended = horizon.stop if run["terminated"] is None else run["terminated"]
        run["to"] = min(_end(run, in_force, horizon), ended)
        run["from"] = run["first"] if run["launched"] is None else run["launched"]
    for before, run in zip([None, *runs], runs, strict=False):
        is_back = before is not None and run["from"] < before["to"]
        run["begin"] = run["first"] if is_back else run["from"]
    return runs


def _end(run: Mapping[str, Any], in_force: Mapping[int, list[Line]], horizon: range) -> int:
    """The first minute behind the last one in which any of the run's words holds."""
    held = [at for at in horizon if any(one is line for one in in_force[at] for line in run["lines"])]
    return max([run["first"], *(at + 1 for at in held)])


def _anew(run: Mapping[str, Any], line: Line) -> bool:
    """Was the instance ended, and does this line say that it runs again?"""
    if run["terminated"] is None:
        return False
    if line["launched"] is not None and line["launched"] >= run["terminated"]:
        return True
    answers = line["state"] in ("ready", "draining", "compiling", "warming")
    return answers and line["terminated"] is None and line["at"] >= run["terminated"]


def _scheduled(own: list[Line], at: int) -> bool:
    said = [line for line in own if line["at"] <= at]
    billed = (said[-1] if said else own[0])["billed"]
    return WEEKS[billed](datetime.datetime(1970, 1, 1) + datetime.timedelta(minutes=at))
