"""A closer that is killed at any step, and two at once: what is there is whole, and is there once."""

import itertools
import pathlib

import pytest

from metering.archive.objects import LocalObjects
from metering.cost.close_manifest import Reason
from metering.cost.closes import Closes
from tests.support.archives import Killed, Killing
from tests.support.fleet import AT_NS, HOUR, MINUTE_NS, NS_PER_HOUR, Site, busy, registration
from tests.support.journals import Make, stop

HOURS = range(HOUR, HOUR + 2)
LATE_NS = AT_NS + 3 * NS_PER_HOUR
OTHER = "w" + "b" * 16


def two_hours() -> list[Make]:
    return [
        registration(AT_NS),
        *busy("w-1", AT_NS + 50 * MINUTE_NS, 20 * MINUTE_NS),  # over the full hour
        *busy("w-2", AT_NS + 80 * MINUTE_NS, 5 * MINUTE_NS, tenant="globex"),
        stop(at_ns=AT_NS + 2 * NS_PER_HOUR),
    ]


def contents(root: pathlib.Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in (root / "close").rglob("*")
        if path.is_file()
    }


def counting(site: Site) -> list[tuple[int, int, str]]:
    return [(one.hour, one.revision, one.rows.sha256) for one in site.closes.hours(HOURS)]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_closer_may_be_killed_at_any_step(tmp_path: pathlib.Path, after: bool) -> None:
    whole = Site(tmp_path / "whole")
    whole.journal(two_hours())
    whole.close(LATE_NS, HOURS)
    expected = counting(whole)
    assert len(expected) == 2
    for at in itertools.count(1):
        site = Site(tmp_path / str(at))
        site.journal(two_hours())
        objects = LocalObjects(site.root)
        site.closes = Closes(Killing(objects, at, after=after))
        try:
            site.close(LATE_NS, HOURS)
        except Killed:
            pass
        else:
            break
        site.closes = Closes(objects)
        for one in site.closes.hours(HOURS):
            assert len(list(site.closes.rows([one]))) == one.rows.count  # what counts is whole
        site.close(LATE_NS, HOURS)
        assert counting(site) == expected
        manifests = [path for path in contents(site.root) if path.endswith("manifest.json")]
        assert len(manifests) == 2  # and once
    assert at == 5  # two files an hour


def test_of_two_closers_of_one_archive_one_wins_each_hour(tmp_path: pathlib.Path) -> None:
    """Each has begun before the other has put anything."""
    site = Site(tmp_path)
    site.journal(two_hours())
    one, other = site.closing(LATE_NS, HOURS), site.closing(LATE_NS, HOURS)
    due = one.due(), other.due()
    made = list(one.close(due[0], site.told.append, site.root / "work"))
    lost = list(other.close(due[1], site.told.append, site.root / "work"))
    assert ([one.hour for one in made], lost) == (list(HOURS), [])
    assert [len(site.closes.revisions(hour)) for hour in HOURS] == [1, 1]


def test_a_lost_race_over_a_revision_is_looked_at_again(tmp_path: pathlib.Path) -> None:
    site = Site(tmp_path)
    site.journal(two_hours())
    site.close(LATE_NS, HOURS)
    site.journal([*busy("v-1", AT_NS, MINUTE_NS, tenant="late"), stop(at_ns=AT_NS + 1)], writer=OTHER)
    one, other = site.closing(LATE_NS, HOURS), site.closing(LATE_NS, HOURS)
    due = one.due(), other.due()
    assert [(work.hour, work.reason) for work in due[0]] == [(HOUR, Reason.LATE)]
    assert len(list(one.close(due[0], site.told.append, site.root / "work"))) == 1
    assert list(other.close(due[1], site.told.append, site.root / "work")) == []
    assert site.close(LATE_NS, HOURS) == []


def test_a_close_that_overwrites_is_seen(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The law broken: what is put takes the place of what is there."""

    def overwrite(objects: LocalObjects, path: str, data: bytes) -> None:
        objects.delete(path)
        put_new(objects, path, data)

    put_new = LocalObjects.put_new
    monkeypatch.setattr(LocalObjects, "put_new", overwrite)
    with pytest.raises(AssertionError):
        test_of_two_closers_of_one_archive_one_wins_each_hour(tmp_path)
