"""No counter ever falls, and in the end all equal the journals, however the writers came and went."""

import pathlib
import random
import tempfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metering.journal.journal import Directory
from metering.pages import families, gone, metrics, pages
from metering.pages.families import Totals
from metering.pages.metrics import Scrape
from tests.support.scrape_simulation import Simulation

SEEDS_MAX = 60
"""A broken rule is seen within so many rounds."""


def simulate(seed: int, steps: int = 30) -> None:
    with tempfile.TemporaryDirectory() as state_dir:
        Simulation(pathlib.Path(state_dir), random.Random(seed)).run(steps)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_counters_never_fall_and_end_as_the_journals(seed: int) -> None:
    simulate(seed)


def page_without_its_tail(pages_dir: pathlib.Path, directory: Directory, _archive: object) -> Totals:
    try:
        return families.counters(pages.read(pages.path_of(pages_dir, directory.writer)).totals)
    except (FileNotFoundError, pages.PageError):
        return gone._fold(directory, None)


def tail_from_the_wrong_line(pages_dir: pathlib.Path, directory: Directory, _archive: object) -> Totals:
    """Counts the page's last line again."""
    totals = page_without_its_tail(pages_dir, directory, None)
    try:
        seq = pages.read(pages.path_of(pages_dir, directory.writer)).seq
    except (FileNotFoundError, pages.PageError):
        return totals
    tail = families.Families()
    for line, _, _ in directory.records(max(0, seq - 1)):
        tail.observe(line)
    families.merge(totals, tail.cells.totals())
    return totals


def test_a_retirement_that_forgets_the_tail_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gone, "counted", page_without_its_tail)
    assert_seen()


def test_a_retirement_that_counts_a_line_twice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gone, "counted", tail_from_the_wrong_line)
    assert_seen()


def scrape_of(
    pages_dir: pathlib.Path, *, gone_first: bool = False, twice: bool = False, retry: bool = True
) -> Scrape:
    """A scrape with one rule left out."""
    while True:
        try:
            if gone_first:
                dead, listed = gone.load(pages_dir), pages.files(pages_dir)
            else:
                listed, dead = pages.files(pages_dir), gone.load(pages_dir)
            totals = dict(dead.totals)
            for path in listed:
                if path.stem not in dead.writers or twice:
                    families.merge(totals, families.counters(pages.read(path).totals))
            return Scrape(totals, {})
        except FileNotFoundError:
            if not retry:
                return Scrape(totals, {})


@pytest.mark.parametrize(
    "rule",
    [
        {"gone_first": True},  # a writer retired between the two is in neither
        {"twice": True},  # a writer that is in both is summed twice
        {"retry": False},  # a page that vanished is left out
    ],
    ids=lambda rule: next(iter(rule)),
)
def test_a_scrape_that_leaves_out_a_rule_is_seen(
    rule: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "scrape", lambda pages_dir: scrape_of(pages_dir, **rule))
    assert_seen()


def assert_seen() -> None:
    for seed in range(SEEDS_MAX):
        try:
            simulate(seed)
        except AssertionError:
            return
    pytest.fail("the broken rule went unseen")


def test_the_harness_of_the_broken_rules_is_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all rules in place it passes: what is seen above is the rule that was left out."""
    monkeypatch.setattr(metrics, "scrape", scrape_of)
    for seed in range(10):
        simulate(seed)
