"""What facts say of hours: what SQL sums is what plain Python counts, nanosecond by nanosecond where time is short."""

import collections
import itertools
import pathlib
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metering.archive.facts import FactsError
from metering.cost.close_usage import UsageReader
from metering.cost.hour_facts import Busy, Piece, Ready, Used
from metering.units import NS_PER_HOUR
from tests.support import factfile

HOUR = 490_896
START_NS = HOUR * NS_PER_HOUR
STEP_NS = NS_PER_HOUR // 6  # times lie on a coarse grid, so that ties and full hours come up
HOURS = range(HOUR, HOUR + 3)


class Attempt(NamedTuple):
    """One row of the facts; times in steps since START_NS."""

    backend: str | None
    serving: bool
    served: bool
    tenant: str
    start: int
    length: int
    finished: int  # steps behind its end
    tokens: int

    def row(self) -> dict[str, Any]:
        end_ns = START_NS + (self.start + self.length) * STEP_NS
        attempt = {
            "attempt_backend": self.backend,
            "attempt_started_ns": end_ns - self.length * STEP_NS,
            "attempt_ended_ns": end_ns,
            "attempt_slot_ns": self.length * STEP_NS,
            "attempt_prompt_tokens": self.tokens,
        }
        return {
            "tenant": self.tenant,
            "model": "llama",
            "operation": "chat",
            "tags": {"a": self.tenant},
            "backend": self.backend if self.served else None,
            "finished_ns": end_ns + self.finished * STEP_NS,
            "is_serving": self.serving,
            **({"prompt_tokens": 2 * self.tokens, "cost_pusd": self.tokens or None} if self.serving else {}),
            **(attempt if self.backend else {}),
        }


ATTEMPTS = st.builds(
    Attempt,
    backend=st.sampled_from(["a", "b", None]),
    serving=st.booleans(),
    served=st.booleans(),
    tenant=st.sampled_from(["acme", "globex"]),
    start=st.integers(-4, 20),
    length=st.integers(0, 8),
    finished=st.integers(0, 3),
    tokens=st.integers(0, 5),
).map(lambda one: one if one.backend else one._replace(serving=True, served=False))
CUTS = st.dictionaries(st.sampled_from([("a", hour) for hour in HOURS]), st.integers(0, 5), max_size=3)
READY = st.dictionaries(
    st.sampled_from([(backend, hour) for backend in "ab" for hour in HOURS]),
    st.sets(st.integers(0, 5), max_size=6),
)


def pieces_of(cuts: dict[tuple[str, int], int]) -> list[Piece]:
    """0: the hour is one piece; n: it is cut behind n steps."""
    found = []
    for (backend, hour), cut in cuts.items():
        edges = sorted({0, cut, 6})
        for number, (low, high) in enumerate(itertools.pairwise(edges)):
            base_ns = hour * NS_PER_HOUR
            found.append(Piece(backend, hour, number, base_ns + low * STEP_NS, base_ns + high * STEP_NS))
    return found


def piece_at(pieces: list[Piece], backend: str | None, at_ns: int) -> int:
    return next((p.number for p in pieces if p.backend == backend and p.from_ns <= at_ns < p.to_ns), 0)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(ATTEMPTS, max_size=12), CUTS, READY)
