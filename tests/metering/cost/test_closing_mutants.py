"""The laws of the close, broken one by one: the test that holds each must fail."""

import pathlib
from collections.abc import Callable

import pytest

from metering.cost import closing
from metering.cost.close_hour import Terms
from metering.cost.close_manifest import Manifest, Reason
from metering.cost.close_sources import Seen, Sources
from metering.cost.closing import Closing
from tests.metering.cost import test_close_sources, test_closing
from tests.support.fleet import Site

Break = Callable[[pytest.MonkeyPatch], None]
Law = Callable[[Site, pathlib.Path], None]


def reads_twice(patch: pytest.MonkeyPatch) -> None:
    """A segment that has facts, and is also read as if it had none."""
    patch.setattr(Sources, "_is_made", lambda *_: False)


def closes_too_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Seen, "has_told", lambda seen, hour: True)


def prices_anew(patch: pytest.MonkeyPatch) -> None:
    def now(before: Manifest, rows: object, terms: Terms) -> Terms:
        return terms

    patch.setattr(closing, "_terms_of", now)


def knows_less_and_does_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Closing, "_more_is_known", lambda run, before: Reason.LATE)


def forgets_the_bill(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(closing, "_at_bill", lambda rows, before: rows)


BROKEN: list[tuple[Break, Law]] = [
    (
        reads_twice,
        lambda _, path: test_close_sources.test_segments_with_facts_and_without_them_count_once(path, 3),
    ),
    (closes_too_early, lambda site, _: test_closing.test_an_hour_waits_for_who_has_not_told_all(site)),
    (prices_anew, lambda site, _: test_closing.test_late_records_make_a_revision_at_the_old_price(site)),
    (knows_less_and_does_it, test_closing.test_who_has_read_less_makes_no_revision),
    (forgets_the_bill, lambda site, _: test_closing.test_costs_of_a_bill_stay_and_are_split_anew(site)),
]


@pytest.mark.parametrize(("break_it", "law"), BROKEN, ids=lambda one: getattr(one, "__name__", ""))
def test_a_law_that_is_broken_is_seen(
    break_it: Break, law: Law, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    law(Site(tmp_path / "whole"), tmp_path / "whole")
    break_it(monkeypatch)
    with pytest.raises(AssertionError):
        law(Site(tmp_path / "broken"), tmp_path / "broken")
