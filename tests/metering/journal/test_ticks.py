"""What a tick says, against what the lines before it say: so it can be asked up to when a journal is complete."""

import contextlib
import functools
import json
import pathlib
import random
import sys
from collections.abc import Iterator

import pytest

from metering.journal.recorder import Recorder
from tests.metering.journal.test_recorder import World, run
from tests.support import journals, noteoracle
from tests.support.gateway import ROOT
from tests.support.journals import AT_NS, WRITER

SEEDS = range(8)


def wrong_ticks(directory: pathlib.Path) -> list[tuple[int, str]]:
    """Ticks whose figures are not those of the lines before, by the lines alone: (seq, field)."""
    open_calls: dict[str, int] = {}
    wrong = []
    for line in map(json.loads, noteoracle.lines(directory)):
        if line["kind"] == "admitted":
            open_calls[line["call_id"]] = line["admitted_ns"]
        elif line["kind"] == "call":
            open_calls.pop(line["call_id"])
        elif line["kind"] == "tick":
            true = {
                "open_calls": len(open_calls),
                "oldest_admitted_ns": next(iter(open_calls.values()), None),
            }
            wrong += [(line["seq"], field) for field, value in true.items() if line[field] != value]
    return wrong


async def simulate(root: pathlib.Path, seed: int) -> int:
    """Calls that come and go, and ticks among them. returns: how many figures of ticks are wrong."""
    rng = random.Random(seed)
    w = World(root)
    await w.start()
    open_calls: list[str] = []
    for number in range(60):
        at_ns = AT_NS + number
        kind = rng.choice(["admitted", "admitted", "call", "tick"])
        if kind == "admitted":
            open_calls.append(f"{WRITER}-{number}")
            await w.append_all(journals.admitted(open_calls[-1], at_ns=at_ns))
        elif kind == "call" and open_calls:
            await w.append_all(journals.call(open_calls.pop(rng.randrange(len(open_calls))), at_ns=at_ns))
        else:
            before = w.recorder.seq
            w.recorder.note(w.recorder._make_tick)
            await w.until(lambda before=before: w.recorder.seq > before)
    for call_id in open_calls:
        await w.append_all(journals.call(call_id))
    await w.recorder.stop()
    return len(wrong_ticks(root / WRITER))


def simulated(root: pathlib.Path, seed: int) -> int:
    found: list[int] = []

    async def scenario() -> None:
        found.append(await simulate(root / str(seed), seed))

    run(scenario)
    return found[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_each_tick_says_what_is_open(tmp_path: pathlib.Path, seed: int) -> None:
    assert simulated(tmp_path, seed) == 0


@contextlib.contextmanager
def broken(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[None]:
    """With a break of tests/mutants, in this process."""
    with monkeypatch.context() as patched:
        patched.syspath_prepend(str(ROOT / "tests" / "mutants"))
        patched.setattr(Recorder, "_make_tick", Recorder._make_tick)  # is put back at the end
        import mutations

        mutations.MUTATIONS[name]()
        yield
    sys.modules.pop("mutations", None)


@pytest.mark.parametrize("name", ["tick_forgets_what_is_open", "tick_names_the_newest"])
def test_the_law_sees_a_tick_that_is_wrong(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with broken(monkeypatch, name):
        assert sum(map(functools.partial(simulated, tmp_path), SEEDS)) > 0
    assert simulated(tmp_path / "after", 0) == 0