def test_sql_sums_what_plain_python_counts(
    tmp_path: pathlib.Path,
    attempts: list[Attempt],
    cuts: dict[tuple[str, int], int],
    readies: dict[tuple[str, int], set[int]],
) -> None:
    pieces = pieces_of(cuts)
    ready = [
        Ready(backend, hour, hour * NS_PER_HOUR + n * STEP_NS, hour * NS_PER_HOUR + (n + 1) * STEP_NS)
        for (backend, hour), steps in readies.items()
        for n in steps
    ]
    files = [factfile.write([one.row() for one in attempts], tmp_path / "facts.parquet")] if attempts else []
    with UsageReader(files, HOURS, pieces, ready, tmp_path) as reader:
        found = list(reader.by_hour())
    slot: collections.Counter[Any] = collections.Counter()
    amounts: collections.Counter[Any] = collections.Counter()
    busy_steps: set[Any] = set()
    for one in attempts:
        served = one.serving and one.served and one.backend is not None
        key = (one.backend, served, one.tenant)
        for step in range(one.start, one.start + one.length) if one.backend else ():
            at_ns = START_NS + step * STEP_NS
            where = (at_ns // NS_PER_HOUR, piece_at(pieces, one.backend, at_ns))
            slot[(*where, *key)] += STEP_NS
            busy_steps.add((*where, one.backend, step))
        end_ns = START_NS + (one.start + one.length) * STEP_NS
        at_ns = end_ns + one.finished * STEP_NS if one.serving else end_ns
        where = (at_ns // NS_PER_HOUR, piece_at(pieces, one.backend, at_ns))
        amounts[(*where, *key, "calls")] += one.serving
        amounts[(*where, *key, "prompt_tokens")] += 2 * one.tokens * one.serving
        amounts[(*where, *key, "estimated_pusd")] += one.tokens * one.serving
        amounts[(*where, *key, "unpriced_calls")] += one.serving and not one.tokens
        amounts[(*where, *key, "work_prompt_tokens")] += one.tokens * (2 if one.serving else 1)
    used = [one for hour in found for one in hour.used]
    for name in ("calls", "prompt_tokens", "estimated_pusd", "unpriced_calls", "work_prompt_tokens"):
        assert {
            (one.hour, one.piece, one.backend, one.served, one.tenant): getattr(one, name)
            for one in used
            if getattr(one, name)
        } == {key[:-1]: n for key, n in amounts.items() if key[-1] == name and n and key[0] in HOURS}
    assert {
        (one.hour, one.piece, one.backend, one.served, one.tenant): one.slot_ns for one in used if one.slot_ns
    } == {key: n for key, n in slot.items() if key[0] in HOURS}
    assert all(one.tags == {"a": one.tenant} for one in used)
    busy: collections.Counter[Any] = collections.Counter()
    busy_ready: collections.Counter[Any] = collections.Counter()
    for hour, piece, backend, step in busy_steps:
        if hour in HOURS:
            busy[hour, backend, piece] += STEP_NS
            busy_ready[hour, backend, piece] += STEP_NS * (step % 6 in readies.get((backend, hour), ()))
    has_pieces = {(p.backend, p.hour) for p in pieces}
    assert {(b.hour, b.backend, b.piece): b.busy_ns for hour in found for b in hour.busy} == busy
    for one in (b for hour in found for b in hour.busy):
        if (one.backend, one.hour) in has_pieces:  # of others nobody asks how ready they were
            assert one.ready_ns == busy_ready[one.hour, one.backend, one.piece]


def test_no_facts_and_wrong_ones(tmp_path: pathlib.Path) -> None:
    with UsageReader([], HOURS, [], [], tmp_path) as reader:
        assert list(reader.by_hour()) == []
    (tmp_path / "no.parquet").write_bytes(b"none")
    with pytest.raises(FactsError, match=r"facts cannot be read: .*no\.parquet"):
        UsageReader([tmp_path / "no.parquet"], HOURS, [], [], tmp_path)


def test_the_rows_are_named(tmp_path: pathlib.Path) -> None:
    row = Attempt("a", True, True, "acme", 0, 6, 0, 1).row()
    with UsageReader([factfile.write([row], tmp_path / "f.parquet")], HOURS, [], [], tmp_path) as reader:
        first, second = reader.by_hour()
    assert isinstance(first.used[0], Used)
    assert first.busy == [Busy(HOUR, "a", 0, NS_PER_HOUR, NS_PER_HOUR)]
    assert (second.used[0].calls, second.busy) == (1, [])
